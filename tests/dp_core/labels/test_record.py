"""Records of randomised labels: ε of what ran, its composition, and runs that were not what they state."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event, pld
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_core.labels.randomized_response import RandomizedResponse
from dp_core.labels.record import LabelRecord, composed_epsilon, event, response_defects


def recorded(response: RandomizedResponse, *, examples: int = 100_000, **changes: object) -> LabelRecord:
    k = len(response.values)
    record = LabelRecord(
        kind="binary" if k == 2 else "k_ary",
        examples=examples,
        values=response.values,
        starts=tuple(range(k)),
        keep_probability=response.keep_probability,
        histogram_epsilon=0.0,
        debiased=True,
        draw="first",
    )
    return dataclasses.replace(record, **changes)  # type: ignore[arg-type]


def counting(k: int, epsilon: float) -> RandomizedResponse:
    return RandomizedResponse(tuple(float(value) for value in range(k)), epsilon)


def test_a_record_survives_json() -> None:
    record = recorded(counting(3, 1.0), kind="bins", histogram_epsilon=0.1)
    again = LabelRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert again == record
    assert hash(again) == hash(record)
    assert again.epsilon == record.epsilon


@pytest.mark.parametrize(("p", "k", "epsilon"), [(0.75, 2, math.log(3)), (0.5, 3, math.log(2)), (1.0, 2, math.inf)])
def test_epsilon_comes_from_what_ran(p: float, k: int, epsilon: float) -> None:
    record = recorded(counting(k, 0.001), keep_probability=p, histogram_epsilon=0.25)
    assert record.response_epsilon == pytest.approx(epsilon)
    assert record.epsilon == pytest.approx(epsilon + 0.25)


@given(budget=st.floats(1e-6, 100), share=st.floats(0, 0.9), k=st.integers(2, 100))
@settings(max_examples=200, deadline=None)
def test_a_correct_run_is_within_its_budget(budget: float, share: float, k: int) -> None:
    histogram_epsilon = budget * share
    record = recorded(counting(k, budget - histogram_epsilon), histogram_epsilon=histogram_epsilon)
    assert record.response_epsilon <= budget - histogram_epsilon
    assert record.epsilon <= budget * (1 + 1e-12)


def test_draws_add_up_and_each_counts_once() -> None:
    first = recorded(counting(2, 1.0), draw="first")
    same_responses = dataclasses.replace(first, debiased=False, values=(0.2, 0.8))
    second = recorded(counting(4, 2.0), draw="second", histogram_epsilon=0.5)
    assert composed_epsilon([]) == 0
    assert composed_epsilon([first, same_responses]) == first.epsilon
    assert composed_epsilon(iter([first, second, first])) == pytest.approx(3.5)
    assert composed_epsilon([first, recorded(counting(2, 1.0), draw="second", keep_probability=1.0)]) == math.inf


def test_one_draw_with_two_stories_is_refused() -> None:
    record = recorded(counting(2, 1.0))
    with pytest.raises(ValueError, match="have the draw 'first' but differ"):
        composed_epsilon([record, dataclasses.replace(record, keep_probability=0.9)])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"kind": "ternary"}, "no accounting for labels of kind 'ternary'"),
        ({"starts": (0,)}, "one value per bin"),
        ({"keep_probability": 1.1}, "keep_probability must be from 0 to 1"),
        ({"keep_probability": math.nan}, "keep_probability must be from 0 to 1"),
        ({"histogram_epsilon": -0.1}, "histogram_epsilon must not be negative"),
    ],
)
def test_impossible_records_are_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        recorded(counting(2, 1.0), **changes)


# Against dp_accounting.


def accountant() -> pld.PLDAccountant:
    return pld.PLDAccountant(NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-4)


@pytest.mark.parametrize("k", [2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_epsilon_agrees_with_the_accountant(k: int, epsilon: float) -> None:
    """The accountant's ε is an upper bound, tight up to its discretisation."""
    record = recorded(counting(k, epsilon))
    theirs = accountant().compose(event(record)).get_epsilon(0.0)
    assert record.epsilon <= theirs <= record.epsilon + 1.01e-4


def test_replacing_is_the_relation_that_matters() -> None:
    """With an empty label as the neighbour, an accountant states less than replacing a label costs."""
    record = recorded(counting(2, 1.0))
    empty = pld.PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)
    assert empty.compose(event(record)).get_epsilon(0.0) < 0.7 * record.epsilon
    assert not pld.PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).supports(event(record))


def test_the_accountant_loses_count_of_self_composed_responses() -> None:
    """Why ``composed_epsilon`` adds up ε itself. If this fails, dp_accounting has fixed it."""
    record = recorded(counting(2, math.log(3)))
    one = event(record)
    assert isinstance(one, dp_accounting.RandomizedResponseDpEvent)
    assert one.noise_parameter == pytest.approx(0.5)
    self_composed = accountant().compose(dp_accounting.SelfComposedDpEvent(one, 10)).get_epsilon(1e-12)
    one_by_one = accountant().compose(dp_accounting.ComposedDpEvent([one] * 10)).get_epsilon(1e-12)
    assert self_composed == pytest.approx(1.10, abs=0.005)
    assert one_by_one == pytest.approx(10.99, abs=0.005)
    draws = [dataclasses.replace(record, draw=f"draw {number}") for number in range(10)]
    assert composed_epsilon(draws) == pytest.approx(one_by_one, abs=0.002)


