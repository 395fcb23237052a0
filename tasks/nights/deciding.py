"""Decides whether a night's challenger becomes the champion, and says so in one sentence."""

from __future__ import annotations

import math
from typing import NamedTuple, TypedDict

from tasks.config.dataset import TaskName
from tasks.config.nightly import Nightly


class Comparison(TypedDict):
    """How the challenger and the champion did on the newest day, as far as a decision needs it.

    Attributes:
      challenger_loss: The loss that the task reports: 1 − AUC, or the Poisson log loss.
      champion_loss: None if there was no champion.
      difference: Challenger − champion; None without a champion.
      low: The lower end of the difference's interval of 95 %.
      high: The upper end.
      verdict: ``better``, ``worse`` or ``within noise``, by the paired test.
      challenger_calibration: Sum of predictions over sum of labels.
      champion_calibration: None if there was no champion.
      private: Whether the numbers are a private release.
      rows: The number of rows.
    """

    challenger_loss: float
    champion_loss: float | None
    difference: float | None
    low: float | None
    high: float | None
    verdict: str | None
    challenger_calibration: float
    champion_calibration: float | None
    private: bool
    rows: int


class Decision(NamedTuple):
    """Whether the challenger becomes the champion, and why in one sentence."""

    promote: bool
    sentence: str


def decide(nightly: Nightly, day: str, champion_day: str | None, found: Comparison, *, first: bool = True) -> Decision:
    """Decides for the night of a day.

    The challenger becomes the champion if its loss is at most ``tolerance`` above the champion's, and if it is either
    calibrated within the limit or no worse calibrated than the champion. Without a champion, any challenger with a
    finite loss becomes the first, or the next one where others had been champion before (not ``first``) and the alias
    was deleted. That its audit passed was checked before it was registered.
    """
    loss, of_champion = found["challenger_loss"], found["champion_loss"]
    shown, calibration = _shown(nightly.task, loss), f"calibration {_number(found['challenger_calibration'])}"
    if not math.isfinite(loss):
        return Decision(False, f"{_kept(champion_day)}: the challenger's loss is not a number")
    if champion_day is None or of_champion is None or found["difference"] is None:
        why = "the first champion" if first else "because there was no champion to compare with"
        return Decision(True, f"promoted night {day}, {why}: {shown}, {calibration}")
    if not (math.isfinite(of_champion) and math.isfinite(found["difference"])):
        # A comparison with what is not a number is never above a tolerance, and would promote anything.
        return Decision(
            False, f"{_kept(champion_day)}: {shown}, but the champion's loss is not a number to compare with"
        )
    against = f"{shown} against {_shown(nightly.task, of_champion, name=False)}"
    increase = found["difference"] and (
        found["difference"] / abs(of_champion) if of_champion else math.copysign(math.inf, found["difference"])
    )
    test = f"{_difference(nightly.task, found)}, {found['verdict']}"
    if increase > nightly.tolerance:
        return Decision(
            False,
            f"{_kept(champion_day)}: the challenger has {against} ({test}); its loss is {100 * increase:.1f} % larger, "
            f"and the tolerance is {100 * nightly.tolerance:g} %; {calibration}",
        )
    ratio, of_old = found["challenger_calibration"], found["champion_calibration"]
    if _distance(ratio) > math.log1p(nightly.calibration) and _distance(ratio) > _distance(of_old):
        return Decision(
            False,
            f"{_kept(champion_day)}: the challenger has {against} ({test}), but its calibration is {_number(ratio)} "
            f"against {_number(of_old)}, further than {100 * nightly.calibration:g} % from 1",
        )
    return Decision(True, f"promoted night {day}: {against} of night {champion_day} ({test}), {calibration}")


def _kept(champion_day: str | None) -> str:
    return "kept no champion" if champion_day is None else f"kept night {champion_day}"


def _shown(task: TaskName, loss: float, *, name: bool = True) -> str:
    """Returns a loss as people know it.

    >>> _shown("pcvr", 0.25), _shown("pconvs", 0.25, name=False)
    ('AUC 0.7500', '0.2500')
    """
    metric, value = ("Poisson log loss", loss) if task == "pconvs" else ("AUC", 1 - loss)
    return f"{metric} {value:.4f}" if name else f"{value:.4f}"


def _difference(task: TaskName, found: Comparison) -> str:
    """Returns the difference of the metric with its interval of 95 %."""
    low, high, difference = found["low"], found["high"], found["difference"]
    if difference is None or low is None or high is None:
        return "difference unknown"
    sign = 1 if task == "pconvs" else -1
    return f"{sign * difference:+.4f} ± {(high - low) / 2:.4f}"


def _distance(ratio: float | None) -> float:
    """Returns how far a calibration is from 1, the same for twice as much and for half."""
    return abs(math.log(ratio)) if ratio is not None and 0 < ratio < math.inf else math.inf


def _number(ratio: float | None) -> str:
    return "unknown" if ratio is None or not math.isfinite(ratio) else f"{ratio:.2f}"
