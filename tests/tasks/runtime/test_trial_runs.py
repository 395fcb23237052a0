"""The runs of trials in a real MLflow store: one for each training, with its true times, also while it lasts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

import tasks.runtime.trial_runs
from tasks.config.loading import load_config
from tasks.config.selection import select
from tasks.data.prepared import Prepared
from tasks.runtime.errors import Stopped
from tasks.runtime.home import read_json, write_json
from tasks.runtime.tracking import start_pipeline_run, tracking_uri
from tasks.runtime.trial_runs import live_run, log_audit, log_trial
from tasks.training.checkpoint import Progress
from tasks.training.items import ParentRun, PlannedTrial
from tasks.training.trial import Trial
from tests.support.trials import make_prepared, make_trial, without_privacy

STARTED, ENDED = 1_700_000_000.25, 1_700_000_004.5
RECORD: dict[str, Any] = {
    "curve": [
        {"step": 10, "train_loss": 0.6, "validation_loss": 0.4, "validation_metrics": {"auc": 0.6, "log_loss": 0.7}},
        {"step": 20, "train_loss": 0.5, "validation_loss": 0.3, "validation_metrics": {"auc": 0.7, "log_loss": 0.6}},
    ],
    "loss_name": "auc_loss",
    "validation_loss": 0.3,
    "test_loss": 0.25,
    "test_metrics": {"auc": 0.75, "log_loss": 0.55},
    "steps": 20,
    "parameters": 99,
    "steps_per_second": 5.0,
    "seconds": 4.0,
    "started": STARTED,
    "ended": ENDED,
}


@pytest.fixture
def prepared(own_store: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


def open_parent(*trials: Trial) -> ParentRun:
    config = load_config()
    return start_pipeline_run(config, select(config, {"profile": "smoke"}), "run", {}, {}, trials)


def stored(run_id: str) -> Run:
    return MlflowClient(tracking_uri()).get_run(run_id)


def steps(run_id: str, metric: str) -> list[int]:
    return [point.step for point in MlflowClient(tracking_uri()).get_metric_history(run_id, metric)]


def planned(parent: ParentRun, trial: Trial) -> PlannedTrial:
    dumped = trial.model_dump(mode="json")
    return {"run": "", "parent": parent, "number": 1, "of": 1, "name": "one", "trial": dumped, "prepared": ""}


def test_a_run_has_the_times_and_metrics_of_its_training(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    parent = open_parent(trial, make_trial(prepared, l2_clip_norm=3.0))
    run = stored(log_trial(parent, trial, RECORD, reused=False))
    assert (run.info.start_time, run.info.end_time) == (int(1000 * STARTED), int(1000 * ENDED))
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "ε 8 · C 1"
    assert run.data.metrics == {
        "train/loss": 0.5,
        "validation/auc": 0.7,
        "validation/log_loss": 0.6,
        "test/auc": 0.75,
        "test/log_loss": 0.55,
        "steps_per_second": 5.0,
        "seconds": 4.0,
    }
    assert steps(run.info.run_id, "validation/auc") == [10, 20]
    # MLflow would draw a line of one point for a metric with a later step.
    assert steps(run.info.run_id, "test/auc") == [0]
    assert (run.data.params["l2_clip_norm"], run.data.params["unvaried/batch_size"]) == ("1", "100")
    assert {"mlflow.user", "mlflow.source.name", "mlflow.source.git.commit"} <= set(run.data.tags)
    assert not any(str(Path.home()) in value for value in run.data.tags.values())


def test_a_baseline_has_a_finite_epsilon(prepared: Prepared) -> None:
    trial = without_privacy(prepared)
    run = stored(log_trial(open_parent(trial), trial, RECORD, reused=False))
    assert (run.data.metrics["epsilon"], run.data.metrics["epsilon_lower"]) == (100, 100)
    assert run.data.params["epsilon"] == "inf"


def test_a_record_of_an_earlier_version_is_shown_without_what_it_lacks(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    old = {name: value for name, value in RECORD.items() if name not in ("test_metrics", "started", "ended")}
    old["curve"] = [{name: point[name] for name in ("step", "train_loss", "validation_loss")} for point in old["curve"]]
    write_json(trial.folder / "record.json", old)
    parent = open_parent(trial)
    run = stored(log_trial(parent, trial, read_json(trial.folder / "record.json"), reused=True))
    assert {name for name in run.data.metrics if "/" in name} == {"train/loss", "validation/auc", "test/auc"}
    assert (run.data.metrics["test/auc"], run.data.metrics["validation/auc"]) == (0.75, 0.7)
    assert run.info.end_time - run.info.start_time == pytest.approx(4000, abs=1)
    assert log_trial(parent, trial, old, reused=True) == run.info.run_id


def test_a_trial_that_diverged_has_no_test_metric(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    gone = {"step": 7, "train_loss": None, "validation_loss": None}
    record = {**RECORD, "curve": [gone], "test_loss": None, "test_metrics": {}, "validation_loss": None}
    run = stored(log_trial(open_parent(trial), trial, record, reused=False))
    assert set(run.data.metrics) == {"steps_per_second", "seconds"}
    assert run.data.tags["diverged"] == "true"


def test_a_later_sweep_finds_the_run_and_names_it_by_what_varies_there(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    first = log_trial(open_parent(trial, make_trial(prepared, l2_clip_norm=3.0)), trial, RECORD, reused=False)
    later = open_parent(trial, make_trial(prepared, learning_rate=0.2))
    assert log_trial(later, trial, RECORD, reused=True) == first
    run = stored(first)
    assert run.info.run_name == "ε 8 · rate 0.1"
    assert run.data.params["learning_rate"] == "0.1"
    assert run.info.end_time == int(1000 * ENDED), "a new name does not move its times"
    assert steps(first, "train/loss") == [10, 20]
    # A trial that was trained anew is another training.
    assert log_trial(later, trial, {**RECORD, "started": STARTED + 100}, reused=False) != first


def test_an_audit_is_logged_once(prepared: Prepared, tmp_path: Path) -> None:
    trial = make_trial(prepared)
    run_id = log_trial(open_parent(trial), trial, RECORD, reused=False)
    statement = tmp_path / "privacy_statement.md"
    statement.write_text("first")
    audit: Any = {"verdict": "passed", "epsilon": 7.5, "epsilon_lower": 7.4, "rdp_epsilon": 8.0, "attack": None}
    for text in ("first", "not again"):
        statement.write_text(text)
        log_audit(run_id, audit, statement)
    assert steps(run_id, "epsilon") == [0]
    run = stored(run_id)
    assert (run.data.metrics["epsilon"], run.data.metrics["epsilon_lower"]) == (7.5, 7.4)
    assert Path(MlflowClient(tracking_uri()).download_artifacts(run_id, statement.name)).read_text() == "first"
    log_audit(run_id, {**audit, "verdict": "failed"}, statement)
    assert stored(run_id).info.status == "FAILED"
    assert stored(run_id).info.end_time == int(1000 * ENDED)


class TestLive:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tasks.runtime.trial_runs, "LIVE_AFTER_SECONDS", 0.0)
        monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")

    def find(self, trial: Trial) -> Run:
        (run,) = MlflowClient(tracking_uri()).search_runs(["1"], f"tags.trial = '{trial.key}'")
        return run

    def test_a_long_training_is_shown_while_it_runs(self, prepared: Prepared) -> None:
        trial = make_trial(prepared)
        parent = open_parent(trial)
        progress = Progress(started=STARTED)
        with live_run(planned(parent, trial)) as watch:
            watch(progress)
            run = self.find(trial)
            assert (run.info.status, run.info.start_time) == ("RUNNING", int(1000 * STARTED))
            progress.curve.append(RECORD["curve"][0])
            watch(progress)
            watch(progress)
            assert self.find(trial).data.metrics["validation/auc"] == 0.6
            deadline = time.monotonic() + 20
            while "system/cpu_utilization_percentage" not in self.find(trial).data.metrics:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert log_trial(parent, trial, RECORD, reused=False) == run.info.run_id
        run = self.find(trial)
        assert (run.info.status, run.info.end_time) == ("FINISHED", int(1000 * ENDED))
        assert sorted(steps(run.info.run_id, "train/loss")) == [10, 20], "each point once"

    def test_a_training_that_fails_leaves_no_run_running(self, prepared: Prepared) -> None:
        trial = make_trial(prepared)
        parent = open_parent(trial)
        progress = Progress(started=STARTED)
        for error, status in ((ValueError, "FAILED"), (Stopped, "KILLED"), (KeyboardInterrupt, "KILLED")):
            with pytest.raises(error), live_run(planned(parent, trial)) as watch:
                self.fail(watch, progress, trial, error)
            assert self.find(trial).info.status == status

    def fail(self, watch: Callable[[Progress], None], progress: Progress, trial: Trial, error: type) -> None:
        watch(progress)
        assert self.find(trial).info.status == "RUNNING", "the same run, resumed"
        raise error

    def test_a_run_that_was_killed_is_closed_by_the_next_attempt(self, prepared: Prepared) -> None:
        trial = make_trial(prepared)
        parent = open_parent(trial)
        with live_run(planned(parent, trial)) as watch:
            watch(Progress(started=STARTED))
        killed = self.find(trial)
        assert killed.info.status == "RUNNING"
        new = log_trial(parent, trial, {**RECORD, "started": STARTED + 9}, reused=False)
        assert new != killed.info.run_id
        assert stored(killed.info.run_id).info.status == "KILLED"

    def test_trouble_with_mlflow_does_not_stop_a_training(
        self, prepared: Prepared, capsys: pytest.CaptureFixture[str]
    ) -> None:
        trial = make_trial(prepared)
        parent: ParentRun = {**open_parent(trial), "experiment": "12345"}
        with live_run(planned(parent, trial)) as watch:
            watch(Progress(started=STARTED))
            watch(Progress(started=STARTED))
        assert capsys.readouterr().out.count("MLflow does not show this training while it runs") == 1


def test_a_short_training_is_not_shown_before_its_end(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    parent = open_parent(trial)
    with live_run(planned(parent, trial)) as watch:
        watch(Progress(started=STARTED))
    assert MlflowClient(tracking_uri()).search_runs(["1"], f"tags.trial = '{trial.key}'") == []
