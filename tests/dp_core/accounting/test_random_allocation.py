"""Balls in bins against closed forms, numerical integration and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting import pld
from scipy import optimize, stats

from dp_core.accounting import random_allocation
from dp_core.accounting.random_allocation import random_allocation_pld

PLD = pld.privacy_loss_distribution.PrivacyLossDistribution


def deltas(epoch: PLD, epsilon: float) -> tuple[float, float]:
    """Returns δ(ε) for removing and for adding an example."""
    remove, add = epoch._pmf_remove, epoch._pmf_add
    return float(remove.get_delta_for_epsilon(epsilon)), float(add.get_delta_for_epsilon(epsilon))


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Returns the exact ε of one Gaussian release (Balle and Wang 2018), by root finding."""

    def excess(epsilon: float) -> float:
        upper = stats.norm.cdf(1 / (2 * sigma) - epsilon * sigma)
        return upper - math.exp(epsilon) * stats.norm.cdf(-1 / (2 * sigma) - epsilon * sigma) - delta

    return optimize.brentq(excess, 0, 500)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0, 100.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-10])
def test_one_bin_is_the_gaussian(sigma: float, delta: float) -> None:
    epoch = random_allocation_pld(bins=1, noise_multiplier=sigma, interval=min(1e-3, 0.1 / sigma))
    exact = gaussian_epsilon(sigma, delta)
    assert exact * (1 - 1e-9) <= epoch.get_epsilon_for_delta(delta) <= exact * 1.005 + 1e-9


def expected_excess(level: np.ndarray, terms: int, sigma: float, *, below: bool) -> np.ndarray:
    """Returns E[(S − level)₊] or, if ``below``, E[(level − S)₊], for a sum S of lognormal terms Y of mean 1.

    One term has a closed form (Black and Scholes). With more terms, one of them is integrated out. Where it exceeds
    the level by itself, the excess is linear. Below that the integrand is smooth but steep at the end, which the
    tanh-sinh rule handles well.
    """
    positive = level > 0
    level_ = np.where(positive, level, 1.0)
    # Y < level is z < edge.
    edge = sigma * np.log(level_) + 1 / (2 * sigma)
    if terms == 1:
        if below:
            inside = level_ * stats.norm.cdf(edge) - stats.norm.cdf(edge - 1 / sigma)
        else:
            inside = stats.norm.sf(edge - 1 / sigma) - level_ * stats.norm.sf(edge)
    else:
        nodes = np.arange(-3.2, 3.2, 0.05)
        from_end = 1 / (1 + np.exp(np.pi * np.sinh(nodes)))
        weights = 0.05 * np.pi * np.cosh(nodes) * from_end * (1 - from_end)
        width = np.maximum(edge + 12, 0)[..., None]
        z = edge[..., None] - width * from_end
        rest = -level_[..., None] * np.expm1(-width * from_end / sigma)
        inner = expected_excess(rest, terms - 1, sigma, below=below)
        inside = np.sum(width * weights * stats.norm.pdf(z) * inner, axis=-1)
        if not below:
            inside += (terms - 1 - level_) * stats.norm.sf(edge) + stats.norm.sf(edge - 1 / sigma)
    return np.where(positive, inside, 0.0 if below else terms - level)


def exact_deltas(bins: int, sigma: float, epsilon: float) -> tuple[float, float]:
    """Returns both δ(ε) by numerical integration: E_Q[(L − e^ε)₊] and E_Q[(1 − e^ε L)₊]."""
    remove = expected_excess(np.array(bins * math.exp(epsilon)), bins, sigma, below=False) / bins
    add = expected_excess(np.array(bins * math.exp(-epsilon)), bins, sigma, below=True) / bins
    return float(remove), math.exp(epsilon) * float(add)


@pytest.mark.parametrize(("bins", "sigma"), [(2, 0.5), (2, 1.0), (2, 4.0), (3, 0.5), (3, 4.0), (4, 1.0)])
def test_few_bins_match_numerical_integration(bins: int, sigma: float) -> None:
    epoch = random_allocation_pld(bins=bins, noise_multiplier=sigma, interval=1e-3)
    for epsilon in np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 4.0]) / sigma:
        for bound, exact in zip(deltas(epoch, epsilon), exact_deltas(bins, sigma, epsilon), strict=True):
            if exact > 1e-12:
                assert exact * (1 - 1e-9) <= bound <= exact * 1.001
            else:
                assert bound <= 2e-12


def test_the_integration_itself_is_right() -> None:
    """Against a direct sum over both normals, without the closed form."""
    sigma, epsilon, width = 1.0, 0.7, 0.01
    normal = np.arange(-9, 10, width)
    weight = np.multiply.outer(stats.norm.pdf(normal), stats.norm.pdf(normal)) * width**2
    term = np.exp(normal / sigma - 1 / (2 * sigma**2))
    ratio = np.add.outer(term, term) / 2
    remove, add = exact_deltas(2, sigma, epsilon)
    assert np.sum(weight * np.maximum(ratio - math.exp(epsilon), 0)) == pytest.approx(remove, rel=1e-4)
    assert np.sum(weight * np.maximum(1 - math.exp(epsilon) * ratio, 0)) == pytest.approx(add, rel=1e-4)


