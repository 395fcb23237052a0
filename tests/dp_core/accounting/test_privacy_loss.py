"""Composition of privacy loss distributions, against composing by hand and enumerating outcomes."""

from __future__ import annotations

import functools
import math

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from scipy import optimize

from dp_core.accounting.events import BallsInBinsDpEvent, gaussian_event, poisson_event
from dp_core.accounting.privacy_loss import PrivacyLoss, is_without_noise, privacy_loss, releases
from dp_core.accounting.random_allocation import random_allocation_pld

# If half the answers are uniform over two values, an answer is three times as likely for one input as for the other.
COIN = dp_event.RandomizedResponseDpEvent(noise_parameter=0.5, num_buckets=2)
REPLACE_ONE = NeighboringRelation.REPLACE_ONE


def coins_epsilon(count: int, delta: float) -> float:
    """Returns ε of ``count`` independent answers by enumeration: j truthful ones have a loss of (2j − count)·log 3."""

    def excess(epsilon: float) -> float:
        return -delta + sum(
            math.comb(count, j) * 0.75**j * 0.25 ** (count - j) * max(0.0, -math.expm1(epsilon - loss))
            for j, loss in ((j, (2 * j - count) * math.log(3)) for j in range(count + 1))
        )

    return optimize.brentq(excess, 0, count * math.log(3))


@pytest.mark.parametrize("count", [1, 2, 10, 100])
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_repeated_randomised_responses_cost_what_counting_says(count: int, delta: float) -> None:
    """An upper bound, and above the exact ε by at most the rounding of each loss to the grid."""
    interval = 1e-4
    event = dp_accounting.SelfComposedDpEvent(COIN, count)
    found = privacy_loss(event, interval, REPLACE_ONE).epsilon(delta)
    exact = coins_epsilon(count, delta)
    assert exact * (1 - 1e-9) <= found <= exact + count * interval


def test_repeating_an_event_is_composing_it_one_by_one() -> None:
    once = privacy_loss_distribution.from_randomized_response(0.5, 2, neighboring_relation=REPLACE_ONE)
    one_by_one = functools.reduce(lambda a, b: a.compose(b), [once] * 10)
    repeated = privacy_loss(dp_accounting.SelfComposedDpEvent(COIN, 10), 1e-4, REPLACE_ONE)
    for delta in (1e-2, 1e-5, 1e-9):
        expected = one_by_one.get_epsilon_for_delta(delta)
        assert repeated.epsilon(delta) == pytest.approx(expected, rel=1e-6)


def test_dp_accounting_still_forgets_how_often_a_randomised_response_was_repeated() -> None:
    """Why dp_accounting's own accountant is not used: ten answers cost 10.99, and it says 1.10."""
    event = dp_accounting.SelfComposedDpEvent(COIN, 10)
    assert privacy_loss(event, 1e-4, REPLACE_ONE).epsilon(1e-6) == pytest.approx(10.99, abs=0.005)
    said = PLDAccountant(neighboring_relation=REPLACE_ONE).compose(event).get_epsilon(1e-6)
    assert said == pytest.approx(1.10, abs=0.005), (
        f"dp_accounting's PLDAccountant says {said:.2f} for ten randomised responses: it counts them now. "
        "Delete this test, and the sentence on it in the docstring of dp_core/accounting/privacy_loss.py."
    )


def test_mixed_events_compose_as_by_dp_accounting() -> None:
    event = dp_accounting.ComposedDpEvent(
        [
            poisson_event(sampling_probability=0.02, noise_multiplier=1.0, steps=50),
            gaussian_event(noise_multiplier=3.0, releases=4),
            poisson_event(sampling_probability=0.1, noise_multiplier=2.0, steps=20),
        ]
    )
    found = privacy_loss(event, 1e-3)
    accountant = PLDAccountant(value_discretization_interval=1e-3).compose(event)
    for delta in (1e-3, 1e-6, 1e-9):
        assert found.epsilon(delta) == pytest.approx(accountant.get_epsilon(delta), rel=1e-6)


def test_equal_parts_are_merged() -> None:
    """In any order: Gaussians become one release, which is exact, and sampled ones one self-composition."""
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
    plain = dp_accounting.GaussianDpEvent(2.0)
    scattered = dp_accounting.ComposedDpEvent(
        [plain, sampled, dp_accounting.SelfComposedDpEvent(dp_accounting.ComposedDpEvent([sampled, plain]), 3)]
    )
    together = dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(sampled, 4), dp_accounting.SelfComposedDpEvent(plain, 4)]
    )
    assert releases(scattered) == releases(together) == 4 + 1
    expected = privacy_loss(together, 1e-3).epsilon(1e-6)
    assert privacy_loss(scattered, 1e-3).epsilon(1e-6) == pytest.approx(expected, rel=1e-9)
    four = privacy_loss(gaussian_event(noise_multiplier=2.0, releases=4), 1e-3)
    one = privacy_loss_distribution.from_gaussian_mechanism(1.0, value_discretization_interval=1e-3)
    assert four.epsilon(1e-6) == pytest.approx(one.get_epsilon_for_delta(1e-6), rel=1e-8)


