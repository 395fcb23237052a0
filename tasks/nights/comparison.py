"""Compares a night's challenger with the champion on the newest day, exactly or through a private release."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import numpy as np

from dp_core.evaluation.calibration import calibration
from dp_core.evaluation.paired import compare
from dp_core.evaluation.private_comparison import comparison_noise_multiplier, gaussian_release, private_comparison
from dp_core.training.losses import OBJECTIVES
from tasks.config.loading import Config, load_config
from tasks.config.nightly import Nightly
from tasks.data.prepared import Prepared, open_prepared
from tasks.days.delivered import look
from tasks.nights.champions import champion_for
from tasks.nights.deciding import Comparison
from tasks.nights.ledger_key import check_mark
from tasks.nights.record import ChampionOf, Night, NightEnded, night_folder
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json, short_hash, write_json
from tasks.serving.registry import local_model
from tasks.serving.released import ReleasedModel
from tasks.serving.scoring import predict_files


def evaluation_mechanism(nightly: Nightly, prepared: Prepared) -> dict[str, Any]:
    """Returns what a private comparison costs the newest day's examples, for the ledger."""
    return gaussian_release(_noise_multiplier(nightly, prepared.splits["test"]["rows"]))


def compare_on_newest_day(config: Config, night: Night) -> Comparison:
    """Returns how the challenger and the champion do on the rows of the newest day that chose no settings.

    Both models read the raw rows, each with its own vocabulary. A private comparison is made once for an entry of the
    ledger: after a crash, the one that was made is returned, because another would be another release.
    """
    nightly = config.night(night["name"])
    if not nightly.private_evaluation:
        return _compared(config, night)
    made = _made(night)
    made.parent.mkdir(parents=True, exist_ok=True)
    # The night may run in two processes at once.
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            check_mark(night)
            write_json(made, {"champion": night["champion"], "comparison": _compared(config, night)})
        return read_json(made)["comparison"]


def judged_against(night: Night) -> ChampionOf | None:
    """Returns the champion that a challenger is compared with; that of the private release if it was made."""
    if load_config().night(night["name"]).private_evaluation and _made(night).exists():
        return read_json(_made(night))["champion"]
    return champion_for(night["name"], night["day"])


def _made(night: Night) -> Path:
    """Returns the file of a private comparison: it belongs to what the ledger was charged for."""
    return night_folder(night["name"], night["day"]) / f"private_comparison_{short_hash(night['ledger_key'])}.json"


def _compared(config: Config, night: Night) -> Comparison:
    nightly = config.night(night["name"])
    rows = open_prepared(Path(night["prepared"])).splits["test"]["rows"]
    challenger, labels = _predictions(config, night, night["version"], rows)
    champion = None
    if night["champion"] is not None:
        champion, _ = _predictions(config, night, night["champion"]["version"], rows)
    if nightly.private_evaluation:
        return _private(nightly, challenger, champion, labels)
    try:
        return _exact(nightly, challenger, champion, labels)
    except ValueError as error:  # too few rows of a class, or predictions that are not finite
        raise NightEnded(
            "stopped", f"night {night['day']} was stopped: its models cannot be compared, {error}. The champion stays"
        ) from None


def _predictions(config: Config, night: Night, version: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a version's logits for the last rows of the newest day, and their labels."""
    nightly = config.night(night["name"])
    day, found = night["day"], look(config, nightly.dataset, night["day"])
    if found.state != "delivered":
        raise UserError(f"the data of {day} is gone: deliver it again, and run the night again")
    if found.contents != night["contents"][day]:
        raise NightEnded(
            "stopped",
            f"night {day} was stopped: the data of {day} was delivered again with other contents after the night had "
            "prepared it, so that its models cannot be judged on the rows that were checked. The champion stays. Run "
            "it again",
        )
    model = ReleasedModel.load(local_model(f"{night['name']}/{version}"))
    scores = predict_files(model, list(found.files))
    return scores.logits[-rows:], scores.labels[nightly.task][-rows:]


def _exact(nightly: Nightly, challenger: np.ndarray, champion: np.ndarray | None, labels: np.ndarray) -> Comparison:
    found: Comparison = {
        "challenger_loss": OBJECTIVES[nightly.task].reported_loss(challenger, labels),
        "champion_loss": None,
        "difference": None,
        "low": None,
        "high": None,
        "verdict": None,
        "challenger_calibration": calibration(nightly.task, challenger, labels).ratio,
        "champion_calibration": None,
        "private": False,
        "rows": len(labels),
    }
    if champion is None:
        return found
    paired = compare(nightly.task, challenger, champion, labels)
    return {
        **found,
        "champion_loss": paired.champion,
        "difference": paired.difference,
        "low": paired.interval[0],
        "high": paired.interval[1],
        "verdict": paired.verdict,
        "champion_calibration": calibration(nightly.task, champion, labels).ratio,
    }


def _private(nightly: Nightly, challenger: np.ndarray, champion: np.ndarray | None, labels: np.ndarray) -> Comparison:
    # Without a champion, the challenger stands in for it: the release has one shape and one cost.
    other = challenger if champion is None else champion
    made = private_comparison(
        nightly.task, challenger, other, labels, noise_multiplier=_noise_multiplier(nightly, len(labels))
    )
    paired = made.comparisons[0]
    known = champion is not None
    return {
        "challenger_loss": paired.challenger,
        "champion_loss": paired.champion if known else None,
        "difference": paired.difference if known else None,
        "low": paired.interval[0] if known else None,
        "high": paired.interval[1] if known else None,
        "verdict": paired.verdict if known else None,
        "challenger_calibration": made.challenger_calibration.ratio,
        "champion_calibration": made.champion_calibration.ratio if known else None,
        "private": True,
        "rows": len(labels),
    }


def _noise_multiplier(nightly: Nightly, rows: int) -> float:
    if nightly.evaluation_epsilon is None:
        raise ValueError("the evaluation is not private")
    return comparison_noise_multiplier(epsilon=nightly.evaluation_epsilon, delta=1 / rows)