@pytest.mark.parametrize(("bins", "sigma", "interval"), [(560, 0.8, 1e-3), (100, 0.4, 1e-3), (37, 3.0, 2e-4)])
def test_many_bins_match_simulation(bins: int, sigma: float, interval: float) -> None:
    rng = np.random.default_rng(7)
    epoch = random_allocation_pld(bins=bins, noise_multiplier=sigma, interval=interval)
    size = 2_000
    under_q, under_p = [], []
    for _ in range(60):
        normal = rng.standard_normal((size, bins))
        under_q.append(np.exp(normal / sigma - 1 / (2 * sigma**2)).mean(axis=1))
        # P is symmetric in the bins, so the example can be put into the first one.
        first = np.exp(normal[:, 0] / sigma - 1 / (2 * sigma**2))
        under_p.append(under_q[-1] + first * np.expm1(sigma**-2) / bins)
    ratio_q, ratio_p = np.concatenate(under_q), np.concatenate(under_p)
    for delta in (1e-2, 1e-3):
        # Each direction gets its own ε, at which δ is about this.
        epsilon = epoch._pmf_remove.get_epsilon_for_delta(delta)
        check_mean(np.maximum(1 - math.exp(epsilon) / ratio_p, 0), deltas(epoch, epsilon)[0])
        epsilon = epoch._pmf_add.get_epsilon_for_delta(delta)
        check_mean(np.maximum(1 - math.exp(epsilon) * ratio_q, 0), deltas(epoch, epsilon)[1])


def check_mean(samples: np.ndarray, bound: float) -> None:
    error = samples.std() / math.sqrt(len(samples))
    assert error < 0.1 * bound
    assert abs(samples.mean() - bound) < 4 * error + 1e-3 * bound


@pytest.mark.parametrize(("bins", "sigma"), [(7, 2.0), (560, 0.8), (1000, 1.0), (20_000, 1.0)])
def test_refinement_only_tightens(bins: int, sigma: float) -> None:
    """On nested grids, the coarser distribution is a spread of the finer one."""
    plds = [random_allocation_pld(bins=bins, noise_multiplier=sigma, interval=h) for h in (1.6e-2, 4e-3, 1e-3, 5e-4)]
    found = [epoch.get_epsilon_for_delta(1e-6) for epoch in plds]
    for coarser, finer in itertools.pairwise(found):
        assert finer <= coarser * (1 + 1e-9)
    assert found[-1] < found[0]
    # The error is of second order: most of it is gone after the first refinement.
    assert found[1] - found[-1] < 0.25 * (found[0] - found[-1])
    for coarse_pld, fine_pld in itertools.pairwise(plds):
        for epsilon in np.array([0.0, 0.5, 1.0, 1.5]) * found[-1]:
            for coarse, fine in zip(deltas(coarse_pld, epsilon), deltas(fine_pld, epsilon), strict=True):
                assert fine <= coarse * (1 + 1e-9) + 1e-20


