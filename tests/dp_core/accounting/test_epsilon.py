"""ε against closed forms, an exact integral, dp_accounting's own bounds and its own refinement."""

from __future__ import annotations

import functools
import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event, rdp
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from scipy import optimize, stats

import dp_core.accounting.epsilon
from dp_core.accounting.epsilon import EpsilonBound, calibrate_noise, epsilon_bound, rdp_bound
from dp_core.accounting.events import BallsInBinsDpEvent, gaussian_event, poisson_event
from dp_core.accounting.privacy_loss import PrivacyLoss, privacy_loss

CRITEO = 36_672_493

# Batch size, steps, σ, and the PLD's ε at interval 2·10⁻⁶. A coarse interval gives up to ten times as much.
LONG_RUNS = [
    (1_024, 179_065, 1.0, 0.06758),
    (1_024, 179_065, 4.0, 0.01194),
    (16_384, 143_296, 4.0, 0.19522),
    (65_536, 84_000, 1.0, 3.70952),
    (65_536, 84_000, 4.0, 0.63305),
]


def long_run(batch_size: int, steps: int, sigma: float) -> dp_accounting.DpEvent:
    return poisson_event(sampling_probability=batch_size / CRITEO, noise_multiplier=sigma, steps=steps)


@functools.cache
def long_run_bound(batch_size: int, steps: int, sigma: float) -> EpsilonBound:
    return epsilon_bound(long_run(batch_size, steps, sigma), 1 / CRITEO)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Returns the exact ε of one Gaussian release (Balle and Wang 2018), by root finding."""

    def excess(epsilon: float) -> float:
        upper = stats.norm.cdf(1 / (2 * sigma) - epsilon * sigma)
        return upper - math.exp(epsilon + stats.norm.logcdf(-1 / (2 * sigma) - epsilon * sigma)) - delta

    return optimize.brentq(excess, 0, 1 / (2 * sigma**2) + 40 / sigma)


def exact_delta(q: float, sigma: float, steps: int, epsilon: float) -> float:
    """Returns δ(ε) of Poisson-sampled Gaussian releases without a grid of losses or a convolution.

    δ(ε) is the expectation of (1 − e^(ε−L))₊, and 1/(s(s+1)) is the Laplace transform of (1 − e^(−y))₊. So δ(ε) is
    1/(2πi) times the integral of M(s)·e^(−sε)/(s(s+1)) along a line in the complex plane, where M(s) = E[e^(sL)] is
    the product over the steps. Both integrands are smooth and vanish at the ends, so the trapezoidal rule is accurate
    to many digits. The line goes through the saddle point, where nothing cancels.
    """
    return max(_exact_delta(q, sigma, steps, epsilon, add=add) for add in (False, True))


def _exact_delta(q: float, sigma: float, steps: int, epsilon: float, *, add: bool) -> float:
    outcome = np.linspace(-14 * sigma, 14 * sigma + 1, 1200)
    weight = np.exp(-(outcome**2) / (2 * sigma**2))
    weight /= weight.sum()
    loss = np.log1p(q * np.expm1((2 * outcome - 1) / (2 * sigma**2)))

    def log_moment(s: np.ndarray) -> np.ndarray:
        """Returns log E[e^(sL)], computed under N(0, σ²): (P/Q)^(1+s) for removing, (P/Q)^(−s) for adding."""
        return steps * np.log1p(np.expm1(np.multiply.outer(-s if add else 1 + s, loss)) @ weight)

    def exponent(s: float) -> float:
        return float(log_moment(np.array(s))) - s * epsilon - math.log(s * (1 + s))

    saddle = math.exp(optimize.minimize_scalar(lambda s: exponent(math.exp(s)), bounds=(-7, 6), method="bounded").x)
    step = 0.01 * saddle
    curvature = (exponent(saddle + step) - 2 * exponent(saddle) + exponent(saddle - step)) / step**2
    line = saddle + 1j * np.linspace(0, 14 / math.sqrt(curvature), 600)
    value = (np.exp(log_moment(line) - line * epsilon) / (line * (1 + line))).real
    assert abs(value[-1]) < 1e-8 * value[0], "the integral is cut off too early: few or rare losses"
    return float((value.sum() - value[0] / 2) * (line[1] - line[0]).imag / math.pi)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("steps", [1, 16])
@pytest.mark.parametrize("plain", [True, False])
def test_unsampled_gaussians_match_the_closed_form(sigma: float, steps: int, plain: bool) -> None:
    """T releases at σ are one release at σ/√T, as plain Gaussians and as Poisson samples with q = 1."""
    if plain:
        event = gaussian_event(noise_multiplier=sigma, releases=steps)
    else:
        event = poisson_event(sampling_probability=1.0, noise_multiplier=sigma, steps=steps)
    exact = gaussian_epsilon(sigma / math.sqrt(steps), 1e-6)
    bound = epsilon_bound(event, 1e-6)
    assert exact * (1 - 1e-9) <= bound.epsilon <= exact * 1.005
    assert bound.epsilon <= bound.rdp_epsilon
    assert bound.converged


@pytest.mark.parametrize(("sigma", "steps"), [(0.3, 1), (100.0, 1), (30.0, 10_000), (10.0, 1_000_000)])
def test_many_plain_gaussians_match_the_closed_form(sigma: float, steps: int) -> None:
    exact = gaussian_epsilon(sigma / math.sqrt(steps), 1e-8)
    bound = epsilon_bound(gaussian_event(noise_multiplier=sigma, releases=steps), 1e-8)
    if bound.accountant == "PLD":
        assert exact * (1 - 1e-9) <= bound.epsilon <= exact * 1.005
    else:
        assert exact <= bound.epsilon <= exact * 1.1


@pytest.mark.parametrize(("batch_size", "steps", "sigma", "finest"), LONG_RUNS)
def test_long_runs_are_refined_until_they_converge(batch_size: int, steps: int, sigma: float, finest: float) -> None:
    bound = long_run_bound(batch_size, steps, sigma)
    assert bound.converged
    assert bound.further_change <= 3e-3
    assert 0.98 * finest <= bound.epsilon <= 1.005 * finest
    assert bound.epsilon <= bound.rdp_epsilon
    assert bound.accountant == "PLD"


@pytest.mark.parametrize(("batch_size", "steps", "sigma"), [run[:3] for run in LONG_RUNS if run[2] == 4.0])
def test_a_further_refinement_hardly_changes_epsilon(batch_size: int, steps: int, sigma: float) -> None:
    """Doing the refinement confirms what ``further_change`` estimates."""
    event, bound = long_run(batch_size, steps, sigma), long_run_bound(batch_size, steps, sigma)
    finer = privacy_loss(event, bound.interval / 4).epsilon(1 / CRITEO)
    assert finer >= (1 - 3e-3) * bound.pld_epsilon
    # At the finest intervals, rounding in dp_accounting's distribution of one step makes the bound looser again.
    if bound.interval > 1e-6:
        assert finer <= (1 + 1e-6) * bound.pld_epsilon


@pytest.mark.parametrize(("batch_size", "steps", "sigma"), [run[:3] for run in LONG_RUNS[1:]])
def test_long_runs_are_bounded_from_above_and_closely(batch_size: int, steps: int, sigma: float) -> None:
    """The true δ at the returned ε is at most the requested one, and at 1 % less ε it is larger."""
    epsilon, q = long_run_bound(batch_size, steps, sigma).epsilon, batch_size / CRITEO
    assert exact_delta(q, sigma, steps, epsilon) <= (1 + 1e-9) / CRITEO
    assert exact_delta(q, sigma, steps, 0.99 * epsilon) > 1 / CRITEO


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"),
    [
        (0.2, 11.0, 2_000, 1e-3),
        (0.06, 0.9, 400, 1e-5),
        (1e-4, 10.0, 50_000, 1e-9),
        (0.04, 9.0, 50_000, 1e-4),
        # A δ so small that half of it is subtracted for rounding.
        (0.02, 15.0, 2_000, 1.6e-12),
    ],
)
def test_the_bound_is_never_below_the_exact_value(q: float, sigma: float, steps: int, delta: float) -> None:
    event = poisson_event(sampling_probability=q, noise_multiplier=sigma, steps=steps)
    bound = epsilon_bound(event, delta)
    assert exact_delta(q, sigma, steps, bound.epsilon) <= delta * (1 + 1e-9)
    assert exact_delta(q, sigma, steps, 0.97 * bound.epsilon) > delta


def test_the_exact_value_is_right_where_there_is_a_closed_form() -> None:
    for sigma, steps in ((3.0, 1), (30.0, 100)):
        epsilon = gaussian_epsilon(sigma / math.sqrt(steps), 1e-6)
        assert exact_delta(1.0, sigma, steps, epsilon) == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.5, 2.0, 10), (0.01, 1.0, 500)])
def test_short_runs_lie_between_dp_accountings_own_bounds(q: float, sigma: float, steps: int) -> None:
    """dp_accounting's optimistic estimate is a lower bound, and its accountant at a fine interval an upper one."""
    event = poisson_event(sampling_probability=q, noise_multiplier=sigma, steps=steps)
    bound = epsilon_bound(event, 1e-6)
    fine = PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon(1e-6)
    optimistic = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, pessimistic_estimate=False, use_connect_dots=False, value_discretization_interval=1e-4
    )
    lower = optimistic.self_compose(steps).get_epsilon_for_delta(1e-6)
    assert lower <= bound.epsilon
    assert fine * (1 - 1e-4) <= bound.epsilon <= fine * 1.005


