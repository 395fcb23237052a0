"""Choosing the best of several trials, against the theorem worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event, rdp

from dp_core.accounting.epsilon import rdp_bound
from dp_core.accounting.mechanism import MechanismRecord, VocabularyRelease
from dp_core.accounting.tuning import repeat_and_select_epsilon
from tests.support.records import record

DELTA = 1e-5


def single_epsilon(ran: MechanismRecord) -> float:
    return rdp_bound(ran.training_event(), DELTA, ran.neighboring_relation)


def by_hand(sigma: float, mean: float, delta: float) -> float:
    """Theorem 2 of Papernot and Steinke (2022) for a geometric number of plain Gaussian releases.

    One release has RDP ε(λ) = λ/(2σ²). The best of them has, at order λ and for any other order λ̂, at most
    ε(λ) + 2(1 − 1/λ̂)·ε(λ̂) + 2·log(mean)/λ̂ + log(mean)/(λ − 1). (The geometric distribution's parameter is 1/mean.)
    Both orders are searched on a mesh.
    """
    other = 1 + np.geomspace(1e-3, 1e4, 4000)
    extra = np.min(2 * (1 - 1 / other) * other / (2 * sigma**2) + 2 * math.log(mean) / other)
    order = 1 + np.geomspace(1e-2, 1e4, 4000)
    divergence = order / (2 * sigma**2) + extra + math.log(mean) / (order - 1)
    # From RDP to ε at δ (Canonne, Kamath and Steinke 2020).
    return float(np.min(divergence + np.log1p(-1 / order) - np.log(delta * order) / (order - 1)))


@pytest.mark.parametrize("sigma", [1.0, 5.0])
@pytest.mark.parametrize("mean_trials", [1.5, 4.0, 64.0])
def test_it_is_the_theorem_worked_out_by_hand(sigma: float, mean_trials: float) -> None:
    """An epoch of shuffled batches is one plain release. dp_accounting tries fewer orders, so it is slightly larger."""
    ran = record(sampler="shuffle", max_batch_size=1000, steps=100, noise_multiplier=sigma)
    expected = by_hand(sigma, mean_trials, DELTA)
    found = repeat_and_select_epsilon(ran, DELTA, mean_trials=mean_trials)
    assert expected * (1 - 1e-3) <= found <= expected * 1.02


@pytest.mark.parametrize("sampler", ["poisson", "shuffle"])
def test_it_is_dp_accountings(sampler: str) -> None:
    ran = record(sampler=sampler)
    event = dp_event.RepeatAndSelectDpEvent(ran.training_event(), 10.0, 1.0)
    accountant = rdp.RdpAccountant(neighboring_relation=ran.neighboring_relation).compose(event)
    expected = accountant.get_epsilon(DELTA - 10 * ran.truncation_delta())
    assert repeat_and_select_epsilon(ran, DELTA, mean_trials=10) == pytest.approx(expected, rel=1e-9)


def test_choosing_costs_more_the_more_there_is_to_choose_from() -> None:
    values = [repeat_and_select_epsilon(record(), DELTA, mean_trials=mean) for mean in (1.01, 2, 10, 100, 1000)]
    assert values == sorted(values)
    assert values[0] > single_epsilon(record())


def test_choosing_among_many_costs_less_than_releasing_them_all() -> None:
    """Among few trials it does not: the theorem costs about as much as three trials."""
    for trials, is_less in ((2, False), (100, True), (1000, True)):
        together = single_epsilon(record(steps=500 * trials))
        assert (repeat_and_select_epsilon(record(), DELTA, mean_trials=trials) < together) == is_less
    assert repeat_and_select_epsilon(record(), DELTA, mean_trials=1000) < 4 * single_epsilon(record())


def test_batches_are_cut_in_every_trial() -> None:
    tight = record(max_batch_size=1220)
    cut = tight.truncation_delta()
    assert 0 < cut < DELTA / 10
    few = repeat_and_select_epsilon(tight, DELTA, mean_trials=10)
    assert few > repeat_and_select_epsilon(record(), DELTA, mean_trials=10)
    with pytest.raises(ValueError, match="truncating large batches uses up all of δ"):
        repeat_and_select_epsilon(tight, DELTA, mean_trials=1.01 * DELTA / cut)


def test_a_private_vocabulary_is_paid_for_too() -> None:
    """All trials share it: it is released once, in addition to the best trial, and uses its own share of δ."""
    vocabulary = VocabularyRelease(noise_multiplier=2.0, delta=1e-6, draw="a")
    ran = record(vocabulary=vocabulary)
    found = repeat_and_select_epsilon(ran, DELTA, mean_trials=10)
    assert found > repeat_and_select_epsilon(record(), DELTA, mean_trials=10)
    accountant = rdp.RdpAccountant().compose(dp_event.RepeatAndSelectDpEvent(ran.training_event(), 10.0, 1.0))
    accountant.compose(dp_event.GaussianDpEvent(2.0))
    expected = accountant.get_epsilon(DELTA - 10 * ran.truncation_delta() - 1e-6)
    assert found == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match="all of δ"):
        repeat_and_select_epsilon(record(vocabulary=vocabulary._replace(delta=DELTA)), DELTA, mean_trials=10)


@pytest.mark.parametrize("mean_trials", [1.0, 0.5, 0.0, -1.0])
def test_a_choice_needs_more_than_one_trial(mean_trials: float) -> None:
    with pytest.raises(ValueError, match="mean_trials must be above 1"):
        repeat_and_select_epsilon(record(), DELTA, mean_trials=mean_trials)


def test_where_there_is_no_theorem_epsilon_is_infinite() -> None:
    """RDP has no bound for balls in bins, and none for a mechanism without noise."""
    ran = record(sampler="balls_in_bins")
    assert repeat_and_select_epsilon(ran, DELTA, mean_trials=10) == math.inf
    assert repeat_and_select_epsilon(record(noise_multiplier=0.0), DELTA, mean_trials=10) == math.inf
