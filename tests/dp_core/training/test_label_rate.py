"""The noisy label rate: its sensitivity, its noise, and the bias that follows from it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dp_core.accounting.mechanism import MechanismRecord, compose
from dp_core.training.label_rate import (
    LARGEST_COUNT,
    bias_of,
    clipped_sum,
    label_rate_noise_multiplier,
    largest_label,
    noisy_sum,
)


@pytest.mark.parametrize(("task", "most"), [("pctr", 1), ("pcvr", 1), ("pconvs", LARGEST_COUNT)])
def test_one_example_moves_the_sum_by_at_most_the_bound(task: str, most: int) -> None:
    labels = np.array([0, 1, 3, 10, 500, -2], np.float32)
    for row in range(len(labels)):
        emptied = labels.copy()
        emptied[row] = 0
        assert 0 <= clipped_sum(labels, task) - clipped_sum(emptied, task) <= most == largest_label(task)
    assert clipped_sum(labels, "pconvs") == 0 + 1 + 3 + 10 + 10


def test_the_noise_has_the_stated_scale_and_another_draw_differs() -> None:
    """600 sums: mean and deviation within five standard errors."""
    rng = np.random.default_rng(0)
    for task in ("pctr", "pconvs"):
        drawn = np.array(
            [noisy_sum(np.ones(50), task, noise_multiplier=7.0, random_bytes=rng.bytes) for _ in range(600)]
        )
        deviation = 7.0 * largest_label(task)
        assert abs(drawn.mean() - 50) < 5 * deviation / 600**0.5
        assert abs(drawn.std() / deviation - 1) < 5 / 1200**0.5


def test_the_bias_is_the_best_constant_prediction() -> None:
    labels = np.array([0, 0, 1, 0, 2, 0, 0, 1], np.float64)
    losses = {bias: np.mean(np.exp(bias) - labels * bias) for bias in np.linspace(-3, 1, 4001)}
    assert bias_of(labels.sum(), 8, "pconvs") == pytest.approx(min(losses, key=losses.__getitem__), abs=1e-3)
    assert 1 / (1 + math.exp(-bias_of(2, 8, "pctr"))) == pytest.approx(0.25)
    # Noise may leave the range of a rate.
    for bias in (bias_of(-50, 100, "pctr"), -bias_of(150, 100, "pctr")):
        assert bias == pytest.approx(math.log(0.005 / 0.995))
    assert bias_of(-50, 100, "pconvs") == math.log(0.005)


def test_the_release_is_charged_with_the_training() -> None:
    """More than the training alone, less than the two added up, and no more than its own ε."""
    values = {"sampler": "poisson", "examples": 5000, "expected_batch_size": 100, "max_batch_size": 400, "steps": 40}
    training = MechanismRecord(**values, noise_multiplier=1.0, l2_clip_norm=1.0)  # type: ignore[arg-type]
    delta, own = 1e-4, 0.3
    noise = label_rate_noise_multiplier(epsilon=own, delta=delta)
    with_rate = MechanismRecord(**training.to_json() | {"label_rate_noise_multiplier": noise})
    alone, both = training.epsilon_bound(delta).epsilon, with_rate.epsilon_bound(delta).epsilon
    assert alone < both < alone + own
    twice = compose([with_rate, with_rate]).epsilon_bound(delta).epsilon
    assert twice > compose([training, training]).epsilon_bound(delta).epsilon
    assert with_rate.epsilon_bound(delta, group_size=2).epsilon > training.epsilon_bound(delta, group_size=2).epsilon
    assert MechanismRecord.from_json(with_rate.to_json()) == with_rate
    # Records from before there was such a release have none, and are written as they were.
    assert "label_rate_noise_multiplier" not in training.to_json()
    assert MechanismRecord.from_json(training.to_json()) == training