@pytest.mark.parametrize(
    ("q", "sigma", "steps"),
    [
        (1e-3, 0.3, 1),
        (1e-3, 100.0, 1),
        (1.0, 0.3, 1),
        (0.5, 0.3, 100),
        (1e-3, 0.3, 1_000_000),
        (1.0, 0.3, 1_000_000),
        (1e-5, 0.3, 1_000_000),
        (1.0, 100.0, 1_000_000),
    ],
)
def test_the_whole_range_of_runs_has_an_answer(q: float, sigma: float, steps: int) -> None:
    event = poisson_event(sampling_probability=q, noise_multiplier=sigma, steps=steps)
    bound = epsilon_bound(event, 1e-6)
    assert 0 < bound.epsilon < math.inf
    assert bound.epsilon <= bound.rdp_epsilon
    assert bound.converged or bound.epsilon > 1000
    # Sampling never increases ε.
    assert bound.epsilon <= gaussian_epsilon(sigma / math.sqrt(steps), 1e-6) * (1.005 if bound.converged else 1.1)


def test_huge_values_are_rdps() -> None:
    event = poisson_event(sampling_probability=1.0, noise_multiplier=0.3, steps=1000)
    bound = epsilon_bound(event, 1e-6)
    assert bound.epsilon > 1000
    assert bound.accountant == "RDP"
    assert bound.epsilon == bound.rdp_epsilon == rdp.RdpAccountant().compose(event).get_epsilon(1e-6)


