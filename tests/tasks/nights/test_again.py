"""A night that runs again: what was charged once is released once, and a champion is never its own judge."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.config.loading import load_config
from tasks.ledger.book import Ledger
from tasks.nights import steps, training_steps
from tasks.nights.champions import champion_for, present, roll_back
from tasks.nights.record import Night, NightEnded, night_folder, read_night
from tasks.runtime.errors import UserError
from tasks.runtime.tracking import open_client
from tasks.serving.registry import versions
from tasks.training.finished import FinishedTrial
from tests.dags.test_seven_nights import CONFIG, GOOD
from tests.tasks.nights.test_steps import AFTER, audited, judged

pytestmark = pytest.mark.nights

HASHED = "vocabulary: hash\n    vocabulary_buckets: 100"
KEPT = "vocabulary: private\n    vocabulary_epsilon: 0.2\n    keep_vocabulary: true"
EXTRAS = """
    warm_start: true
    private_evaluation: true
    evaluation_epsilon: 0.5
    tolerance: 1
"""


def configured(folder: Path, *changes: tuple[str, str]) -> None:
    text = CONFIG.replace("SETTINGS", GOOD).replace("EPSILON", "1").replace("    tolerance: 0.02", EXTRAS)
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (folder / "nights.yaml").write_text(text)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DP_ADS_CONFIG", str(tmp_path / "nights.yaml"))
    for name in ("MLFLOW_TRACKING_URI", "DP_ADS_LEDGER"):
        monkeypatch.delenv(name, raising=False)
    configured(tmp_path)
    return tmp_path


def crashes(*_: Any) -> Night:
    raise KeyboardInterrupt


def test_a_crash_after_the_promotion(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second try is judged against the champion before, starts from it too, and is not charged again."""
    judged("2026-01-04")
    with monkeypatch.context() as patch:
        patch.setattr(training_steps, "end_night", crashes)
        with pytest.raises(KeyboardInterrupt):
            judged("2026-01-05")
    assert present("rates") == {"version": 2, "day": "2026-01-05"}
    again = judged("2026-01-05")
    assert (again["version"], again["champion"]) == (2, {"version": 1, "day": "2026-01-04"})
    assert len(Ledger.open().entries()) == 2
    assert "of night 2026-01-04" in again["sentence"]

    # Other settings make another model, which is not judged by the comparison of the first.
    shutil.move(night_folder("rates", "2026-01-05") / "night.json", house / "night.json")
    configured(house, ("evaluation_epsilon: 0.5", "evaluation_epsilon: 0.4"))
    other = judged("2026-01-05")
    assert other["comparison"] != again["comparison"]
    assert len(Ledger.open().entries()) == 3


def test_trainings_that_are_gone_are_charged_anew(house: Path) -> None:
    """Secret noise is drawn anew, so the second model is another release."""
    first = training_steps.register(audited("2026-01-04"))
    shutil.rmtree(FinishedTrial.open(first["chosen"]).folder)
    second = judged("2026-01-04")
    assert first["ledger_key"] != second["ledger_key"]
    assert [entry.state for entry in Ledger.open().entries()] == ["committed", "committed"]
    assert len(versions("rates")) == 2


def test_later_tasks_that_are_run_again_by_themselves_release_nothing_uncharged(house: Path) -> None:
    """Airflow can clear the tasks from ``train`` or ``decide`` on, which then get what ``reserve`` returned before."""
    reserved = steps.open_night("rates", "2026-01-04")
    for step in AFTER[:3]:
        reserved = step(reserved)
    night = training_steps.register(training_steps.audit(training_steps.train(reserved)))
    assert training_steps.train(reserved)["trained"] == night["trained"], "what is there is found"
    shutil.rmtree(FinishedTrial.open(night["chosen"]).folder)
    with pytest.raises(UserError, match=r"is committed in the ledger, and its trainings are gone.*from its first task"):
        training_steps.train(reserved)
    shutil.rmtree(night_folder("rates", "2026-01-04"))
    with pytest.raises(UserError, match="another private comparison would not be charged"):
        training_steps.decide(night)

    other = steps.open_night("rates", "2026-01-05")
    for step in AFTER[:3]:
        other = step(other)
    Ledger.open().resolve(other["ledger_key"], "give_back", "a test")
    with pytest.raises(UserError, match="is given back in the ledger, so that a new training would be a release"):
        training_steps.train(other)
    assert [entry.state for entry in Ledger.open().entries()] == ["committed", "given back"]


