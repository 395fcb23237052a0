"""Paired comparisons against their definitions, the bootstrap, and simulated data with a known difference."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dp_core.evaluation.paired import PairedComparison, auc_difference, compare, compare_all, normal_test
from dp_core.training.losses import OBJECTIVES


def quadratic(challenger: np.ndarray, champion: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """DeLong's difference of AUC losses and its standard error, from all pairs of a positive and a negative."""
    positive = labels > 0
    kernels = [
        (logits[positive][:, None] > logits[~positive]) + 0.5 * (logits[positive][:, None] == logits[~positive])
        for logits in (challenger, champion)
    ]
    gain = kernels[0] - kernels[1]
    by_positive, by_negative = gain.mean(axis=1), gain.mean(axis=0)
    variance = by_positive.var(ddof=1) / len(by_positive) + by_negative.var(ddof=1) / len(by_negative)
    return -float(gain.mean()), float(np.sqrt(variance))


def clicks(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1, 1, rows)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return logits + rng.normal(0, 0.5, rows), logits + rng.normal(0, 0.6, rows), labels


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(4, 60), levels=st.integers(1, 30))
def test_auc_is_that_of_all_pairs_with_ties(seed: int, rows: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    challenger, champion = rng.integers(0, levels, (2, rows)).astype(np.float64)
    labels = np.concatenate([[0, 0, 1, 1], rng.integers(0, 2, rows - 4)])
    found = auc_difference(challenger, champion, labels)
    assert (found.difference, found.standard_error) == pytest.approx(quadratic(challenger, champion, labels), abs=1e-12)
    losses = [OBJECTIVES["pctr"].reported_loss(logits, labels) for logits in (challenger, champion)]
    assert [found.challenger, found.champion] == pytest.approx(losses, abs=1e-12)


@pytest.mark.parametrize("task", ["pcvr", "pconvs"])
def test_the_standard_error_is_that_of_the_bootstrap(task: str) -> None:
    """2,000 resamples know a standard deviation to 1.6 %, and 500 rows the estimate's own to some per cent."""
    challenger, champion, labels = clicks(500, 0)
    found = compare(task, challenger, champion, labels)
    rng = np.random.default_rng(1)
    resampled = []
    for _ in range(2000):
        rows = rng.integers(0, 500, 500)
        one, other = (OBJECTIVES[task].reported_loss(logits[rows], labels[rows]) for logits in (challenger, champion))
        resampled.append(one - other)
    assert found.standard_error == pytest.approx(np.std(resampled), rel=0.1)


def covered(task: str, draw: Callable[[np.random.Generator], tuple[np.ndarray, ...]], truth: float, runs: int) -> float:
    rng = np.random.default_rng(2)
    intervals = [compare(task, *draw(rng)).interval for _ in range(runs)]
    return float(np.mean([low <= truth <= high for low, high in intervals]))


def test_intervals_of_auc_cover_the_true_difference() -> None:
    """Of 1,500 intervals of 95 %, between 92.8 % and 97.2 % cover it: correct ones fail this with probability 1e-4."""

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        labels = np.repeat([0.0, 1.0], [250, 100])
        common = rng.normal(size=350)
        ours, theirs = (common + rng.normal(0, 0.7, 350) + gain * labels for gain in (1.3, 1.0))
        return ours, theirs, labels

    aucs = [stats.norm.cdf(gain / np.sqrt(2 * (1 + 0.7**2))) for gain in (1.3, 1.0)]
    assert 0.928 <= covered("pctr", draw, aucs[1] - aucs[0], 1500) <= 0.972


def test_intervals_of_poisson_log_loss_cover_the_true_difference() -> None:
    """As above. With intensity λ, the expected loss is exp(f) − λ·f."""
    logs = np.linspace(-2, 1, 400)
    ours, theirs = logs + 0.1, logs - 0.3
    truth = np.mean(np.exp(ours) - np.exp(logs) * ours - np.exp(theirs) + np.exp(logs) * theirs)

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        return ours, theirs, rng.poisson(np.exp(logs))

    # The rows are fixed here and not drawn, so the intervals, which allow for both, are a little wide.
    assert 0.928 <= covered("pconvs", draw, truth, 1500) <= 1


def test_losses_are_those_that_are_reported() -> None:
    challenger, champion, labels = clicks(1000, 3)
    auc, log_loss = compare_all("pcvr", challenger, champion, labels)
    assert (auc.metric, log_loss.metric) == ("auc_loss", "log_loss")
    metrics = [OBJECTIVES["pcvr"].evaluate(logits, labels)[1] for logits in (challenger, champion)]
    assert [1 - auc.challenger, 1 - auc.champion] == pytest.approx([one["auc"] for one in metrics])
    assert [log_loss.challenger, log_loss.champion] == pytest.approx([one["log_loss"] for one in metrics])
    (poisson,) = compare_all("pconvs", challenger, champion, 3 * labels)
    assert poisson.challenger == pytest.approx(OBJECTIVES["pconvs"].reported_loss(challenger, 3 * labels))
    for one in (auc, log_loss, poisson):
        assert one.difference == pytest.approx(one.challenger - one.champion)
        assert one.interval[0] < one.difference < one.interval[1]
        assert json.loads(json.dumps(one.to_json(), allow_nan=False))["verdict"] == one.verdict


def test_a_better_model_is_better_and_the_other_way_round() -> None:
    challenger, _, labels = clicks(100_000, 4)
    noise = np.random.default_rng(5).normal(0, 1, len(labels))
    better, worse = (
        compare("pctr", challenger, challenger + noise, labels),
        compare("pctr", challenger + noise, challenger, labels),
    )
    assert (better.verdict, worse.verdict) == ("better", "worse")
    assert better.p_value < 1e-6
    assert better.difference == -worse.difference


def test_verdict_and_p_value_agree() -> None:
    for difference in np.linspace(-3, 3, 61):
        tested = normal_test(float(difference), 1.0)
        assert (tested.p_value < 0.05) == (tested.verdict != "within noise")
    assert normal_test(1.0, np.inf).verdict == "within noise"


@pytest.mark.parametrize("task", ["pctr", "pconvs"])
def test_equal_predictions_are_within_noise(task: str) -> None:
    challenger, _, labels = clicks(100, 6)
    for one in compare_all(task, challenger, challenger, labels):
        assert one == PairedComparison(
            one.metric, 100, one.champion, one.champion, 0.0, 0.0, (0.0, 0.0), 1.0, "within noise"
        )


def test_a_certain_difference_has_no_error() -> None:
    labels = np.array([0, 0, 1, 1])
    certain = compare("pctr", labels * 1.0, np.zeros(4), labels)
    assert (certain.difference, certain.standard_error, certain.p_value, certain.verdict) == (-0.5, 0, 0, "better")


@pytest.mark.parametrize(
    ("task", "challenger", "champion", "labels", "said"),
    [
        ("pctr", [1.0, 2.0], [1.0, 2.0], [0, 0], "two rows with a label above 0 and two without, got 0 and 2"),
        ("pctr", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0, 0, 1], "got 1 and 2"),
        ("pctr", [1.0], [1.0], [1], "at least two rows, got 1"),
        ("pconvs", [], [], [], "at least two rows, got 0"),
        ("pctr", [1.0, np.nan], [1.0, 2.0], [0, 1], "1 of 2 of the challenger's logits are not finite"),
        ("pctr", [1.0, 2.0], [np.inf, 2.0], [0, 1], "1 of 2 of the champion's logits are not finite"),
        ("pconvs", [1.0, 2.0], [1.0, 2.0], [0, np.nan], "labels are not finite"),
        ("pconvs", [1.0, 2.0], [1.0, 800.0], [0, 1], "champion's log intensities are up to 800"),
        ("pctr", [1.0, 2.0, 3.0], [1.0, 2.0], [0, 1], "one number a row"),
        ("clicks", [1.0, 2.0], [1.0, 2.0], [0, 1], "unknown task 'clicks'; known: pctr, pcvr, pconvs"),
    ],
)
def test_what_cannot_be_compared_is_said(task: str, challenger: list, champion: list, labels: list, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compare(task, np.array(challenger), np.array(champion), np.array(labels))
