"""The steps of nights in this process: a grid, a warm start, and a comparison through a private release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.ledger.book import Ledger
from tasks.nights import steps, training_steps
from tasks.nights.record import Night, NightEnded, read_night
from tasks.serving.registry import local_model
from tasks.serving.released import ReleasedModel
from tasks.training.finished import FinishedTrial
from tests.dags.test_seven_nights import CONFIG, GOOD
from tests.support.trials import renew_manifest

pytestmark = pytest.mark.nights

FIRST, SECOND = "2026-01-04", "2026-01-05"
EXTRAS = """
    warm_start: true
    private_evaluation: true
    evaluation_epsilon: 0.5
"""
AFTER = (steps.check_data, steps.prepare, training_steps.reserve, training_steps.train, training_steps.audit)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("steps")
    settings = GOOD.replace("0.1", "[0.1, 0.01]")
    text = CONFIG.replace("SETTINGS", settings).replace("EPSILON", "1").replace("    tolerance: 0.02", EXTRAS)
    (folder / "nights.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        patch.setenv("DP_ADS_CONFIG", str(folder / "nights.yaml"))
        for name in ("MLFLOW_TRACKING_URI", "DP_ADS_LEDGER"):
            patch.delenv(name, raising=False)
        yield folder / "home"


@pytest.fixture(scope="module")
def nights(home: Path) -> list[Night]:
    return [judged(FIRST), judged(SECOND)]


def judged(day: str) -> Night:
    night = audited(day)
    ended = training_steps.decide(training_steps.register(night))
    steps.report(ended)
    return ended


def audited(day: str) -> Night:
    night = steps.open_night("rates", day)
    assert steps.has_data(night)
    for step in AFTER:
        night = step(night)
    json.dumps(night)  # what Airflow passes between tasks
    return night


def test_all_trainings_of_a_grid_are_charged_and_stay_within_the_nights_budget(nights: list[Night]) -> None:
    for night in nights:
        assert len(night["trained"]) == 2
        assert 0.95 < night["epsilon"] <= 1
        own = [FinishedTrial.open(one["trial"]).audit["epsilon"] for one in night["trained"]]
        assert all(one is not None and one < night["epsilon"] for one in own)
    entries = {entry.key[-10:]: entry for entry in Ledger.open().entries()}
    kinds = [release.kind for release in entries[FIRST].releases]
    assert sorted(kinds) == ["metric", "model", "model"]


def test_the_released_model_promises_what_all_trainings_that_it_was_chosen_from_cost(nights: list[Night]) -> None:
    for night in nights:
        assert ReleasedModel.load(local_model(f"rates/{night['version']}")).guarantee["epsilon"] == night["epsilon"]


def test_the_comparison_is_charged_to_the_newest_day(nights: list[Night]) -> None:
    entries = {entry.key[-10:]: entry for entry in Ledger.open().entries()}
    (metric,) = [release for release in entries[SECOND].releases if release.kind == "metric"]
    assert metric.days == (SECOND,)
    assert metric.mechanism["mechanism"] == "gaussian"
    assert nights[1]["comparison"] is not None
    assert nights[1]["comparison"]["private"] is True


def test_a_private_comparison_is_made_once(home: Path, nights: list[Night]) -> None:
    """A crash after it must not lead to another release that nobody charged."""
    from tasks.config.loading import load_config
    from tasks.nights.comparison import compare_on_newest_day

    assert compare_on_newest_day(load_config(), nights[1]) == nights[1]["comparison"]


def test_a_warm_start_begins_with_the_champion(nights: list[Night]) -> None:
    first, second = (FinishedTrial.open(night["chosen"]).trial for night in nights)
    assert first.start_from is None
    if nights[0]["status"] == "promoted":
        assert second.start_from == nights[0]["chosen"]


def test_a_night_goes_on_after_a_crash_between_charge_and_registration(home: Path, nights: list[Night]) -> None:
    """The charge is there, the version is not: the second try finds the charge and registers."""
    night = audited("2026-01-06")
    before = len(Ledger.open().entries())
    first = training_steps.register(night)
    again = training_steps.register(night)
    assert (again["version"], again["ledger_head"]) == (first["version"], first["ledger_head"])
    assert len(Ledger.open().entries()) == before


def test_a_failed_audit_releases_nothing_and_gives_the_budget_back(home: Path, nights: list[Night]) -> None:
    day = "2026-01-08"  # the day before is late
    night = steps.open_night("rates", day)
    for step in AFTER[:-1]:
        night = step(night)
    path = FinishedTrial.open(night["trained"][0]["trial"]).folder / "record.json"
    record = json.loads(path.read_text())
    record["mechanism"]["noise_multiplier"] *= 1.5  # the record claims more noise than there was
    path.write_text(json.dumps(record))
    renew_manifest(path.parent)  # as if training had written it so
    with pytest.raises(NightEnded, match="the audit failed, and the champion stays"):
        training_steps.audit(night)
    entry = next(entry for entry in Ledger.open().entries() if entry.key == night["ledger_key"])
    assert entry.state == "given back"
    ended = read_night("rates", day)
    assert ended is not None
    assert ended["status"] == "failed"
    assert "version" not in ended


def test_a_day_that_cannot_judge_ends_the_night_with_a_sentence(
    home: Path, nights: list[Night], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One conversion on the whole day: an AUC has no paired test."""
    from tasks.config.loading import load_config
    from tasks.nights import comparison

    def one_positive(*_: object) -> tuple[np.ndarray, np.ndarray]:
        return np.linspace(-1, 1, 50), np.eye(1, 50)[0]

    config = load_config()
    nightly = config.night("rates").model_copy(update={"private_evaluation": False, "evaluation_epsilon": None})
    monkeypatch.setattr(comparison, "_predictions", one_positive)
    with pytest.raises(NightEnded, match=r"was stopped: its models cannot be compared, .*The champion stays"):
        comparison.compare_on_newest_day(config.model_copy(update={"nightly": {"rates": nightly}}), nights[1])
