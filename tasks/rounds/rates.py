"""Learning rates as a grid writes them: relative to the clip norm, or to a guess from the noise (`learning_rate_per`).

A trial holds the rate itself. What the grid gave is the rate over its unit, which follows from the trial.
"""

from __future__ import annotations

from typing import Any

from tasks.data.prepared import Prepared
from tasks.rounds.rungs import snapped
from tasks.training.trial import Trial


def rate_unit(trial: Trial, prepared: Prepared) -> float:
    """Returns the rate that 1 stands for in the grid of a trial; see ``learning_rate_per``."""
    if trial.learning_rate_per == "one" or trial.l2_clip_norm is None or trial.noise_multiplier is None:
        return 1.0
    if trial.learning_rate_per == "clip_norm":
        return 1 / trial.l2_clip_norm
    from dp_core.training.rate_guess import guessed_rate
    from tasks.training.model_size import model_size

    return guessed_rate(
        l2_clip_norm=trial.l2_clip_norm,
        noise_multiplier=trial.noise_multiplier,
        batch_size=trial.batch_size,
        dimension=model_size(trial.model, prepared),
        momentum=trial.momentum,
    )


def with_rate(trial: Trial, prepared: Prepared) -> Trial:
    """Returns a trial whose rate is still the grid's number with the rate itself."""
    unit = rate_unit(trial, prepared)
    return trial if unit == 1 else trial.model_copy(update={"learning_rate": snapped(trial.learning_rate * unit)})


def as_written(trial: Trial, name: str, prepared: Prepared) -> Any:
    """Returns a setting of a trial as the grid gives it."""
    value = getattr(trial, name)
    return snapped(value / rate_unit(trial, prepared)) if name == "learning_rate" else value
