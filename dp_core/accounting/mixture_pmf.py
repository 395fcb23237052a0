"""The privacy loss distribution of a mixture of Gaussians against one Gaussian, as a certified upper bound.

Without the example (or group) a release is drawn from Q = N(0, σ²), and with it from P = Σ wₖ·N(sₖ, σ²). A Poisson
sample of rate q is the mixture with w = (1 − q, q) and s = (0, 1); a plain Gaussian release has s = (1,) only.

*Connect the dots* (Doroshenko et al., 2022): the outcomes whose likelihood ratio P/Q lies between two neighbouring
grid points e^{jh} and e^{(j+1)h} form a cell, and the cell's probability under P and under Q is split among the two
points so that both are preserved. This raises the expectation of every convex function of the ratio, hence every δ(ε)
in both directions. Tails are split in the same way: the lower one among ratio 0 and the lowest point, the upper one
among the highest point and infinity.

*Rounding.* dp_accounting computes the masses as second differences of δ(ε) divided by h. The roundings of δ(ε) are
multiplied by 1/h: at h = 1e-5, q = 0.0018 and σ = 1 the masses add up to 1 − 1.8e-14, and those of 84,000 releases to
1 − 1.5e-9. Here a cell's mass under P is a sum of differences of normal tails, and only its split has a rounding that
is multiplied by 1/h. A wrong split moves mass by one interval h, so it changes δ(ε) by h/h = 1 times that rounding.
With M₀ the cell's mass under Q, the split is computed from (w₀ − e^{jh})·M₀ + Σ_{sₖ>0} wₖ·Mₖ. Both terms are small for
rare samples, and all roundings together are below 16 ulp of the sum of their sizes (the tails themselves are accurate
to 2·(1 + z²) ulp, and (1 + z²) times the tail is below 1). That is the stated error of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from dp_core.accounting.loss_pmf import MAX_POINTS, ULP, LossPmf, TooManyPointsError

# The probability that the tails may have; it is counted as infinite loss, or nearly so.
_TAIL_MASS = 1e-22
_ULPS, _ULPS_OF_A_MASS = 16.0, 8.0
_LARGEST_EXPONENT = 700.0
_TABLE, _CHUNK = 4097, 65_536


class Mixture(NamedTuple):
    """Shifts above 0 with their weights; the rest of the weight is on shift 0."""

    sigma: float
    shifts: np.ndarray
    weights: np.ndarray
    log_rest: float

    def loss(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns log P/Q at x and its derivative."""
        exponents = np.log(self.weights) + (np.multiply.outer(x, self.shifts) - self.shifts**2 / 2) / self.sigma**2
        top = np.maximum(exponents.max(axis=-1), self.log_rest)
        parts = np.exp(exponents - top[..., None])
        total = parts.sum(axis=-1) + np.exp(self.log_rest - top)
        return top + np.log(total), parts @ self.shifts / total / self.sigma**2

    def outcome(self, loss: np.ndarray, highest: float) -> np.ndarray:
        """Returns the x of each loss (ascending), −∞ for a loss that no outcome is below."""
        found = np.full(len(loss), -math.inf)
        possible = loss > self.log_rest
        wanted = loss[possible]
        if len(self.shifts) == 1:
            excess = np.log(-np.expm1(np.minimum(self.log_rest - wanted, -1e-300)))
            shift = float(self.shifts[0])
            found[possible] = shift / 2 + self.sigma**2 / shift * (wanted + excess - math.log(self.weights[0]))
            return found
        lowest = special.ndtri(_TAIL_MASS) * self.sigma
        table = np.linspace(lowest, highest, _TABLE)
        places = np.minimum(np.searchsorted(self.loss(table)[0], wanted), _TABLE - 1)
        solved = [
            self._newton(wanted[start : start + _CHUNK], table[places[start : start + _CHUNK]])
            for start in range(0, len(wanted), _CHUNK)
        ]
        found[possible] = np.concatenate(solved) if solved else []
        return found

    def _newton(self, loss: np.ndarray, x: np.ndarray) -> np.ndarray:
        # The loss is convex and increasing, so after one step Newton's method comes down from above. An outcome that
        # is slightly off makes its two cells slightly different, not wrong.
        for _ in range(20):
            at, slope = self.loss(x)
            step = (at - loss) / slope
            x = x - step
            if np.all(np.abs(step) <= 1e-12 * self.sigma):
                break
        return x


