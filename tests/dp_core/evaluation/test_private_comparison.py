"""The private comparison: sensitivity by brute force, scale of its noise, budget, and how exact it is."""

from __future__ import annotations

import functools
import json
import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dp_core.accounting.epsilon import REPLACE_SPECIAL, epsilon_bound
from dp_core.evaluation import noisy_histograms, private_comparison
from dp_core.evaluation.calibration import calibration
from dp_core.evaluation.integer_noise import rounded_normal
from dp_core.evaluation.noisy_histograms import EDGES, consistent, histograms
from dp_core.evaluation.paired import compare, compare_all
from dp_core.evaluation.private_comparison import (
    CountBounds,
    PrivateComparison,
    comparison_noise_multiplier,
    count_norm,
    count_terms,
    histogram_norm,
)

# Anything that can be in a row, though no model should put it there.
logits = st.floats(allow_nan=True, allow_infinity=True, width=32) | st.floats(-9, 5)
rows_of = st.lists(st.tuples(logits, logits, st.floats(width=32) | st.integers(0, 30)), min_size=1, max_size=8)


def columns(rows: list[tuple[float, float, float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    one, other, labels = np.array(rows, np.float64).reshape(-1, 3).T
    return one, other, labels


def sums(task: str, rows: list[tuple[float, float, float]]) -> np.ndarray:
    """What is released of rows, before noise. An empty row is one that is not there."""
    if task == "pconvs":
        return count_terms(*columns(rows), CountBounds()).sum(axis=0)
    return histograms(*columns(rows)).ravel()


@settings(max_examples=150)
@given(rows=rows_of)
@pytest.mark.parametrize("task", ["pctr", "pconvs"])
def test_emptying_a_row_moves_the_sums_by_at_most_the_sensitivity(task: str, rows: list) -> None:
    stated = count_norm() if task == "pconvs" else histogram_norm()
    whole = sums(task, rows)
    assert np.issubdtype(whole.dtype, np.integer)
    for left_out in range(len(rows)):
        neighbour = sums(task, rows[:left_out] + rows[left_out + 1 :])
        assert np.linalg.norm(whole - neighbour) <= stated


def test_the_sensitivity_is_reached() -> None:
    """So a smaller one would be wrong."""
    assert np.linalg.norm(sums("pctr", [(0.0, 1.0, 1.0)])) == histogram_norm()
    assert np.linalg.norm(sums("pconvs", [(30.0, 29.0, 10.0)])) == pytest.approx(count_norm())


def test_bins_do_not_depend_on_the_data() -> None:
    counts = histograms(np.array([-np.inf, EDGES[0], 99.0, np.nan]), np.zeros(4), np.array([0, 1, 1, 0]))
    assert counts[0, 0].tolist() == [2, *[0] * len(EDGES)]
    assert counts[0, 1].tolist() == [0, 1, *[0] * (len(EDGES) - 2), 1]
    assert counts.sum(axis=(1, 2)).tolist() == [4, 4]


@functools.cache
def clicks(rate: float = -1.5, rows: int = 18_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    truth = rng.normal(rate, 1.2, rows)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-truth))).astype(np.float32)
    ours, theirs = (share * truth + (1 - share) * rate + rng.normal(0, 0.3, rows) for share in (0.85, 0.8))
    return ours, theirs, labels


@functools.cache
def conversions(rows: int = 18_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    truth = rng.normal(-1, 0.5, rows)
    return truth + rng.normal(0, 0.3, rows), truth, rng.poisson(np.exp(truth)).astype(np.float32)


@functools.cache
def released(task: str) -> list[PrivateComparison]:
    """60 comparisons of the same models, with noise of a fixed seed."""
    data = conversions() if task == "pconvs" else clicks()
    seeded = functools.partial(rounded_normal, random_bytes=np.random.default_rng(0).bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private_comparison, "rounded_normal", seeded)
        return [private_comparison.private_comparison(task, *data, noise_multiplier=6.2) for _ in range(60)]


@pytest.mark.parametrize("task", ["pctr", "pconvs"])
def test_noise_has_the_stated_scale(task: str) -> None:
    """Two-sided chi-squared and a test of the mean: correct noise fails with probability 4e-6 altogether."""
    data = conversions() if task == "pconvs" else clicks()
    exact = sums(task, list(zip(*data, strict=True)))
    noise = np.array([one.released for one in released(task)]) - exact
    standard = noise / math.sqrt((6.2 * released(task)[0].l2_sensitivity) ** 2 + 1 / 12)
    law = stats.chi2(standard.size)
    assert 1e-6 < law.cdf(np.sum(standard**2)) < 1 - 1e-6
    assert abs(standard.mean()) * math.sqrt(standard.size) < 5


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (0.5, 1 / 18_000), (3.0, 1e-7)])
def test_the_budget_is_kept_and_used(epsilon: float, delta: float) -> None:
    noise_multiplier = comparison_noise_multiplier(epsilon=epsilon, delta=delta)
    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    assert 0.998 * epsilon <= epsilon_bound(event, delta, neighboring_relation=REPLACE_SPECIAL).epsilon <= epsilon
    # Balle and Wang's exact δ of one Gaussian release.
    exact = dp_accounting.get_sigma_gaussian(epsilon, delta)
    assert exact <= noise_multiplier <= 1.002 * exact


