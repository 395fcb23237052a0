"""The lower bounds on ε against upper bounds, closed forms and plain integration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp
from scipy import optimize, stats

from dp_core.accounting.loss_cells import SampledGaussian
from dp_core.accounting.lower_bound import epsilon_lower
from dp_core.accounting.shuffled_lower_bound import shuffled_epsilon_lower

CRITEO = 36_672_493


def event(parts: Sequence[SampledGaussian]) -> dp_accounting.DpEvent:
    return dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma)), steps
            )
            for q, sigma, steps in parts
        ]
    )


def pld_epsilon(parts: Sequence[SampledGaussian], delta: float, interval: float) -> float:
    """Returns dp_accounting's ε of both directions, rounded up to its interval."""
    accountant = pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval
    )
    return float(accountant.compose(event(parts)).get_epsilon(delta))


def rdp_epsilon(parts: Sequence[SampledGaussian], delta: float) -> float:
    return float(rdp.RdpAccountant().compose(event(parts)).get_epsilon(delta))


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Returns the exact ε of one Gaussian release (Balle and Wang 2018)."""

    def excess(epsilon: float) -> float:
        below = math.exp(epsilon + stats.norm.logcdf(-1 / (2 * sigma) - epsilon * sigma))
        return float(stats.norm.cdf(1 / (2 * sigma) - epsilon * sigma)) - below - delta

    return optimize.brentq(excess, 0, 1e7, xtol=1e-15)


def loss(part: SampledGaussian, outcome: np.ndarray) -> np.ndarray:
    q, sigma, _ = part
    return np.logaddexp(math.log1p(-q), math.log(q) + (2 * outcome - 1) / (2 * sigma**2))


def one_step_delta(part: SampledGaussian, epsilon: np.ndarray) -> np.ndarray:
    """Returns P(loss > ε) − e^ε·Q(loss > ε) for one step and any real ε."""
    q, sigma, _ = part
    inside = np.expm1(epsilon) + q
    outcome = 0.5 + sigma**2 * np.log(np.maximum(inside, 1e-300) / q)
    absent, present = (stats.norm.sf(outcome, shift, sigma) for shift in (0, 1))
    return np.where(inside > 0, (1 - q) * absent + q * present - np.exp(epsilon) * absent, -np.expm1(epsilon))


def integrated_epsilon(part: SampledGaussian, delta: float) -> float:
    """Returns ε by integrating over the outcomes of all steps but the last, on a dense grid."""
    q, sigma, steps = part
    outcome = np.linspace(-8 * sigma, 1 + 8 * sigma, 2001 if steps < 3 else 401)
    density = (1 - q) * stats.norm.pdf(outcome, 0, sigma) + q * stats.norm.pdf(outcome, 1, sigma)
    # The trapezoidal rule is practically exact for these integrands: their few kinks are where δ is flat.
    weights, losses = density * (outcome[1] - outcome[0]), loss(part, outcome)
    total_weights, total_losses = np.ones(1), np.zeros(1)
    for _ in range(steps - 1):
        total_weights = np.outer(total_weights, weights).ravel()
        total_losses = np.add.outer(total_losses, losses).ravel()

    def excess(epsilon: float) -> float:
        return float(np.sum(total_weights * one_step_delta(part, epsilon - total_losses))) - delta

    return optimize.brentq(excess, 0, 100, xtol=1e-12, rtol=1e-6)


@pytest.mark.parametrize(
    ("batch_size", "steps", "sigma", "finest"),
    [
        (1_024, 179_065, 1.0, 0.06758),
        (1_024, 179_065, 4.0, 0.01194),
        (16_384, 143_296, 4.0, 0.19522),
        (65_536, 84_000, 1.0, 3.70952),
        (65_536, 84_000, 4.0, 0.63305),
    ],
)
def test_long_runs_are_close_to_the_upper_bound(batch_size: int, steps: int, sigma: float, finest: float) -> None:
    """``finest`` is the PLD's ε at interval 2·10⁻⁶, which takes a minute to compute."""
    lower = epsilon_lower([SampledGaussian(batch_size / CRITEO, sigma, steps)], 1 / CRITEO)
    assert lower is not None
    assert 0.99 * finest <= lower <= finest


