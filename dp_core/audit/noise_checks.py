"""Noise checks: whether draws behave like independent standard normal numbers, array by array and step by step.

The tests look for what breaks a guarantee: too little noise anywhere, in one array, one step or one block of
coordinates; a distribution that is not normal, or whose tails are cut; the same noise in two arrays or in two steps.
Each gives a p-value that is uniform, or stochastically larger, for correct noise. Correct noise fails with probability
at most ``FALSE_ALARM_RATE``: the p-values are compared with that rate divided by the number of tests.

What they see with probability 0.99, for n draws: a standard deviation that is off by 5.4/√n of itself (0.7 % at 300,000
draws), a correlation of 7.2/√n between two steps, any three consecutive draws that occur twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

FALSE_ALARM_RATE = 1e-6

# Coordinates of a block. A block without noise, or with half of it, is far outside of its distribution.
_BLOCK = 128
# The number of |draws| above each of these is binomial.
_TAILS = (1.0, 2.0, 3.0, 4.0, 5.0)
# Draws at either end of each array that are searched for repetitions, and compared between arrays.
_WINDOW = 1024
# Fewer draws than this are not compared with each other: their correlation has no power.
_FEWEST_COMPARED = 30
_MOST_STEPS_COMPARED = 48
# Distances at which coordinates of a step are compared.
_MOST_LAGS = 16
# The density of the difference of two |draws| is at most 2/√π: closer than this has probability below 2.3e-6.
_SAME_SIZE = 1e-6
_MOST_IN_SHAPE_TEST = 200_000


class NoiseTest(NamedTuple):
    """One test of the noise.

    Attributes:
        what: What was tested, in words that complete "the noise ...".
        p_value: The probability that correct noise looks at least as strange.
    """

    what: str
    p_value: float


def noise_tests(noise: Mapping[str, np.ndarray]) -> list[NoiseTest]:
    """Tests the noise of several steps, in units of its stated standard deviation.

    Args:
        noise: Each array's noise by the array's name, of shape (steps, coordinates).

    Returns:
        The strangest result of each kind of test, corrected for how often the kind was applied.
    """
    noise = {name: np.asarray(values, np.float64) for name, values in noise.items()}
    whole = np.concatenate(list(noise.values()), axis=1)
    return [
        _scale({f"of {name}": values for name, values in noise.items()}),
        _scale({f"of probed step {step}": values for step, values in enumerate(whole)}),
        _mean(noise),
        _blocks(whole),
        _tails(np.abs(whole).ravel()),
        _shape(whole.ravel()),
        _between_steps(whole),
        _between_arrays(noise),
        _between_neighbours(whole),
        _repetitions(noise),
    ]


def strangest(tests: Sequence[NoiseTest]) -> list[str]:
    """Returns the tests that fail; correct noise fails any with probability at most ``FALSE_ALARM_RATE``."""
    return [
        f"the noise {test.what} (p = {test.p_value:.1e})"
        for test in tests
        if not test.p_value >= FALSE_ALARM_RATE / len(tests)
    ]


def _least(found: Sequence[NoiseTest]) -> NoiseTest:
    """Returns the test with the smallest p-value, corrected by Bonferroni for the number of tests."""
    least = min(found, key=lambda test: (not np.isnan(test.p_value), test.p_value))
    return least._replace(p_value=min(1.0, least.p_value * len(found)))


def _chi_squared(squares: np.ndarray | float, draws: int) -> np.ndarray:
    """Returns two-sided p-values of sums of squares of independent normal draws, which follow χ²(draws)."""
    return np.minimum(1.0, 2 * np.minimum(special.chdtr(draws, squares), special.chdtrc(draws, squares)))


def _scale(parts: Mapping[str, np.ndarray]) -> NoiseTest:
    found = []
    for name, values in parts.items():
        squares = float(np.sum(values**2))
        what = f"{name} has {(squares / values.size) ** 0.5:.4g} times the stated standard deviation"
        found.append(NoiseTest(what, float(_chi_squared(squares, values.size))))
    return _least(found)


def _mean(noise: Mapping[str, np.ndarray]) -> NoiseTest:
    found = []
    for name, values in noise.items():
        p_value = 2 * float(stats.norm.sf(abs(float(np.sum(values))) / values.size**0.5))
        found.append(NoiseTest(f"of {name} has a mean of {np.mean(values):.3g} standard deviations", p_value))
    return _least(found)


def _blocks(whole: np.ndarray) -> NoiseTest:
    """Tests blocks of neighbouring coordinates, each over all steps."""
    steps, coordinates = whole.shape
    size = min(_BLOCK, coordinates)
    kept = coordinates // size * size
    squares = np.sum((whole[:, :kept] ** 2).reshape(steps, -1, size), axis=(0, 2))
    p_values = _chi_squared(squares, steps * size)
    worst = int(np.argmin(p_values))
    deviation = (squares[worst] / (steps * size)) ** 0.5
    what = f"of the {size} coordinates from {worst * size:,} on has {deviation:.4g} times the stated standard deviation"
    return NoiseTest(what, min(1.0, float(p_values[worst]) * len(p_values)))


def _tails(sizes: np.ndarray) -> NoiseTest:
    found = []
    for bound in _TAILS:
        share, count = 2 * float(stats.norm.sf(bound)), int(np.sum(sizes > bound))
        law = stats.binom(sizes.size, share)
        p_value = min(1.0, 2 * min(float(law.cdf(count)), float(law.sf(count - 1))))
        expected = f"where {sizes.size * share:,.1f} are expected"
        found.append(
            NoiseTest(f"has {count:,} of {sizes.size:,} draws beyond {bound:g} deviations, {expected}", p_value)
        )
    return _least(found)


def _shape(draws: np.ndarray) -> NoiseTest:
    # Every k-th draw: enough to see another distribution.
    sample = draws[:: -(-len(draws) // _MOST_IN_SHAPE_TEST)]
    return NoiseTest("is not distributed normally", float(stats.kstest(sample, "norm", method="asymp").pvalue))


def _between_steps(whole: np.ndarray) -> NoiseTest:
    names = [f"probed step {step}" for step in range(len(whole))]
    return correlation_test(names, list(whole[:_MOST_STEPS_COMPARED]))


def _between_arrays(noise: Mapping[str, np.ndarray]) -> NoiseTest:
    """Compares the beginnings of all pairs of arrays, in the first step."""
    return correlation_test(list(noise), [values[0, :_WINDOW] for values in noise.values()])


def _between_neighbours(whole: np.ndarray) -> NoiseTest:
    """Tests coordinates of one step at distances 1 to ``_MOST_LAGS``, and their sizes.

    At each distance, only every other stretch of that many coordinates is paired with the next one. So no coordinate
    is in two pairs, and the correlation has the law of independent vectors. A copy with
    other signs shows in the sizes.
    """
    found = []
    rows = whole[: max(1, _MOST_IN_SHAPE_TEST // max(whole.shape[1], 1))]
    for lag in range(1, min(_MOST_LAGS, whole.shape[1] // 2) + 1):
        count = whole.shape[1] // (2 * lag)
        pairs = rows[:, : count * 2 * lag].reshape(-1, 2, lag)
        one, other = pairs[:, 0].ravel(), pairs[:, 1].ravel()
        if len(one) < _FEWEST_COMPARED:
            continue
        scale = float(np.sqrt(np.sum(one**2) * np.sum(other**2)))
        correlation = float(np.sum(one * other)) / scale if scale > 0 else 1.0
        p_value = float(special.betainc((len(one) - 1) / 2, 0.5, 1 - min(correlation**2, 1.0)))
        found.append(NoiseTest(f"of coordinates {lag} apart has a correlation of {correlation:.3g}", p_value))
        # Two normal numbers are this close in size with probability 2.3e-6 at most, if they are independent.
        same = int(np.sum(np.abs(np.abs(one) - np.abs(other)) < _SAME_SIZE))
        chance = float(stats.binom.sf(same - 1, len(one), 2.3e-6)) if same else 1.0
        found.append(NoiseTest(f"is of the same size in {same:,} of {len(one):,} coordinates {lag} apart", chance))
    return _least(found) if found else NoiseTest("of neighbours is correlated", 1.0)


def correlation_test(names: Sequence[str], rows: Sequence[np.ndarray]) -> NoiseTest:
    """Returns the strangest correlation of two rows, over the coordinates that both have.

    The uncentred correlation r of independent normal vectors of length n is distributed like one coordinate of a random
    point on the sphere: r² is Beta(1/2, (n - 1)/2).
    """
    width = max(len(row) for row in rows)
    padded, present = (np.zeros((len(rows), width)) for _ in range(2))
    for number, row in enumerate(rows):
        padded[number, : len(row)], present[number, : len(row)] = row, 1
    counts, products = present @ present.T, padded @ padded.T
    squares = padded**2 @ present.T  # of the row's first coordinates, as many as the other row has
    scales = np.sqrt(squares * squares.T)
    correlations = np.divide(products, scales, out=np.ones_like(products), where=scales > 0)
    pairs = np.triu(counts >= _FEWEST_COMPARED, 1)
    if not np.any(pairs):
        return NoiseTest("of two steps or arrays is correlated", 1.0)
    p_values = np.ones_like(products)
    inside = np.minimum(correlations[pairs] ** 2, 1.0)
    p_values[pairs] = special.betainc((counts[pairs] - 1) / 2, 0.5, 1 - inside)
    a, b = np.unravel_index(int(np.argmin(p_values)), p_values.shape)
    what = f"of {names[int(a)]} and {names[int(b)]} has a correlation of {correlations[a, b]:.3g}"
    return NoiseTest(what, min(1.0, float(p_values[a, b]) * int(np.sum(pairs))))


def _repetitions(noise: Mapping[str, np.ndarray]) -> NoiseTest:
    """Looks for three consecutive draws of an array and step that occur twice up to sign, wherever they stand.

    A draw takes any of its values with probability below 2⁻²², so that three in a row recur by chance with
    probability below 2⁻⁶⁶ for each pair of places, and a hash of 64 bits with probability 2⁻⁶⁴.
    """
    windows = []
    for values in noise.values():
        parts = [values] if values.shape[1] <= 2 * _WINDOW else [values[:, :_WINDOW], values[:, -_WINDOW:]]
        for part in parts:
            bits = np.ascontiguousarray(np.abs(part), np.float32).view(np.uint32).astype(np.uint64)
            if part.shape[1] >= 3:
                windows.append(_hashed(bits[:, :-2], bits[:, 1:-1], bits[:, 2:]).ravel())
    if not windows:
        return NoiseTest("repeats itself", 1.0)
    found = np.sort(np.concatenate(windows))
    repeated = int(np.sum(found[1:] == found[:-1]))
    by_chance = min(1.0, len(found) ** 2 * 2.0**-64)
    return NoiseTest(f"has {repeated:,} times three consecutive draws that occur twice", by_chance if repeated else 1.0)


def _hashed(*words: np.ndarray) -> np.ndarray:
    hashed = np.zeros_like(words[0])
    for word in words:
        hashed = (hashed ^ word) * np.uint64(0x9E3779B97F4A7C15)
        hashed ^= hashed >> np.uint64(29)
    return hashed
