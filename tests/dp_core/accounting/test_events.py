"""Events of groups of examples, against enumerating the possible samples and integrating."""

from __future__ import annotations

import functools
import itertools
import math

import dp_accounting
import numpy as np
import pytest
from scipy import optimize, stats

from dp_core.accounting.epsilon import epsilon_bound
from dp_core.accounting.events import BallsInBinsDpEvent, flattened, gaussian_event, poisson_event


def listed_epsilon(q: float, sigma: float, group: int, delta: float) -> float:
    """Returns ε of one release for adding and removing a group, by enumerating all subsets that can be sampled and
    integrating the densities on a fine mesh."""
    outcome = np.linspace(-12 * sigma, group + 12 * sigma, 40_001)
    without = stats.norm.pdf(outcome, 0, sigma)
    with_group = np.zeros_like(outcome)
    for present in itertools.product((False, True), repeat=group):
        probability = math.prod(q if there else 1 - q for there in present)
        with_group += probability * stats.norm.pdf(outcome, sum(present), sigma)

    def excess(epsilon: float) -> float:
        gaps = (with_group - math.exp(epsilon) * without, without - math.exp(epsilon) * with_group)
        return max(float(np.maximum(gap, 0).sum()) for gap in gaps) * (outcome[1] - outcome[0]) - delta

    return optimize.brentq(excess, 0, 100)


@functools.cache
def group_epsilon(q: float, sigma: float, group: int, steps: int = 1, delta: float = 1e-5) -> float:
    event = poisson_event(sampling_probability=q, noise_multiplier=sigma, steps=steps, group_size=group)
    return epsilon_bound(event, delta).epsilon


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.5), (0.5, 4.0)])
@pytest.mark.parametrize("group", [1, 3])
def test_a_group_in_one_sample_costs_what_listing_it_says(q: float, sigma: float, group: int) -> None:
    exact = listed_epsilon(q, sigma, group, 1e-5)
    assert exact * (1 - 1e-6) <= group_epsilon(q, sigma, group) <= exact * 1.005


def test_a_group_of_one_is_an_example() -> None:
    alone = poisson_event(sampling_probability=0.1, noise_multiplier=2.0, steps=5)
    assert poisson_event(sampling_probability=0.1, noise_multiplier=2.0, steps=5, group_size=1) == alone
    assert list(flattened(alone)) == [(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0)), 5)]
    plain = gaussian_event(noise_multiplier=2.0, releases=5)
    assert gaussian_event(noise_multiplier=2.0, releases=5, group_size=1) == plain


def test_a_group_that_is_always_there_needs_so_many_times_the_noise() -> None:
    """At q = 1 the whole group is in every sample: a plain Gaussian at σ/k."""
    sampled = group_epsilon(1.0, 8.0, 2, steps=4)
    plain = epsilon_bound(gaussian_event(noise_multiplier=4.0, releases=4), 1e-5).epsilon
    assert sampled == pytest.approx(plain, rel=2e-3)
    assert list(flattened(gaussian_event(noise_multiplier=8.0, releases=4, group_size=2))) == [
        (dp_accounting.GaussianDpEvent(4.0), 4)
    ]


def test_a_larger_group_costs_more() -> None:
    values = [group_epsilon(0.01, 5.0, group, steps=100) for group in (1, 2, 3, 8, 32)]
    assert all(small < large for small, large in itertools.pairwise(values))


def test_a_group_costs_less_than_if_it_were_always_there() -> None:
    for group in (2, 8):
        always = epsilon_bound(gaussian_event(noise_multiplier=5.0, releases=100, group_size=group), 1e-5).epsilon
        assert group_epsilon(0.01, 5.0, group, steps=100) < always


def test_a_large_group_is_cut_where_nobody_expects_it() -> None:
    """About ten of 10,000 examples are in a sample: the list of sensitivities stays short, and its weights sum to 1."""
    event = poisson_event(sampling_probability=1e-3, noise_multiplier=200.0, steps=10, group_size=10_000)
    ((release, count),) = flattened(event)
    assert count == 10
    assert len(release.sensitivities) < 100
    # Larger numbers count as the whole group: their probability is tiny, but is not dropped.
    assert release.sensitivities[-1] == 10_000
    assert math.fsum(release.sampling_probs) == pytest.approx(1, abs=1e-12)
    mean = math.fsum(n * p for n, p in zip(release.sensitivities, release.sampling_probs, strict=True))
    assert mean == pytest.approx(10, rel=1e-9)
    bound = epsilon_bound(event, 1e-6)
    assert bound.converged
    always = gaussian_event(noise_multiplier=200.0, releases=10, group_size=10_000)
    tenth = poisson_event(sampling_probability=1e-3, noise_multiplier=200.0, steps=10, group_size=1_000)
    assert epsilon_bound(tenth, 1e-6).epsilon < bound.epsilon <= epsilon_bound(always, 1e-6).epsilon


@pytest.mark.parametrize(("q", "group"), [(0.5, 2), (1e-3, 50), (0.3, 200), (1e-6, 10_000), (0.999, 30)])
def test_the_numbers_present_are_binomial(q: float, group: int) -> None:
    """The weights are the binomial's, except that the truncated tail counts as the whole group."""
    ((release, _),) = flattened(poisson_event(sampling_probability=q, noise_multiplier=1.0, steps=1, group_size=group))
    listed = dict(zip(release.sensitivities, release.sampling_probs, strict=True))
    assert len(listed) == len(release.sensitivities)
    assert math.fsum(listed.values()) == pytest.approx(1, abs=1e-12)
    for number in range(group + 1):
        probability = math.exp(
            math.lgamma(group + 1)
            - math.lgamma(number + 1)
            - math.lgamma(group - number + 1)
            + number * math.log(q)
            + (group - number) * math.log1p(-q)
        )
        assert listed.get(number, 0.0) == pytest.approx(probability, rel=1e-9, abs=1e-12)
    # Nothing is lost in the upper tail, which matters most.
    most = max(number for number, probability in listed.items() if probability > 0)
    assert most == group or stats.binom.sf(most, group, q) < 1e-30


def test_flattening_lists_every_release_with_its_count() -> None:
    plain, epoch = dp_accounting.GaussianDpEvent(2.0), BallsInBinsDpEvent(10, 1.0)
    inner = dp_accounting.ComposedDpEvent([plain, dp_accounting.SelfComposedDpEvent(epoch, 3)])
    event = dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(inner, 5), dp_accounting.NoOpDpEvent(), epoch]
    )
    assert list(flattened(event)) == [(plain, 5), (epoch, 15), (epoch, 1)]
    assert list(flattened(dp_accounting.NoOpDpEvent())) == []
