"""A certified lower bound on ε for Poisson sampling, which shows how loose the upper bound can be.

Without the one example, a release is drawn from Q = N(0, σ²), and with it from P = (1−q)·N(0, σ²) + q·N(1, σ²).
With L the sum over all steps of log P/Q, drawn under P,

    δ(ε) = E[(1 − e^(ε−L))₊],

and the true ε at δ is at least every ε for which this exceeds δ (one of the two directions is enough). The sum
is discretised and composed by FFT, as in Gopi, Lee and Wutschitz (2021), and every approximation errs downwards:

1. Each release is reported only by the cell that it falls in. That is post-processing and lowers δ(ε), whatever
   the cells are. A cell's P and Q, and so its loss l = log P/Q, are differences of normal distribution functions,
   so no quadrature is needed. Mass and loss are rounded down by their largest possible error, and cells that are
   left out only lower the sum.
2. The cells are chosen so that l is close to a multiple j·h of the mesh width, and j·h replaces l. The sum of all
   errors j·h − l exceeds t with probability at most η, by Chernoff's bound with the errors' own moment generating
   function. Outside that event Σl ≥ Σj·h − t, hence δ(ε) ≥ E[(1 − e^(ε+t−Σj·h))₊] − η. The mean of the errors is
   part of t, with its sign, and so cancels: t costs only as much as the errors vary.
3. The distribution of Σj·h is composed by FFT after tilting it: f(y) ∝ e^(θy)·P(Σj·h = y). The window is finite,
   and the mass of f outside it wraps around to the wrong place; Chernoff's bound limits that mass. The FFT rounds
   by a few ulp per step and stage. Both are errors of f in total variation. In δ(ε) they are multiplied by
   e^(K(θ)−θε)·max_g e^(−θg)(1 − e^(−g)), where K(θ) is the log of the moment generating function. For the θ chosen
   here that is not far above δ, so the errors are small even relative to a tiny δ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import fft, optimize, special

from dp_core.accounting.loss_cells import (
    MARGIN,
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

# Shares of δ that the bound gives up: for the errors of the mesh, and for losses too far out to be resolved.
_MESH_SHARE = 1e-4
_TAIL_SHARE = 1e-3
# The share of the best tilt that is used. The best tilt needs a window many times larger than this one, which
# amplifies the errors only slightly more.
_TILT = 0.75
_MAX_POINTS = 2**21
_MAX_PASSES = 8


def epsilon_lower(parts: Sequence[SampledGaussian], delta: float, *, relative_error: float = 5e-3) -> float | None:
    """Returns a lower bound on the true ε of a composition of Poisson-sampled Gaussian releases.

    Neighbours differ by emptying one example.

    Args:
        parts: The releases to compose; those with q = 0 or no steps are ignored.
        delta: The δ of the guarantee, between 0 and 1.
        relative_error: How far below the true ε the bound should be at most, as a share of ε. It is missed if the
            mesh would need too many points. The bound is valid either way.

    Returns:
        A number that the true ε at δ is not below, or None if double precision cannot certify one.

    Raises:
        ValueError: If an argument is out of range.
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
    # RDP's ε is an upper bound, so the first mesh is too coarse rather than too fine.
    guess, slope = chernoff(coarse, -math.log(delta), weighted=True)
    guess = max(guess, 1e-3 * spread(coarse))
    best, before, widest = None, math.inf, math.inf
    for _ in range(_MAX_PASSES):
        found = _one_pass(parts, coarse, delta, reach, guess, _TILT * slope, widest, relative_error)
        if found.certified is not None:
            best = max(found.certified, best or 0.0)
        # The cells' cost falls quadratically with their width: halving the width saves three quarters of it, and
        # what remains is a third of what was saved.
        settled = abs(found.estimate - before) <= 1.5 * relative_error * found.estimate
        if found.final or (settled and found.short <= relative_error * found.estimate):
            break
        before, widest = found.estimate, found.width / 2
        guess = max(found.estimate, relative_error * guess)
        slope = best_tilt(coarse, guess, slope)
    return best


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns the exact ε of a Gaussian release with noise 1/μ (Balle and Wang, 2018), minus a rounding margin."""

    def excess(epsilon: float) -> float:
        below = special.log_ndtr(-mu / 2 - epsilon / mu)
        return float(special.ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + below)) - delta

    if mu == 0 or excess(0.0) <= 0:
        return 0.0
    highest = mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))
    return float(optimize.brentq(excess, 0.0, highest, xtol=1e-300, rtol=1e-13)) * (1 - MARGIN)


class _Mesh(NamedTuple):
    """Releases with losses near multiples of ``width``.

    The sum of the multiples is too high by at most ``error``, except with probability η, and by ``mean`` on average.
    """

    width: float
    releases: Sequence[Release]
    error: float
    mean: float

    @property
    def short(self) -> float:
        return self.error - self.mean


class _Found(NamedTuple):
    """A lower bound from a mesh of this width, and an estimate of the bound without the mesh's errors.

    ``final`` says that a finer mesh would have too many points.
    """

    certified: float | None
    estimate: float
    width: float
    final: bool

    @property
    def short(self) -> float:
        return self.estimate - (self.certified or 0.0)


class _Composed(NamedTuple):
    """The tilted distribution of the sum on a window, wrong by at most ``error`` in total variation."""

    values: np.ndarray
    law: np.ndarray
    error: float
    tilt: float
    log_mgf: float

    def delta(self, epsilon: float) -> float:
        """Returns a lower bound on δ(ε) of the discrete sum."""
        start = int(np.searchsorted(self.values, epsilon))
        gap = self.values[start:] - epsilon
        sure = -float(np.sum(self.law[start:] * np.exp(-self.tilt * gap) * np.expm1(-gap)))
        sure -= self.error * math.exp(log_weight(self.tilt))
        log_scale = self.log_mgf - self.tilt * epsilon
        return math.exp(min(log_scale + math.log(sure), 0.0)) * (1 - MARGIN) if sure > 0 else 0.0

    def largest_epsilon(self, delta: float, *, at_least: float, tolerance: float) -> float | None:
        """Returns the largest ε ≥ ``at_least`` with δ(ε) above ``delta``; None if the errors hide it."""
        # Above the first value, δ(ε) is too small by Chernoff's bound. Below the second, the errors exceed ``delta``,
        # and δ(ε) may or may not exceed the errors. So the search goes from above.
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
    """Returns the bound from one mesh that is no wider than ``widest`` and made for an ε of about ``guess``.

    The bound is valid for any ``guess``, ``tilt`` and ``coarse`` cells. They only decide how tight it is.
    """
    total = sum(part.steps for part in parts)
    low, high = window(coarse, coarse, tilt)
    extent = max(high - low, *(highest_loss(part, reach) - lowest_loss(part, reach) for part in parts))
    finest = extent / _MAX_POINTS
    # The loss varies by h²/12 within a cell of width h, which costs about steps·(1+θ)·h²/24 of ε.
    by_variance = math.sqrt(6 * relative_error * guess / ((1 + tilt) * total))
    width = max(min(by_variance, math.sqrt(relative_error) * guess, widest), finest)
    eta = _MESH_SHARE * delta
    mesh = _mesh(parts, width, reach, eta)
    while mesh.short > relative_error / 2 * guess and (width := width / 2) >= finest:
        # A finer mesh usually has smaller errors, but not if it splits a narrow peak.
        mesh = min(mesh, _mesh(parts, width, reach, eta), key=lambda mesh: mesh.short)
    final = width / 2 < finest
    composed = _compose(mesh, coarse, tilt)
    epsilon = composed and composed.largest_epsilon(
        delta + eta, at_least=min(mesh.mean, mesh.error), tolerance=relative_error / 50 * guess
    )
    if epsilon is None:
        return _Found(None, 0.0, mesh.width, final)
    certified, estimate = (max(epsilon - shift, 0.0) * (1 - MARGIN) for shift in (mesh.error, mesh.mean))
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
    # Error of each Fourier term relative to its largest possible size, starting with that of the inverse transform.
    off = np.full(points // 2 + 1, 32 * ULP * stages)
    for release in releases:
        log_mass = np.log(release.mass)
        exponent = log_mass + tilt * release.loss
        log_sum = float(special.logsumexp(exponent))
        log_mgf += release.steps * log_sum
        tilted = np.exp(exponent - log_sum)
        roundings = tilted * (np.abs(log_mass) + np.abs(tilt * release.loss) + abs(log_sum))
        # Nearly all the mass may be in one cell. It stays out of the FFT, because rounding grows with the FFT's mass.
        peak = int(np.argmax(tilted))
        log_peak = float(exponent[peak] - log_sum)
        tilted[peak] = 0.0
        multiple = release.multiple - release.multiple[peak]
        origin += release.steps * int(release.multiple[peak])
        # Each FFT stage adds numbers no larger than the masses they sum up, and rounds. So each term is wrong by at
        # most a few ulp of the total mass per stage.
        rounding = ULP * (16 * stages * float(np.sum(tilted)) + 4 * float(np.sum(roundings)))
        spectrum = fft.rfft(np.bincount(multiple % points, weights=tilted, minlength=points)) / math.exp(log_peak)
        log_one = log_peak + _log_abs_one_plus(spectrum)
        most = np.exp(log_one) + rounding
        log_size += release.steps * log_one
        phase += release.steps * np.arctan2(spectrum.imag, 1 + spectrum.real)
        log_most += release.steps * np.log(most)
        off += release.steps * rounding / most
    law = fft.irfft(np.exp(log_size) * np.exp(1j * phase), points)
    # |aᵏ − bᵏ| ≤ k·|a − b|·max(|a|, |b|)ᵏ⁻¹ in every term. By Cauchy–Schwarz and Parseval, the absolute errors of
    # the distribution add up to at most the root of the sum of the terms' squared errors.
    error = math.sqrt(2 * float(np.sum((np.exp(log_most) * off) ** 2))) + 2 * OUTSIDE_WINDOW
    values = (first + np.arange(points)) * mesh.width
    return _Composed(values, np.roll(law, (origin - first) % points), error, tilt, log_mgf)


def _log_abs_one_plus(z: np.ndarray) -> np.ndarray:
    """Returns log |1 + z| without cancellation for small z."""
    small = np.abs(z) < 0.5
    squared = np.where(small, z.real * (2 + z.real) + z.imag**2, 0.0)
    return np.where(small, np.log1p(squared) / 2, np.log(np.maximum(np.abs(1 + z), TINY)))
