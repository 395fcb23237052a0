"""Bins: how count labels become a few values for randomised response to choose from.

There are three ways: zero or not (binary), the count capped at a maximum (k-ary), or bins of counts fitted to a
prior ("RR on bins": Ghazi et al., 2022, "Regression with Label Differential Privacy"). The prior is a histogram of
the labels themselves, released with its own noise, and the bins computed from it are post-processing. By the time
labels are mapped to bins, the map is a fixed function, so a response is as private for the label as for its bin.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from dp_core.labels.randomized_response import RandomizedResponse

# L1 sensitivity of the histogram to replacing one label: one cell loses it and another one gains it.
_SENSITIVITY = 2
_LEAST_EPSILON = 1e-9

# The reduction in squared error that justifies another bin, relative to the labels' variance: above rounding.
_LEAST_GAIN = 1e-12


class Bins(NamedTuple):
    """Consecutive bins of counts and the value that stands for each.

    Values and means differ only for fitted bins. Their values are already shrunk towards the mean of all labels, to
    allow for wrong responses. Debiasing needs the means: ``RandomizedResponse(bins.means, ε).debiased``.

    Attributes:
        values: The label to train on for each bin if responses are used as they are, increasing. Length k.
        starts: The first count of each bin, from 0. Bin i is ``starts[i]`` to ``starts[i + 1] − 1``; the last one is
            unbounded. Length k.
        means: The mean label of each bin, increasing. Length k.
    """

    values: tuple[float, ...]
    starts: tuple[int, ...]
    means: tuple[float, ...]

    def indices(self, counts: np.ndarray) -> np.ndarray:
        """Returns the bin of each count, int64 of the same shape.

        >>> count_bins(2).indices(np.array([0, 1, 2, 9])).tolist()
        [0, 1, 2, 2]

        Raises:
            ValueError: If a label is not a non-negative integer.
        """
        return np.searchsorted(np.asarray(self.starts), _whole(counts), side="right") - 1


def binary_bins() -> Bins:
    """Returns two bins: zero, and one or more."""
    return count_bins(1)


def count_bins(most: int) -> Bins:
    """Returns one bin per count from 0 to ``most``; the last one also holds everything above.

    Raises:
        ValueError: If ``most`` is below 1.
    """
    if most < 1:
        raise ValueError(f"the highest count must be 1 or more, got {most}")
    values = tuple(float(count) for count in range(most + 1))
    return Bins(values, tuple(range(most + 1)), values)


def noisy_histogram(counts: np.ndarray, most: int, *, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """Returns a noisy histogram of the labels.

    The result is ``epsilon``-label-DP with δ = 0: replacing one label moves the histogram by 2 in L1, and each cell
    gets two-sided geometric noise, P(x) ∝ e^(−|x|·ε/2). Negative results are set to 0, which is post-processing.
    The noise comes from 64-bit floating point and NumPy's PCG64, which does not resist attacks on either.

    Args:
        counts: The labels, non-negative integers of shape [examples].
        most: The last cell; labels above are counted in it.
        epsilon: The ε of the histogram, finite and at least 1e-9.
        rng: The source of noise. Must not be seeded outside of tests.

    Returns:
        The noisy numbers of labels that are 0, 1, …, ``most`` or more. Non-negative int64 of shape [most + 1].

    Raises:
        ValueError: If an argument is out of range.
    """
    if most < 1:
        raise ValueError(f"the highest count must be 1 or more, got {most}")
    if not _LEAST_EPSILON <= epsilon < math.inf:
        raise ValueError(f"the histogram's epsilon must be finite and at least {_LEAST_EPSILON}, got {epsilon}")
    numbers = np.bincount(np.minimum(_whole(counts), most), minlength=most + 1)
    # The integer part of an exponential variable is geometric, starting at 0.
    geometric = np.floor(rng.standard_exponential((2, most + 1)) * (_SENSITIVITY / epsilon)).astype(np.int64)
    return np.maximum(numbers + geometric[0] - geometric[1], 0)


def optimal_bins(histogram: np.ndarray, *, epsilon: float) -> Bins:
    """Returns the bins with the least mean squared error of responses to labels distributed like ``histogram``.

    Minimises E[(response − label)²] over the number of bins (2 to one per count), all ways to cut the counts into
    consecutive bins, and all values (RR-on-bins, Ghazi et al., 2022). Bins that are not consecutive are
    never better, because the best bin for a label is the one with the nearest value. Of equally good bins, the fewest
    are returned. Counts with no mass belong to the bin above. If fewer than two counts have mass, the bins are binary.

    >>> optimal_bins(np.array([900, 40, 30, 20, 10]), epsilon=5.0).starts
    (0, 1, 2)

    Args:
        histogram: The (noisy) number of labels of each count, non-negative, of shape [counts] with counts ≥ 2.
        epsilon: The ε of the responses.

    Returns:
        The optimal bins.

    Raises:
        ValueError: If the histogram has the wrong shape or negative or non-finite numbers.
    """
    weights = np.asarray(histogram, np.float64)
    if weights.ndim != 1 or len(weights) < 2:
        raise ValueError(f"the histogram must be a vector of at least 2 numbers, got shape {weights.shape}")
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise ValueError("the histogram's numbers must be finite and not negative")
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
        # Bins with values that do not increase are never better: dropping one of them does not raise the error.
        if rising and cost < least - _LEAST_GAIN * variance:
            least, chosen = cost, Bins(of_bins, starts, _means(weights, starts, stops))
    return chosen


def _costs(weights: np.ndarray, number: int, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for each [start, stop) that could be one of ``number`` bins, the cost and the value of its response.

    A bin's response is given with probability p to labels inside and q to labels outside. So its best value is the
    mean of all labels with these weights, and its cost is their squared deviation from it, whatever the other bins are.
    """
    response = RandomizedResponse(tuple(map(float, range(number))), epsilon)
    p, q = response.keep_probability, response.other_probability
    # Centred at the mean of all labels: if nearly all labels are equal, digits would cancel otherwise.
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
    """Returns the least total cost of ``number`` consecutive bins that cover all counts, and their starts."""
    end = len(costs) - 1
    # least[stop] is the least cost of bins that cover [0, stop), with one more bin per round.
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
    """Returns the mean label of each bin; for an empty bin its middle, or its start if it is the last one."""
    means = []
    for start, stop in zip(starts, stops, strict=True):
        mass = float(weights[start:stop].sum())
        if mass > 0:
            above_start = float(weights[start:stop] @ np.arange(stop - start)) / mass
            # Rounding must not move a mean out of its bin, or the means would not increase.
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
            raise ValueError("labels must be non-negative integers, but some are NaN or infinite")
        if np.any(counts != np.floor(counts)):
            raise ValueError(f"labels must be non-negative integers, got {counts[counts != np.floor(counts)][0]}")
    elif not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"labels must be non-negative integers, got dtype {counts.dtype}")
    if counts.min() < 0:
        raise ValueError(f"labels must be non-negative integers, got {counts.min()}")
    if counts.dtype == np.uint64 or np.issubdtype(counts.dtype, np.floating):
        # Values beyond int64 fall into the last bin anyway.
        counts = np.minimum(counts.astype(np.float64), 2.0**62)
    return counts.astype(np.int64)
