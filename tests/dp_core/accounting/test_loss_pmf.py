"""Composition on a grid, against exact arithmetic and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, special

from dp_core.accounting.loss_cells import SampledGaussian
from dp_core.accounting.loss_pmf import LossPmf, TooManyPointsError, _log_mgf, _power, _powers, compose
from dp_core.accounting.lower_bound import epsilon_lower
from dp_core.accounting.mixture_pmf import mixture_pmfs

CRITEO = 36_672_493


def gaussian(sigma: float, interval: float) -> LossPmf:
    return mixture_pmfs(sigma=sigma, sensitivities=[1.0], probabilities=[1.0], interval=interval)[0]


def sampled(q: float, sigma: float, interval: float) -> tuple[LossPmf, LossPmf]:
    return mixture_pmfs(sigma=sigma, sensitivities=[0.0, 1.0], probabilities=[1 - q, q], interval=interval)


def dyadic(rng: np.random.Generator, points: int) -> tuple[LossPmf, list[int]]:
    """Returns a distribution whose masses are exact multiples of 2^−40, and the multiples."""
    cuts = np.sort(rng.integers(0, 2**40, points - 1))
    numerators = np.diff(np.concatenate(([0], cuts, [2**40])))
    return LossPmf(1e-2, int(rng.integers(-5, 5)), numerators / 2.0**40, 0.0, 0.0, 0.0), numerators.tolist()


def exact_power(numerators: list[int], count: int) -> list[int]:
    """Returns the coefficients of a polynomial's power, by integers: one huge multiplication in base 2^bits."""
    bits = 40 * count + 64
    whole = sum(number << (bits * place) for place, number in enumerate(numerators)) ** count
    return [(whole >> (bits * place)) & ((1 << bits) - 1) for place in range(count * (len(numerators) - 1) + 1)]


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble])
@pytest.mark.parametrize(("points", "count"), [(2, 200), (5, 60), (13, 25), (40, 8)])
def test_errors_of_the_transforms_are_within_the_stated_bound(dtype: type, points: int, count: int) -> None:
    pmf, numerators = dyadic(np.random.default_rng(points), points)
    exact = exact_power(numerators, count)
    masses, bound = _powers([(pmf, count)], len(exact) + 1, dtype)
    one = 1 << (40 * count)
    off = math.fsum(
        abs(float((int(mass * 2.0**1000) * one - (number << 1000)) / (one << 1000)))
        for mass, number in zip(masses.tolist(), exact, strict=False)
    )
    # Casting the masses to 64 bits is a relative error, which is charged separately.
    assert off <= bound + 2.0**-52
    assert bound < 1e3 * count * float(np.finfo(dtype).eps) * math.sqrt(len(exact))


@pytest.mark.parametrize("steps", [2, 100, 5_000, 84_000, 1_000_000])
@pytest.mark.parametrize("interval", [1e-3, 1e-4])
def test_no_more_mass_is_lost_than_is_charged(steps: int, interval: float) -> None:
    """dp_accounting's own composition of 84,000 such releases lost 1.5e-9 at interval 1e-5, by its rounding."""
    for once in sampled(65_536 / CRITEO, 1.0, interval):
        composed = compose([(once, steps)])
        total = math.fsum([*composed.masses, composed.infinity])
        assert total >= 1 - composed.error - composed.relative_error
        assert composed.error <= 2e-16 * steps + 1e-14


@pytest.mark.parametrize("steps", [1, 1000, 84_000, 1_000_000])
@pytest.mark.parametrize("delta", [1e-5, 1 / CRITEO])
def test_many_gaussian_releases_are_one_in_closed_form(steps: int, delta: float) -> None:
    """Composed numerically, release by release, and compared with Balle and Wang's formula for their sum."""
    mu = 0.5

    def excess(epsilon: float) -> float:
        return float(special.ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)))

    exact = optimize.brentq(lambda epsilon: excess(epsilon) - delta, 0, 20)
    sigma = math.sqrt(steps) / mu
    found = compose([(gaussian(sigma, mu / math.sqrt(steps) / 3), steps)]).epsilon(delta)
    assert exact <= found <= exact * 1.03


