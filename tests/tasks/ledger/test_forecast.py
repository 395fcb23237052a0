"""Nights that have not been, and what a night costs, against dp_accounting and by hand."""

from __future__ import annotations

import datetime
import math
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation, get_epsilon_gaussian, get_sigma_gaussian, pld

from dp_core.evaluation.private_comparison import comparison_noise_multiplier
from tasks.config.loading import Config, load_config
from tasks.config.nightly import Nightly, TotalBudget
from tasks.ledger.book import Ledger, OverBudget
from tasks.ledger.cost import DailyTraining, Question, nightly_cost
from tasks.ledger.forecast import forecast, next_newest, planned_night, releases_of, simulate, trainings_of
from tasks.ledger.release import Release, gaussian
from tasks.privacy.cached_accounting import epsilon_of
from tasks.runtime.errors import UserError


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config()


def changed(config: Config, **changes: object) -> Nightly:
    return Nightly.model_validate({**config.night("conversions").model_dump(), **changes})


def test_gaussian_nights_by_hand(own_home: Path) -> None:
    window, disjoint, continued = nightly_cost(Question(7, 1.0, 1e-6, total=3.0))
    sigma = get_sigma_gaussian(1.0, 1e-6)
    assert window.noise_multiplier == pytest.approx(sigma, rel=1e-6)
    # Seven releases with σ are one with σ/√7.
    assert window.day_epsilon == pytest.approx(get_epsilon_gaussian(sigma / math.sqrt(7), 1e-6), rel=1e-3)
    most = get_sigma_gaussian(3.0, 1e-6) * math.sqrt(7)
    assert window.most_noise_multiplier == pytest.approx(most, rel=1e-6)
    assert window.most_epsilon == pytest.approx(get_epsilon_gaussian(most, 1e-6), rel=1e-3)
    for scheme in (disjoint, continued):
        assert (scheme.releases_of_a_day, scheme.day_epsilon) == (1, pytest.approx(1.0, rel=1e-3))
        assert scheme.most_epsilon == pytest.approx(3.0, rel=1e-3)


def test_nights_of_dp_sgd_against_dp_accounting(own_home: Path) -> None:
    asked = Question(3, 1.0, 1e-5, total=2.0, training=DailyTraining(2000, 200, 2))
    window, disjoint, _ = nightly_cost(asked)

    def oracle(sigma: float, examples: int, steps: int) -> float:
        accountant = pld.PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)
        sampled = dp_accounting.PoissonSampledDpEvent(200 / examples, dp_accounting.GaussianDpEvent(sigma))
        return accountant.compose(sampled, steps).get_epsilon(1e-5)

    assert oracle(window.noise_multiplier, 6000, 60) == pytest.approx(1.0, rel=5e-3)
    assert window.day_epsilon == pytest.approx(oracle(window.noise_multiplier, 6000, 3 * 60), rel=5e-3)
    assert window.most_noise_multiplier is not None
    assert oracle(window.most_noise_multiplier, 6000, 3 * 60) == pytest.approx(2.0, rel=5e-3)
    assert window.most_epsilon == pytest.approx(oracle(window.most_noise_multiplier, 6000, 60), rel=5e-3)
    assert oracle(disjoint.noise_multiplier, 2000, 20) == pytest.approx(1.0, rel=5e-3)


def test_questions_that_have_no_answer(own_home: Path) -> None:
    with pytest.raises(UserError, match="larger than the 100 examples of a day"):
        nightly_cost(Question(2, 1.0, training=DailyTraining(100, 200, 1)))
    with pytest.raises(UserError, match="delta must be between 0 and 1"):
        nightly_cost(Question(2, 1.0, delta=1.5))
    assert Question(2, 1.0).at_delta == 1e-6
    assert Question(2, 1.0, training=DailyTraining(1000, 100, 1)).at_delta == 1 / 2000


