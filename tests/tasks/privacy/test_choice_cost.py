"""What choosing costs: the composition of all trainings, or the theorem's ε if their number was drawn at random."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from dp_core.accounting.mechanism import MechanismRecord, compose
from dp_core.accounting.tuning import repeat_and_select_epsilon
from dp_core.labels.randomized_response import RandomizedResponse
from dp_core.labels.record import LabelRecord
from tasks.privacy.choice_cost import ChoiceCost, choice_cost, choice_table
from tasks.reporting.files import as_csv
from tasks.reporting.results import Arm, Outcome, Result, choose
from tasks.runtime.home import write_json
from tasks.training.trial import Trial
from tests.support.records import record
from tests.support.sweeps import NOWHERE, baseline, of_labels, outcomes, private

pytestmark = pytest.mark.usefixtures("own_home")

DELTA = 1 / NOWHERE.splits["train"]["rows"]
RAN = record(examples=2400, expected_batch_size=100, max_batch_size=200, steps=48, noise_multiplier=2.0)


def trained(trial: Trial, ran: MechanismRecord | LabelRecord | None) -> None:
    """Writes the record that training a mechanism leaves."""
    stored = {"trial": trial.model_dump(mode="json"), "mechanism": None if ran is None else ran.to_json()}
    write_json(trial.folder / "record.json", stored)


def cell_of(*trials: Trial) -> Result:
    return Result("pcvr", Arm(trials[0].mechanism), trials[0].epsilon, (Outcome(trials[0], 0.2, 0.2),), trials)


def test_every_training_of_a_cell_is_paid_for() -> None:
    """Two settings with two seeds each are four trainings on the same examples, whichever is chosen."""
    for outcome in outcomes():
        trained(outcome.trial, None if outcome.trial.epsilon is None else RAN)
    cost = choice_cost(choose(outcomes())[1])
    assert (cost.trials, cost.random) == (4, False)
    assert cost.composed == pytest.approx(compose([RAN] * 4).epsilon_bound(DELTA).epsilon, rel=1e-6)
    single = RAN.epsilon_bound(DELTA)
    assert single.epsilon < cost.composed < 4 * single.epsilon
    assert cost.repeat_and_select is not None
    assert single.rdp_epsilon < cost.repeat_and_select
    assert cost.holds == cost.composed
    # If methods are compared, each has its own trainings.
    assert [choice_cost(one).trials for one in choose(outcomes(), ["l2_clip_norm"])[1:]] == [2, 2]


def test_one_training_was_not_chosen_among_any() -> None:
    trained(private(), RAN)
    cost = choice_cost(cell_of(private()))
    assert cost == ChoiceCost(1, cost.composed, None, random=False)
    assert cost.composed == pytest.approx(RAN.epsilon_bound(DELTA).epsilon, rel=1e-6)


def test_mechanisms_that_differ_add_up_as_they_are() -> None:
    """A training that diverged has fewer steps, but those count."""
    trials = [private(seed=seed) for seed in range(3)]
    ran = [RAN, dataclasses.replace(RAN, steps=7), dataclasses.replace(RAN, noise_multiplier=3.0)]
    for trial, one in zip(trials, ran, strict=True):
        trained(trial, one)
    assert choice_cost(cell_of(*trials)).composed == pytest.approx(compose(ran).epsilon_bound(DELTA).epsilon, rel=1e-6)


def test_a_number_that_was_drawn_costs_what_repeat_and_select_says() -> None:
    """It depends on the mean of the number of trainings, not on the number that was drawn."""
    trials = [private(seed=seed) for seed in range(3)]
    for trial in trials:
        trained(trial, RAN)
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
    ],
    ids=["drawn", "all", "no bound"],
)
def test_what_holds(cost: ChoiceCost, holds: float) -> None:
    assert cost.holds == holds


def test_a_sampler_without_a_bound_by_rdp_has_no_repeat_and_select() -> None:
    trials = [private(seed=seed, sampler="balls_in_bins") for seed in range(2)]
    for trial in trials:
        trained(trial, dataclasses.replace(RAN, sampler="balls_in_bins", max_batch_size=160))
    cost = choice_cost(cell_of(*trials))
    assert cost.repeat_and_select is None
    assert math.isfinite(cost.holds)


# LabelDP.


def responses(epsilon: float, draw: str, **changes: Any) -> LabelRecord:
    response = RandomizedResponse((0.0, 1.0), epsilon)
    values: dict[str, Any] = {"kind": "binary", "examples": 2400, "values": (0.0, 1.0), "starts": (0, 1)}
    values |= {"keep_probability": response.keep_probability, "histogram_epsilon": 0.0, "debiased": False}
    return LabelRecord(**{**values, "draw": draw, **changes})


def test_trainings_on_one_draw_of_responses_cost_it_once() -> None:
    rates = [of_labels(epsilon=2.0, learning_rate=rate) for rate in (0.003, 0.01, 0.03)]
    for trial in rates:
        trained(trial, responses(2.0, "first"))
    cost = choice_cost(cell_of(*rates))
    assert cost == ChoiceCost(3, cost.composed, None, random=False)
    assert cost.holds == pytest.approx(2.0)


def test_different_draws_of_responses_add_up() -> None:
    trials = [of_labels(epsilon=2.0, learning_rate=rate, seed=seed) for rate in (0.003, 0.01) for seed in range(3)]
    for trial in trials:
        trained(trial, responses(2.0, f"of seed {trial.seed}", debiased=trial.learning_rate > 0.005))
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
        "pcvr,C = 1,1,0.980,2,2.000,1.500,2.000",
        "pcvr,C = 2,1,0.990,2,2.500,–,2.500",
    ]
    assert [row[-1].strong for row in table.rows] == [True, True]
    assert "is the composition of all trainings" in table.caption
    drawn = choice_table(results, {1: ChoiceCost(2, 2.0, 1.5, random=True)}, audited)
    assert drawn.rows[0][-1].text == "1.500"
    assert "The number of trainings and the settings of each were drawn at random" in drawn.caption