@pytest.mark.parametrize("steps", [1, 3, 50])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0])
@pytest.mark.parametrize(("q", "delta"), [(1e-3, 1e-8), (0.05, 1e-10), (0.05, 1e-4), (0.5, 1e-6), (0.95, 1e-3)])
def test_short_runs_are_close_to_the_upper_bound(q: float, sigma: float, steps: int, delta: float) -> None:
    parts = [SampledGaussian(q, sigma, steps)]
    lower = epsilon_lower(parts, delta)
    assert lower is not None
    assert lower > 0
    upper = pld_epsilon(parts, delta, max(lower / 300, 2e-6))
    assert 0.98 * upper <= lower <= upper


@pytest.mark.parametrize("sigma", [0.3, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("q", [1e-5, 1e-2, 0.3, 0.999])
@pytest.mark.parametrize("share", [0.5, 1e-2, 1e-5])
def test_one_step_matches_the_closed_form(q: float, sigma: float, share: float) -> None:
    """``share`` is δ's share of the total variation distance."""
    part = SampledGaussian(q, sigma, 1)
    delta = share * float(one_step_delta(part, np.array(0.0)))
    exact = optimize.brentq(lambda x: float(one_step_delta(part, np.array(x))) - delta, 0, 200, xtol=1e-14)
    lower = epsilon_lower([part], delta)
    assert lower is not None
    assert 0.985 * exact <= lower <= exact * (1 + 1e-7)


@pytest.mark.parametrize(
    ("part", "delta"),
    [
        (SampledGaussian(1e-3, 0.5, 2), 1e-8),
        (SampledGaussian(0.02, 1.0, 2), 1e-6),
        (SampledGaussian(0.3, 3.0, 2), 1e-3),
        (SampledGaussian(0.02, 0.7, 3), 1e-7),
        (SampledGaussian(0.5, 2.0, 3), 1e-4),
    ],
)
def test_a_few_steps_match_plain_integration(part: SampledGaussian, delta: float) -> None:
    exact = integrated_epsilon(part, delta)
    for relative_error in (0.1, 5e-3, 5e-4):
        lower = epsilon_lower([part], delta, relative_error=relative_error)
        assert lower is not None
        assert (1 - 1.5 * relative_error) * exact <= lower <= exact * (1 + 1e-6)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 100.0])
@pytest.mark.parametrize("steps", [1, 16, 1_000_000])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-3])
def test_unsampled_gaussians_match_the_closed_form(sigma: float, steps: int, delta: float) -> None:
    """T releases at σ are one release at σ/√T, and releases with q near 1 are nearly that."""
    exact = gaussian_epsilon(sigma / math.sqrt(steps), delta)
    assert epsilon_lower([SampledGaussian(1.0, sigma, steps)], delta) == pytest.approx(exact, rel=1e-8)
    nearly = epsilon_lower([SampledGaussian(1 - 1e-12, sigma, steps)], delta)
    assert nearly is not None
    assert 0.985 * exact <= nearly <= exact


def test_different_parts_compose() -> None:
    parts = [SampledGaussian(0.01, 1.0, 300), SampledGaussian(0.05, 3.0, 100), SampledGaussian(1.0, 8.0, 2)]
    lower = epsilon_lower(parts, 1e-6)
    assert lower is not None
    assert 0.99 * pld_epsilon(parts, 1e-6, 1e-3) <= lower <= pld_epsilon(parts, 1e-6, 1e-4)
    # Neither the order nor the grouping of the steps matters.
    divided = [parts[2], *[SampledGaussian(0.01, 1.0, 100)] * 3, parts[1], SampledGaussian(0.5, 1.0, 0)]
    assert epsilon_lower(divided, 1e-6) == pytest.approx(lower, rel=1e-3)
    unsampled = [SampledGaussian(1.0, 1.0, 3), SampledGaussian(1.0, 0.5, 1)]
    assert epsilon_lower(unsampled, 1e-6) == pytest.approx(gaussian_epsilon(1 / math.sqrt(7), 1e-6), rel=1e-8)


def test_rounding_does_not_hide_a_small_delta() -> None:
    """Direct convolution, which loses no digits, gives ε = 0.5625.

    dp_accounting convolves by FFT, and its rounding puts ε between 0.549 and 0.573.
    """
    lower = epsilon_lower([SampledGaussian(1e-6, 0.5, 100_000)], 1e-10)
    assert lower is not None
    assert 0.985 * 0.5625 <= lower <= 0.5625