@pytest.mark.parametrize("steps", [1000, 20_000, 84_000])
def test_the_bound_is_above_the_certified_lower_bound_and_near_it(steps: int) -> None:
    q, delta = 65_536 / CRITEO, 1 / CRITEO
    lower = epsilon_lower([SampledGaussian(q, 1.0, steps)], delta)
    found = max(compose([(once, steps)], rounding=1e-3 * delta).epsilon(delta) for once in sampled(q, 1.0, 1e-4))
    assert lower is not None
    assert lower <= found <= 1.02 * lower


def test_different_parts_compose_to_their_convolution() -> None:
    rng = np.random.default_rng(0)
    (one, _), (other, _) = dyadic(rng, 30), dyadic(rng, 7)
    found = compose([(one, 2), (other, 1)])
    expected = np.convolve(np.convolve(one.masses, one.masses), other.masses)
    start = found.lowest - (2 * one.lowest + other.lowest)
    np.testing.assert_allclose(found.masses, expected[start : start + len(found.masses)], atol=1e-14)


def test_one_release_is_itself_and_two_are_its_convolution() -> None:
    once, _ = dyadic(np.random.default_rng(1), 30)
    assert compose([(once, 1)]) is once
    twice = compose([(once, 2)])
    expected = np.convolve(once.masses, once.masses)
    start = twice.lowest - 2 * once.lowest
    np.testing.assert_allclose(twice.masses, expected[start : start + len(twice.masses)], atol=1e-14)
    assert len(twice.masses) > len(once.masses)


def test_errors_and_infinite_losses_add_up() -> None:
    part = LossPmf(1e-2, 0, np.array([0.25, 0.75 - 1e-6]), 1e-6, 1e-9, 1e-10)
    found = compose([(part, 50)])
    assert found.infinity == pytest.approx(50e-6, rel=1e-4)
    assert found.error >= 50e-9
    assert found.relative_error == pytest.approx(50e-10)


def test_powers_are_by_repeated_multiplication() -> None:
    values = np.array([0.3 + 0.4j, -1.0, 0.99])
    for exponent in (1, 2, 3, 7, 64, 100):
        np.testing.assert_allclose(_power(values, exponent), values**exponent, rtol=1e-12)


def test_a_sum_with_too_many_points_is_refused() -> None:
    with pytest.raises(TooManyPointsError, match="more than 100"):
        compose([(gaussian(1.0, 1e-2), 50)], max_points=100)


def test_epsilon_of_two_atoms_is_by_hand() -> None:
    """P(loss = 1) = 0.8: δ(ε) = 0.8·(1 − e^(ε−1)), and 0.1 at infinity."""
    pmf = LossPmf(0.5, -1, np.array([0.1, 0.0, 0.0, 0.8]), 0.1, 0.0, 0.0)
    for epsilon in (0.0, 0.2, 0.7):
        delta = 0.1 + 0.8 * -math.expm1(epsilon - 1)
        assert pmf.epsilon(delta) == pytest.approx(epsilon, abs=1e-12)
    assert pmf.epsilon(0.1) == math.inf
    assert pmf.epsilon(0.95) == 0


@pytest.mark.parametrize("count", [1, 3])
def test_the_bound_on_transforms_counts_every_stage_of_both_ways(count: int) -> None:
    """One atom: every term of its spectrum is 1. Its error is 16 ulp per stage there, twice that back, and what
    multiplying and folding add."""
    atom = LossPmf(1e-2, 0, np.ones(1), 0.0, 0.0, 0.0)
    _, bound = _powers([(atom, count)], 64, np.float64)
    stages, terms = 7, 33
    each = 2 * 16 * stages + count * (16 * stages + 1 + 4)
    assert bound == pytest.approx(each * 2.0**-52 * math.sqrt(2 * terms), rel=1e-6, abs=0)


@pytest.mark.parametrize("count", [1, 3])
def test_a_moment_is_rounded_up(count: int) -> None:
    atom = LossPmf(1e-2, 0, np.ones(1), 0.0, 0.0, 0.0)
    assert _log_mgf([(atom, count)], 0.5) == pytest.approx(count * 64 * 2.0**-52, rel=1e-6, abs=0)


def test_losses_too_large_for_an_exponential_are_bounded_by_infinity_only() -> None:
    pmf = LossPmf(100.0, 7, np.array([0.5, 0.5]), 0.0, 0.0, 0.0)
    assert pmf.epsilon(0.1) == pytest.approx(800.0, abs=100.0)
