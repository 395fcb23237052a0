"""Calibration ratios against simulated labels."""

from __future__ import annotations

import numpy as np
import pytest

from dp_core.evaluation.calibration import calibration, predictions


def test_the_ratio_is_predicted_over_observed() -> None:
    found = calibration("pctr", np.log([1 / 3, 1.0, 3.0]), np.array([0, 0, 1]))
    assert (found.ratio, found.predicted, found.observed, found.rows) == pytest.approx((1.5, 0.5, 1 / 3, 3))
    counted = calibration("pconvs", np.log([1.0, 2.0, 3.0]), np.array([0, 4, 8]))
    assert counted.ratio == pytest.approx(0.5)
    assert counted.interval[0] < 0.5 < counted.interval[1]
    # Counts are events for a binary task.
    assert calibration("pcvr", np.zeros(2), np.array([0, 7])).ratio == 1


@pytest.mark.parametrize("task", ["pcvr", "pconvs"])
def test_intervals_cover_the_true_ratio(task: str) -> None:
    """Of 1,500 intervals of 95 %, between 92.8 % and 97.2 % cover it: correct ones fail this with probability 1e-4."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1500):
        logits = rng.uniform(-2, 0, 500)
        expected = predictions(task, logits)
        labels = rng.poisson(expected) if task == "pconvs" else rng.random(500) < expected
        # The model predicts 1.25 times too much.
        shown = np.log(1.25 * expected) if task == "pconvs" else np.log(1.25 * expected / (1 - 1.25 * expected))
        low, high = calibration(task, shown, labels).interval
        covered += low <= 1.25 <= high
    assert 0.928 <= covered / 1500 <= 0.972


@pytest.mark.parametrize(
    ("logits", "labels", "said"),
    [
        ([0.0, 1.0], [0, 0], "none of 2 labels is above 0"),
        ([0.0], [1], "two rows or more"),
        ([0.0, 1.0], [1], "one logit and one label"),
        ([np.nan, 1.0], [0, 1], "1 of 2 predictions are not finite"),
        ([0.0, 800.0], [0, 1], "1 of 2 predictions are not finite"),
    ],
)
def test_what_has_no_ratio_is_said(logits: list, labels: list, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        calibration("pconvs", np.array(logits), np.array(labels))
