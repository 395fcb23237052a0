"""The losses of Gaussian releases on Poisson samples, cell by cell, and bounds on the tails of their sums.

A release is told by the cell that it falls in, which is post-processing: what the cells show of two
neighbours is no more than what the release shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

ULP = 2.0**-52
# What a tilted law may have on either side of its window.
OUTSIDE_WINDOW = 1e-12

TINY = 1e-290

_COARSE_CELLS = 4000


class SampledGaussian(NamedTuple):
    """So many Gaussian releases, each on a Poisson sample."""

    sampling_probability: float
    noise_multiplier: float
    steps: int


class Release(NamedTuple):
    """The cells of one release: P has at least ``mass`` in each, and log P/Q is at least ``loss``."""

    steps: int
    mass: np.ndarray
    loss: np.ndarray
    multiple: np.ndarray

    def mean(self) -> float:
        return float(np.sum(self.mass * self.loss))

    def variance(self) -> float:
        return float(np.sum(self.mass * (self.loss - self.mean()) ** 2))


def window(releases: Sequence[Release], alike: Sequence[Release], tilt: float) -> tuple[float, float]:
    """Two values such that the tilted sum is beyond either with a probability of ``OUTSIDE_WINDOW`` at most.

    The slopes are the best for ``alike``: nearly as good for ``releases``, which may have many more cells.
    """
    # A little more than needed: the log at the tilt is subtracted, and may be rounded up.
    log_inverse = -math.log(OUTSIDE_WINDOW) + 1e-3
    at_tilt = _log_mgf(releases, tilt)
    _, up = chernoff(alike, log_inverse, tilt=tilt)
    _, down = chernoff(alike, log_inverse, tilt=tilt, sign=-1)
    high = (_log_mgf(releases, tilt + up) - at_tilt + log_inverse) / up
    low = (at_tilt - _log_mgf(releases, tilt - down) - log_inverse) / down
    return low, high


def chernoff(
    releases: Sequence[Release], log_inverse: float, *, tilt: float = 0.0, sign: int = 1, weighted: bool = False
) -> tuple[float, float]:
    """A value that ± the tilted sum exceeds with a probability of e^(−log_inverse) at most, and the slope for it.

    ``weighted`` asks instead for the ε whose δ is e^(−log_inverse) at most. Any slope gives a bound. The
    best is found to a few per cent, which hardly matters.
    """
    at_tilt = _log_mgf(releases, tilt) if tilt else 0.0

    def bound(slope: float) -> float:
        weight = log_weight(slope) if weighted else 0.0
        return (_log_mgf(releases, tilt + sign * slope) - at_tilt + weight + log_inverse) / slope

    slope = _lowest_point(bound, math.sqrt(2 * log_inverse) / spread(releases))
    return bound(slope), slope


def best_tilt(releases: Sequence[Release], epsilon: float, start: float) -> float:
    """The tilt that multiplies errors by least at this ε."""
    return _lowest_point(lambda tilt: _log_mgf(releases, tilt) + log_weight(tilt) - tilt * epsilon, start)


def _lowest_point(function: Callable[[float], float], start: float) -> float:
    """About where a function that falls and then rises is lowest, by steps of smaller and smaller factors."""
    point, value = start, function(start)
    for factor in (4.0, 1 / 4.0, 1.4, 1 / 1.4, 1.08, 1 / 1.08):
        for _ in range(60):
            there = function(point * factor)
            if not there < value - 1e-9 * abs(value):
                break
            point, value = point * factor, there
    return point


def _log_mgf(releases: Sequence[Release], slope: float) -> float:
    """Not below log E[e^(slope·Σ loss)]."""
    total = 0.0
    for release in releases:
        exponent = slope * release.loss
        top = float(np.max(exponent))
        log_sum = top + math.log(float(np.sum(release.mass * np.exp(exponent - top))))
        total += release.steps * (log_sum + ULP * (64 + 4 * abs(top)))
    return total


def log_weight(tilt: float) -> float:
    """The log of the largest value of e^(−tilt·g)·(1 − e^(−g)) over g ≥ 0."""
    return float(special.xlogy(tilt, tilt)) - (1 + tilt) * math.log1p(tilt)


def spread(releases: Sequence[Release]) -> float:
    """The standard deviation of the sum, or a little if it is next to nothing."""
    largest = max(float(np.max(np.abs(release.loss))) for release in releases)
    variance = sum(release.steps * release.variance() for release in releases)
    return max(math.sqrt(variance), 1e-9 * largest, 1e-30)


def total_variation(parts: Sequence[SampledGaussian]) -> float:
    """Not below δ(0): the sum over the steps or, by Pinsker, what bounds on their divergences allow."""
    added = divergence = 0.0
    for q, sigma, steps in parts:
        added += steps * q * math.erf(1 / (sigma * math.sqrt(8)))
        divergence += steps * math.log1p(q**2 * math.expm1(min(sigma**-2, 700.0)))
    return min(added, math.sqrt(divergence / 2))


def coarse_cells(part: SampledGaussian, reach: float) -> Release:
    edges = np.linspace(-reach * part.noise_multiplier, 1 + reach * part.noise_multiplier, _COARSE_CELLS + 1)
    return _cells(part, edges, np.arange(_COARSE_CELLS))


def mesh_cells(part: SampledGaussian, width: float, reach: float) -> Release:
    """Cells whose losses are between (j − ½)·h and (j + ½)·h, but for the last, which is all that is above."""
    q, sigma, _ = part
    first, last = (math.floor(loss(part, reach) / width) for loss in (lowest_loss, highest_loss))
    loss = (np.arange(first, last + 2) - 0.5) * width
    # The outcome with this loss. Losses are above log(1−q) for all outcomes.
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
    """What the standard normal has between neighbouring edges: at least, and at most."""
    # Differences of the smaller tails. scipy's are within 2·(1 + z²) ulp, the rounding of z included.
    tail = special.ndtr(-np.abs(edges))
    off = 8 * ULP * (1 + np.minimum(np.abs(edges), 40.0) ** 2) * tail
    across = (edges[:-1] < 0) & (edges[1:] > 0)
    mass = np.where(across, 1 - tail[:-1] - tail[1:], np.abs(tail[:-1] - tail[1:]))
    error = off[:-1] + off[1:] + np.where(across, 4 * ULP, 0.0)
    return np.maximum(mass - error, 0.0), mass + error


def lowest_loss(part: SampledGaussian, reach: float) -> float:
    q, sigma, _ = part
    return math.log1p(-q) if q < 1 else 0.5 / sigma**2 - reach / sigma


def highest_loss(part: SampledGaussian, reach: float) -> float:
    q, sigma, _ = part
    at_top = math.log(q) + 0.5 / sigma**2 + reach / sigma
    return float(np.logaddexp(math.log1p(-q), at_top)) if q < 1 else at_top