def test_the_histogram_is_in_the_event() -> None:
    """The accountant refuses it under this relation instead of ignoring it."""
    record = recorded(counting(3, 1.0), kind="bins", histogram_epsilon=0.3)
    composed = event(record)
    assert isinstance(composed, dp_accounting.ComposedDpEvent)
    assert composed.events[1] == dp_event.DiscreteLaplaceDpEvent(0.15, 2)
    assert not accountant().supports(composed)
    alone = pld.PLDAccountant(NeighboringRelation.REPLACE_SPECIAL).compose(composed.events[1])
    assert alone.get_epsilon(0.0) == pytest.approx(0.3, abs=2e-4)


def test_a_run_without_noise_is_not_private() -> None:
    record = recorded(counting(2, 1.0), keep_probability=1.0)
    assert record.epsilon == accountant().compose(event(record)).get_epsilon(1e-5) == math.inf


# Runs that were not what they state.

Respond = Callable[[np.ndarray, int, float, np.random.Generator], np.ndarray]


def count(true: np.ndarray, responses: np.ndarray, k: int) -> np.ndarray:
    return np.bincount(true * k + responses, minlength=k * k).reshape(k, k)


def skewed_labels(k: int, examples: int, rng: np.random.Generator) -> np.ndarray:
    """Most are 0, as clicks and conversions are."""
    return np.minimum(rng.geometric(0.6, examples) - 1, k - 1)


@pytest.mark.parametrize("k", [2, 3, 8])
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 12.0])
@pytest.mark.parametrize("examples", [0, 3, 500, 20_000])
def test_correct_runs_pass(k: int, epsilon: float, examples: int) -> None:
    """Fifty seeds each, 1,800 in all: a false alarm among them has a probability below 0.002."""
    response = counting(k, epsilon)
    record = recorded(response, examples=examples)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        true = skewed_labels(k, examples, rng)
        assert response_defects(record, count(true, response.respond(true, rng), k)) == []


def no_noise(true: np.ndarray, k: int, p: float, rng: np.random.Generator) -> np.ndarray:
    return true


def kept_too_often(true: np.ndarray, k: int, p: float, rng: np.random.Generator) -> np.ndarray:
    """The share is off by ten standard deviations."""
    more = p + 10 * math.sqrt(p * (1 - p) / len(true))
    return np.where(rng.random(len(true)) < more, true, (true + rng.integers(1, k, len(true))) % k)


def uniform_among_all(true: np.ndarray, k: int, p: float, rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(len(true)) < p, true, rng.integers(0, k, len(true)))


def kept_by_label(true: np.ndarray, k: int, p: float, rng: np.random.Generator) -> np.ndarray:
    """Zeros are kept less often and other labels more often, so the total share is right."""
    zeros = np.mean(true == 0)
    keep = np.where(true == 0, p - 0.1 * (1 - zeros), p + 0.1 * zeros)
    return np.where(rng.random(len(true)) < keep, true, (true + rng.integers(1, k, len(true))) % k)


def next_one(true: np.ndarray, k: int, p: float, rng: np.random.Generator) -> np.ndarray:
    """A wrong response is always the neighbouring value."""
    return np.where(rng.random(len(true)) < p, true, (true + 1) % k)


@pytest.mark.parametrize(
    ("planted", "values", "complaint"),
    [
        (no_noise, (2, 4), "labels were kept, where probability"),
        (kept_too_often, (2, 4), "labels were kept, where probability"),
        (uniform_among_all, (2, 4), "labels were kept, where probability"),
        (kept_by_label, (2, 4), "labels in the bin from"),
        (next_one, (3, 4), "wrong responses to labels in the bin from"),
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_planted_bugs_are_caught(planted: Respond, values: tuple[int, int], which: int, complaint: str) -> None:
    """At ε = 1 with 100,000 labels, for each of 20 seeds."""
    k = values[which]
    response = counting(k, 1.0)
    record = recorded(response)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        true = skewed_labels(k, record.examples, rng)
        transitions = count(true, planted(true, k, response.keep_probability, rng), k)
        assert any(complaint in defect for defect in response_defects(record, transitions))


def test_a_record_that_states_no_noise_is_held_to_it() -> None:
    record = recorded(counting(2, 1.0), keep_probability=1.0, examples=100)
    assert response_defects(record, np.array([[60, 0], [0, 40]])) == []
    assert len(response_defects(record, np.array([[60, 0], [1, 39]]))) == 2


def test_missing_responses_are_told() -> None:
    record = recorded(counting(2, math.log(3)), examples=1001)
    assert response_defects(record, np.array([[375, 125], [125, 375]])) == ["there are 1,000 responses to 1,001 labels"]


def test_a_table_of_another_size_is_told() -> None:
    [defect] = response_defects(recorded(counting(2, 1.0)), np.zeros((3, 3), np.int64))
    assert defect == "transitions between 2 values must have shape (2, 2), got (3, 3)"