def test_all_trainings_of_a_night_have_its_epsilon_together(own_home: Path, config: Config) -> None:
    grid = config.night("conversions").dp_sgd.model_dump()
    entry = changed(config, dp_sgd={**grid, "learning_rate": (0.01, 0.02), "l2_clip_norm": (1.0, 4.0)})
    assert (trainings_of(entry), trainings_of(config.night("conversions"))) == (4, 1)
    planned = planned_night(entry, config.dataset(entry.dataset), 80_000)
    together = epsilon_of([planned.record] * planned.trainings, 1 / 80_000).epsilon
    assert together == pytest.approx(entry.epsilon, rel=3e-3)
    assert together <= entry.epsilon


def test_a_private_vocabulary_and_evaluation_are_planned(own_home: Path, config: Config) -> None:
    entry = changed(config, private_evaluation=True, evaluation_epsilon=0.1)
    described = config.dataset(entry.dataset).model_dump()
    private = {**described, "vocabulary": "private", "vocabulary_buckets": None, "vocabulary_epsilon": 0.2}
    dataset = type(config.dataset(entry.dataset)).model_validate(private)
    planned = planned_night(entry, dataset, 80_000)
    assert epsilon_of(planned.record, 1 / 80_000).epsilon <= entry.epsilon
    made = releases_of(entry, planned, entry.dataset)(datetime.date(2026, 1, 9))
    assert [(one.kind, one.days[0], len(one.days)) for one in made] == [
        ("vocabulary", "2026-01-05", 4),
        ("model", "2026-01-05", 4),
        ("metric", "2026-01-09", 1),
    ]
    assert made[1].mechanism["record"]["vocabulary"].draw == "2026-01-09"
    # 20,000 rows a day, of which a night compares on the last nine tenths.
    noise = comparison_noise_multiplier(epsilon=0.1, delta=1 / 18_000)
    assert made[2].mechanism["noise_multiplier"] == pytest.approx(noise)


@pytest.mark.parametrize("total", [3.0, 2.0])
def test_the_simulation_is_what_the_ledger_then_does(own_home: Path, config: Config, total: float) -> None:
    entry = changed(config, total={"epsilon": total, "delta": 5e-6})
    dataset, ledger = config.dataset(entry.dataset), Ledger.open()
    releases = releases_of(entry, planned_night(entry, dataset, 80_000), entry.dataset)
    first = next_newest([], dataset, entry, entry.dataset)
    assert first == datetime.date(2026, 1, 5)
    played = simulate([], releases, entry.dataset, entry.total, first, 7)
    for night in played.nights:
        day = datetime.date.fromisoformat(night.day)
        if night.refused:
            with pytest.raises(OverBudget) as error:
                ledger.reserve(f"conversions/{night.day}", releases(day), entry.total)
            assert error.value.epsilon == night.epsilon
        else:
            done = ledger.reserve(f"conversions/{night.day}", releases(day), entry.total)
            assert done.highest is not None
            assert done.highest.epsilon == night.epsilon
    spent = ledger.spent(entry.dataset, entry.total, users=False)
    assert {day: one.epsilon for day, one in spent.items()} == played.days
    sentence = forecast(played, entry.total)
    if total == 3:
        assert sentence == "At this rate no day exceeds ε = 2.22 of 3."
        assert next_newest(ledger.entries(), dataset, entry, entry.dataset) == first + datetime.timedelta(days=7)
    else:
        assert "the budget of 2026-01-04 is used up on the night of 2026-01-08" in sentence


def test_the_total_of_a_user_is_forecast(own_home: Path, config: Config) -> None:
    total = TotalBudget(epsilon=3.0, delta=5e-6, user_days=2, user_epsilon=3.0)

    def releases(day: datetime.date) -> list[Release]:
        return [Release("model", gaussian(3.0), "days", (str(day - datetime.timedelta(days=1)), str(day)))]

    played = simulate([], releases, "days", total, datetime.date(2026, 1, 5), 2)
    assert [(night.refused, night.of_user) for night in played.nights] == [(False, False), (True, True)]
    assert "the budget of a user from 2026-01-04 on is used up on the night of 2026-01-06" in forecast(played, total)
