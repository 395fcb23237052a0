"""Recalibration: the shift is right on average, and its sums have the stated sensitivity and noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from dp_core.evaluation.calibration import predictions
from dp_core.evaluation.recalibration import (
    GRID,
    LARGEST_COUNT,
    LARGEST_SHIFT,
    ROUNDS,
    _terms,
    recalibrate,
    standard_deviation,
)


def rows(task: str, count: int, seed: int, off: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns logits that are too high by ``off``, and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-2, 1, count)
    expected = predictions(task, logits)
    labels = rng.poisson(expected) if task == "pconvs" else rng.random(count) < expected
    return (logits + off).astype(np.float32), labels.astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["pctr", "pconvs"]), st.integers(0, 1000), st.floats(-1.5, 1.5))
def test_without_noise_the_mean_prediction_is_the_mean_label(task: str, seed: int, off: float) -> None:
    logits, labels = rows(task, 2000, seed, off)
    made = recalibrate(task, logits, labels, noise_multiplier=None)
    bound = LARGEST_COUNT if task == "pconvs" else 1.0

    def predicted(shift: float) -> float:
        return float(np.minimum(predictions(task, logits + np.float64(shift)), bound).mean())

    observed = float(np.minimum(labels, bound).mean(dtype=np.float64))
    wanted = optimize.brentq(lambda shift: predicted(shift) - observed, -8, 8)
    # The rounds leave below 3 % of the error.
    assert made.shift == pytest.approx(wanted, abs=0.03 * abs(wanted) + 0.01)
    assert predicted(made.shift) / observed == pytest.approx(1, abs=0.06)
    assert made.to_json()["released"] == []


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["pctr", "pconvs"]),
    st.floats(allow_nan=True, allow_infinity=True, width=32),
    st.floats(allow_nan=True, allow_infinity=True, width=32),
)
def test_one_row_changes_each_sum_by_at_most_one(task: str, logit: float, label: float) -> None:
    """At the same shift: emptying a row, whatever it holds, takes its term away, which is from 0 to 1."""
    logits, labels = rows(task, 50, 0, 0.0)
    changed = np.append(logits, np.float32(logit)), np.append(labels, np.float32(label))
    with np.errstate(all="ignore"):
        made = recalibrate(task, *changed, noise_multiplier=None)
        assert math.isfinite(made.shift)
        assert abs(made.shift) <= LARGEST_SHIFT
        assert 0 <= made.largest_term <= GRID
        for shift in (-1.0, 0.0, 2.0):
            clean = np.clip(np.nan_to_num(np.asarray(changed[0], np.float64)), -30, 30)
            term = _terms(task, predictions(task, clean + shift))[-1]
            assert 0 <= term <= GRID
        assert 0 <= _terms(task, np.array([label]))[0] <= GRID


def test_noise_is_scaled_to_all_sums_together() -> None:
    """The noise of 1 + rounds sums with sensitivity 1 each is for an L2 norm of √(1 + rounds)."""
    for task, rounds in ROUNDS.items():
        logits, labels = rows(task, 400, 1, 0.5)
        sigma = 3.0
        noise = []
        for seed in range(150):
            stream = np.random.default_rng(seed)
            made = recalibrate(task, logits, labels, noise_multiplier=sigma, random_bytes=stream.bytes)
            assert (len(made.released), made.rounds) == (1 + rounds, rounds)
            noise.append(np.subtract(made.released, made.exact))
        norm = np.linalg.norm([GRID] * (1 + rounds))
        z = np.array(noise) / (sigma * norm)
        assert standard_deviation(sigma, rounds) == pytest.approx(sigma * norm)
        # Each fails correct noise with probability 1e-4.
        assert stats.chi2(z.size).ppf(5e-5) < np.sum(z**2) < stats.chi2(z.size).ppf(1 - 5e-5)
        assert abs(z.mean()) < stats.norm.isf(5e-5) / math.sqrt(z.size)


def test_noise_of_a_small_budget_costs_little_calibration() -> None:
    logits, labels = rows("pctr", 15_000, 2, 0.7)
    errors = []
    for seed in range(20):
        made = recalibrate(
            "pctr", logits, labels, noise_multiplier=30.0, random_bytes=np.random.default_rng(seed).bytes
        )
        errors.append(predictions("pctr", logits + np.float32(made.shift)).mean() / labels.mean() - 1)
    # Noise of 2·30 on two sums of about 2,500 positives is 3.4 %.
    assert np.std(errors) < 0.06
    assert abs(np.mean(errors)) < 0.04
    assert abs(predictions("pctr", logits).mean() / labels.mean() - 1) > 0.6


def test_counts_above_the_bound_are_clipped() -> None:
    found = recalibrate("pconvs", np.zeros(2), np.array([LARGEST_COUNT, 1e6]), noise_multiplier=None)
    assert found.exact[0] == 2 * GRID
    assert found.shift == pytest.approx(math.log(LARGEST_COUNT), abs=1e-4)
