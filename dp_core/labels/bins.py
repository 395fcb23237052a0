"""How labels that count something become a few values, for randomised response to choose from.

Three ways: whether there is any (binary), the count up to a greatest one (k-ary), or bins of counts
that are fitted to a prior ("RR on bins": Ghazi et al. 2022, Regression with Label Differential
Privacy). The prior is a histogram of the labels themselves, which is released with noise of its own; the
map that is computed from it is post-processing. The map from counts to bins is a fixed function by the
time it is applied, so a response among the bins is as private for the label as for its bin.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from dp_core.randomized_response import RandomizedResponse

# How far one replaced label moves the histogram, in L1: one cell loses it and another gets it.
_SENSITIVITY = 2
_LEAST_EPSILON = 1e-9

# How much less squared error another bin must promise, relative to the labels' variance: more than rounding.
_LEAST_GAIN = 1e-12


class Bins(NamedTuple):
    """Counts ``starts[i]`` to ``starts[i + 1] − 1`` are bin i; the last bin holds everything above too.

    ``values`` are what to answer for each bin when responses are used as they are, and ``means`` the bins' mean
    labels, to be debiased: ``RandomizedResponse(bins.means, ε).debiased``. Both rise. They differ only
    for fitted bins, whose values are already drawn towards the mean of all labels for the sake of
    responses that are wrong; debiasing those would be unbiased for the wrong thing.
    """

    values: tuple[float, ...]
    starts: tuple[int, ...]
    means: tuple[float, ...]

    def indices(self, counts: np.ndarray) -> np.ndarray:
        """The bin of each count.

        >>> count_bins(2).indices(np.array([0, 1, 2, 9])).tolist()
        [0, 1, 2, 2]
        """
        return np.searchsorted(np.asarray(self.starts), _whole(counts), side="right") - 1


def binary_bins() -> Bins:
    """None, or any."""
    return count_bins(1)


def count_bins(most: int) -> Bins:
    """Each count for itself, up to ``most``, which stands for all that are higher."""
    if most < 1:
        raise ValueError(f"the highest count must be 1 or more, got {most}")
    values = tuple(float(count) for count in range(most + 1))
    return Bins(values, tuple(range(most + 1)), values)


def noisy_histogram(counts: np.ndarray, most: int, *, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """How many labels are 0, 1, …, ``most`` or more, with noise: ``epsilon``-private for each label, with δ = 0.

    Each number gets two-sided geometric noise, P(x) ∝ e^(−|x|·ε/2), because one replaced label moves the numbers by
    2 in L1. Those below zero are set to zero, after the fact. ``rng`` must not be seeded outside of tests. The
    noise comes from 64-bit floating point and NumPy's PCG64: not proof against attacks on either.
    """
    if most < 1:
        raise ValueError(f"the highest count must be 1 or more, got {most}")
    if not _LEAST_EPSILON <= epsilon < math.inf:
        raise ValueError(f"a histogram's epsilon must be finite and at least {_LEAST_EPSILON}, got {epsilon}")
    numbers = np.bincount(np.minimum(_whole(counts), most), minlength=most + 1)
    # The whole part of an exponential variable is geometric, from 0.
    geometric = np.floor(rng.standard_exponential((2, most + 1)) * (_SENSITIVITY / epsilon)).astype(np.int64)
    return np.maximum(numbers + geometric[0] - geometric[1], 0)


def optimal_bins(histogram: np.ndarray, *, epsilon: float) -> Bins:
    """The bins, and what to answer for each, with the least squared error of responses on labels like ``histogram``.

    The least of E[(response − label)²] over all numbers of bins from 2 to one for each count, all ways to
    cut the counts, and all values. No map that mixes the order of the counts does better: a label is served best
    by the bin whose value is nearest. Of equally good bins these are the fewest, and counts that the histogram
    does not have belong to the bin above. If all labels are alike, or there are none, the bins are binary.

    >>> optimal_bins(np.array([900, 40, 30, 20, 10]), epsilon=5.0).starts
    (0, 1, 2)
    """
    weights = np.asarray(histogram, np.float64)
    if weights.ndim != 1 or len(weights) < 2:
        raise ValueError(f"a histogram needs the numbers of 2 labels or more, got the shape {weights.shape}")
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise ValueError("a histogram's numbers must be finite and not negative")
    if np.count_nonzero(weights) < 2:
        return binary_bins()
    weights = weights / weights.sum()
    labels = np.arange(len(weights))
    mean = float(weights @ labels)
    variance = float(weights @ (labels - mean) ** 2)
    least, chosen = math.inf, binary_bins()
    for number in range(2, len(weights) + 1):
        costs, values = _costs(weights, number, epsilon)
        cost, starts = _cheapest_cuts(costs, number)
        stops = (*starts[1:], len(weights))
        of_bins = tuple(float(values[start, stop]) for start, stop in zip(starts, stops, strict=True))
        rising = all(one < next_one for one, next_one in itertools.pairwise(of_bins))
        # Values that do not rise are never the best: without one of the bins, the error is no larger.
        if rising and cost < least - _LEAST_GAIN * variance:
            least, chosen = cost, Bins(of_bins, starts, _means(weights, starts, stops))
    return chosen


def _costs(weights: np.ndarray, number: int, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """For each [start, stop) that could be one of so many bins: what its response costs, and that response's value.

    A bin's response is given with probability p to labels inside and q to those outside. So its best value is
    the mean of all labels with these weights, and its cost their scatter about it: the other bins do
    not matter.
    """
    response = RandomizedResponse(tuple(map(float, range(number))), epsilon)
    p, q = response.keep_probability, response.other_probability
    # About the mean of all labels: where nearly all are alike, little would be left of the digits otherwise.
    mean = float(weights @ np.arange(len(weights)))
    labels = np.arange(len(weights)) - mean
    moments = []
    for power in range(3):
        below = np.concatenate([[0.0], np.cumsum(weights * labels**power)])
        moments.append(q * below[-1] + (p - q) * (below[None, :] - below[:, None]))
    mass, first, second = moments
    possible = np.arange(len(weights) + 1)[:, None] < np.arange(len(weights) + 1)
    values = np.divide(first, mass, out=np.zeros_like(first), where=possible)
    return np.where(possible, second - first * values, np.inf), mean + values


def _cheapest_cuts(costs: np.ndarray, number: int) -> tuple[float, tuple[int, ...]]:
    """The least sum of costs of ``number`` bins that follow each other from 0 to the end, and their starts."""
    end = len(costs) - 1
    # least[stop]: the least cost of bins that cover [0, stop), one bin more in each round.
    least = costs[0]
    origins = []
    for _ in range(number - 1):
        sums = least[:, None] + costs
        origins.append(np.argmin(sums, axis=0))
        least = np.min(sums, axis=0)
    starts, stop = [], end
    for origin in reversed(origins):
        stop = int(origin[stop])
        starts.append(stop)
    return float(least[end]), (0, *reversed(starts))


def _means(weights: np.ndarray, starts: tuple[int, ...], stops: tuple[int, ...]) -> tuple[float, ...]:
    """The mean label of each bin; of one that has none, its middle, or where the last one starts."""
    means = []
    for start, stop in zip(starts, stops, strict=True):
        mass = float(weights[start:stop].sum())
        if mass > 0:
            above_start = float(weights[start:stop] @ np.arange(stop - start)) / mass
            # Rounding must not take the mean out of its bin: means of bins rise.
            means.append(min(start + above_start, float(stop - 1)))
        else:
            means.append(float(start) if stop == len(weights) else (start + stop - 1) / 2)
    return tuple(means)


def _whole(counts: np.ndarray) -> np.ndarray:
    counts = np.asarray(counts)
    if counts.size == 0 or counts.dtype == np.bool_:
        return counts.astype(np.int64)
    if np.issubdtype(counts.dtype, np.floating):
        if not np.all(np.isfinite(counts)):
            raise ValueError("labels must be whole numbers from 0, but some are NaN or infinite")
        if np.any(counts != np.floor(counts)):
            raise ValueError(f"labels must be whole numbers from 0, but one is {counts[counts != np.floor(counts)][0]}")
    elif not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"labels must be whole numbers from 0, not {counts.dtype}")
    if counts.min() < 0:
        raise ValueError(f"labels must be whole numbers from 0, but one is {counts.min()}")
    if counts.dtype == np.uint64 or np.issubdtype(counts.dtype, np.floating):
        # What has no place among signed integers is in the last bin at any rate.
        counts = np.minimum(counts.astype(np.float64), 2.0**62)
    return counts.astype(np.int64)
