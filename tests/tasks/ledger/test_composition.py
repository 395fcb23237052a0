"""ε of a day's charges, against formulas and against dp_accounting itself."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation, get_epsilon_gaussian, pld
from hypothesis import given
from hypothesis import strategies as st

from dp_core.accounting.mechanism import VocabularyRelease, compose
from tasks.ledger.composition import Part, charges_of, composed, epsilon, for_group, largest, no_group_number
from tasks.ledger.release import Release, dp_sgd, gaussian, vocabulary
from tests.tasks.ledger.support import DELTA, JANUARY, metric, record


def model(**changes: object) -> Release:
    return Release("model", dp_sgd(record(**changes)), "clicks", (JANUARY[0],))


def oracle(*events: tuple[dp_accounting.DpEvent, int], interval: float = 1e-4) -> float:
    """ε by dp_accounting's own accountant, which shares no code with ours."""
    accountant = pld.PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=interval)
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(DELTA)


def trained(sigma: float, examples: int = 8000, steps: int = 40) -> tuple[dp_accounting.DpEvent, int]:
    sampled = dp_accounting.PoissonSampledDpEvent(400 / examples, dp_accounting.GaussianDpEvent(sigma))
    return sampled, steps


@pytest.mark.parametrize("sigmas", [[5.0], [5.0] * 7, [4.0, 6.0, 9.0], [1.5]])
def test_gaussian_releases_by_formula(own_home: Path, sigmas: list[float]) -> None:
    together = 1 / math.sqrt(sum(sigma**-2 for sigma in sigmas))
    found = epsilon(charges_of(metric(sigma) for sigma in sigmas), DELTA)
    expected = get_epsilon_gaussian(together, DELTA)
    assert expected * (1 - 1e-9) <= found <= expected * 1.001


def test_trainings_and_gaussian_releases_against_dp_accounting(own_home: Path) -> None:
    releases = [model(), model(), model(examples=8100, max_batch_size=8100, noise_multiplier=1.7), metric(6.0)]
    events = [trained(1.4), trained(1.4), trained(1.7, 8100), (dp_accounting.GaussianDpEvent(6.0), 1)]
    assert epsilon(charges_of(releases), DELTA) == pytest.approx(oracle(*events), rel=5e-3)


def test_models_alone_are_as_the_mechanisms_compose(own_home: Path) -> None:
    drawn = VocabularyRelease(30.0, 1e-7, "ab")
    records = [record(vocabulary=drawn), record(noise_multiplier=2.0, vocabulary=drawn), record(steps=7)]
    releases = [Release("model", dp_sgd(one), "clicks", (JANUARY[0],)) for one in records]
    assert epsilon(charges_of(releases), DELTA) == pytest.approx(compose(records).epsilon_bound(DELTA).epsilon, 1e-4)


def test_a_draw_of_a_vocabulary_counts_once(own_home: Path) -> None:
    one, other = VocabularyRelease(10.0, 1e-7, "one"), VocabularyRelease(10.0, 1e-7, "other")
    alone = Release("vocabulary", vocabulary(one), "clicks", (JANUARY[0],))
    shared = charges_of([model(vocabulary=one), model(vocabulary=one), alone])
    assert shared == composed([charges_of([model(vocabulary=one)] * 2), charges_of([alone])])
    assert shared.total() == 3
    assert charges_of([model(vocabulary=one), model(vocabulary=other)]).total() == 4
    twice = epsilon(charges_of([model(vocabulary=one), model(vocabulary=other)]), DELTA)
    assert epsilon(charges_of([model(vocabulary=one)] * 2), DELTA) < twice


def test_delta_that_is_used_up_leaves_no_epsilon(own_home: Path) -> None:
    half = Release("metric", gaussian(9.0, delta=DELTA / 2), "clicks", (JANUARY[0],))
    assert epsilon(charges_of([half]), DELTA) > epsilon(charges_of([metric(9.0)]), DELTA)
    assert math.isinf(epsilon(charges_of([half, half]), DELTA))
    assert epsilon(Counter(), DELTA) == 0


def test_a_group_of_examples(own_home: Path) -> None:
    group = for_group(charges_of([metric(9.0), metric(9.0)]), 3)
    assert epsilon(group, DELTA) == pytest.approx(get_epsilon_gaussian(9.0 / 3 / math.sqrt(2), DELTA), rel=1e-3)
    trainings = for_group(charges_of([model(steps=4)]), 2)
    # Both examples in the batch, one of them, or none.
    q = 400 / 8000
    mixture = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(1.4, [0, 1, 2], [(1 - q) ** 2, 2 * q * (1 - q), q**2])
    assert epsilon(trainings, DELTA) == pytest.approx(oracle((mixture, 4), interval=1e-3), rel=5e-3)
    assert no_group_number(trainings) == ""
    private = charges_of([model(vocabulary=VocabularyRelease(10.0, 1e-7, "one"))])
    assert "private vocabulary" in no_group_number(for_group(private, 2))
    assert no_group_number(for_group(private, 1)) == ""
    correlated = charges_of([model(bands=4)])
    assert "correlated noise" in no_group_number(for_group(correlated, 2)), "no error when a page asks for a user's ε"
    assert no_group_number(for_group(correlated, 1)) == ""
    assert epsilon(correlated, DELTA) > 0


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=4), min_size=1, max_size=6))
def test_every_day_is_contained_in_one_of_the_largest(days: list[list[str]]) -> None:
    by_day = {number: Counter(map(Part, names)) for number, names in enumerate(days)}
    kept = largest(by_day)
    assert all(any(charges <= by_day[day] for day in kept) for charges in by_day.values())
    for one, other in itertools.permutations(kept, 2):
        assert not by_day[one] <= by_day[other]
