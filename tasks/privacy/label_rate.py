"""The initial output bias of a run: 0, or where the label rate puts it.

In DP-SGD the rate is noisy, and drawn once: an interrupted run that resumes keeps the draw of its first attempt, which
the checkpoint holds. LabelDP takes the mean of the labels that it trains on, which are randomised already, so nothing
more is released. The baseline takes the exact mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import numpy as np

from dp_core.audit.release_noise import GaussianNoise
from dp_core.training.label_rate import (
    bias_of,
    clipped_sum,
    largest_label,
    noisy_sum,
)
from tasks.privacy.label_rate_budget import label_rate_noise
from tasks.runtime.errors import UserError
from tasks.training.hardware import first_processes
from tasks.training.trial import Trial

# The seed sequence's spawn key. Samplers, canaries and noisy labels use others.
_STREAM = (0, 3)
# Sums of no labels that are drawn to measure their noise.
PROBED_SUMS = 256


class LabelRateEvidence(TypedDict):
    """What was measured of the release of the label rate. It is not private.

    Attributes:
      noisy: The noisy sum that was drawn.
      examples: The number of labels.
      away: By how many stated standard deviations the noisy sum differs from the exact one.
      bias: The output bias that training started with.
      probed: ``GaussianNoise.to_json()`` of sums of no labels, from the same function.
    """

    noisy: int
    examples: int
    away: float
    bias: float
    probed: dict[str, Any]


def draw_label_sum(trial: Trial, labels: np.ndarray, entropy: Sequence[int]) -> int | None:
    """Draws the noisy sum of labels that a DP-SGD trial releases; None if it releases none.

    ``entropy`` seeds the noise of a seeded trial. That of a secret one is the operating system's.
    """
    noise_multiplier = label_rate_noise(trial.initial_bias_epsilon, trial.target_delta)
    if trial.initial_bias == "zero" or trial.mechanism != "dp_sgd" or noise_multiplier is None:
        return None
    return noisy_sum(labels, trial.task, noise_multiplier=noise_multiplier, random_bytes=_random_bytes(trial, entropy))


def with_initial_bias(trial: Trial, params: Any, labels: np.ndarray, noisy: int | None) -> Any:
    """Returns initial parameters with the output bias of a trial.

    Args:
        trial: The trial.
        params: The initial parameters, with an output bias of 0.
        labels: The labels that are trained on. Not read in DP-SGD.
        noisy: What ``draw_label_sum`` returned.

    Raises:
        UserError: The model has no output bias, or its parameters are another model's.
    """
    if trial.initial_bias == "zero":
        return params
    if trial.start_from is not None:
        raise UserError(
            f"{trial.label()}: `initial_bias: label_rate` is for models that start at random, and this one starts "
            "from a released model, which has learnt the rate: use `initial_bias: zero`"
        )
    if trial.mechanism == "dp_sgd":
        assert noisy is not None
        total = float(noisy)
    else:
        total = float(np.sum(labels, dtype=np.float64))
    if "bias" not in params.get("output", {}):
        raise UserError(f"{trial.label()}: `initial_bias: label_rate` needs a model with a bias in its layer `output`")
    bias = np.full_like(params["output"]["bias"], bias_of(total, len(labels), trial.task))
    return {**params, "output": {**params["output"], "bias": bias}}


def label_rate_evidence(trial: Trial, params: Any, labels: np.ndarray, noisy: int | None) -> LabelRateEvidence | None:
    """Measures the release of the label rate: its draw, and more draws of the same function."""
    noise_multiplier = label_rate_noise(trial.initial_bias_epsilon, trial.target_delta)
    if noisy is None or noise_multiplier is None:
        return None
    nothing = np.zeros(0, np.int64)
    drawn = [noisy_sum(nothing, trial.task, noise_multiplier=noise_multiplier) for _ in range(PROBED_SUMS)]
    # Spread over the unit that rounding merged, so that the noise is continuous again.
    spread = np.asarray(drawn) + np.random.default_rng().uniform(-0.5, 0.5, len(drawn))
    standard_deviation = noise_multiplier * largest_label(trial.task)
    return {
        "noisy": noisy,
        "examples": len(labels),
        "away": (noisy - clipped_sum(labels, trial.task)) / standard_deviation,
        "bias": float(np.ravel(params["output"]["bias"])[0]),
        "probed": GaussianNoise.measured(spread, standard_deviation).to_json(),
    }


def _random_bytes(trial: Trial, entropy: Sequence[int]) -> Callable[[int], bytes]:
    """Returns the source of the noise: the operating system's entropy, or the description of a seeded trial."""
    if trial.randomness == "seeded":
        stream = np.random.SeedSequence(entropy, spawn_key=_STREAM)
        return np.random.default_rng(stream).bytes
    # Several processes share the first one's draw.
    return lambda count: np.asarray(first_processes(np.frombuffer(os.urandom(count), np.uint8))).tobytes()
