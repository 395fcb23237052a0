"""A lower bound on ε, which says how loose the upper bound can be.

Poisson sampling. Without the one example a release is drawn from Q = N(0, σ²), and with it from
P = (1−q)·N(0, σ²) + q·N(1, σ²). With L the sum over all the steps of log P/Q, drawn under P,

    δ(ε) = E[(1 − e^(ε−L))₊],

and the true ε at δ is at least every ε for which this exceeds δ (one direction of the two will do).
The sum is discretised and composed by FFT, as by Gopi, Lee and Wutschitz (2021), and every
approximation on the way errs to the same side:

1. Each release is told only by the cell that it falls in. That is post-processing and lowers δ(ε),
   whatever the cells are. A cell's P and Q, and so its loss l = log P/Q, are differences of normal
   distribution functions: there is no quadrature. Mass and loss are rounded down by the error that
   those can have, and cells that are left out only lower the sum.
2. The cells are chosen so that l is close to a multiple j·h of the mesh, and j·h takes its place.
   The sum of all the errors j·h − l exceeds t with a probability of at most η, by Chernoff's bound
   with the errors' own moment generating function. Outside that event Σl ≥ Σj·h − t, hence
   δ(ε) ≥ E[(1 − e^(ε+t−Σj·h))₊] − η. The mean of the errors is part of t, with its sign, and so
   cancels out: what t costs is only how much the errors vary.
3. The law of Σj·h is composed by FFT after tilting it: f(y) ∝ e^(θy)·P(Σj·h = y). The window is
   finite, and what f has outside it turns up in the wrong place; Chernoff's bound says how much that
   is. The FFT rounds, by a few ulp for every step and stage. Both are errors of f in total variation,
   and in δ(ε) they are multiplied by e^(K(θ)−θε)·max_g e^(−θg)(1 − e^(−g)), with K(θ) the log of the
   moment generating function. That is not far above δ for the θ chosen here, so that the errors
   are small against even a tiny δ.

Shuffled batches: see ``shuffled_epsilon_lower``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import fft, optimize, special

from dp_core.loss_cells import (
    OUTSIDE_WINDOW,
    TINY,
    ULP,
    Release,
    SampledGaussian,
    best_tilt,
    chernoff,
    coarse_cells,
    highest_loss,
    log_weight,
    lowest_loss,
    mesh_cells,
    spread,
    total_variation,
    window,
)

# For the few roundings that are not counted one by one.
_MARGIN = 1e-9
# Shares of δ that the bound gives away: to the errors of the mesh, and to losses too far out to be resolved.
_MESH_SHARE = 1e-4
_TAIL_SHARE = 1e-3
# The best tilt gives the far tail so much weight that the window is many times larger than for a
# little less, which multiplies the errors by little more.
_TILT = 0.75
_MAX_POINTS = 2**21
_MAX_PASSES = 8


def epsilon_lower(parts: Sequence[SampledGaussian], delta: float, *, relative_error: float = 5e-3) -> float | None:
    """A value that the true ε at ``delta`` of the composition is not below.

    Neighbours differ by adding or removing one example. The value is below the true ε by about
    ``relative_error`` of it at most, unless that needs a larger mesh than there is room for: that it
    is a lower bound does not depend on this. None if double precision cannot certify one.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta}")
    if not 0 < relative_error < 1:
        raise ValueError(f"relative_error must be between 0 and 1, got {relative_error}")
    for part in parts:
        if not (0 <= part.sampling_probability <= 1 and 0 < part.noise_multiplier < math.inf and part.steps >= 0):
            raise ValueError(f"not a sampled Gaussian: {part}")
    parts = [part for part in parts if part.sampling_probability > 0 and part.steps > 0]
    if all(part.sampling_probability == 1 for part in parts):
        return _gaussian_epsilon(math.hypot(*(math.sqrt(p.steps) / p.noise_multiplier for p in parts)), delta)
    if total_variation(parts) <= delta:
        return 0.0
    reach = -float(special.ndtri(_TAIL_SHARE * delta / sum(part.steps for part in parts)))
    coarse = [coarse_cells(part, reach) for part in parts]
    # RDP's ε is an upper bound, so that the first mesh is rather too coarse than too fine.
    guess, slope = chernoff(coarse, -math.log(delta), weighted=True)
    guess = max(guess, 1e-3 * spread(coarse))
    best, before, widest = None, math.inf, math.inf
    for _ in range(_MAX_PASSES):
        found = _one_pass(parts, coarse, delta, reach, guess, _TILT * slope, widest, relative_error)
        if found.certified is not None:
            best = max(found.certified, best or 0.0)
        # What the cells cost falls quadratically with their width: halving it saves three quarters, and
        # a third of what it saved is still to be had.
        settled = abs(found.estimate - before) <= 1.5 * relative_error * found.estimate
        if found.final or (settled and found.short <= relative_error * found.estimate):
            break
        before, widest = found.estimate, found.width / 2
        guess = max(found.estimate, relative_error * guess)
        slope = best_tilt(coarse, guess, slope)
    return best


