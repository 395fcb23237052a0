"""The table: chosen on validation, reported on test, relative to the baseline."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from dp_core.mechanism import MechanismRecord, compose
from tasks.encoded import Prepared
from tasks.errors import UserError
from tasks.home import write_json
from tasks.report import Outcome, choice_cost, relative_loss_rows
from tasks.tables import CSV_COLUMNS, ChoiceCost, as_csv
from tests.trials import make_prepared, make_trial, without_privacy


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


@pytest.fixture
def outcomes(prepared: Prepared) -> list[Outcome]:
    """Two seeds; at ε = 1, C = 2 is better on validation and worse on test."""
    rows = [
        Outcome(without_privacy(prepared, seed=0), 0.20, 0.21),
        Outcome(without_privacy(prepared, seed=1), 0.20, 0.19),
    ]
    for clip, validation, test in ((1.0, 0.30, 0.25), (2.0, 0.28, 0.30)):
        rows += [
            Outcome(make_trial(prepared, epsilon=1.0, l2_clip_norm=clip, seed=0), validation, test),
            Outcome(make_trial(prepared, epsilon=1.0, l2_clip_norm=clip, seed=1), validation, test + 0.02),
        ]
    return rows


def test_rows_against_arithmetic_by_hand(outcomes: list[Outcome]) -> None:
    baseline, private = relative_loss_rows(outcomes)
    assert (baseline.epsilon, baseline.relative_percent_mean, baseline.seeds) == (None, 0, 2)
    assert baseline.loss_mean == pytest.approx(0.20)
    assert baseline.loss_std == pytest.approx(0.02 / 2**0.5)
    assert private.chosen.l2_clip_norm == 2.0
    assert private.loss_mean == pytest.approx(0.31)
    assert private.relative_percent_mean == pytest.approx(55.0)
    assert private.relative_percent_std == pytest.approx(100 * 0.02 / 2**0.5 / 0.20)


def test_order_of_the_trials_does_not_matter(outcomes: list[Outcome]) -> None:
    assert as_csv(relative_loss_rows(outcomes[::-1])) == as_csv(relative_loss_rows(outcomes))


def test_csv_has_the_columns_that_are_promised(outcomes: list[Outcome]) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(relative_loss_rows(outcomes)))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [row["epsilon"] for row in rows] == ["inf", "1"]
    assert [row["seeds"] for row in rows] == ["2", "2"]


def test_a_diverged_setting_cannot_win(prepared: Prepared, outcomes: list[Outcome]) -> None:
    diverged = Outcome(make_trial(prepared, epsilon=1.0, l2_clip_norm=4.0), None, None)
    half = Outcome(make_trial(prepared, epsilon=1.0, l2_clip_norm=4.0, seed=1), 0.01, 0.01)
    assert relative_loss_rows([*outcomes, diverged, half])[1].chosen.l2_clip_norm == 2.0
    with pytest.raises(UserError, match="every setting diverged"):
        relative_loss_rows([*outcomes[:2], diverged])


def test_what_the_choice_costs(outcomes: list[Outcome]) -> None:
    """Two settings with two seeds each: four trainings on the same examples, whichever is kept."""
    record = MechanismRecord(
        sampler="poisson",
        examples=2400,
        expected_batch_size=100,
        max_batch_size=200,
        steps=48,
        noise_multiplier=2.0,
        l2_clip_norm=1.0,
    )
    for outcome in outcomes:
        mechanism = None if outcome.trial.epsilon is None else record.to_json()
        stored = {"trial": outcome.trial.model_dump(mode="json"), "mechanism": mechanism}
        write_json(outcome.trial.folder / "record.json", stored)
    chosen = relative_loss_rows(outcomes)[1].chosen
    cost = choice_cost(chosen, outcomes)
    assert cost.trials == 4
    assert cost.composed == pytest.approx(compose([record] * 4).epsilon_bound(1 / 2400).epsilon, rel=1e-6)
    single = record.epsilon_bound(1 / 2400)
    assert single.epsilon < cost.composed < 4 * single.epsilon
    assert cost.repeat_and_select is not None
    assert single.rdp_epsilon < cost.repeat_and_select
    # One training alone was not chosen among any.
    alone = choice_cost(chosen, [outcome for outcome in outcomes if outcome.trial == chosen])
    assert (alone.trials, alone.repeat_and_select) == (1, None)
    assert alone.composed == pytest.approx(single.epsilon, rel=1e-6)


def test_a_random_number_of_trainings_costs_what_repeat_and_select_says(outcomes: list[Outcome]) -> None:
    """Each training stands for itself: the best of all on validation is kept, and only its test loss is told."""
    baseline, private = relative_loss_rows(outcomes, each_alone=True)
    assert (baseline.seeds, private.seeds) == (2, 1)
    assert (private.chosen.l2_clip_norm, private.loss_std) == (2.0, 0.0)
    assert ChoiceCost(4, 2.0, 1.5, random=True).holds == 1.5
    assert ChoiceCost(4, 2.0, 1.5, random=False).holds == 2.0
    assert ChoiceCost(4, 2.0, None, random=True).holds == 2.0
