"""Each sampler states what its batches are worth: its event, its lower bound and the cost of truncation."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from dp_core.accounting.epsilon import epsilon_bound
from dp_core.accounting.events import BallsInBinsDpEvent, flattened, poisson_event
from dp_core.sampling import BallsInBinsSampler, PoissonSampler, ShuffledSampler, make_sampler


@pytest.mark.parametrize("name", ["poisson", "balls_in_bins"])
def test_truncation_leaves_most_of_delta(name: str) -> None:
    sizes = [(100_000, 1024, 5000), (1000, 100, 50), (16_000, 1024, 80), (36_672_493, 65_536, 83_937)]
    # Here a step may be truncated with probability 10⁻¹⁷ at most, where 1 − x rounds to 1.
    sizes.append((36_672_493, 1024, 1_000_000))
    for examples, size, steps in sizes:
        delta = 1 / examples
        sampler = make_sampler(
            name, examples=examples, expected_batch_size=size, steps=steps, target_delta=delta, entropy=(0,)
        )
        assert sampler.truncation_delta(steps) <= 1e-3 * delta
        # It is not wasteful either: nine standard deviations of slots are more than enough.
        expected = examples * sampler.sampling_probability
        assert sampler.max_batch_size <= expected + 9 * expected**0.5 + 2
        assert dataclasses.replace(sampler, max_batch_size=sampler.max_batch_size - 1).truncation_delta(steps) > (
            1e-3 * delta
        )


@pytest.mark.parametrize("group_size", [1, 3])
def test_truncation_delta_bounds_the_chance_that_the_others_leave_no_room(group_size: int) -> None:
    """Against a simulation of how often the others' batches leave too few slots within the steps.

    The bound is a union bound over the steps, and counts the examples of the group among the others."""
    rng = np.random.default_rng(0)
    others = 500 - group_size
    poisson = PoissonSampler(500, 50, 70)
    sizes = rng.binomial(others, 0.1, size=(200_000, 20))
    reached = (sizes > 70 - group_size).any(axis=1).mean()
    assert reached <= poisson.truncation_delta(steps=20, group_size=group_size) <= 1.5 * reached
    bins = BallsInBinsSampler(500, 50, 70)
    sizes = rng.multinomial(others, np.full(10, 0.1), size=(200_000, 2)).reshape(-1, 20)
    reached = (sizes > 70 - group_size).any(axis=1).mean()
    assert reached <= bins.truncation_delta(steps=20, group_size=group_size) <= 1.5 * reached


def test_truncation_costs_nothing_where_nothing_is_cut() -> None:
    assert ShuffledSampler(500, 50, 50).truncation_delta(steps=1000, group_size=3) == 0
    for kind in (PoissonSampler, BallsInBinsSampler):
        assert kind(500, 50, 500).truncation_delta(steps=1000, group_size=3) == 0
        # If every batch is truncated, the bound is capped at 1.
        assert kind(500, 50, 10).truncation_delta(steps=1000, group_size=3) == 1


def test_poisson_batches_are_accounted_for_as_poisson_samples() -> None:
    sampler = PoissonSampler(1000, 50, 100)
    assert sampler.neighboring_relation == NeighboringRelation.REPLACE_SPECIAL
    for group_size in (1, 4):
        expected = poisson_event(sampling_probability=0.05, noise_multiplier=2.0, steps=30, group_size=group_size)
        assert sampler.event(noise_multiplier=2.0, steps=30, group_size=group_size) == expected
    assert sampler.commonly_claimed_event(noise_multiplier=2.0, steps=30) is None


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (9, 1), (10, 1), (11, 2), (100, 10), (101, 11)])
def test_an_epoch_that_was_begun_counts_as_a_whole_one(steps: int, epochs: int) -> None:
    """A shuffled epoch is one plain Gaussian release, and a balls-in-bins epoch one event of its own."""
    shuffled, bins = ShuffledSampler(105, 10, 10), BallsInBinsSampler(102, 10, 102)
    assert shuffled.batches_per_epoch == bins.batches_per_epoch == 10
    assert list(flattened(shuffled.event(noise_multiplier=2.0, steps=steps))) == [
        (dp_accounting.GaussianDpEvent(2.0), epochs)
    ]
    assert list(flattened(bins.event(noise_multiplier=2.0, steps=steps))) == [(BallsInBinsDpEvent(10, 2.0), epochs)]
    # A group's examples may all be in one batch, and no amplification is claimed.
    for sampler in (shuffled, bins):
        group = sampler.event(noise_multiplier=2.0, steps=steps, group_size=4)
        assert list(flattened(group)) == [(dp_accounting.GaussianDpEvent(0.5), epochs)]


def test_shuffled_batches_are_not_worth_what_poisson_batches_are() -> None:
    """The numbers of Chua et al. (2024): almost no amplification, where a lot is commonly claimed."""
    sampler = ShuffledSampler(573_440, 1024, 1024)
    assert sampler.batches_per_epoch == 560
    assert sampler.neighboring_relation == NeighboringRelation.REPLACE_SPECIAL
    run = {"noise_multiplier": 0.8, "steps": 560}
    epsilon = epsilon_bound(sampler.event(**run), 2.7e-8, neighboring_relation=sampler.neighboring_relation).epsilon
    assert 7.1 <= epsilon <= 7.25
    lower = sampler.epsilon_lower(**run, delta=2.7e-8)
    assert lower == pytest.approx(7.12, abs=0.01)
    assert lower <= epsilon
    claim = sampler.commonly_claimed_event(**run)
    assert claim is not None
    assert epsilon_bound(claim, 2.7e-8).epsilon == pytest.approx(1.24, abs=0.01)


@pytest.mark.parametrize(
    ("examples", "batch_size", "steps", "sigma"),
    [(573_440, 1024, 1, 0.8), (573_440, 1024, 56, 0.8), (573_440, 1024, 560, 0.8), (1999, 1000, 1, 1.0)],
)
def test_the_lower_bound_of_a_shuffle_does_not_count_on_who_may_be_absent(
    examples: int, batch_size: int, steps: int, sigma: float
) -> None:
    """An example was dealt so far with probability q; otherwise the neighbours behave identically.

    So δ(ε) is at most q times a plain Gaussian's, and ε at δ at most a plain Gaussian's at δ/q."""
    sampler = ShuffledSampler(examples, batch_size, batch_size)
    q = steps * batch_size / examples
    delta = 1e-7
    plain = epsilon_bound(dp_accounting.GaussianDpEvent(sigma), delta / q).epsilon
    lower = sampler.epsilon_lower(noise_multiplier=sigma, steps=steps, delta=delta)
    assert lower is None or 0 <= lower <= plain


def test_balls_in_bins_are_worth_more_than_a_shuffle() -> None:
    """Their amplification is proven: an epoch costs less than a plain release, and less than twice Poisson's ε."""
    run = {"noise_multiplier": 1.0, "steps": 50}
    bins, shuffled = BallsInBinsSampler(1000, 20, 100), ShuffledSampler(1000, 20, 20)
    by_bins, by_shuffle, by_poisson = (
        epsilon_bound(event, 1e-5).epsilon
        for event in (bins.event(**run), shuffled.event(**run), PoissonSampler(1000, 20, 100).event(**run))
    )
    assert 0.5 * by_poisson < by_bins < 2 * by_poisson < by_shuffle
    assert bins.commonly_claimed_event(**run) is None
    assert bins.epsilon_lower(**run, delta=1e-5) is None