def test_another_home_with_the_same_ledger_is_charged_too(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DP_ADS_LEDGER", f"sqlite:///{house}/ledger.db")
    judged("2026-01-04")
    monkeypatch.setenv("DP_ADS_HOME", str(house / "other"))
    judged("2026-01-04")
    assert [entry.state for entry in Ledger.open().entries()] == ["committed", "committed"]


def test_a_night_goes_on_after_a_person_charged_it(house: Path) -> None:
    night = audited("2026-01-04")
    Ledger.open().resolve(night["ledger_key"], "commit", "it may have been registered")
    assert judged("2026-01-04")["status"] == "promoted"
    assert len(Ledger.open().entries()) == 1


def test_a_back_fill_is_not_judged_by_a_champion_that_has_seen_the_day(house: Path) -> None:
    judged("2026-01-06")
    assert champion_tags() == {"2026-01-06": "true"}
    late = judged("2026-01-04")
    assert late["champion"] is None
    assert late["status"] == "kept"
    assert late["sentence"].startswith("not promoted: night 2026-01-06 has decided since")
    assert FinishedTrial.open(late["chosen"]).trial.start_from is None

    # The next one is judged against it and starts from it, as it would have been at the time.
    after = judged("2026-01-05")
    assert after["champion"] == {"version": 2, "day": "2026-01-04"}
    assert FinishedTrial.open(after["chosen"]).trial.start_from == late["chosen"]
    assert present("rates") == {"version": 1, "day": "2026-01-06"}
    assert champion_for("rates", "2026-01-07") == {"version": 1, "day": "2026-01-06"}, "a new night"

    roll_back("rates", "2026-01-05", "the day after was counted twice")
    assert champion_tags() == {"2026-01-04": "false", "2026-01-05": "true", "2026-01-06": "false"}
    assert champion_for("rates", "2026-01-07") == {"version": 3, "day": "2026-01-05"}


def champion_tags() -> dict[str, str]:
    """The tags of the nights' runs in MLflow."""
    client = open_client()
    experiment = client.get_experiment_by_name("nightly_retrain_rates")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "tags.kind = 'night'")
    return {run.data.tags["night"]: run.data.tags["champion"] for run in runs}


def test_a_champion_that_cannot_be_started_from_stops_no_night(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = judged("2026-01-04")
    shutil.rmtree(FinishedTrial.open(first["chosen"]).folder)
    second = judged("2026-01-05")
    assert FinishedTrial.open(second["chosen"]).trial.start_from is None
    assert "no warm start from the champion" in "".join(capsys.readouterr())


def test_a_day_that_changed_after_training_is_not_judged_on(house: Path) -> None:
    night = training_steps.register(audited("2026-01-04"))
    night["contents"]["2026-01-04"] = "other"
    with pytest.raises(NightEnded, match="was delivered again with other contents after"):
        training_steps.decide(night)
    ended = read_night("rates", "2026-01-04")
    assert ended is not None
    assert ended["status"] == "stopped"
    assert present("rates") is None


def test_the_vocabulary_of_a_night_that_released_nothing_is_charged_by_the_next(house: Path) -> None:
    configured(house, (HASHED, KEPT))
    night = steps.open_night("rates", "2026-01-04")
    for step in AFTER[:2]:
        night = step(night)  # then the machine stops
    second, third = judged("2026-01-05"), judged("2026-01-06")
    assert second["vocabulary_days"] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert third["vocabulary_days"] == []
    spent = Ledger.open().spent("days", load_config().night("rates").total, users=False)
    assert 0.1 < spent["2026-01-01"].epsilon < 0.3
