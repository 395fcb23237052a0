"""Bins of labels: the map, the noise on the histogram, and the optimal bins against brute force."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from dp_core.labels.bins import Bins, binary_bins, count_bins, noisy_histogram, optimal_bins
from dp_core.labels.randomized_response import RandomizedResponse


def test_fixed_bins() -> None:
    assert binary_bins() == Bins((0.0, 1.0), (0, 1), (0.0, 1.0))
    assert count_bins(3) == Bins((0.0, 1.0, 2.0, 3.0), (0, 1, 2, 3), (0.0, 1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match="must be 1 or more, got 0"):
        count_bins(0)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float32, np.float64])
def test_each_count_is_in_its_bin(dtype: type) -> None:
    bins = Bins((0.0, 1.5, 6.0), (0, 1, 4), (0.0, 2.0, 5.0))
    counts = np.array([0, 1, 3, 4, 5, 100], dtype)
    assert bins.indices(counts).tolist() == [0, 1, 1, 2, 2, 2]
    assert bins.indices(counts[:0]).tolist() == []


def test_bins_of_booleans_and_of_very_large_counts() -> None:
    assert binary_bins().indices(np.array([False, True])).tolist() == [0, 1]
    assert binary_bins().indices(np.array([0.0, 1e30])).tolist() == [0, 1]
    assert binary_bins().indices(np.array([0, 2**64 - 1], np.uint64)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("counts", "complaint"),
    [([0, -1], "got -1"), ([0.5, 1.0], "got 0.5"), ([math.nan], "NaN"), ([math.inf], "infinite"), (["1"], "dtype")],
)
def test_labels_that_do_not_count_are_refused(counts: list[object], complaint: str) -> None:
    for use in (
        binary_bins().indices,
        lambda some: noisy_histogram(some, 3, epsilon=1.0, rng=np.random.default_rng(0)),
    ):
        with pytest.raises(ValueError, match=f"labels must be non-negative integers.*{complaint}"):
            use(np.array(counts))


@pytest.mark.parametrize("bins", [binary_bins(), count_bins(4), optimal_bins(np.array([50, 9, 9, 5, 4]), epsilon=2.0)])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_a_response_among_bins_is_private_for_the_count(bins: Bins, epsilon: float) -> None:
    """Enumerates the largest ratio of exact probabilities over all pairs of counts (some above the last start)."""
    keep, k = Fraction(RandomizedResponse(bins.values, epsilon).keep_probability), len(bins.values)

    def chances(count: int) -> list[Fraction]:
        true = int(bins.indices(np.array([count]))[0])
        return [keep if response == true else (1 - keep) / (k - 1) for response in range(k)]

    ratios = [
        one / other
        for counts in itertools.permutations(range(8), 2)
        for one, other in zip(*map(chances, counts), strict=True)
    ]
    assert math.log(max(ratios)) == pytest.approx(epsilon, rel=1e-12)
    assert math.log(max(ratios)) <= epsilon * (1 + 1e-12)


# The noisy histogram.


def noise_probability(x: int, epsilon: float) -> float:
    """Two-sided geometric noise, from its definition."""
    alpha = math.exp(-epsilon / 2)
    return (1 - alpha) / (1 + alpha) * alpha ** abs(x)


def cell_probability(noisy: int, number: int, epsilon: float) -> float:
    """Returns the probability of one cell, where zero stands for everything below; the tail is summed term by term."""
    if noisy > 0:
        return noise_probability(noisy - number, epsilon)
    return math.fsum(noise_probability(below - number, epsilon) for below in range(-400, 1))


def test_histogram_is_private_for_replacing_a_label() -> None:
    """Enumerates the exact probabilities of all outcomes up to 6, for all datasets of three labels from 0 to 2."""
    epsilon, most = 0.8, 2
    cells = {(noisy, number): cell_probability(noisy, number, epsilon) for noisy in range(7) for number in range(4)}
    worst = 0.0
    for labels in itertools.product(range(most + 1), repeat=3):
        for replaced in range(most + 1):
            one, other = (np.bincount(some, minlength=3) for some in (labels, (replaced, *labels[1:])))
            for outcome in itertools.product(range(7), repeat=3):
                chances = [
                    math.prod(cells[noisy, int(number)] for noisy, number in zip(outcome, numbers, strict=True))
                    for numbers in (one, other)
                ]
                worst = max(worst, chances[0] / chances[1])
    assert math.log(worst) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.05, 0.8, 4.0])
def test_noise_has_the_stated_distribution(epsilon: float) -> None:
    """Pearson's test with pooled tails; one of the three fails for three seeds in 10⁵ (fixed here)."""
    cells, in_each = 2000, 1000  # large enough that none is clipped at zero: e^(−1000·ε/2) is 10⁻¹¹ at most
    rng = np.random.default_rng(4)
    counts = np.repeat(np.arange(cells), in_each)
    noisy = np.concatenate([noisy_histogram(counts, cells - 1, epsilon=epsilon, rng=rng) for _ in range(10)])
    assert noisy.dtype == np.int64
    noise = noisy - in_each
    widest = next(x for x in itertools.count() if len(noise) * noise_probability(x + 1, epsilon) < 20)
    inner = np.arange(-widest, widest + 1)
    expected = len(noise) * np.array([noise_probability(int(x), epsilon) for x in inner])
    observed = np.array([np.sum(noise == x) for x in inner])
    expected, observed = (np.append(some, len(noise) - some.sum()) for some in (expected, observed))
    assert stats.chisquare(observed, expected).pvalue > 1e-5