def test_more_bins_and_more_noise_cost_less() -> None:
    """The mean of more independent terms is smaller in the convex order, and more noise is post-processing."""

    def epsilon(bins: int, sigma: float) -> float:
        return random_allocation_pld(bins=bins, noise_multiplier=sigma, interval=2e-3).get_epsilon_for_delta(1e-6)

    found = [epsilon(bins, 1.0) for bins in (1, 2, 4, 8, 64, 512)]
    assert found == sorted(found, reverse=True)
    found = [epsilon(100, sigma) for sigma in (0.3, 0.5, 1.0, 2.0)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("bins", [2, 50, 560])
def test_epochs_compose(bins: int) -> None:
    """More than one epoch, less than as many Gaussians. Composes with dp_accounting's own PLDs."""
    sigma, epochs, delta, interval = 1.0, 5, 1e-6, 1e-3
    epoch = random_allocation_pld(bins=bins, noise_multiplier=sigma, interval=interval)
    one = epoch.get_epsilon_for_delta(delta)
    several = epoch.self_compose(epochs).get_epsilon_for_delta(delta)
    assert one < gaussian_epsilon(sigma, delta)
    assert 1.2 * one < several < gaussian_epsilon(sigma / math.sqrt(epochs), delta)
    release = pld.privacy_loss_distribution.from_gaussian_mechanism(10.0, value_discretization_interval=interval)
    both = epoch.compose(release).get_epsilon_for_delta(delta)
    assert max(one, release.get_epsilon_for_delta(delta)) < both < gaussian_epsilon((1 + 0.1**2) ** -0.5, delta)


@pytest.mark.parametrize(("bins", "sigma"), [(1, 0.3), (3, 100.0), (560, 0.8), (99_999, 5.0), (100_000, 0.3)])
def test_probability_and_mean_are_kept(bins: int, sigma: float) -> None:
    """Probabilities under Q add up to 1, and so does the mean of L, which is the total probability under P."""
    epoch = random_allocation_pld(bins=bins, noise_multiplier=sigma, interval=5e-3)
    for pmf in (epoch._pmf_remove, epoch._pmf_add):
        assert np.all(pmf._probs >= 0)
        assert pmf._probs.sum() + pmf._infinity_mass == pytest.approx(1, abs=1e-12)
        assert 0 <= pmf._infinity_mass < 1e-20


@pytest.mark.parametrize(("sigma", "step"), [(0.8, 0.1), (5.0, 0.01), (2.0, 0.9)])
def test_sums_are_split_as_they_should_be(sigma: float, step: float) -> None:
    """Every probability, however small, against a sum over all pairs."""
    one = random_allocation._one_term(3, sigma, step)
    two = random_allocation._cut_tails(random_allocation._add(one, one, step), step, 2 / 3)
    for left, right in ((one, one), (one, two), (two, one)):
        total = random_allocation._add(left, right, step)
        masses = np.zeros(len(total.masses) + 1)
        i, j = np.arange(left.lowest, left.end)[:, None], np.arange(right.lowest, right.end)
        above = np.log1p(np.exp(-step * abs(i - j)))
        offset = np.floor(above / step)
        share = np.expm1(above - offset * step) / math.expm1(step)
        point = np.maximum(i, j) + offset.astype(int) - total.lowest
        mass = np.multiply.outer(left.masses, right.masses)
        np.add.at(masses, point, (1 - share) * mass)
        np.add.at(masses, point + 1, share * mass)
        masses[left.lowest - total.lowest :][: len(left.masses)] += left.masses * right.zero
        masses[right.lowest - total.lowest :][: len(right.masses)] += right.masses * left.zero
        assert masses[-1] == 0
        np.testing.assert_allclose(total.masses, masses[:-1], rtol=1e-11, atol=0)
        mean = sum(law.masses @ law.values(step) for law in (left, right))
        assert total.masses @ total.values(step) == pytest.approx(mean, rel=1e-14)


@pytest.mark.parametrize(
    ("bins", "sigma", "delta", "allocation", "poisson"),
    [
        (10, 1.0, 1e-6, 2.6524, 3.4660),
        (100, 0.5, 1e-6, 6.3936, 7.9155),
        (100, 2.0, 1e-6, 0.2050, 0.2280),
        (560, 0.8, 2.7e-8, 1.2188, 1.2442),
    ],
)
def test_beside_poisson_sampling(bins: int, sigma: float, delta: float, allocation: float, poisson: float) -> None:
    """Records how one epoch compares with k Poisson samples at q = 1/k. That it costs less is not a theorem."""
    epoch = random_allocation_pld(bins=bins, noise_multiplier=sigma, interval=1e-3)
    assert epoch.get_epsilon_for_delta(delta) == pytest.approx(allocation, rel=2e-3)
    step = pld.privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=1 / bins, value_discretization_interval=2e-4
    )
    assert step.self_compose(bins).get_epsilon_for_delta(delta) == pytest.approx(poisson, rel=5e-3)


def test_a_fine_interval_costs_little_and_a_coarse_one_is_true() -> None:
    """ε is accurate to 1 % at coarse intervals already, and too coarse an interval only loosens the bound."""
    fine = random_allocation_pld(bins=560, noise_multiplier=0.8, interval=1e-5).get_epsilon_for_delta(1e-6)
    medium = random_allocation_pld(bins=560, noise_multiplier=0.8, interval=1e-2).get_epsilon_for_delta(1e-6)
    coarse = random_allocation_pld(bins=560, noise_multiplier=0.8, interval=1.0).get_epsilon_for_delta(1e-6)
    assert fine < medium < 1.01 * fine
    assert medium < coarse


def test_impossible_questions_are_refused() -> None:
    for bins in (0, -1, 2.5):
        with pytest.raises(ValueError, match="bins must be"):
            random_allocation_pld(bins=bins, noise_multiplier=1.0, interval=1e-2)  # type: ignore[arg-type]
    for sigma in (0.0, -1.0, 0.01, math.inf, math.nan):
        with pytest.raises(ValueError, match="noise_multiplier must be"):
            random_allocation_pld(bins=2, noise_multiplier=sigma, interval=1e-2)
    for interval in (0.0, -1.0, 2.0, math.nan):
        with pytest.raises(ValueError, match="interval must be"):
            random_allocation_pld(bins=2, noise_multiplier=1.0, interval=interval)
    with pytest.raises(ValueError, match="choose a larger one"):
        random_allocation_pld(bins=1, noise_multiplier=1.0, interval=1e-7)