def test_the_noisy_auc_is_as_exact_as_the_docstring_says() -> None:
    """60 releases at ε = 0.5. The docstring's numbers are from 300; the limits are 1.5 times as far."""
    exact = compare("pctr", *clicks())
    errors = np.array([one.comparisons[0].challenger - exact.challenger for one in released("pctr")])
    differences = np.array([one.comparisons[0].difference - exact.difference for one in released("pctr")])
    assert abs(errors.mean()) < 0.004
    assert np.quantile(np.abs(errors), 0.95) < 0.017
    assert np.std(differences) < 0.011


@pytest.mark.parametrize(("task", "metric"), [("pctr", 0), ("pctr", 1), ("pconvs", 0)])
def test_the_noise_s_standard_error_is_honest(task: str, metric: int) -> None:
    """60 releases know a standard deviation to 9 %; the limits are four times that."""
    data = conversions() if task == "pconvs" else clicks()
    exact = compare_all(task, *data)[metric]
    made = [one.comparisons[metric] for one in released(task)]
    assert [one.metric for one in made] == [exact.metric] * len(made)
    differences = np.array([one.difference for one in made])
    stated = np.median([one.noise_standard_error for one in made])
    assert 0.64 < np.std(differences) / stated < 1.36
    # Bins and clipping move a difference by less than the noise does.
    assert abs(differences.mean() - exact.difference) < stated
    assert all(one.standard_error > one.noise_standard_error for one in made)
    inside = np.mean([one.interval[0] <= exact.difference <= one.interval[1] for one in made])
    assert inside >= 0.9


@pytest.mark.parametrize("task", ["pctr", "pconvs"])
def test_calibration_follows_from_the_same_release(task: str) -> None:
    data = conversions() if task == "pconvs" else clicks()
    exact = [calibration(task, logits, data[2]).ratio for logits in data[:2]]
    ratios = [(one.challenger_calibration, one.champion_calibration) for one in released(task)]
    assert np.mean([[one.ratio, other.ratio] for one, other in ratios], axis=0) == pytest.approx(exact, abs=0.02)
    inside = [
        [found.interval[0] <= value <= found.interval[1] for found, value in zip(both, exact, strict=True)]
        for both in ratios
    ]
    assert np.mean(inside) > 0.9


@pytest.mark.parametrize(("task", "logit"), [("pctr", 0.3), ("pconvs", 1.0)])
def test_a_clear_difference_is_seen(task: str, logit: float) -> None:
    _, champion, labels = conversions() if task == "pconvs" else clicks()
    worse = logit * np.random.default_rng(3).normal(size=len(labels)) if task == "pctr" else champion + logit
    found = private_comparison.private_comparison(task, worse, champion, labels, noise_multiplier=6.2)
    assert found.comparisons[0].verdict == "worse"
    other = private_comparison.private_comparison(task, champion, worse, labels, noise_multiplier=6.2)
    assert other.comparisons[0].verdict == "better"


def test_histograms_are_made_consistent_by_least_squares() -> None:
    rng = np.random.default_rng(4)
    noisy = rng.normal(20, 5, (2, 2, 24))
    found = consistent(noisy, 1000)
    sums_found = found.sum(axis=-1)
    assert sums_found[0] == pytest.approx(sums_found[1])
    assert sums_found.sum(axis=-1) == pytest.approx([1000, 1000])
    # What is added is orthogonal to every change that keeps the sums, and to moving rows between the classes.
    added = found - noisy
    assert np.ptp(added, axis=-1) == pytest.approx(np.zeros((2, 2)), abs=1e-9)
    assert added[:, 1].sum() - added[:, 0].sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("task", ["pctr", "pconvs"])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_no_row_can_raise_an_error(task: str, label: float) -> None:
    """One class, infinite logits, and more noise than rows: numbers that say little, and say so."""
    strange = np.array([np.nan, np.inf, -np.inf, 0.0])
    found = private_comparison.private_comparison(task, strange, -strange, np.full(4, label), noise_multiplier=50.0)
    json.dumps(found.to_json(), allow_nan=False)
    assert found.event == {"mechanism": "gaussian", "noise_multiplier": 50.0}


def test_what_is_asked_for_wrongly_is_said() -> None:
    made = private_comparison.private_comparison
    with pytest.raises(ValueError, match="unknown task 'ctr'"):
        made("ctr", np.zeros(2), np.zeros(2), np.zeros(2), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="two rows or more"):
        made("pctr", np.zeros(2), np.zeros(3), np.zeros(2), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="standard deviation above 0"):
        made("pctr", np.zeros(2), np.zeros(2), np.zeros(2), noise_multiplier=0.0)
    with pytest.raises(ValueError, match="delta must be between 0 and 1"):
        comparison_noise_multiplier(epsilon=1.0, delta=0.0)


def test_results_follow_from_what_was_released() -> None:
    """Nothing but the released integers and the number of rows enters the estimates."""
    one = released("pctr")[0]
    noisy = np.array(one.released).reshape(2, 2, -1)
    spread = math.sqrt((6.2 * math.sqrt(2)) ** 2 + 1 / 12)
    auc, log_loss, ratio = noisy_histograms.estimates(noisy, 18_000, spread)
    assert [one.comparisons[0].difference, one.comparisons[1].difference] == pytest.approx(
        [auc.challenger - auc.champion, log_loss.challenger - log_loss.champion]
    )
    assert one.champion_calibration.ratio == pytest.approx(ratio.champion)