@pytest.mark.parametrize(
    "event",
    [
        poisson_event(sampling_probability=0.1, noise_multiplier=0.0, steps=10),
        gaussian_event(noise_multiplier=0.0, releases=1),
        dp_accounting.NonPrivateDpEvent(),
        dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(1.0), dp_accounting.GaussianDpEvent(0.0)]),
    ],
)
def test_without_noise_epsilon_is_infinite(event: dp_accounting.DpEvent) -> None:
    assert epsilon_bound(event, 1e-5).epsilon == math.inf


def test_nothing_released_costs_nothing() -> None:
    assert epsilon_bound(dp_accounting.NoOpDpEvent(), 1e-5).epsilon == 0


def test_a_delta_that_rounding_eats_leaves_rdps_bound() -> None:
    """FFT rounding can hide 4·10⁻¹⁶ for each of the 100,000 releases: more than all of δ."""
    event = poisson_event(sampling_probability=0.01, noise_multiplier=2.0, steps=100_000)
    bound = epsilon_bound(event, 1e-11)
    assert bound.pld_epsilon == math.inf
    assert bound.accountant == "RDP"
    assert bound.epsilon == bound.rdp_epsilon == rdp.RdpAccountant().compose(event).get_epsilon(1e-11)
    # With a larger δ the PLD is tighter again.
    assert epsilon_bound(event, 1e-9).accountant == "PLD"


def test_a_bound_that_had_no_time_is_true_but_loose() -> None:
    event = long_run(*LONG_RUNS[1][:3])
    hurried, patient = epsilon_bound(event, 1 / CRITEO, seconds=0.0), long_run_bound(*LONG_RUNS[1][:3])
    assert not hurried.converged
    assert hurried.further_change > 1e-3
    assert hurried.interval > patient.interval
    assert patient.epsilon <= hurried.epsilon <= hurried.rdp_epsilon


def test_replacing_an_example_costs_as_much_as_moving_twice_as_far() -> None:
    """For either accountant: replacing an example removes one clip norm and adds another."""
    replaced = epsilon_bound(
        dp_accounting.GaussianDpEvent(1.0), 1e-5, neighboring_relation=NeighboringRelation.REPLACE_ONE
    )
    assert replaced.epsilon >= gaussian_epsilon(0.5, 1e-5) * (1 - 1e-9)


