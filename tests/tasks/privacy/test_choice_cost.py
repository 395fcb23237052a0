"""What choosing costs: the composition of all trainings, or the theorem's ε if their number was drawn at random."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from dp_core.accounting.mechanism import compose
from dp_core.accounting.tuning import repeat_and_select_epsilon
from dp_core.labels.randomized_response import RandomizedResponse
from dp_core.labels.record import LabelRecord
from tasks.privacy.choice_cost import ChoiceCost, InRounds, choice_cost, choice_table
from tasks.reporting.files import as_csv
from tasks.reporting.results import Arm, Outcome, Result, choose
from tasks.runtime.errors import UserError
from tasks.training.trial import Trial
from tests.support.records import record, store
from tests.support.sweeps import NOWHERE, baseline, of_labels, outcomes, private

pytestmark = pytest.mark.usefixtures("own_home")

DELTA = 1 / NOWHERE.splits["train"]["rows"]
RAN = record(examples=2400, expected_batch_size=100, max_batch_size=200, steps=48, noise_multiplier=2.0)


def secret(trial: Trial) -> Trial:
    return trial.model_copy(update={"randomness": "secret"})


def secretly(found: list[Outcome]) -> list[Outcome]:
    return [outcome._replace(trial=secret(outcome.trial)) for outcome in found]


def cell_of(*trials: Trial) -> Result:
    return Result("pcvr", Arm(trials[0].mechanism), trials[0].epsilon, (Outcome(trials[0], 0.2, 0.2),), trials)


def test_every_training_of_a_cell_is_paid_for() -> None:
    """Two settings with two seeds each are four trainings on the same examples, whichever is chosen."""
    for outcome in secretly(outcomes()):
        store(outcome.trial, None if outcome.trial.epsilon is None else RAN)
    cost = choice_cost(choose(secretly(outcomes()))[1])
    assert (cost.trials, cost.random) == (4, False)
    assert cost.composed == pytest.approx(compose([RAN] * 4).epsilon_bound(DELTA).epsilon, rel=1e-6)
    single = RAN.epsilon_bound(DELTA)
    assert single.epsilon < cost.composed < 4 * single.epsilon
    assert cost.repeat_and_select is not None
    assert single.rdp_epsilon < cost.repeat_and_select
    assert cost.holds == cost.composed
    # If methods are compared, each has its own trainings.
    assert [choice_cost(one).trials for one in choose(secretly(outcomes()), ["l2_clip_norm"])[1:]] == [2, 2]


def test_one_training_was_not_chosen_among_any() -> None:
    cost = choice_cost(cell_of(store(secret(private()), RAN)))
    assert cost == ChoiceCost(1, cost.composed, None, random=False)
    assert cost.composed == pytest.approx(RAN.epsilon_bound(DELTA).epsilon, rel=1e-6)


def test_mechanisms_that_differ_add_up_as_they_are() -> None:
    trials = [secret(private(seed=seed)) for seed in range(3)]
    ran = [RAN, dataclasses.replace(RAN, steps=7), dataclasses.replace(RAN, noise_multiplier=3.0)]
    for trial, one in zip(trials, ran, strict=True):
        store(trial, one)
    cost = choice_cost(cell_of(*trials))
    assert cost.composed == pytest.approx(compose(ran).epsilon_bound(DELTA).epsilon, rel=1e-6)
    assert cost.repeat_and_select is None, "it prices equal mechanisms only"
    # A random search over them has no price at all: the chosen one's would be too low (1.813 for 1.981).
    with pytest.raises(UserError, match="repeat-and-select needs trainings of equal privacy"):
        choice_cost(cell_of(*trials), mean_trials=3)


@pytest.mark.parametrize(
    ("randomness", "verdict", "test_loss", "without"),
    [
        ("secret", "passed", 0.2, set()),
        ("seeded", "passed", 0.2, {"seeded"}),
        ("secret", "diverged", None, {"diverged"}),
        ("secret", "failed", 0.2, {"failed"}),
        ("secret", None, 0.2, {"not audited"}),
    ],
)
def test_one_training_without_a_guarantee_leaves_the_choice_without(
    randomness: str, verdict: str | None, test_loss: float | None, without: set[str]
) -> None:
    good = store(secret(private(seed=0)), RAN)
    other = private(seed=1).model_copy(update={"randomness": randomness})
    cost = choice_cost(cell_of(good, store(other, RAN, verdict=verdict, test_loss=test_loss)))
    assert cost.without == without
    assert cost.priced == cost.composed
    assert cost.holds == (None if without else cost.composed)


def test_with_seeds_repeat_and_select_does_not_hold() -> None:
    """The number of trainings is then a hash that anyone can compute."""
    trials = [store(private(seed=seed), RAN) for seed in range(3)]
    cost = choice_cost(cell_of(*trials), mean_trials=12)
    assert cost.only_seeded
    assert cost.holds is None
    assert cost.repeat_and_select is not None
    assert cost.priced == cost.composed != cost.repeat_and_select


def test_a_number_that_was_drawn_costs_what_repeat_and_select_says() -> None:
    """It depends on the mean of the number of trainings, not on the number that was drawn."""
    trials = [store(secret(private(seed=seed)), RAN) for seed in range(3)]
    cost = choice_cost(cell_of(*trials), mean_trials=12)
    assert (cost.trials, cost.random) == (3, True)
    assert cost.holds == cost.repeat_and_select
    assert cost.holds == pytest.approx(repeat_and_select_epsilon(RAN, DELTA, mean_trials=12), rel=1e-9)
    # Even if the number drawn was 1.
    one = choice_cost(cell_of(trials[0]), mean_trials=12)
    assert (one.trials, one.holds) == (1, cost.holds)


@pytest.mark.parametrize(
    ("cost", "holds"),
    [
        (ChoiceCost(4, 2.0, 1.5, random=True), 1.5),
        (ChoiceCost(4, 2.0, 1.5, random=False), 2.0),
        (ChoiceCost(4, 2.0, None, random=True), 2.0),
        (ChoiceCost(4, 2.0, 1.5, random=True, without=frozenset({"seeded"})), None),
        (ChoiceCost(4, 2.0, 1.5, random=False, without=frozenset({"diverged"})), None),
    ],
    ids=["drawn", "all", "no bound", "seeded", "diverged"],
)
def test_what_holds(cost: ChoiceCost, holds: float | None) -> None:
    assert cost.holds == holds


def test_a_sampler_without_a_bound_by_rdp_has_no_repeat_and_select() -> None:
    ran = dataclasses.replace(RAN, sampler="balls_in_bins", max_batch_size=160)
    trials = [store(secret(private(seed=seed, sampler="balls_in_bins")), ran) for seed in range(2)]
    cost = choice_cost(cell_of(*trials))
    assert cost.repeat_and_select is None
    assert math.isfinite(cost.composed)
    assert cost.holds == cost.composed


# LabelDP.


def responses(epsilon: float, draw: str, **changes: Any) -> LabelRecord:
    response = RandomizedResponse((0.0, 1.0), epsilon)
    values: dict[str, Any] = {"kind": "binary", "examples": 2400, "values": (0.0, 1.0), "starts": (0, 1)}
    values |= {"keep_probability": response.keep_probability, "histogram_epsilon": 0.0, "debiased": False}
    return LabelRecord(**{**values, "draw": draw, **changes})


def test_trainings_on_one_draw_of_responses_cost_it_once() -> None:
    rates = [secret(of_labels(epsilon=2.0, learning_rate=rate)) for rate in (0.003, 0.01, 0.03)]
    for trial in rates:
        store(trial, responses(2.0, "first"))
    cost = choice_cost(cell_of(*rates))
    assert cost == ChoiceCost(3, cost.composed, None, random=False)
    assert cost.holds == pytest.approx(2.0)


def test_different_draws_of_responses_add_up() -> None:
    trials = [
        secret(of_labels(epsilon=2.0, learning_rate=rate, seed=seed)) for rate in (0.003, 0.01) for seed in range(3)
    ]
    for trial in trials:
        store(trial, responses(2.0, f"of seed {trial.seed}", debiased=trial.learning_rate > 0.005))
    cost = choice_cost(cell_of(*trials))
    assert cost.trials == 6
    assert cost.holds == pytest.approx(3 * 2.0)


# The table.


def test_the_table_has_a_row_for_each_private_result(own_home: Path) -> None:
    results = choose(outcomes(), ["l2_clip_norm"])
    costs = {1: ChoiceCost(2, 2.0, 1.5, random=False), 2: ChoiceCost(2, 2.5, None, random=False)}
    audited = {results[1].trial.key: 0.98, results[2].trial.key: 0.99, baseline().key: None}
    table = choice_table(results, costs, audited)
    assert as_csv(table).splitlines() == [
        "task,method,ε budget,ε of the run,trainings,composition,repeat-and-select,ε with the choice",
        "pCVR,C = 1,1,0.980,2,2.000,1.500,2.000",
        "pCVR,C = 2,1,0.990,2,2.500,–,2.500",
    ]
    assert [row[-1].strong for row in table.rows] == [True, True]
    assert "is the composition of all trainings" in table.caption
    assert "all of them may be published" in table.caption
    drawn = choice_table(results, {1: ChoiceCost(2, 2.0, 1.5, random=True)}, audited)
    assert drawn.rows[0][-1].text == "1.500"
    assert "The number of trainings and the settings of each were drawn at random" in drawn.caption


def test_the_table_says_that_seeded_trainings_have_no_guarantee(own_home: Path) -> None:
    results = choose(outcomes(), ["l2_clip_norm"])
    audited = {results[1].trial.key: 0.98, results[2].trial.key: None, baseline().key: None}
    seeded = ChoiceCost(2, 2.0, 1.5, random=False, without=frozenset({"seeded"}))
    table = choice_table(results, {1: seeded}, audited)
    assert table.columns[-1] == "ε with the choice, if secret"
    assert (table.rows[0][-1].text, table.rows[0][-1].strong) == ("2.000", False)
    assert "nothing here is a guarantee" in table.caption
    assert "`randomness: secret`" in table.caption
    assert "none of the models may be published" in table.caption
    assert "all of them may be published" not in table.caption

    drawn = choice_table(results, {1: seeded._replace(random=True)}, audited)
    assert drawn.rows[0][-1].text == "2.000", "not repeat-and-select"
    assert "is a hash that anyone can compute" in drawn.caption
    assert "the choice costs what repeat-and-select says" not in drawn.caption


def test_the_table_says_that_a_cell_with_a_diverged_training_has_no_guarantee(own_home: Path) -> None:
    results = choose(outcomes(), ["l2_clip_norm"])
    audited = {results[1].trial.key: 0.98, results[2].trial.key: None, baseline().key: None}
    for kinds in (frozenset({"diverged"}), frozenset({"diverged", "seeded"})):
        costs = {1: ChoiceCost(2, 2.0, 1.5, random=False), 2: ChoiceCost(2, 2.0, 1.5, random=False, without=kinds)}
        table = choice_table(results, costs, audited)
        assert [row[-1].text for row in table.rows] == ["2.000", "none"]
        assert "“none”: a training of the cell has no guarantee (diverged)" in table.caption


class TestRounds:
    """Searches whose later trainings depend on outcomes."""

    def test_the_number_of_trainings_is_the_largest_that_there_might_have_been(self) -> None:
        """All have one mechanism, and how many there were depends on outcomes: a bound must not."""
        trials = [store(secret(private(learning_rate=rate)), RAN) for rate in (0.1, 0.3, 0.9)]
        search = InRounds("extend", frozenset(trials[:2]), most=7)
        cost = choice_cost(cell_of(*trials), in_rounds=search)
        assert (cost.trials, cost.counted, cost.repeat_and_select) == (3, 7, None)
        assert cost.holds == pytest.approx(compose([RAN] * 7).epsilon_bound(DELTA).epsilon, rel=1e-6)
        table = choice_table([cell_of(*trials)], {0: cost}, {trials[0].key: 0.5})
        assert "the largest number that there might have been (7)" in table.caption

    def test_outcomes_that_decide_how_private_trainings_are_leave_no_guarantee(self) -> None:
        """The batch size was extended: composition of what ran is no bound."""
        larger = dataclasses.replace(RAN, expected_batch_size=200, max_batch_size=400, steps=24)
        trials = [store(secret(private()), RAN), store(secret(private(batch_size=200)), larger)]
        cost = choice_cost(cell_of(*trials), in_rounds=InRounds("extend", frozenset(trials[:1]), most=9))
        assert (cost.holds, cost.without) == (None, {"by outcomes"})
        table = choice_table([cell_of(*trials)], {0: cost}, {trials[0].key: 0.5})
        assert table.rows[0][-1].text == "none"
        assert "Give one batch size and one number of epochs" in table.caption

    def test_partial_trainings_count_with_the_steps_that_they_had(self) -> None:
        """Nine of a ninth, three of a third and a whole one: about the cost of three whole trainings, not thirteen."""
        rungs = [dataclasses.replace(RAN, steps=steps) for steps in (16, 48, 144)]
        trials, ran = [], []
        for record_, number in zip(rungs, (9, 3, 1), strict=True):
            for rate in range(number):
                trials.append(store(secret(private(learning_rate=0.1 + rate, epochs=float(record_.steps))), record_))
                ran.append(record_)
        cost = choice_cost(cell_of(*trials), in_rounds=InRounds("halving", frozenset(trials[:9]), most=13))
        assert (cost.trials, cost.counted, cost.without) == (13, 13, frozenset())
        assert cost.composed == pytest.approx(compose(ran).epsilon_bound(DELTA).epsilon, rel=1e-6)
        assert cost.composed == pytest.approx(compose([rungs[2]] * 3).epsilon_bound(DELTA).epsilon, rel=0.05)
        assert cost.composed < 0.6 * compose([rungs[2]] * 13).epsilon_bound(DELTA).epsilon
        table = choice_table([cell_of(*trials)], {0: cost}, {trials[0].key: 0.5})
        assert "short ones with the steps that they had" in table.caption

    def test_settings_of_unlike_privacy_leave_halving_without_a_guarantee(self) -> None:
        other = dataclasses.replace(RAN, steps=96)
        trials = [store(secret(private()), RAN), store(secret(private(epochs=4.0)), other)]
        cost = choice_cost(cell_of(*trials), in_rounds=InRounds("halving", frozenset(trials), most=2))
        assert cost.without == {"by outcomes"}
