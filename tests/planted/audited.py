"""Trials at a budget of ε = 2, trained and audited, for trainers with a planted bug."""

from __future__ import annotations

import shutil
from typing import Any

from dp_core.epochs import steps_for_epochs
from tasks.config.loading import Hardware
from tasks.data.prepared import Prepared
from tasks.privacy.cached_accounting import noise_multiplier_for
from tasks.privacy.label_rate_budget import label_rate_noise
from tasks.privacy.verdict import judge
from tasks.runtime.home import read_json
from tasks.training.loop import run_trial
from tasks.training.trial import Trial
from tests.support.trials import make_trial

EPSILON = 2.0


def private_trial(prepared: Prepared, *, batch_size: int = 100, epochs: float = 2, **changes: Any) -> Trial:
    """Returns a trial with the noise for its budget; ``changes`` are fields of ``Trial``."""
    places = prepared.splits["train"]["rows"] + changes.get("canaries", 0)
    sampler = changes.get("sampler", "poisson")
    noise_multiplier = noise_multiplier_for(
        epsilon=EPSILON,
        delta=1 / places,
        examples=places,
        batch_size=batch_size,
        steps=steps_for_epochs(examples=places, batch_size=batch_size, epochs=epochs, sampler=sampler),
        sampler=sampler,
        label_rate_noise_multiplier=label_rate_noise(changes.get("initial_bias_epsilon"), 1 / places),
        bands=changes.get("bands", 1),
    )
    values = {"noise_multiplier": noise_multiplier, "target_delta": 1 / places, "l2_clip_norm": 0.25, **changes}
    return make_trial(prepared, epsilon=EPSILON, batch_size=batch_size, epochs=epochs, **values)


def audited(trial: Trial, prepared: Prepared, **hardware: Any) -> dict[str, Any]:
    """Trains a trial anew and returns the audit's result."""
    shutil.rmtree(trial.folder, ignore_errors=True)
    run_trial(trial, prepared, hardware=Hardware(**hardware))
    result, _ = judge(trial, read_json(trial.folder / "record.json"), read_json(trial.folder / "evidence.json"))
    return result


def findings(result: dict[str, Any]) -> str:
    """Returns what a failed audit found."""
    assert result["verdict"] == "failed"
    assert result["epsilon"] <= EPSILON, "the record itself is within its budget: it is the evidence that tells"
    return "; ".join(result["findings"])