@pytest.mark.parametrize("target", [0.01, 1.0, 10.0, 100.0])
def test_calibrated_noise_just_keeps_the_budget(target: float) -> None:
    def event(noise_multiplier: float) -> dp_accounting.DpEvent:
        return poisson_event(sampling_probability=0.02, noise_multiplier=noise_multiplier, steps=400)

    noise_multiplier = calibrate_noise(event, target_epsilon=target, target_delta=1e-5)
    assert 0.999 * target <= epsilon_bound(event(noise_multiplier), 1e-5).epsilon <= target


@pytest.mark.parametrize("target", [0.1, 3.0])
def test_calibrated_noise_just_keeps_the_papers_budget(target: float) -> None:
    """150 epochs of Criteo with batches of 65,536: a coarse interval would ask for twice the noise."""

    def event(noise_multiplier: float) -> dp_accounting.DpEvent:
        return long_run(65_536, 83_937, noise_multiplier)

    noise_multiplier = calibrate_noise(event, target_epsilon=target, target_delta=1 / CRITEO)
    assert 0.999 * target <= epsilon_bound(event(noise_multiplier), 1 / CRITEO).epsilon <= target


def test_rdp_alone_needs_more_noise() -> None:
    def event(noise_multiplier: float) -> dp_accounting.DpEvent:
        return poisson_event(sampling_probability=0.02, noise_multiplier=noise_multiplier, steps=400)

    tightest, by_rdp = (
        calibrate_noise(event, target_epsilon=1.0, target_delta=1e-5, accountant=accountant)
        for accountant in ("tightest", "RDP")
    )
    assert by_rdp > 1.01 * tightest
    assert 0.999 <= rdp.RdpAccountant().compose(event(by_rdp)).get_epsilon(1e-5) <= 1.0


def test_an_event_that_rdp_does_not_know_can_be_calibrated() -> None:
    """RDP gives no first guess, and the answer is a factor away from where the search starts."""

    def event(noise_multiplier: float) -> dp_accounting.DpEvent:
        return BallsInBinsDpEvent(20, noise_multiplier)

    assert rdp_bound(event(1.0), 1e-5, NeighboringRelation.ADD_OR_REMOVE_ONE) == math.inf
    noise_multiplier = calibrate_noise(event, target_epsilon=0.2, target_delta=1e-5)
    assert noise_multiplier > 2
    assert 0.999 * 0.2 <= epsilon_bound(event(noise_multiplier), 1e-5).epsilon <= 0.2


def test_impossible_questions_are_refused() -> None:
    event = gaussian_event(noise_multiplier=1.0, releases=1)
    for delta in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            epsilon_bound(event, delta)
    for target in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="positive and finite"):
            calibrate_noise(lambda _: event, target_epsilon=target, target_delta=1e-5)
    # ε of this event does not depend on the noise.
    for target in (1e-6, 1e3):
        with pytest.raises(ValueError, match=r"no noise multiplier from 0\.01 to 1e\+06 gives"):
            calibrate_noise(lambda _: event, target_epsilon=target, target_delta=1e-5)


@pytest.mark.parametrize("event", [dp_event.UnsupportedDpEvent(), dp_accounting.LaplaceDpEvent(1.0)])
def test_an_event_without_accounting_is_refused(event: dp_accounting.DpEvent) -> None:
    with pytest.raises(ValueError, match="no privacy loss distribution for"):
        epsilon_bound(event, 1e-5)


def test_what_costs_nothing_has_nothing_left_to_refine() -> None:
    bound = epsilon_bound(dp_accounting.GaussianDpEvent(1e3), 0.1)
    assert (bound.epsilon, bound.further_change, bound.converged) == (0.0, 0.0, True)


def test_rounding_in_64_bits_may_use_up_a_ten_thousandth_of_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[float] = []

    def noting(*arguments: Any, rounding: float, **options: Any) -> PrivacyLoss:
        allowed.append(rounding)
        return privacy_loss(*arguments, rounding=rounding, **options)

    monkeypatch.setattr(dp_core.accounting.epsilon, "privacy_loss", noting)
    epsilon_bound(dp_accounting.GaussianDpEvent(2.0), 1e-5)
    assert set(allowed) == {1e-4 * 1e-5}