def mixture_pmfs(
    *,
    sigma: float,
    sensitivities: Sequence[float],
    probabilities: Sequence[float],
    interval: float,
    max_points: int = MAX_POINTS,
) -> tuple[LossPmf, LossPmf]:
    """Returns the pessimistic loss distributions of one release, for removing and for adding an example or a group.

    Args:
        sigma: The noise's standard deviation, above 0.
        sensitivities: The shifts sₖ, at least 0.
        probabilities: Their weights wₖ, which add up to 1. That of sₖ = 0 is what the others leave.
        interval: The discretisation interval.
        max_points: The number of losses that the distributions may have.

    Raises:
        TooManyPointsError: If there would be more than ``max_points`` losses.
    """
    shifts, weights = np.asarray(sensitivities, float), np.asarray(probabilities, float)
    some = (shifts > 0) & (weights > 0)
    if not some.any():
        nothing = LossPmf(interval, 0, np.ones(1), 0.0, 0.0, 0.0)
        return nothing, nothing
    shifted = math.fsum(weights[some])
    rest = math.log1p(-shifted) if shifted < 1 and not np.all(some) else -math.inf
    mixture = Mixture(sigma, shifts[some], weights[some], rest)

    highest = _upper_quantile(mixture)
    ends, _ = mixture.loss(np.array([special.ndtri(_TAIL_MASS) * sigma, highest]))
    lo, hi = math.floor(max(float(ends[0]), rest) / interval), math.ceil(float(ends[1]) / interval)
    if hi - lo > max_points:
        raise TooManyPointsError(f"interval {interval:g} needs {hi - lo:,} points, more than {max_points:,}")
    hi = max(hi, lo + 1)
    losses = interval * np.arange(lo, hi + 1)
    edges = np.maximum.accumulate(mixture.outcome(losses, highest))
    return _spread(mixture, losses, edges, interval, lo)


def _spread(
    mixture: Mixture, losses: np.ndarray, edges: np.ndarray, interval: float, lo: int
) -> tuple[LossPmf, LossPmf]:
    """Splits each cell's mass among its two ends, and the tails among the outer points and infinite loss."""
    rest = math.exp(mixture.log_rest)
    absent = _normal_masses(edges / mixture.sigma)
    shifted = sum(
        weight * _normal_masses((edges - shift) / mixture.sigma)
        for shift, weight in zip(mixture.shifts, mixture.weights, strict=True)
    )
    present = rest * absent + shifted
    below, cells, above = slice(0, 1), slice(1, -1), slice(-1, None)

    # w₀ − e^loss without cancellation. Beyond the largest exponent all mass goes to the upper end: pessimistic.
    lower, upper = losses[:-1], losses[1:]
    if rest > 0:
        factor = -rest * np.expm1(np.minimum(lower - mixture.log_rest, _LARGEST_EXPONENT))
    else:
        factor = -np.exp(np.minimum(lower, _LARGEST_EXPONENT))
    factor[lower > _LARGEST_EXPONENT] = 0.0
    sizes = np.abs(factor) * absent[cells] + shifted[cells]
    to_upper = (factor * absent[cells] + shifted[cells]) / -math.expm1(-interval)
    to_upper = np.clip(to_upper, 0.0, present[cells])
    absent_to_upper = np.minimum(to_upper * np.exp(np.minimum(-upper, _LARGEST_EXPONENT)), absent[cells])

    remove, add = np.zeros(len(losses)), np.zeros(len(losses))
    remove[1:] += to_upper
    remove[:-1] += present[cells] - to_upper
    add[1:] += absent_to_upper
    add[:-1] += absent[cells] - absent_to_upper
    # The lower tail has ratios between 0 and the lowest point's, the upper one ratios above the highest point's.
    at_lowest = min(float(present[below][0]) * math.exp(min(-losses[0], _LARGEST_EXPONENT)), float(absent[below][0]))
    at_highest = min(float(absent[above][0]) * math.exp(min(losses[-1], _LARGEST_EXPONENT)), float(present[above][0]))
    remove[0] += present[below][0]
    add[0] += at_lowest
    remove[-1] += at_highest
    add[-1] += absent[above][0]
    outside = float(absent[below][0] + present[above][0])
    error = _ULPS * ULP * (float(np.sum(sizes)) + outside)
    error_add = _ULPS * ULP * (float(np.sum(sizes * np.exp(np.minimum(-lower, _LARGEST_EXPONENT)))) + outside)
    relative = _ULPS_OF_A_MASS * ULP
    return (
        LossPmf(interval, lo, remove, float(present[above][0]) - at_highest, error, relative),
        LossPmf(interval, -(lo + len(losses) - 1), add[::-1], float(absent[below][0]) - at_lowest, error_add, relative),
    )


def _normal_masses(z: np.ndarray) -> np.ndarray:
    """Returns the standard normal's probabilities below the first edge, between the edges and above the last."""
    tails = special.ndtr(-np.abs(z))
    across = (z[:-1] < 0) & (z[1:] >= 0)
    between = np.where(across, 1 - tails[:-1] - tails[1:], np.abs(tails[:-1] - tails[1:]))
    return np.concatenate(([special.ndtr(z[0])], between, [special.ndtr(-z[-1])]))


def _upper_quantile(mixture: Mixture) -> float:
    """Returns an outcome that P exceeds with a probability of about ``_TAIL_MASS``."""
    rest = math.exp(mixture.log_rest)

    def exceeded(x: float) -> float:
        tails = special.ndtr((mixture.shifts - x) / mixture.sigma)
        return float(mixture.weights @ tails) + rest * float(special.ndtr(-x / mixture.sigma))

    low, high = 0.0, float(np.max(mixture.shifts)) - float(special.ndtri(_TAIL_MASS)) * mixture.sigma
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeded(middle) > _TAIL_MASS else (low, middle)
    return high
