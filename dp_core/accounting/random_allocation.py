"""The privacy loss distribution of one epoch of balls-in-bins sampling, as a certified upper bound.

In an epoch of ``bins`` = k batches, each example joins exactly one batch, drawn uniformly and independently of all
others (random allocation). Each batch releases its clipped sum with Gaussian noise of σ clip norms. Removing an
example is dominated by the pair (P, Q) and adding one by (Q, P), where Q = N(0, σ²I) and P = (1/k) Σᵢ N(eᵢ, σ²I)
in k dimensions, and no smaller pair is enough (Chua et al., 2024, "Balls-and-Bins Sampling for DP-SGD"; Feldman
and Shenfeld, 2025).

Why the result is an upper bound:

1. Under Q, the likelihood ratio L = P/Q is the mean of k independent Yᵢ = exp(zᵢ/σ − 1/(2σ²)) with zᵢ standard
   normal. Both divergences are expectations of convex functions of L: δ(ε) is E_Q[(L − e^ε)₊] for removing and
   E_Q[(1 − e^ε L)₊] for adding. (In training, the example's gradient in batch i, of norm at most 1, depends on
   earlier releases. Given the others' batches, the ratio is then the mean of such terms with norm/σ in place of
   1/σ. A smaller norm makes the last term smaller in the convex order, whatever came before it; then the last
   but one; and so on.)
2. Moving the mass of a point to the two grid points around it, such that mass and mean are preserved, raises the
   expectation of every convex function (Jensen). This also holds if one term of a sum is spread in this
   way, because a convex function of x + y is convex in x for each y, and the terms are independent. Both δ of the
   spread distribution are therefore at least the true ones, at every real ε.
3. So Yᵢ/k is spread over {0} and the grid {e^{jh}}, and partial sums are added in pairs and spread again. The
   final sum is a distribution of L on the grid with mean 1: the likelihood ratio of a pair of discrete
   distributions that dominates (P, Q) and, reversed, (Q, P). Dominating pairs compose (Zhu, Dong and Wang, 2022),
   so epochs compose too.
4. The tails are cut by spreading as well. The lower tail goes to 0 and the lowest kept point. The upper tail goes
   to the highest kept point and to ever larger values, which in the limit have no probability but a positive mean.
   A convex function of slope c at infinity contributes c times that mean: c = 1 for removing, 0 for adding. So mass
   at 0 is infinite loss for adding, and mean at infinity is infinite loss for removing.

Probabilities are sums of positive products, and the only subtraction is of a share from its whole. So every
probability, however small, has a relative error of about 1e-12, and the bound is valid up to that rounding. It
exceeds the truth by an error of second order in the grid's step.

The bound holds for batches that are scaled by a constant, not by their size, and for epochs that are drawn
independently.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from dp_accounting import pld
from scipy import special

from dp_core.accounting.loss_pmf import LossPmf, TooManyPointsError

# Every probability has a relative error below this.
_RELATIVE_ERROR = 1e-11
# Largest probability (lower tail) and share of the mean (upper tail) that one cut removes from a distribution.
_TAIL = 1e-22
# A finer grid than these would hardly change ε. A step s adds about s²/6 to the variance of the loss. In the bulk
# of a sum that is about 1e-5 of its variance per halving of k. In the tails, where a single term decides, it adds
# about (slope of log δ)²·s²/12 to log δ, and the slope is a small multiple of σ.
_STEPS_PER_DEVIATION = 128
_COARSEST_STEP = 2e-3
# Below this, e^loss and the tail probabilities leave a double's range.
_MIN_NOISE_MULTIPLIER = 0.05
_MAX_POINTS = 5_000_000
# Elements processed at a time, so that they stay in the processor's cache.
_BLOCK = 16_384


class _Law(NamedTuple):
    """A distribution on 0 and the points e^{(lowest + n)·step}, with probabilities ``masses[n]``.

    ``zero`` is the probability of 0, and ``infinity`` the mean (not probability) at infinity. The caller knows the
    step.
    """

    lowest: int
    masses: np.ndarray
    zero: float
    infinity: float

    @property
    def end(self) -> int:
        return self.lowest + len(self.masses)

    def values(self, step: float) -> np.ndarray:
        return np.exp(step * np.arange(self.lowest, self.end))


def random_allocation_pmfs(*, bins: int, noise_multiplier: float, interval: float) -> tuple[LossPmf, LossPmf]:
    """Returns the pessimistic loss distributions of one epoch, for removing and for adding an example.

    They compose with other pessimistic distributions of the same interval. Dividing the interval by a power of two
    never increases any δ(ε), except for rounding and the tails that are cut.

    >>> from dp_core.accounting.loss_pmf import compose
    >>> remove, _ = random_allocation_pmfs(bins=100, noise_multiplier=1.0, interval=1e-2)
    >>> round(remove.epsilon(1e-6), 2), round(compose([(remove, 4)]).epsilon(1e-6), 2)
    (0.86, 1.31)

    Args:
        bins: The number k of batches in the epoch, at least 1.
        noise_multiplier: The noise's standard deviation σ in clip norms, at least 0.05.
        interval: The discretisation interval: losses are multiples of it. Above 0 and at most 1.

    Returns:
        Distributions that dominate the true ones.

    Raises:
        ValueError: If an argument is out of range, or the interval would need too many grid points.
    """
    if bins < 1 or bins != int(bins):
        raise ValueError(f"bins must be an integer of at least 1, got {bins}")
    if not _MIN_NOISE_MULTIPLIER <= noise_multiplier < math.inf:
        raise ValueError(
            f"noise_multiplier must be at least {_MIN_NOISE_MULTIPLIER} and finite, got {noise_multiplier}"
        )
    if not 0 < interval <= 1:
        raise ValueError(f"interval must be positive and at most 1, got {interval}")
    ratio = _likelihood_ratio(bins, noise_multiplier, interval)
    # Under P each value of L is L times as likely as under Q. The loss is log L for removing and −log L for adding.
    remove = ratio.masses * ratio.values(interval)
    add = ratio.masses[::-1].copy()
    return (
        LossPmf(interval, ratio.lowest, remove, ratio.infinity, 0.0, _RELATIVE_ERROR),
        LossPmf(interval, 1 - ratio.end, add, ratio.zero, 0.0, _RELATIVE_ERROR),
    )


def random_allocation_pld(
    *, bins: int, noise_multiplier: float, interval: float
) -> pld.privacy_loss_distribution.PrivacyLossDistribution:
    """Returns ``random_allocation_pmfs`` as a distribution that dp_accounting composes."""
    remove, add = random_allocation_pmfs(bins=bins, noise_multiplier=noise_multiplier, interval=interval)
    return pld.privacy_loss_distribution.PrivacyLossDistribution(
        pld.pld_pmf.DensePLDPmf(interval, remove.lowest, remove.masses, remove.infinity, pessimistic_estimate=True),
        pld.pld_pmf.DensePLDPmf(interval, add.lowest, add.masses, add.infinity, pessimistic_estimate=True),
    )


def _likelihood_ratio(bins: int, sigma: float, interval: float) -> _Law:
    """Returns a spread of the distribution of L under Q, on the grid with step ``interval``.

    Sums of few terms have wide distributions, for which a coarser grid (a multiple of the interval) is accurate
    enough. The work is then about the same for each halving of k.
    """

    @functools.cache
    def partial_sum(count: int) -> tuple[_Law, int]:
        stride = _stride(count, sigma, interval)
        step = stride * interval
        if count == 1:
            return _one_term(bins, sigma, step), stride
        # Halving, not doubling and adding one: on a fine grid the distribution of one term would be long.
        law, its_stride = partial_sum(count // 2)
        left = right = _refine(law, its_stride // stride)
        if count % 2:
            law, its_stride = partial_sum(count - count // 2)
            right = _refine(law, its_stride // stride)
        return _cut_tails(_add(left, right, step), step, count / bins), stride

    law, stride = partial_sum(bins)
    if len(law.masses) * stride > _MAX_POINTS:
        raise TooManyPointsError(f"interval {interval} needs more than {_MAX_POINTS} points; choose a larger one")
    return _refine(law, stride)


def _stride(count: int, sigma: float, interval: float) -> int:
    """Returns the grid step for a sum of ``count`` terms, in intervals: a power of two that falls with ``count``."""
    deviation = math.sqrt(math.log1p(math.expm1(sigma**-2) / count))
    coarsest = min(_COARSEST_STEP, deviation / _STEPS_PER_DEVIATION)
    return 2 ** max(0, math.floor(math.log2(coarsest / interval)))


def _refine(law: _Law, factor: int) -> _Law:
    """Returns the same distribution on a grid that is ``factor`` times finer."""
    masses = np.zeros((len(law.masses) - 1) * factor + 1)
    masses[::factor] = law.masses
    return law._replace(lowest=law.lowest * factor, masses=masses)


def _one_term(bins: int, sigma: float, step: float) -> _Law:
    """Returns the lognormal Y/k, spread over the grid.

    Each cell's two shares are integrated numerically, because differences of Φ would lose digits.
    """
    reach = -special.ndtri(_TAIL)
    lowest = math.floor((-reach / sigma - 1 / (2 * sigma**2) - math.log(bins)) / step)
    highest = math.ceil((reach / sigma + 1 / (2 * sigma**2) - math.log(bins)) / step)
    # The z of the grid points; quadrature nodes are fractions of a cell above them.
    normal = sigma * (np.arange(lowest, highest + 1) * step + math.log(bins)) + 1 / (2 * sigma)
    panels = math.ceil(2 * sigma * step)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    masses = np.zeros(len(normal))
    for panel in range(panels):
        for node, weight in zip(nodes, weights, strict=True):
            part = (panel + (1 + node) / 2) / panels
            density = np.exp(-0.5 * (normal[:-1] + part * sigma * step) ** 2) / math.sqrt(2 * math.pi)
            mass = density * (sigma * step * weight / 2 / panels)
            masses[1:] += mass * (math.expm1(part * step) / math.expm1(step))
            masses[:-1] += mass * (math.exp(part * step) * math.expm1((1 - part) * step) / math.expm1(step))
    # Tilting by Y shifts the mean of z to 1/σ, so Φ(z − 1/σ)/k is the mean of the terms below z under Q.
    below, mean_below = special.ndtr(normal[0]), special.ndtr(normal[0] - 1 / sigma) / bins
    above, mean_above = special.ndtr(-normal[-1]), special.ndtr(1 / sigma - normal[-1]) / bins
    lowest_share = mean_below / math.exp(lowest * step)
    masses[0] += lowest_share
    masses[-1] += above
    infinity = max(0.0, mean_above - above * math.exp(highest * step))
    return _Law(lowest, masses, max(0.0, below - lowest_share), infinity)


def _add(left: _Law, right: _Law, step: float) -> _Law:
    """Returns the distribution of the sum of two independent terms, spread over the grid."""
    # A sum is at most twice the larger term.
    twice = math.floor(math.log(2) / step)
    lowest = min(left.lowest, right.lowest)
    masses = np.zeros(max(left.end, right.end) + twice + 1 - lowest)

    def put(part: np.ndarray, start: int) -> None:
        masses[start - lowest : start - lowest + len(part)] += part

    right_less = _sums_with_less(left, right, step)
    put(right_less, left.lowest)
    put(right_less if left is right else _sums_with_less(right, left, step), right.lowest)
    start, end = max(left.lowest, right.lowest), min(left.end, right.end)
    if start < end:
        equal = left.masses[start - left.lowest : end - left.lowest].copy()
        equal *= right.masses[start - right.lowest : end - right.lowest]
        share = _upper_share(0, twice, step)
        put((1 - share) * equal, start + twice)
        put(share * equal, start + twice + 1)
    zero = left.zero * right.zero
    # Without this normalisation, a relative error of the total would double with each doubling of k.
    masses *= (1 - zero) / masses.sum()
    return _Law(lowest, masses, zero, left.infinity + right.infinity)


def _upper_share(distance: int, offset: int, step: float) -> float:
    """Returns the share of point ``offset`` + 1 in the sum of points 0 and −``distance``; ``offset`` gets the rest."""
    excess = math.log1p(math.exp(-distance * step)) - offset * step
    return min(max(math.expm1(excess) / math.expm1(step), 0.0), 1.0)


class _Window(NamedTuple):
    """The 2^``level`` smaller terms at distances from ``distance`` on, and how their sums are split.

    The share of the upper point is ``share`` for the first term, and ``share`` − ``slope``·(1 − e^{−n·step}) for the
    n-th after it.
    """

    distance: int
    level: int
    share: float
    slope: float


def _sums_with_less(greater: _Law, less: _Law, step: float) -> np.ndarray:
    """Returns the part of the distribution of x + y with y < x, spread over the grid, from the lowest x on.

    Points i of x and i − d of y add up to e^{i·step}(1 + e^{−d·step}), which lies between the points i + m and
    i + m + 1, where m depends only on d. The distances d with a given m form an interval, in which the upper point's
    share is linear in e^{−d·step}. So the same sums over y serve all x at once.
    """
    # m = 0 at distances of ``far`` and above.
    far = max(1, math.floor(-math.log(math.expm1(step)) / step) + 1)
    near = np.arange(1, max(1, min(far, greater.end - less.lowest)))
    plan = _windows(near, step)
    highest_offset = max(plan, default=0)
    sums = np.zeros(len(greater.masses) + highest_offset + 1)

    # Far: probability and mean of all y at distances of at least ``far``, including y = 0.
    position = np.clip(np.arange(greater.lowest, greater.end) - far - less.lowest + 1, 0, len(less.masses))
    probability = less.zero + np.concatenate(([0.0], np.cumsum(less.masses)))
    mean = np.concatenate(([0.0], np.cumsum(less.masses * less.values(step))))
    upper = greater.masses * mean[position] / (greater.values(step) * math.expm1(step))
    sums[1 : len(upper) + 1] += upper
    sums[: len(upper)] += greater.masses * probability[position] - upper

    # Near: one block of x after the other.
    levels = max((window.level for windows in plan.values() for window in windows), default=0)
    window_sums, tilted_sums = _window_tables(less, max(less.end, greater.end) - less.lowest, levels, step)
    for start in range(0, len(greater.masses), _BLOCK):
        block = greater.masses[start : start + _BLOCK]
        whole, upper, scratch = np.empty((3, len(block)))
        first = greater.lowest + start - less.lowest
        for offset, windows in plan.items():
            if windows[0].distance >= first + len(block):
                continue  # No x of the block has a y at that distance below it.
            whole[:] = upper[:] = 0
            for window in windows:
                # The first x of the block with a y at that distance below it.
                skip = min(max(0, window.distance - first), len(block))
                y = slice(first + skip - window.distance, max(0, first + len(block) - window.distance))
                whole[skip:] += window_sums[window.level][y]
                upper[skip:] += np.multiply(window_sums[window.level][y], window.share, out=scratch[skip:])
                if window.level:
                    upper[skip:] -= np.multiply(tilted_sums[window.level][y], window.slope, out=scratch[skip:])
            whole *= block
            upper *= block
            target = start + offset
            sums[target + 1 : target + 1 + len(block)] += upper
            sums[target : target + len(block)] += np.subtract(whole, upper, out=whole)
    return sums


def _windows(distances: np.ndarray, step: float) -> dict[int, list[_Window]]:
    """Returns, for each offset m, windows that cover the distances at which the sum is m points above x."""
    plan: dict[int, list[_Window]] = {}
    offsets, firsts, counts = np.unique(
        np.floor(np.log1p(np.exp(-step * distances)) / step).astype(int), return_index=True, return_counts=True
    )
    for offset, first, count in zip(offsets.tolist(), firsts.tolist(), counts.tolist(), strict=True):
        distance, rest = int(distances[first]), count
        plan[offset] = []
        while rest:
            level = rest.bit_length() - 1
            slope = math.exp(-(distance + offset) * step) / math.expm1(step)
            plan[offset].append(_Window(distance, level, _upper_share(distance, offset, step), slope))
            distance += 2**level
            rest -= 2**level
    return plan


def _window_tables(law: _Law, length: int, levels: int, step: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns, for each level and point, sums over the 2^level points from there downwards.

    The first table sums probabilities. The second weights the n-th point down with 1 − e^{−n·step}. Both are built by
    doubling, so no small sum is a difference of large ones.
    """
    sums, tilted = [np.zeros(length)], [np.zeros(length)]
    sums[0][: len(law.masses)] = law.masses
    for level in range(levels):
        width = 2**level
        sums.append(sums[level].copy())
        tilted.append(tilted[level].copy())
        sums[-1][width:] += sums[level][:-width]
        tilted[-1][width:] += -math.expm1(-width * step) * sums[level][:-width]
        tilted[-1][width:] += math.exp(-width * step) * tilted[level][:-width]
    return sums, tilted


def _cut_tails(law: _Law, step: float, mean: float) -> _Law:
    """Spreads the tails: the lower one to 0 and the lowest kept point, the upper one to the highest and infinity."""
    masses, values = law.masses, law.values(step)
    low = int(np.searchsorted(np.cumsum(masses), _TAIL))
    high = len(masses) - 1 - int(np.searchsorted(np.cumsum((masses * values)[::-1]), _TAIL * mean))
    kept = masses[low : high + 1].copy()
    edge_share = float(masses[:low] @ values[:low]) / values[low]
    kept[0] += edge_share
    kept[-1] += masses[high + 1 :].sum()
    zero = law.zero + max(0.0, float(masses[:low].sum()) - edge_share)
    infinity = law.infinity + float(masses[high + 1 :] @ (values[high + 1 :] - values[high]))
    return _Law(law.lowest + low, kept, zero, infinity)