def shuffled_epsilon_lower(*, steps: int, noise_multiplier: float, delta: float, dealt: float = 1.0) -> float:
    """A value that the true ε of one epoch of shuffled batches of a fixed size is not below.

    ``dealt`` is the probability that an example is in one of the batches at all.

    Neighbours differ by zeroing one example out. Let all the other examples contribute −1, and the one
    +1 or, zeroed out, 0. Shifted, the sums of the batches are N(0, σ²) but for one at a random place,
    which is N(2, σ²) or N(1, σ²). The event that the largest of them is above a threshold bounds ε from
    below, and the best threshold is searched for (Chua et al. 2024).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta}")
    if steps < 1 or not 0 < noise_multiplier < math.inf:
        raise ValueError(f"there must be steps and noise, got {steps} and {noise_multiplier}")

    if not 0 < dealt <= 1:
        raise ValueError(f"dealt must be above 0 and up to 1, got {dealt}")

    def bound(threshold: np.ndarray) -> np.ndarray:
        other = special.log_ndtr(threshold / noise_multiplier)

        def above(shift: float) -> np.ndarray:
            """The probability that some sum is above the threshold, if the example shifts the one that it is in."""
            low = special.log_ndtr((threshold - shift) / noise_multiplier)
            # An example that was not dealt leaves all the sums alike.
            one = low if dealt == 1 else np.logaddexp(math.log(dealt) + low, math.log1p(-dealt) + other)
            return -np.expm1((steps - 1) * other + one)

        present, zeroed = above(2), above(1)
        possible = (present > delta * (1 + _MARGIN)) & (zeroed > TINY)
        return np.where(possible, np.log(np.where(possible, (present - delta) / np.maximum(zeroed, TINY), 1.0)), 0.0)

    highest = 2 - noise_multiplier * float(special.ndtri(delta / (steps + 1)))
    grid = np.linspace(-6 * noise_multiplier, highest, 20_001)
    values = bound(grid)
    best = int(np.argmax(values))
    around = (float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)]))
    refined = optimize.minimize_scalar(lambda threshold: -float(bound(np.array(threshold))), bounds=around)
    return max(float(values[best]), -float(refined.fun), 0.0) * (1 - _MARGIN)


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """The ε of a Gaussian release whose noise is 1/μ (Balle and Wang 2018), less a margin for rounding."""

    def excess(epsilon: float) -> float:
        below = special.log_ndtr(-mu / 2 - epsilon / mu)
        return float(special.ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + below)) - delta

    if mu == 0 or excess(0.0) <= 0:
        return 0.0
    highest = mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))
    return float(optimize.brentq(excess, 0.0, highest, xtol=1e-300, rtol=1e-13)) * (1 - _MARGIN)


class _Mesh(NamedTuple):
    """Releases whose losses are near multiples of ``width``.

    The sum of the multiples is too high by at most ``error``, but for a probability of η, and by
    ``mean`` on average.
    """

    width: float
    releases: Sequence[Release]
    error: float
    mean: float

    @property
    def short(self) -> float:
        return self.error - self.mean


class _Found(NamedTuple):
    """A lower bound from a mesh of this width, and about what it would be if the mesh had no errors.

    ``final`` if there is no room for a finer mesh.
    """

    certified: float | None
    estimate: float
    width: float
    final: bool

    @property
    def short(self) -> float:
        return self.estimate - (self.certified or 0.0)


class _Composed(NamedTuple):
    """The law of the sum on a window, tilted, and off by at most ``error`` in total variation."""

    values: np.ndarray
    law: np.ndarray
    error: float
    tilt: float
    log_mgf: float

    def delta(self, epsilon: float) -> float:
        """A value that the δ of the discrete sum is not below."""
        start = int(np.searchsorted(self.values, epsilon))
        gap = self.values[start:] - epsilon
        sure = -float(np.sum(self.law[start:] * np.exp(-self.tilt * gap) * np.expm1(-gap)))
        sure -= self.error * math.exp(log_weight(self.tilt))
        log_scale = self.log_mgf - self.tilt * epsilon
        return math.exp(min(log_scale + math.log(sure), 0.0)) * (1 - _MARGIN) if sure > 0 else 0.0

    def largest_epsilon(self, delta: float, *, at_least: float, tolerance: float) -> float | None:
        """The largest ε whose δ is above ``delta``, or ``at_least``; None if the errors hide even that."""
        # By Chernoff δ is too small above the first of these. Below the second the errors exceed ``delta``, and
        # the δ sought may or may not exceed them in turn. So come from above.
        above = max((self.log_mgf + log_weight(self.tilt) - math.log(delta)) / self.tilt, at_least)
        noisy = max(above + math.log(self.error) / self.tilt, at_least)
        bad = above
        for good in (*np.linspace(above, noisy, 16), *(at_least + (noisy - at_least) * np.linspace(1, 0, 16) ** 3)):
            if self.delta(good) > delta:
                break
            bad = good
        else:
            return at_least if noisy == at_least else None
        if bad - good > tolerance:
            root = optimize.brentq(lambda x: math.log(max(self.delta(x) / delta, 1e-3)), good, bad, xtol=tolerance / 2)
            near = float(root) - tolerance
            if near > good and self.delta(near) > delta:
                return near
        return good


def _one_pass(
    parts: Sequence[SampledGaussian],
    coarse: Sequence[Release],
    delta: float,
    reach: float,
    guess: float,
    tilt: float,
    widest: float,
    relative_error: float,
) -> _Found:
    """The bound from one mesh, no wider than ``widest`` and made for an ε of about ``guess``.

    It is true whatever the ``guess``, the ``tilt`` and the ``coarse`` cells are: they decide how good it is.
    """
    total = sum(part.steps for part in parts)
    low, high = window(coarse, coarse, tilt)
    extent = max(high - low, *(highest_loss(part, reach) - lowest_loss(part, reach) for part in parts))
    finest = extent / _MAX_POINTS
    # Within a cell of width h the loss has a variance of h²/12, which costs about steps·(1+θ)·h²/24 of ε.
    by_variance = math.sqrt(6 * relative_error * guess / ((1 + tilt) * total))
    width = max(min(by_variance, math.sqrt(relative_error) * guess, widest), finest)
    eta = _MESH_SHARE * delta
    mesh = _mesh(parts, width, reach, eta)
    while mesh.short > relative_error / 2 * guess and (width := width / 2) >= finest:
        # Mostly a finer mesh has smaller errors, but not if it divides a narrow peak.
        mesh = min(mesh, _mesh(parts, width, reach, eta), key=lambda mesh: mesh.short)
    final = width / 2 < finest
    composed = _compose(mesh, coarse, tilt)
    epsilon = composed and composed.largest_epsilon(
        delta + eta, at_least=min(mesh.mean, mesh.error), tolerance=relative_error / 50 * guess
    )
    if epsilon is None:
        return _Found(None, 0.0, mesh.width, final)
    certified, estimate = (max(epsilon - shift, 0.0) * (1 - _MARGIN) for shift in (mesh.error, mesh.mean))
    return _Found(certified, estimate, mesh.width, final)


def _mesh(parts: Sequence[SampledGaussian], width: float, reach: float, eta: float) -> _Mesh:
    releases = [mesh_cells(part, width, reach) for part in parts]
    errors = [release._replace(loss=release.multiple * width - release.loss) for release in releases]
    error, _ = chernoff(errors, -math.log(eta))
    return _Mesh(width, releases, error, sum(release.steps * release.mean() for release in errors))


def _compose(mesh: _Mesh, coarse: Sequence[Release], tilt: float) -> _Composed | None:
    releases = [release._replace(loss=release.multiple * mesh.width) for release in mesh.releases]
    low, high = window(releases, coarse, tilt)
    first = math.floor(low / mesh.width) - 1
    points = 1 << max(math.ceil(math.log2(high / mesh.width - first + 3)), 4)
    if points > 4 * _MAX_POINTS:
        return None
    stages = math.log2(points)
    log_mgf, origin = 0.0, 0
    log_size, phase, log_most = (np.zeros(points // 2 + 1) for _ in range(3))
    # The errors of the terms, relative to the largest that each can be; to begin with, those of the way back.
    off = np.full(points // 2 + 1, 32 * ULP * stages)
    for release in releases:
        log_mass = np.log(release.mass)
        exponent = log_mass + tilt * release.loss
        log_sum = float(special.logsumexp(exponent))
        log_mgf += release.steps * log_sum
        tilted = np.exp(exponent - log_sum)
        roundings = tilted * (np.abs(log_mass) + np.abs(tilt * release.loss) + abs(log_sum))
        # Nearly all the mass may be in one cell. That one is kept out of the FFT, for its rounding's sake.
        peak = int(np.argmax(tilted))
        log_peak = float(exponent[peak] - log_sum)
        tilted[peak] = 0.0
        multiple = release.multiple - release.multiple[peak]
        origin += release.steps * int(release.multiple[peak])
        # A stage of the FFT adds numbers whose sizes are at most the masses under them, and rounds:
        # each term is off by at most a few ulp of the whole mass for every stage.
        rounding = ULP * (16 * stages * float(np.sum(tilted)) + 4 * float(np.sum(roundings)))
        spectrum = fft.rfft(np.bincount(multiple % points, weights=tilted, minlength=points)) / math.exp(log_peak)
        log_one = log_peak + _log_abs_one_plus(spectrum)
        most = np.exp(log_one) + rounding
        log_size += release.steps * log_one
        phase += release.steps * np.arctan2(spectrum.imag, 1 + spectrum.real)
        log_most += release.steps * np.log(most)
        off += release.steps * rounding / most
    law = fft.irfft(np.exp(log_size) * np.exp(1j * phase), points)
    # |aᵏ − bᵏ| ≤ k·|a − b|·max(|a|, |b|)ᵏ⁻¹ in every term. By Cauchy–Schwarz and Parseval the absolute
    # errors of the law add up to at most the root of the sum of the squares of the terms' errors.
    error = math.sqrt(2 * float(np.sum((np.exp(log_most) * off) ** 2))) + 2 * OUTSIDE_WINDOW
    values = (first + np.arange(points)) * mesh.width
    return _Composed(values, np.roll(law, (origin - first) % points), error, tilt, log_mgf)


def _log_abs_one_plus(z: np.ndarray) -> np.ndarray:
    """log |1 + z|, of which nothing is lost for small z."""
    small = np.abs(z) < 0.5
    squared = np.where(small, z.real * (2 + z.real) + z.imag**2, 0.0)
    return np.where(small, np.log1p(squared) / 2, np.log(np.maximum(np.abs(1 + z), TINY)))
