"""Recalibrates the model of a trial before it is released: its output bias takes up the shift.

The mathematics, and whom it costs what, are in ``dp_core.evaluation.recalibration``. The released parameters include
the shift, so whatever predicts with them does, served models among them. The trial's record says how it was found.
"""

from __future__ import annotations

import functools
from typing import Any, TypedDict

import numpy as np

from dp_core.audit.release_noise import GaussianNoise
from dp_core.evaluation.private_comparison import comparison_noise_multiplier
from dp_core.evaluation.recalibration import GRID, Recalibration, recalibrate, standard_deviation
from tasks.runtime.errors import UserError
from tasks.training.finished import flat_parameters
from tasks.training.trial import Trial

# The bias of the last layer, in every model of ours and in plug-ins that can be recalibrated.
OUTPUT, BIAS = "output", "bias"
# Recalibrations of made-up rows, for the audit: the draws of one are too few to tell the scale of its noise.
PROBED = 100


class RecalibrationEvidence(TypedDict):
    """What was measured of a recalibration, for the audit. It is not private.

    Attributes:
        drawn: ``GaussianNoise`` of the noise in the released sums.
        probed: The same of recalibrations of made-up rows with the same noise multiplier.
        largest_term: The largest term of a row in a sum, over what it may be: at most 1.
        only_the_bias: Whether the released parameters are those of the training but for the shifted output bias.
    """

    drawn: dict[str, Any]
    probed: dict[str, Any]
    largest_term: float
    only_the_bias: bool


def shift_of(trial: Trial, logits: np.ndarray, labels: np.ndarray, entropy: tuple[int, ...]) -> Recalibration:
    """Returns the recalibration of a trial's model, given its logits and the labels of the validation split.

    A private trial's sums have the noise of its ``recalibration_epsilon`` at its δ: from the operating system's
    entropy, or for a seeded trial from ``entropy``, which is not private. A baseline's sums are exact.
    """
    if trial.mechanism != "dp_sgd":
        return recalibrate(trial.task, logits, labels, noise_multiplier=None)
    assert trial.recalibration_epsilon is not None
    noise_multiplier = _noise_multiplier(trial.recalibration_epsilon, trial.target_delta)
    if trial.randomness == "secret":
        return recalibrate(trial.task, logits, labels, noise_multiplier=noise_multiplier)
    stream = np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(0, 2)))
    return recalibrate(trial.task, logits, labels, noise_multiplier=noise_multiplier, random_bytes=stream.bytes)


@functools.lru_cache(maxsize=64)
def _noise_multiplier(epsilon: float, delta: float) -> float:
    return comparison_noise_multiplier(epsilon=epsilon, delta=delta)


def shifted(parameters: dict[str, Any], shift: float) -> dict[str, Any]:
    """Returns parameters with the shift added to the output bias.

    Raises ``UserError`` if the model's last layer is not called ``output`` or has no bias, as a plug-in's may not.
    """
    if BIAS not in parameters.get(OUTPUT, {}):
        raise UserError(
            f"`recalibration: shift` needs a model whose last layer is called {OUTPUT!r} and has a bias; this one has "
            f"the layers {', '.join(parameters)}"
        )
    layer = parameters[OUTPUT]
    return {**parameters, OUTPUT: {**layer, BIAS: np.asarray(layer[BIAS]) + np.float32(shift)}}


def evidence_of(
    made: Recalibration, trial: Trial, trained: dict[str, Any], released: dict[str, Any]
) -> dict[str, Any] | None:
    """Returns the ``RecalibrationEvidence`` of a private recalibration; None for one without noise."""
    if made.noise_multiplier is None:
        return None
    deviation = standard_deviation(made.noise_multiplier, made.rounds)
    rows = np.zeros(8), np.ones(8)
    others = [recalibrate(trial.task, *rows, noise_multiplier=made.noise_multiplier) for _ in range(PROBED)]
    drawn, *probed = [
        GaussianNoise.measured(np.subtract(one.released, one.exact), deviation) for one in (made, *others)
    ]
    evidence: RecalibrationEvidence = {
        "drawn": drawn.to_json(),
        "probed": GaussianNoise.together(probed).to_json(),
        "largest_term": made.largest_term / GRID,
        "only_the_bias": _only_the_bias(trained, released, made.shift),
    }
    return {**evidence}


def _only_the_bias(trained: dict[str, Any], released: dict[str, Any], shift: float) -> bool:
    before, after = flat_parameters(trained), flat_parameters(released)
    moved = f"{OUTPUT}/{BIAS}"
    same = [np.array_equal(before[name], after[name]) for name in before if name != moved]
    moved_right = np.array_equal(before[moved] + np.float32(shift), after[moved])
    return before.keys() == after.keys() and all(same) and moved_right