def test_epochs_of_balls_in_bins_compose_with_each_other_and_with_the_rest() -> None:
    epoch = random_allocation_pld(bins=10, noise_multiplier=1.0, interval=1e-2)
    plain = privacy_loss_distribution.from_gaussian_mechanism(2.0, value_discretization_interval=1e-2)
    by_hand = epoch.compose(epoch).compose(epoch).compose(plain)
    epochs = dp_accounting.SelfComposedDpEvent(BallsInBinsDpEvent(10, 1.0), 3)
    event = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(2.0), epochs])
    for delta in (1e-3, 1e-6, 1e-9):
        expected = by_hand.get_epsilon_for_delta(delta)
        assert privacy_loss(event, 1e-2).epsilon(delta) == pytest.approx(expected, rel=1e-6)


def test_the_worse_direction_counts() -> None:
    little, much = (privacy_loss(dp_accounting.GaussianDpEvent(sigma), 1e-2).remove for sigma in (4.0, 1.0))
    assert PrivacyLoss(little, much).epsilon(1e-5) == PrivacyLoss(much, little).epsilon(1e-5) == much.epsilon(1e-5)
    assert much.epsilon(1e-5) > little.epsilon(1e-5)


def test_a_randomised_response_states_a_few_roundings() -> None:
    once = privacy_loss(COIN, 1e-3)
    assert {once.remove.error, once.add.error, once.remove.relative_error, once.add.relative_error} == {8 * 2.0**-52}


def test_nothing_is_lost_by_nothing() -> None:
    event = dp_accounting.ComposedDpEvent([dp_accounting.NoOpDpEvent(), dp_accounting.NoOpDpEvent()])
    assert privacy_loss(event, 1e-3).epsilon(1e-9) == 0
    assert releases(event) == 0


def test_what_rounding_may_hide_is_taken_off_delta() -> None:
    found = privacy_loss(poisson_event(sampling_probability=0.1, noise_multiplier=2.0, steps=1000), 1e-2).remove
    exact, hidden = found._replace(error=0.0, relative_error=0.0), 1e-6
    off = found._replace(error=hidden, relative_error=0.25)
    assert off.epsilon(4 * hidden) == exact.epsilon(2 * hidden) > exact.epsilon(4 * hidden)
    assert off.epsilon(hidden) == math.inf
    assert off.epsilon(hidden / 2) == math.inf


def test_a_single_part_without_noise_is_seen() -> None:
    noisy = [
        dp_accounting.GaussianDpEvent(1.0),
        poisson_event(sampling_probability=0.1, noise_multiplier=1.0, steps=2, group_size=3),
        COIN,
        BallsInBinsDpEvent(10, 1.0),
    ]
    assert not is_without_noise(dp_accounting.ComposedDpEvent(noisy))
    for silent in (
        dp_accounting.NonPrivateDpEvent(),
        dp_accounting.GaussianDpEvent(0.0),
        poisson_event(sampling_probability=0.1, noise_multiplier=0.0, steps=2),
        dp_event.RandomizedResponseDpEvent(noise_parameter=0.0, num_buckets=2),
        BallsInBinsDpEvent(10, 0.0),
    ):
        assert is_without_noise(dp_accounting.ComposedDpEvent([*noisy, silent]))


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (COIN, NeighboringRelation.ADD_OR_REMOVE_ONE),
        (poisson_event(sampling_probability=0.1, noise_multiplier=1.0, steps=1, group_size=2), REPLACE_ONE),
        (BallsInBinsDpEvent(10, 1.0), REPLACE_ONE),
    ],
)
def test_an_event_is_refused_for_neighbours_that_it_has_no_bound_for(
    event: dp_accounting.DpEvent, relation: NeighboringRelation
) -> None:
    with pytest.raises(ValueError, match=f"is accounted for under .*, not {relation.name.lower()}"):
        privacy_loss(event, 1e-3, relation)


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.LaplaceDpEvent(1.0),
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.LaplaceDpEvent(1.0)),
        dp_event.UnsupportedDpEvent(),
    ],
)
def test_unknown_events_are_refused(event: dp_accounting.DpEvent) -> None:
    with pytest.raises(ValueError, match="no privacy loss distribution for"):
        privacy_loss(dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(1.0), event]), 1e-3)