def test_histogram_clips_high_labels_and_negative_numbers() -> None:
    """With hardly any noise, and with so much that about half of the empty cells would be negative."""
    rng = np.random.default_rng(5)
    counts = np.array([0, 0, 1, 5, 7])
    assert noisy_histogram(counts, 3, epsilon=200.0, rng=rng).tolist() == [2, 1, 0, 2]
    noisy = noisy_histogram(counts, 1000, epsilon=1e-6, rng=rng)
    assert noisy.min() == 0
    assert 0.4 < np.mean(noisy == 0) < 0.6
    assert noisy_histogram(counts[:0], 3, epsilon=200.0, rng=rng).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_impossible_histograms_are_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be finite and at least"):
        noisy_histogram(np.array([1]), 3, epsilon=epsilon, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="must be 1 or more, got 0"):
        noisy_histogram(np.array([1]), 0, epsilon=1.0, rng=np.random.default_rng(0))


# The optimal bins.


@functools.cache
def probabilities(k: int, epsilon: float) -> tuple[float, float]:
    response = RandomizedResponse(tuple(map(float, range(k))), epsilon)
    return response.keep_probability, response.other_probability


def squared_error(histogram: np.ndarray, bin_of: tuple[int, ...], values: tuple[float, ...], epsilon: float) -> float:
    """Returns E[(response − label)²] by summing over all labels and all responses."""
    p, q = probabilities(len(values), epsilon)
    error = 0.0
    for label, number in enumerate(histogram):
        for j, value in enumerate(values):
            chance = p if j == bin_of[label] else q
            error += number / sum(histogram) * chance * (value - label) ** 2
    return error


def best_values(histogram: np.ndarray, bin_of: tuple[int, ...], k: int, epsilon: float) -> tuple[float, ...]:
    """Returns the value of each response: the mean label of the examples with that response."""
    p, q = probabilities(k, epsilon)
    chances = [np.array([p if bin_of[label] == j else q for label in range(len(histogram))]) for j in range(k)]
    return tuple(float(np.average(np.arange(len(histogram)), weights=chance * histogram)) for chance in chances)


def all_cuts(labels: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yields every way to cut the labels into 2 or more consecutive bins."""
    for k in range(2, labels + 1):
        for starts in itertools.combinations(range(1, labels), k - 1):
            yield k, tuple(sum(label >= start for start in starts) for label in range(labels))


def all_maps(labels: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yields every map of labels to 2 or more bins, in any order, including empty bins."""
    for k in range(2, labels + 1):
        for bin_of in itertools.product(range(k), repeat=labels):
            yield k, bin_of


def error_of(bins: Bins, histogram: np.ndarray, epsilon: float) -> float:
    bin_of = tuple(bins.indices(np.arange(len(histogram))).tolist())
    return squared_error(histogram, bin_of, bins.values, epsilon)


histograms = st.lists(st.integers(0, 1000) | st.integers(0, 3), min_size=2, max_size=6).map(np.array)
epsilons = st.sampled_from([0.01, 0.5, 1.0, 2.0, 4.0, 8.0, 40.0])


@given(histogram=histograms, epsilon=epsilons)
@settings(max_examples=60, deadline=None)
def test_bins_are_the_best_of_all_cuts(histogram: np.ndarray, epsilon: float) -> None:
    bins = optimal_bins(histogram, epsilon=epsilon)
    if np.count_nonzero(histogram) < 2:
        assert bins == binary_bins()
        return
    least = min(
        squared_error(histogram, bin_of, best_values(histogram, bin_of, k, epsilon), epsilon)
        for k, bin_of in all_cuts(len(histogram))
    )
    assert error_of(bins, histogram, epsilon) == pytest.approx(least, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("histogram", [[9, 1, 0, 2], [1, 1, 1, 1], [100, 10, 0, 1], [1, 5, 50, 2], [5, 0, 0, 5]])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.0])
