"""The accountant's limit of time, and what neighbours differ in."""

from __future__ import annotations

import math
import time

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation, rdp
from dp_accounting.pld import PLDAccountant

from dp_core.accounting.epsilon import epsilon_bound
from dp_core.accounting.events import BallsInBinsDpEvent, gaussian_event, poisson_event

CRITEO = 36_672_493


def long_run(batch_size: int, steps: int, sigma: float, group_size: int = 1) -> dp_accounting.DpEvent:
    q = batch_size / CRITEO
    return poisson_event(sampling_probability=q, noise_multiplier=sigma, steps=steps, group_size=group_size)


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (long_run(65_536, 84_000, 1.0), 0.999),
        (long_run(1024, 10**8, 1.0), 1 / CRITEO),
        (
            poisson_event(sampling_probability=65_536 / CRITEO, noise_multiplier=20.0, steps=84_000, group_size=1000),
            1 / CRITEO,
        ),
    ],
    ids=["large delta", "many steps", "large group"],
)
def test_the_limit_of_time_is_kept(event: dp_accounting.DpEvent, delta: float) -> None:
    """Each of these once took longer than 100 s with a limit of 60. What is not counted takes about a second."""
    began = time.monotonic()
    bound = epsilon_bound(event, delta, seconds=4.0)
    assert time.monotonic() - began < 10.0
    assert bound.epsilon < math.inf
    assert bound.epsilon <= bound.rdp_epsilon


@pytest.mark.parametrize(
    "event",
    [
        poisson_event(sampling_probability=0.05, noise_multiplier=1.5, steps=50),
        poisson_event(sampling_probability=0.05, noise_multiplier=3.0, steps=50, group_size=3),
        gaussian_event(noise_multiplier=4.0, releases=5),
        dp_accounting.SelfComposedDpEvent(BallsInBinsDpEvent(20, 1.0), 3),
    ],
    ids=["poisson", "group", "gaussian", "balls in bins"],
)
def test_an_empty_example_costs_what_a_removed_one_would(event: dp_accounting.DpEvent) -> None:
    """With N public, neighbours differ by zeroing out. The pair of distributions, and so ε, is the same."""
    zeroed = epsilon_bound(event, 1e-6, neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)
    removed = epsilon_bound(event, 1e-6, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert zeroed == removed == epsilon_bound(event, 1e-6)


@pytest.mark.parametrize("q", [0.001, 0.3])
def test_dp_accounting_agrees_on_empty_examples(q: float) -> None:
    event = poisson_event(sampling_probability=q, noise_multiplier=1.5, steps=20)
    relations = (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)
    for accountant in (rdp.RdpAccountant, PLDAccountant):
        one, other = (
            accountant(neighboring_relation=relation).compose(event).get_epsilon(1e-6) for relation in relations
        )
        assert one == other
