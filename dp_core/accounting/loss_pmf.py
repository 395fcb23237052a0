"""Distributions of privacy losses on a grid: composition by Fourier transform, with proven bounds on its rounding.

A ``LossPmf`` states how far every δ(ε) that is read from it may be below that of the true distribution, and
``LossPmf.epsilon`` charges that to δ. What is charged, and why it is enough:

1. *A release* whose every δ(ε) may be too small by u: with u more mass at infinite loss it dominates the true pair.
   Dominating pairs compose (Zhu, Dong and Wang, 2022), so t such releases are short by at most t·u. A release whose
   masses are too small by a share r makes every δ(ε) of t releases too small by a share of t·r at most.
2. *The window.* The sum is computed modulo a window. Chernoff's bound limits the mass above it, which would appear at
   its lower end and is counted as infinite loss. Mass below it appears at its upper end, which is pessimistic.
3. *The Fourier transforms.* Each stage of a transform adds numbers no larger than the masses they sum up, and
   rounds, so each term of the spectrum of a distribution is wrong by at most a few ulp per stage. A power t of it,
   by repeated multiplication, multiplies that by t and adds at most 4 ulp for each of the t − 1 factors, since
   |aᵗ − bᵗ| ≤ t·|a − b|·max(|a|, |b|)ᵗ⁻¹. By Cauchy–Schwarz and Parseval, the absolute errors of all masses together
   are at most the root of the sum of the squared errors of all terms.

The third is a worst case, about a hundred times what happens. In 64 bits it would hide δ = 1/N of a long run, so the
transforms are computed in extended precision (80 bits on x86) where that is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import fft

ULP = 2.0**-52
# The largest number of points by default: more would take gigabytes.
MAX_POINTS = 2**23

# The mass that may be lost above the window.
_TAIL_MASS = 1e-16
# Fourier terms below e^−60 are set to 0, and charged as errors.
_NEGLIGIBLE = -60.0
_ULPS_PER_STAGE = 16.0
_LARGEST_EXPONENT = 700.0


class TooManyPointsError(ValueError):
    """A distribution would need more points than are allowed: its grid must be coarser."""


class LossPmf(NamedTuple):
    """A distribution of privacy losses in one direction (removing an example, or adding one).

    Attributes:
        interval: Losses are multiples of it.
        lowest: The first loss, in intervals.
        masses: The probability of each loss from the first on. They may be slightly negative where rounding is.
        infinity: The probability of infinite loss.
        error: Every δ(ε) may be too small by this.
        relative_error: Every δ(ε) may, besides, be too small by this share.
    """

    interval: float
    lowest: int
    masses: np.ndarray
    infinity: float
    error: float
    relative_error: float

    def epsilon(self, delta: float) -> float:
        """Returns an upper bound on ε at δ; infinity if what is charged uses up all of δ."""
        left = delta * (1 - self.relative_error) - self.error
        if left <= self.infinity:
            return math.inf
        # Only positive losses count at ε ≥ 0. Sums over all losses above a point, for each point from 0 on.
        first = max(1, self.lowest)
        masses = self.masses[first - self.lowest :]
        losses = self.interval * np.arange(first, first + len(masses))
        above = np.zeros((2, len(masses) + 1), np.longdouble)
        above[0, :-1] = np.cumsum(masses[::-1], dtype=np.longdouble)[::-1]
        above[1, :-1] = np.cumsum((masses * np.exp(-losses))[::-1], dtype=np.longdouble)[::-1]
        points = np.concatenate(([min(0.0, self.interval * (first - 1))], losses))
        # A smaller exponent is pessimistic. The last term bounds the rounding of the two sums.
        rounding = (len(masses) * float(np.finfo(np.longdouble).eps) + 8 * ULP) * np.abs(above[0])
        deltas = self.infinity + above[0] - np.exp(np.minimum(points, _LARGEST_EXPONENT)) * above[1] + rounding
        over = np.flatnonzero(deltas > left)
        if not len(over):
            return 0.0
        # Between two grid points, δ(ε) is linear in e^ε.
        upper, lower = (float(sums[over[-1]]) for sums in above)
        upper += self.infinity + float(rounding[over[-1]])
        highest = float(points[min(over[-1] + 1, len(points) - 1)])
        if lower <= 0 or upper <= left:
            return highest
        return max(0.0, min(math.log((upper - left) / lower) * (1 + 4 * ULP), highest))

    def moments(self) -> tuple[float, float]:
        """Returns the mean and the variance of the finite losses, in intervals from the lowest."""
        numbers = np.arange(len(self.masses))
        mean = float(self.masses @ numbers)
        return mean, max(float(self.masses @ (numbers - mean) ** 2), 0.0)


def compose(parts: Sequence[tuple[LossPmf, int]], *, rounding: float = 0.0, max_points: int = MAX_POINTS) -> LossPmf:
    """Returns the distribution of the sum of independent losses.

    Args:
        parts: Distributions on the same grid, and the number of times that each is composed.
        rounding: The rounding error of 64-bit transforms that is acceptable. If it may be exceeded, the transforms are
            computed in extended precision.
        max_points: The number of points that the sum may have.

    Raises:
        TooManyPointsError: If the sum needs more than ``max_points`` points.
    """
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    interval = parts[0][0].interval
    start = sum(count * part.lowest for part, count in parts)
    low, high = _window(parts)
    points = int(fft.next_fast_len(high - low + 1, real=True))
    if points > max_points:
        raise TooManyPointsError(f"interval {interval:g} needs {points:,} points, more than {max_points:,}")
    releases = sum(count for _, count in parts)
    # About four times what the bound below will be.
    in_64_bits = 16 * _ULPS_PER_STAGE * ULP * math.log2(points) * releases
    masses, error = _powers(parts, points, np.float64 if in_64_bits <= rounding else np.longdouble)
    return LossPmf(
        interval=interval,
        lowest=start + low,
        masses=np.roll(masses, -(low % points))[: high - low + 1],
        infinity=_TAIL_MASS - math.expm1(math.fsum(count * math.log1p(-part.infinity) for part, count in parts)),
        error=error + math.fsum(count * part.error for part, count in parts),
        relative_error=math.fsum(count * part.relative_error for part, count in parts),
    )


def _window(parts: Sequence[tuple[LossPmf, int]]) -> tuple[int, int]:
    """Returns bounds of the sum, in intervals from its lowest value, each exceeded with small probability only."""
    low, high = 0, sum(count * (len(part.masses) - 1) for part, count in parts)
    deviation = math.sqrt(math.fsum(count * part.moments()[1] for part, count in parts))
    log_inverse = -math.log(_TAIL_MASS)
    slopes = math.sqrt(2 * log_inverse) / max(deviation, 1e-3) * np.geomspace(0.02, 4.0, 12)
    for slope in slopes.tolist():
        # A slope at which the moment generating function underflows gives no bound.
        above, below = (_log_mgf(parts, sign * slope) for sign in (1, -1))
        high = min(high, math.ceil((above + log_inverse) / slope)) if above < math.inf else high
        low = max(low, math.floor(-(below + log_inverse) / slope)) if below < math.inf else low
    return low, max(low, high)


def _log_mgf(parts: Sequence[tuple[LossPmf, int]], slope: float) -> float:
    """Returns an upper bound on the log of the moment generating function of the sum, in intervals."""
    total = 0.0
    for part, count in parts:
        exponent = slope * np.arange(len(part.masses))
        top = float(exponent[-1] if slope > 0 else 0.0)
        scaled = float(np.maximum(part.masses, 0.0) @ np.exp(exponent - top))
        if scaled <= 0:
            return math.inf
        total += count * (top + math.log(scaled) + ULP * (64 + 4 * abs(top)))
    return total


def _powers(parts: Sequence[tuple[LossPmf, int]], points: int, dtype: type) -> tuple[np.ndarray, float]:
    """Returns the distribution of the sum modulo ``points``, and a bound on the sum of its masses' absolute errors."""
    ulp, stages = float(np.finfo(dtype).eps), math.log2(points) + 1
    terms = points // 2 + 1
    log_most = np.zeros(terms)
    # Error of each Fourier term relative to its largest possible size, starting with that of the inverse transform.
    off = np.full(terms, 2 * _ULPS_PER_STAGE * ulp * stages)
    spectra = []
    for part, count in parts:
        folded: np.ndarray = np.zeros(-(-len(part.masses) // points) * points, dtype)
        folded[: len(part.masses)] = part.masses
        spectrum = fft.rfft(folded.reshape(-1, points).sum(axis=0))
        rounding = ulp * (_ULPS_PER_STAGE * stages + len(folded) // points) * float(np.sum(np.abs(part.masses)))
        most = np.abs(spectrum).astype(np.float64) * (1 + 4 * ULP) + rounding
        log_most += count * np.log(most)
        off += count * (rounding / most + 4 * ulp)
        spectra.append(spectrum)
    kept = log_most > _NEGLIGIBLE
    product = np.zeros(terms, np.result_type(dtype, np.complex64))
    product[kept] = 1
    for spectrum, (_, count) in zip(spectra, parts, strict=True):
        product[kept] *= _power(spectrum[kept], count)
    masses = fft.irfft(product, points).astype(np.float64)
    errors = np.exp(np.minimum(log_most, 1.0)) * np.where(kept, off, 1.0)
    return masses, math.sqrt(2 * float(np.sum(errors**2)))


def _power(values: np.ndarray, exponent: int) -> np.ndarray:
    """Returns a power by repeated multiplication, whose relative error is below 4 ulp times the exponent."""
    result = np.ones_like(values)
    while exponent:
        if exponent & 1:
            result *= values
        values = values * values
        exponent >>= 1
    return result
