"""Tests of cyclic Poisson sampling: correct samplers pass at the stated rate, and broken ones do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dp_core.audit.cyclic_checks import CYCLIC_CHECKS, Rounds, _clustered_chance
from dp_core.audit.poisson_checks import Batches
from dp_core.audit.sampling_checks import sampling_defects
from dp_core.audit.sampling_counts import SamplingCounts
from dp_core.cyclic_sampling import CyclicPoissonSampler, Parts, assign_parts
from dp_core.sampling import PoissonSampler

N, BATCH, PARTS, STEPS = 24_000, 1_000, 8, 96
Draw = Callable[[int], np.ndarray]


def counted(draw: Draw, *, examples: int = N, steps: int = STEPS) -> SamplingCounts:
    counts = SamplingCounts(examples)
    for step in range(steps):
        counts.add(step, draw(step))
    return counts


def drawn(sampler: CyclicPoissonSampler, steps: int) -> SamplingCounts:
    return counted(lambda step: sampler.batch(step).indices, examples=sampler.examples, steps=steps)


def stated(seed: int = 0, parts: int = PARTS) -> CyclicPoissonSampler:
    return CyclicPoissonSampler(N, BATCH, N, (seed,), parts=parts)


def dealt_by(order: np.ndarray) -> Draw:
    """Returns a correct sampler but for who is in which part."""
    sampler = stated()
    bounds = np.arange(PARTS + 1) * (N // PARTS)
    sampler._kept.parts = Parts(order, bounds)
    return lambda step: sampler.batch(step).indices


def in_two_parts() -> Draw:
    """Returns a sampler with half a percent of the examples in two parts, and as many in none."""
    sampler = stated(1)
    order = assign_parts(sampler).order.copy()
    order[-120:] = order[:120]
    sampler._kept.parts = assign_parts(sampler)._replace(order=order)
    return lambda step: sampler.batch(step).indices


def after_turns(step: int) -> np.ndarray:
    return stated(2).batch(step + step // 40).indices


OTHER, SIXTEEN, FOUR = stated(5), stated(4, 16), stated(4, 4)
BUGS: dict[str, tuple[Draw, str]] = {
    "plain Poisson batches": (lambda step: PoissonSampler(N, BATCH, N, (1,)).batch(step).indices, "more than one of"),
    "examples in two parts": (in_two_parts(), "more than one of the 8 parts"),
    "parts in the order of the dataset": (dealt_by(np.arange(N)), "have the same part"),
    "parts by turns": (dealt_by(np.argsort(np.arange(N) % PARTS, kind="stable")), "have the same part"),
    "twice as many parts": (lambda step: SIXTEEN.batch(step).indices, "in rounds of 8 steps"),
    "half as many parts": (lambda step: FOUR.batch(step).indices, "more than one of"),
    "the turn is missed once": (after_turns, "more than one of the 8 parts"),
    "one part is sampled more": (
        lambda step: OTHER.batch(step).indices[: None if step % PARTS else 800],
        "of part 0 of 8",
    ),
    "the same batches every other round": (
        lambda step: OTHER.batch(step % (2 * PARTS)).indices,
        "was used again",
    ),
    "a part is always whole": (
        lambda step: assigned(OTHER, step % PARTS)[: BATCH + 37 * step % 11],
        "in rounds of 8 steps",
    ),
}


def assigned(sampler: CyclicPoissonSampler, part: int) -> np.ndarray:
    dealt = assign_parts(sampler)
    return dealt.order[dealt.bounds[part] : dealt.bounds[part + 1]].astype(np.int64)


@pytest.mark.parametrize("name", BUGS)
def test_a_broken_sampler_is_found(name: str) -> None:
    draw, says = BUGS[name]
    assert says in "; ".join(sampling_defects(stated(), counted(draw)))


@pytest.mark.parametrize(
    ("examples", "batch", "parts", "steps"),
    [(24_000, 1_000, 8, 96), (24_000, 1_000, 24, 50), (2_000, 100, 3, 49), (300, 30, 10, 7), (50, 5, 2, 1)],
)
def test_correct_samplers_pass(examples: int, batch: int, parts: int, steps: int) -> None:
    for seed in range(3):
        sampler = CyclicPoissonSampler(examples, batch, examples, (seed, 9), parts=parts)
        assert sampling_defects(sampler, drawn(sampler, steps)) == []


def test_the_false_alarm_rate_is_kept() -> None:
    """At a rate of 2 % a test, 60 runs of each test have at most 8 alarms, but for a probability of 1.1e-5 each."""
    alarms = dict.fromkeys(range(len(CYCLIC_CHECKS)), 0)
    for seed in range(60):
        sampler = CyclicPoissonSampler(600, 60, 600, (seed, 1), parts=4)
        batches = Batches(sampler, drawn(sampler, 26))
        for number, check in enumerate(CYCLIC_CHECKS):
            alarms[number] += check(batches, 0.02) is not None
    assert max(alarms.values()) <= 8


def test_rounds_leave_out_an_unfinished_one() -> None:
    sampler = CyclicPoissonSampler(600, 60, 600, (1,), parts=4)
    rounds = Rounds(sampler, drawn(sampler, 26))
    assert (rounds.steps, rounds.parts, len(rounds.sizes), rounds.probability) == (6, 4, 6, 0.4)
    assert rounds.rounds_of_parts.tolist() == [7, 7, 6, 6]
    assert rounds.participations.counts().max() <= 6


def test_the_bound_on_clustered_counts_holds() -> None:
    """Against the exact law of a small case, by enumeration of the number of counted units."""
    units, share, times, probability = 12, 0.25, 3, 0.4
    rng = np.random.default_rng(0)
    counted_units = rng.binomial(units, share, size=400_000)
    totals = rng.binomial(counted_units * times, probability)
    for found in (0.0, 10.0, 14.0):
        mean = units * share * times * probability
        tail = np.mean(totals >= found if found > mean else totals <= found)
        assert _clustered_chance(found, units, share, np.array([times]), probability) >= tail
    assert _clustered_chance(mean, units, share, np.array([times]), probability) == 1.0
