"""Partition selection: its noise and threshold against closed forms, its guarantee, and what it reveals."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy import stats

from dp_core.partition_selection import (
    VOCABULARY_SHARE_OF_DELTA,
    PartitionSelection,
    selection_noise_multiplier,
    selection_threshold,
)


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """Returns the exact δ of one Gaussian release (Balle and Wang 2018)."""
    upper = stats.norm.cdf(1 / (2 * sigma) - epsilon * sigma)
    return upper - math.exp(epsilon) * stats.norm.cdf(-1 / (2 * sigma) - epsilon * sigma)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
def test_noise_is_the_least_that_is_enough(epsilon: float, delta: float) -> None:
    sigma = selection_noise_multiplier(epsilon=epsilon, delta=delta)
    assert gaussian_delta(epsilon, sigma) <= delta < gaussian_delta(epsilon, sigma * (1 - 1e-6))


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_noise_agrees_with_the_accountant(epsilon: float) -> None:
    """The accountant's ε, an upper bound computed in another way, is the requested one."""
    selection = PartitionSelection.calibrated(epsilon=epsilon, delta=2e-6, columns=26)
    accountant = pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-5
    )
    assert accountant.compose(dp_accounting.GaussianDpEvent(selection.noise_multiplier)).get_epsilon(
        1e-6
    ) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("columns", [1, 26, 1000])
def test_threshold_shares_delta_among_the_columns(columns: int) -> None:
    threshold = selection_threshold(columns=columns, noise_multiplier=3.0, delta=1e-7)
    each = stats.norm.sf(threshold, loc=1, scale=3.0 * math.sqrt(columns))
    assert columns * each == pytest.approx(1e-7, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 3.0])
@pytest.mark.parametrize(("columns", "new"), [(1, 0), (1, 1), (5, 0), (5, 2), (5, 5)])
def test_guarantee_of_the_whole_selection(epsilon: float, columns: int, new: int) -> None:
    """The exact δ of both directions, for a row with ``new`` tokens that no other row has.

    The noisy counts of the other tokens move by √(K − new), and one of the new tokens is revealed with
    probability p. What is revealed then cannot come from the smaller data, and what is revealed otherwise
    comes from the larger with probability 1 − p.
    """
    selection = PartitionSelection.calibrated(epsilon=epsilon, delta=0.02, columns=columns)
    each = stats.norm.sf(selection.threshold, loc=1, scale=selection.standard_deviation)
    p = 1 - (1 - each) ** new
    moved = math.sqrt(columns - new)

    def exact(epsilon: float) -> float:
        return gaussian_delta(epsilon, selection.standard_deviation / moved) if moved else max(0, -math.expm1(epsilon))

    from_larger = (1 - p) * exact(epsilon) + p
    from_smaller = exact(epsilon + math.log1p(-p))
    assert max(from_larger, from_smaller) <= gaussian_delta(epsilon, selection.noise_multiplier) + selection.delta
    assert max(from_larger, from_smaller) <= 0.02


def test_tokens_of_one_row_are_revealed_as_rarely_as_stated() -> None:
    """With a large δ, to make it visible. Within five standard deviations: a correct selection fails for less than one
    seed in a million (fixed here)."""
    columns, rows, delta = 4, 100_000, 0.2
    threshold = selection_threshold(columns=columns, noise_multiplier=2.0, delta=delta)
    selection = PartitionSelection(2.0, delta, columns, threshold)
    kept = selection.select(np.ones(columns * rows, np.int64), np.random.default_rng(0)).kept.reshape(rows, columns)
    each = delta / columns
    assert abs(kept.mean() - each) < 5 * math.sqrt(each * (1 - each) / kept.size)
    assert kept.any(axis=1).mean() < delta + 5 * math.sqrt(delta * (1 - delta) / rows)


def test_noise_has_the_stated_scale() -> None:
    """Kolmogorov-Smirnov test; a correct selection fails for one seed in 10⁴ (fixed here)."""
    selection = PartitionSelection.calibrated(epsilon=0.1, delta=1e-6, columns=9)
    assert selection.standard_deviation == pytest.approx(3 * selection.noise_multiplier)
    counts = np.arange(1_000_000, 1_020_000)
    kept, noisy, _ = selection.select(counts, np.random.default_rng(1))
    assert kept.all()
    assert stats.kstest((noisy - counts) / selection.standard_deviation, "norm").pvalue > 1e-4


def test_frequent_tokens_are_revealed_with_noisy_counts_only() -> None:
    selection = PartitionSelection.calibrated(epsilon=1.0, delta=1e-6, columns=4)
    often = int(selection.threshold + 10 * selection.standard_deviation)
    kept, noisy, _ = selection.select(np.array([often, 1, often]), np.random.default_rng(2))
    assert kept.tolist() == [True, False, True]
    assert len(noisy) == 2
    assert noisy[0] != noisy[1]


def test_a_higher_bar_keeps_fewer() -> None:
    selection = PartitionSelection.calibrated(epsilon=1.0, delta=1e-6, columns=4)
    counts = np.arange(1, 2000)
    plain, higher, lower = (
        selection.select(counts, np.random.default_rng(3), at_least=bar) for bar in (0, 1000, selection.threshold / 2)
    )
    assert plain.noisy_counts.min() >= selection.threshold
    np.testing.assert_array_equal(higher.noisy_counts, plain.noisy_counts[plain.noisy_counts >= 1000])
    np.testing.assert_array_equal(lower.noisy_counts, plain.noisy_counts)


def test_noise_is_not_seeded() -> None:
    selection = PartitionSelection.calibrated(epsilon=1.0, delta=1e-6, columns=1)
    draws = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002 - must have no effect
        draws.append(selection.select(np.full(10, 10_000)).noisy_counts)
    assert not np.any(draws[0] == draws[1])


def test_nothing_to_select_from() -> None:
    selection = PartitionSelection.calibrated(epsilon=1.0, delta=1e-6, columns=1)
    kept, noisy, noise = selection.select(np.empty(0, np.int64))
    assert (len(kept), len(noisy), noise.draws) == (0, 0, 0)


def test_impossible_questions_are_refused() -> None:
    selection = PartitionSelection.calibrated(epsilon=1.0, delta=1e-6, columns=1)
    with pytest.raises(ValueError, match="counts must be at least 1, got 0"):
        selection.select(np.array([3, 0]))
    for epsilon, delta in [(0.0, 0.1), (math.inf, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0)]:
        with pytest.raises(ValueError, match="epsilon must be positive and finite and delta between 0 and 1"):
            selection_noise_multiplier(epsilon=epsilon, delta=delta)
    for columns, noise_multiplier, delta in [(0, 1.0, 0.1), (1, 0.0, 0.1), (1, math.nan, 0.1), (1, 1.0, 1.0)]:
        with pytest.raises(ValueError, match="columns must be 1 or more"):
            selection_threshold(columns=columns, noise_multiplier=noise_multiplier, delta=delta)


def test_noise_is_rounded_up() -> None:
    exact = dp_accounting.get_sigma_gaussian(1.0, 1e-5)
    assert selection_noise_multiplier(epsilon=1.0, delta=1e-5) / exact - 1 == pytest.approx(1e-9, rel=1e-3)


def test_a_vocabulary_gets_a_tenth_of_delta() -> None:
    assert VOCABULARY_SHARE_OF_DELTA == 0.1