def test_no_map_at_all_is_better(histogram: list[int], epsilon: float) -> None:
    weights = np.array(histogram)
    least = min(
        squared_error(weights, bin_of, best_values(weights, bin_of, k, epsilon), epsilon) for k, bin_of in all_maps(4)
    )
    assert error_of(optimal_bins(weights, epsilon=epsilon), weights, epsilon) == pytest.approx(least, rel=1e-9)


def test_values_are_the_best_for_their_bins() -> None:
    """Moving any value in either direction increases the error."""
    histogram, epsilon = np.array([60, 30, 10, 10, 4, 4]), 2.0
    bins = optimal_bins(histogram, epsilon=epsilon)
    least = error_of(bins, histogram, epsilon)
    for i, step in itertools.product(range(len(bins.values)), [-1e-3, 1e-3]):
        moved = tuple(value + step * (i == j) for j, value in enumerate(bins.values))
        assert error_of(bins._replace(values=moved), histogram, epsilon) > least


@given(
    histogram=st.lists(st.integers(0, 10**9) | st.just(0), min_size=2, max_size=40).map(np.array),
    epsilon=st.floats(1e-3, 100),
)
@example(histogram=np.array([0, 0, 0, 1385, 5046]), epsilon=1.0)  # rounding would move a mean out of its bin
@example(histogram=np.array([0, 1, 62597854]), epsilon=1.0)  # nearly all labels are equal
@settings(max_examples=100, deadline=None)
def test_fitted_bins_can_always_be_responded_with(histogram: np.ndarray, epsilon: float) -> None:
    bins = optimal_bins(histogram, epsilon=epsilon)
    assert bins.starts[0] == 0
    assert len(bins.values) == len(bins.starts) == len(bins.means) >= 2
    for values in (bins.values, bins.means):
        RandomizedResponse(values, epsilon)  # refuses values that do not increase
    for start, stop, mean in zip(bins.starts, (*bins.starts[1:], len(histogram)), bins.means, strict=True):
        assert start <= mean <= stop - 1
        if np.count_nonzero(histogram) > 1 and histogram[start:stop].sum() > 0:
            assert mean == pytest.approx(np.average(np.arange(start, stop), weights=histogram[start:stop]))


def test_more_privacy_makes_fewer_bins() -> None:
    histogram = np.array([900, 40, 30, 20, 10])
    numbers = [len(optimal_bins(histogram, epsilon=epsilon).starts) for epsilon in (0.1, 1.0, 4.0, 6.0, 8.0)]
    assert numbers == [2, 2, 3, 4, 5]
    # With almost no noise, each label is its own bin.
    assert optimal_bins(histogram, epsilon=30.0).values == pytest.approx(range(5), abs=1e-9)


@pytest.mark.parametrize("histogram", [[0, 0, 0], [7, 0, 0], [0, 7, 0], [0, 0, 7]])
def test_labels_that_are_all_alike_get_binary_bins(histogram: list[int]) -> None:
    assert optimal_bins(np.array(histogram), epsilon=1.0) == binary_bins()


def test_labels_that_never_occur_belong_to_the_bin_above() -> None:
    assert optimal_bins(np.array([6, 0, 0, 4, 0]), epsilon=2.0).starts == (0, 1)
    assert optimal_bins(np.array([6, 0, 0, 4, 0]), epsilon=2.0).means == (0.0, 3.0)


@pytest.mark.parametrize("histogram", [[5], [[1, 2], [3, 4]], [1, -1], [1, math.nan], [1, math.inf]])
def test_what_is_no_histogram_is_refused(histogram: list[float]) -> None:
    with pytest.raises(ValueError, match="the histogram"):
        optimal_bins(np.array(histogram), epsilon=1.0)


def test_debiasing_the_means_is_unbiased_for_the_mean_label() -> None:
    """In expectation over the histogram's labels and all responses; the shrunken values would be biased."""
    histogram, epsilon = np.array([60, 30, 10, 10, 4, 4]), 1.5
    bins = optimal_bins(histogram, epsilon=epsilon)
    assert bins.values != pytest.approx(bins.means, abs=0.1)
    response = RandomizedResponse(bins.means, epsilon)
    p, q = response.keep_probability, response.other_probability
    total = 0.0
    for label, number in enumerate(histogram):
        true = int(bins.indices(np.array([label]))[0])
        total += number * sum((p if j == true else q) * y for j, y in enumerate(response.debiased_values))
    assert total / histogram.sum() == pytest.approx(np.average(np.arange(6), weights=histogram), rel=1e-12)