@pytest.mark.parametrize("delta", [1e-10, 1e-3])
@pytest.mark.parametrize("sigma", [0.3, 100.0])
@pytest.mark.parametrize(("q", "steps"), [(1e-6, 1), (1e-6, 1_000_000), (1e-3, 1_000_000), (0.5, 1), (0.5, 1_000_000)])
def test_extremes_have_a_bound(q: float, steps: int, sigma: float, delta: float) -> None:
    parts = [SampledGaussian(q, sigma, steps)]
    lower = epsilon_lower(parts, delta)
    assert lower is not None
    # ε is 0 if δ is above the total variation distance. Both q·steps and this bound that distance.
    positive = 0.2 * min(q * steps, q * math.sqrt(steps)) * min(1, 1 / sigma) > delta
    assert lower > 0 if positive else lower >= 0
    assert lower <= rdp_epsilon(parts, delta)


def test_what_cannot_be_certified_is_none_or_little() -> None:
    for steps in (10**12, 10**15):
        lower = epsilon_lower([SampledGaussian(1e-3, 100.0, steps)], 1e-10)
        assert lower is None or 0 <= lower <= gaussian_epsilon(100 / (1e-3 * math.sqrt(steps)), 1e-10) * 1.01


def test_no_privacy_is_lost_where_nothing_is_released() -> None:
    assert epsilon_lower([], 1e-6) == 0
    assert epsilon_lower([SampledGaussian(0.0, 1.0, 10), SampledGaussian(0.5, 1.0, 0)], 1e-6) == 0
    # Nor if the neighbours are closer than δ in total variation.
    assert epsilon_lower([SampledGaussian(1e-6, 1.0, 10)], 1e-5) == 0


def test_shuffling_hardly_amplifies() -> None:
    lower = shuffled_epsilon_lower(steps=560, noise_multiplier=0.8, delta=2.7e-8)
    assert lower == pytest.approx(7.12, abs=0.01)
    poisson = epsilon_lower([SampledGaussian(1 / 560, 0.8, 560)], 2.7e-8)
    assert poisson == pytest.approx(1.24, abs=0.01)


@pytest.mark.parametrize("sigma", [0.3, 0.8, 2.0, 50.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-6, 1e-3])
def test_shuffled_is_below_one_release_without_sampling(sigma: float, delta: float) -> None:
    exact = gaussian_epsilon(sigma, delta)
    # One batch is one release, and threshold tests are optimal for it.
    assert shuffled_epsilon_lower(steps=1, noise_multiplier=sigma, delta=delta) == pytest.approx(exact, rel=1e-6)
    bounds = [
        shuffled_epsilon_lower(steps=steps, noise_multiplier=sigma, delta=delta) for steps in (1, 10, 1000, 10**6)
    ]
    assert all(0 <= more <= fewer <= exact for fewer, more in itertools.pairwise(bounds))


def test_shuffled_agrees_with_draws() -> None:
    """In a simulation, the largest batch sum distinguishes the neighbours exactly as well as the bound says."""
    steps, sigma, delta, draws = 4, 0.7, 0.02, 400_000
    lower = shuffled_epsilon_lower(steps=steps, noise_multiplier=sigma, delta=delta)
    rng = np.random.default_rng(0)
    noise = rng.normal(scale=sigma, size=(draws, steps))
    present, zeroed = noise.copy(), rng.permuted(noise, axis=0)
    present[:, 0] += 2
    zeroed[:, 0] += 1
    thresholds = np.linspace(0, 4, 201)[:, None]
    above, below = (np.mean(sums.max(axis=1) > thresholds, axis=1) for sums in (present, zeroed))
    found = float(np.max(above - math.exp(lower) * below))
    assert found == pytest.approx(delta, abs=5 * math.sqrt(delta / draws) * math.exp(lower / 2))


def test_impossible_questions_are_refused() -> None:
    part = SampledGaussian(0.1, 1.0, 10)
    for delta in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="delta must be between 0 and 1"):
            epsilon_lower([part], delta)
        with pytest.raises(ValueError, match="delta must be between 0 and 1"):
            shuffled_epsilon_lower(steps=10, noise_multiplier=1.0, delta=delta)
    for wrong in (
        part._replace(sampling_probability=1.1),
        part._replace(noise_multiplier=0.0),
        part._replace(noise_multiplier=math.nan),
        part._replace(steps=-1),
    ):
        with pytest.raises(ValueError, match="not a sampled Gaussian"):
            epsilon_lower([part, wrong], 1e-6)
    with pytest.raises(ValueError, match="relative_error"):
        epsilon_lower([part], 1e-6, relative_error=0.0)
    for steps, sigma in ((0, 1.0), (10, 0.0)):
        with pytest.raises(ValueError, match="steps and noise"):
            shuffled_epsilon_lower(steps=steps, noise_multiplier=sigma, delta=1e-6)
