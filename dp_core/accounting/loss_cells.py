"""Discretised privacy losses of Poisson-sampled Gaussian releases, and tail bounds on their sums.

A release is reported only by the cell that it falls in. That is post-processing, so the cells distinguish two
neighbours no better than the release itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

ULP = 2.0**-52
# The probability that a tilted distribution may have on either side of its window.
OUTSIDE_WINDOW = 1e-12

# Probabilities below this are treated as 0, before they become denormal.
TINY = 1e-290
# Relative safety margin for the few roundings that are not bounded one by one.
MARGIN = 1e-9

_COARSE_CELLS = 4000


class SampledGaussian(NamedTuple):
    """Gaussian releases of equal noise, each on a Poisson sample of its own.

    Attributes:
        sampling_probability: The probability q that an example is in a sample, from 0 to 1.
        noise_multiplier: The noise's standard deviation over the sensitivity, above 0.
        steps: The number of releases.
    """

    sampling_probability: float
    noise_multiplier: float
    steps: int


class Release(NamedTuple):
    """The cells of one release.

    Attributes:
        steps: The number of times the release happens.
        mass: Lower bounds on the probability of each cell under P, with the example. Shape [cells].
        loss: Lower bounds on log P/Q of each cell. Shape [cells].
        multiple: The multiple of the mesh width that stands for each cell's loss. Shape [cells].
    """

    steps: int
    mass: np.ndarray
    loss: np.ndarray
    multiple: np.ndarray

    def mean(self) -> float:
        """Returns the mean loss of one release."""
        return float(np.sum(self.mass * self.loss))

    def variance(self) -> float:
        """Returns the variance of the loss of one release."""
        return float(np.sum(self.mass * (self.loss - self.mean()) ** 2))


def window(releases: Sequence[Release], similar: Sequence[Release], tilt: float) -> tuple[float, float]:
    """Returns a lower and an upper value that the tilted sum is beyond with small probability.

    Args:
        releases: The releases with losses to be summed.
        similar: Nearly the same releases with fewer cells, for which the optimal Chernoff slopes are computed.
            Any slope gives a valid window.
        tilt: The exponent θ of the tilted distribution, with density proportional to e^(θ·sum).

    Returns:
        (low, high); the sum is below ``low`` with probability at most ``OUTSIDE_WINDOW``, and likewise above ``high``.
    """
    # Slightly more than needed: the log MGF at the tilt is subtracted and may have been rounded up.
    log_inverse = -math.log(OUTSIDE_WINDOW) + 1e-3
    at_tilt = _log_mgf(releases, tilt)
    _, up = chernoff(similar, log_inverse, tilt=tilt)
    _, down = chernoff(similar, log_inverse, tilt=tilt, sign=-1)
    high = (_log_mgf(releases, tilt + up) - at_tilt + log_inverse) / up
    low = (at_tilt - _log_mgf(releases, tilt - down) - log_inverse) / down
    return low, high


def chernoff(
    releases: Sequence[Release], log_inverse: float, *, tilt: float = 0.0, sign: int = 1, weighted: bool = False
) -> tuple[float, float]:
    """Returns a Chernoff bound on the tail of the (tilted) sum of losses, and the slope that gives it.

    Every slope gives a valid bound. The best one is found to within a few per cent, which is close enough.

    Args:
        releases: The releases with losses to be summed.
        log_inverse: The logarithm of 1/p for a tail probability p.
        tilt: The exponent of the tilted distribution; 0 for the distribution itself.
        sign: 1 for the upper tail of the sum, −1 for the upper tail of its negative.
        weighted: Whether to return the ε with δ(ε) ≤ p instead of a quantile.

    Returns:
        (value, slope); ``sign`` times the sum exceeds ``value`` with probability at most p.
    """
    at_tilt = _log_mgf(releases, tilt) if tilt else 0.0

    def bound(slope: float) -> float:
        weight = log_weight(slope) if weighted else 0.0
        return (_log_mgf(releases, tilt + sign * slope) - at_tilt + weight + log_inverse) / slope

    slope = _lowest_point(bound, math.sqrt(2 * log_inverse) / spread(releases))
    return bound(slope), slope


def best_tilt(releases: Sequence[Release], epsilon: float, start: float) -> float:
    """Returns the tilt that amplifies errors of the tilted distribution the least at this ε."""
    return _lowest_point(lambda tilt: _log_mgf(releases, tilt) + log_weight(tilt) - tilt * epsilon, start)


def _lowest_point(function: Callable[[float], float], start: float) -> float:
    """Returns roughly the minimiser of a unimodal function, by multiplying with smaller and smaller factors."""
    point, value = start, function(start)
    for factor in (4.0, 1 / 4.0, 1.4, 1 / 1.4, 1.08, 1 / 1.08):
        for _ in range(60):
            there = function(point * factor)
            if not there < value - 1e-9 * abs(value):
                break
            point, value = point * factor, there
    return point


def _log_mgf(releases: Sequence[Release], slope: float) -> float:
    """Returns an upper bound on log E[e^(slope·Σ loss)]."""
    total = 0.0
    for release in releases:
        exponent = slope * release.loss
        top = float(np.max(exponent))
        log_sum = top + math.log(float(np.sum(release.mass * np.exp(exponent - top))))
        total += release.steps * (log_sum + ULP * (64 + 4 * abs(top)))
    return total


def log_weight(tilt: float) -> float:
    """Returns the log of the maximum of e^(−tilt·g)·(1 − e^(−g)) over g ≥ 0."""
    return float(special.xlogy(tilt, tilt)) - (1 + tilt) * math.log1p(tilt)


def spread(releases: Sequence[Release]) -> float:
    """Returns the standard deviation of the sum of losses, or a tiny positive number if it is almost 0."""
    largest = max(float(np.max(np.abs(release.loss))) for release in releases)
    variance = sum(release.steps * release.variance() for release in releases)
    return max(math.sqrt(variance), 1e-9 * largest, 1e-30)


def total_variation(parts: Sequence[SampledGaussian]) -> float:
    """Returns an upper bound on δ(0), the total variation distance between the neighbours.

    It is the smaller of the sum over the steps and Pinsker's inequality for bounds on their KL divergences.
    """
    added = divergence = 0.0
    for q, sigma, steps in parts:
        added += steps * q * math.erf(1 / (sigma * math.sqrt(8)))
        divergence += steps * math.log1p(q**2 * math.expm1(min(sigma**-2, 700.0)))
    return min(added, math.sqrt(divergence / 2))


def coarse_cells(part: SampledGaussian, reach: float) -> Release:
    """Returns equally wide cells of the outcome, to ``reach`` standard deviations beyond both means."""
    edges = np.linspace(-reach * part.noise_multiplier, 1 + reach * part.noise_multiplier, _COARSE_CELLS + 1)
    return _cells(part, edges, np.arange(_COARSE_CELLS))


def mesh_cells(part: SampledGaussian, width: float, reach: float) -> Release:
    """Returns cells with losses between (j − ½)·h and (j + ½)·h for integers j, where h is ``width``.

    The last cell holds everything above. Losses reach as far as those of outcomes ``reach`` standard deviations out.
    """
    q, sigma, _ = part
    first, last = (math.floor(loss(part, reach) / width) for loss in (lowest_loss, highest_loss))
    loss = (np.arange(first, last + 2) - 0.5) * width
    # Solve for the outcome with this loss. All outcomes have losses above log(1−q).
    above = loss - (math.log1p(-q) if q < 1 else -math.inf)
    excess = np.log(-np.expm1(-np.maximum(above, TINY)))
    edges = np.where(above > 0, 0.5 + sigma**2 * (loss + excess - math.log(q)), -math.inf)
    edges[-1] = math.inf
    return _cells(part, np.maximum.accumulate(edges), np.arange(first, last + 1))


def _cells(part: SampledGaussian, edges: np.ndarray, multiple: np.ndarray) -> Release:
    q, sigma, steps = part
    absent, absent_most = _normal_mass(edges / sigma)
    present, _ = _normal_mass((edges - 1) / sigma)
    mass = ((1 - q) * absent + q * present) * (1 - 8 * ULP)
    kept = (mass > TINY) & ((present > TINY) | (q < 1))
    ratio = present[kept] / np.maximum(absent_most[kept], TINY)
    change = q * (ratio - 1)
    loss = np.where(change > -0.5, np.log1p(np.maximum(change, -0.5)), np.log((1 - q) + q * ratio))
    return Release(steps, mass[kept], loss - 8 * ULP * (np.abs(loss) + q), multiple[kept])


def _normal_mass(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a lower and an upper bound on the standard normal's probability between neighbouring edges."""
    # Differences of the smaller tails. scipy's tails are accurate to 2·(1 + z²) ulp, including the rounding of z.
    tail = special.ndtr(-np.abs(edges))
    off = 8 * ULP * (1 + np.minimum(np.abs(edges), 40.0) ** 2) * tail
    across = (edges[:-1] < 0) & (edges[1:] > 0)
    mass = np.where(across, 1 - tail[:-1] - tail[1:], np.abs(tail[:-1] - tail[1:]))
    error = off[:-1] + off[1:] + np.where(across, 4 * ULP, 0.0)
    return np.maximum(mass - error, 0.0), mass + error


def lowest_loss(part: SampledGaussian, reach: float) -> float:
    """Returns the loss of an outcome ``reach`` standard deviations below, or its limit for q < 1."""
    q, sigma, _ = part
    return math.log1p(-q) if q < 1 else 0.5 / sigma**2 - reach / sigma


def highest_loss(part: SampledGaussian, reach: float) -> float:
    """Returns the loss of an outcome ``reach`` standard deviations above the mean with the example."""
    q, sigma, _ = part
    at_top = math.log(q) + 0.5 / sigma**2 + reach / sigma
    return float(np.logaddexp(math.log1p(-q), at_top)) if q < 1 else at_top
