"""Logs trials to MLflow: one run per trial in each experiment, nested in the first pipeline run that asked for it.

A short training is logged at its end, in one batch. One that takes longer than a minute has a run from then on, with
its curves and the machine's metrics. Parameters have the names of ``pipelines.yaml``.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow.entities import DatasetInput, Metric, Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from tasks.config.pipeline import RecipeName
from tasks.owners.runs import this_run
from tasks.owners.sweeping import OWNER
from tasks.privacy.audit_result import AuditResult
from tasks.runtime.errors import Stopped
from tasks.runtime.mlflow_views import NON_PRIVATE_EPSILON
from tasks.runtime.progress import note
from tasks.runtime.tracking import log_in_batches, open_client, origin_tags, tracking_uri
from tasks.training.items import ParentRun, PlannedTrial
from tasks.training.sweep_names import short_name
from tasks.training.trial import Trial

if TYPE_CHECKING:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    from tasks.training.checkpoint import Progress
    from tasks.training.finished import CurvePoint, TrialRecord

# A training that takes longer than this is logged while it runs.
LIVE_AFTER_SECONDS = 60.0
_PARENT = "mlflow.parentRunId"
# Parameters that every trial has under their plain names, whether they vary or not.
_ALWAYS_PLAIN = frozenset({"task", "mechanism", "epsilon", "seed", "noise_multiplier"})
# The metric that is logged last: a run that has it is complete.
_COMPLETE = "seconds"


def log_trial(
    parent: ParentRun, trial: Trial, record: TrialRecord, *, reused: bool, recipes: Sequence[RecipeName] = ()
) -> str:
    """Logs a trained trial and returns the id of its run.

    If the experiment already has a run of this very training, that one is returned, with its name and parameters
    brought up to what varies in the sweep of ``parent``. ``reused`` is whether an earlier pipeline run trained it.
    ``recipes`` are those of DP-SGD that it belongs to, if the sweep compares two.
    """
    client = open_client()
    started, ended = _times(trial, record)
    run = _find(client, parent, trial, started)
    if run is not None and _COMPLETE in run.data.metrics:
        _follow_sweep(client, run, parent, trial, recipes)
        return run.info.run_id
    run_id = _open(client, parent, trial, started, recipes, reused=reused) if run is None else run.info.run_id
    logged = {metric.step for metric in client.get_metric_history(run_id, "train/loss")} if run is not None else set()
    span = (ended - started) / max(record["steps"], 1)
    points = [point for point in record["curve"] if point["step"] not in logged]
    metrics = _curve_metrics(points, record["loss_name"], lambda step: started + int(step * span))
    finals = {f"test/{name}": value for name, value in _test_metrics(record).items()}
    finals |= {"steps_per_second": record["steps_per_second"], _COMPLETE: record["seconds"]}
    finals |= {"epsilon": NON_PRIVATE_EPSILON, "epsilon_lower": NON_PRIVATE_EPSILON} if trial.epsilon is None else {}
    # At step 0, because MLflow draws a metric that has a later step as a line.
    metrics += [Metric(name, value, ended, 0) for name, value in finals.items()]
    facts = {"steps": f"{record['steps']}", "parameters": f"{record['parameters']}"}
    facts |= {"diverged": "true"} if record["test_loss"] is None else {}
    log_in_batches(client, run_id, metrics=metrics, tags=facts)
    client.set_terminated(run_id, end_time=ended)
    return run_id


def log_audit(run_id: str, audit: AuditResult, statement: Path) -> None:
    """Adds the audited ε and the privacy statement to a trial's run, unless they are there."""
    client, now = open_client(), int(time.time() * 1000)
    run = client.get_run(run_id)
    measured = {name: audit[name] for name in ("epsilon", "epsilon_lower")}
    metrics = {name: value for name, value in measured.items() if value is not None}
    known = {name: run.data.metrics.get(name) for name in metrics}
    if run.data.tags.get("audit") == audit["verdict"] and known == metrics:
        return
    client.log_artifact(run_id, str(statement))
    logged = [Metric(name, value, now, 0) for name, value in metrics.items()]
    log_in_batches(client, run_id, metrics=logged, tags={"audit": audit["verdict"]})
    client.update_run(run_id, "FAILED" if audit["verdict"] == "failed" else "FINISHED")


@contextlib.contextmanager
def live_run(item: PlannedTrial, *, shown: bool = True) -> Iterator[Callable[[Progress], None]]:
    """Yields what a training calls with its progress, which opens the trial's run after ``LIVE_AFTER_SECONDS``.

    If the training fails, its run ends as failed, or as killed if it was stopped. Otherwise ``log_trial`` ends it.
    Trouble with MLflow does not stop the training. Unless ``shown``, there is no run.
    """
    live = _LiveRun(item, LIVE_AFTER_SECONDS if shown else math.inf)
    try:
        yield live.update
    except Exception as error:
        live.end("KILLED" if isinstance(error, Stopped) else "FAILED")
        raise
    except BaseException:
        live.end("KILLED")
        raise
    live.end(None)


class _LiveRun:
    def __init__(self, item: PlannedTrial, after: float) -> None:
        self._item = item
        self._opens_at = time.monotonic() + after
        self._run_id: str | None = None
        self._monitor: SystemMetricsMonitor | None = None
        self._logged = 0
        self._broken = False

    def update(self, progress: Progress) -> None:
        if self._broken or (self._run_id is None and time.monotonic() < self._opens_at):
            return
        with self._forgiving():
            if self._run_id is None:
                self._begin(progress)
            if self._run_id is not None and len(progress.curve) > self._logged:
                points, now = progress.curve[self._logged :], int(time.time() * 1000)
                log_in_batches(open_client(), self._run_id, metrics=_curve_metrics(points, None, lambda step: now))
                self._logged = len(progress.curve)

    def _begin(self, progress: Progress) -> None:
        client, trial = open_client(), Trial.model_validate(self._item["trial"])
        started = int(progress.started * 1000)
        run = _find(client, self._item["parent"], trial, started)
        if run is None:
            recipes = self._item.get("recipes", [])
            self._run_id = _open(client, self._item["parent"], trial, started, recipes, reused=False)
        else:  # of an earlier attempt
            self._run_id = run.info.run_id
            client.update_run(self._run_id, "RUNNING")
            if owner := this_run():
                client.set_tag(self._run_id, OWNER, owner)
            last = max((m.step for m in client.get_metric_history(self._run_id, "train/loss")), default=-1)
            self._logged = sum(point["step"] <= last for point in progress.curve)
        # Only a long training needs it.
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        logging.getLogger("mlflow.system_metrics").setLevel(logging.WARNING)
        self._monitor = SystemMetricsMonitor(self._run_id, resume_logging=True, tracking_uri=tracking_uri())
        self._monitor.start()

    def end(self, status: str | None) -> None:
        with self._forgiving():
            if self._monitor is not None:
                self._monitor.finish()
            if self._run_id is not None and status is not None:
                open_client().set_terminated(self._run_id, status)

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except (MlflowException, OSError) as error:
            self._broken = True
            note(f"{self._item['name']}: MLflow does not show this training while it runs ({error})")


def _find(client: MlflowClient, parent: ParentRun, trial: Trial, started: int) -> Run | None:
    """Returns the run of a training of a trial in the experiment of ``parent``, by when the training started."""
    query = f"tags.trial = '{trial.key}' AND attributes.start_time = {started}"
    found = client.search_runs([parent["experiment"]], query, max_results=1)
    return found[0] if found else None


def _open(
    client: MlflowClient,
    parent: ParentRun,
    trial: Trial,
    started: int,
    recipes: Sequence[RecipeName],
    *,
    reused: bool,
) -> str:
    """Creates a trial's run with everything that is known before training, and returns its id."""
    # A run of an earlier training that was killed cannot have closed itself.
    stale = client.search_runs([parent["experiment"]], f"tags.trial = '{trial.key}' AND attributes.status = 'RUNNING'")
    for run in stale:
        client.set_terminated(run.info.run_id, "KILLED")
    tags = {
        **origin_tags("tasks/train.py"),
        _PARENT: parent["mlflow_run"],
        "pipeline": parent["pipeline"],
        "trial": trial.key,
        "data_fingerprint": trial.data_fingerprint,
        "reused": str(reused).lower(),
        "mlflow.note.content": trial.label(),
        **_recipe_tag(recipes),
    }
    name = short_name(trial, parent["varies"], recipes)
    run_id = client.create_run(parent["experiment"], start_time=started, run_name=name, tags=tags).info.run_id
    log_in_batches(client, run_id, params=_params(parent, trial))
    client.log_inputs(run_id, _inputs(client, parent, trial))
    return run_id


def _follow_sweep(
    client: MlflowClient, run: Run, parent: ParentRun, trial: Trial, recipes: Sequence[RecipeName]
) -> None:
    """Gives an earlier run of a trial the name, the recipes and the plain parameters that its newest sweep has."""
    name = short_name(trial, parent["varies"], recipes)
    if run.info.run_name != name:
        client.update_run(run.info.run_id, name=name)
    plain = {key: value for key, value in _params(parent, trial).items() if "/" not in key}
    if missing := {key: value for key, value in plain.items() if key not in run.data.params}:
        log_in_batches(client, run.info.run_id, params=missing)
    for key, value in _recipe_tag(recipes).items():
        if run.data.tags.get(key) != value:
            client.set_tag(run.info.run_id, key, value)


def _recipe_tag(recipes: Sequence[RecipeName]) -> dict[str, str]:
    return {"recipes": ", ".join(recipes)} if recipes else {}


def _params(parent: ParentRun, trial: Trial) -> dict[str, str]:
    """Returns a trial's settings: those that vary in the sweep under their own names, the others behind a prefix."""
    plain = _ALWAYS_PLAIN | set(parent["varies"])
    settings = {"epsilon": trial.epsilon_label, **trial.flat_settings()}
    del settings["data_fingerprint"]  # the digest of the run's dataset
    return {name if name in plain else f"unvaried/{name}": _text(value) for name, value in settings.items()}


def _text(value: Any) -> str:
    """Returns a parameter's value as text, a whole number without a decimal point.

    >>> _text(8.0), _text(0.1), _text("poisson")
    ('8', '0.1', 'poisson')
    """
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _times(trial: Trial, record: TrialRecord) -> tuple[int, int]:
    """Returns when a training started and ended, in milliseconds; for records of earlier versions by the file's age."""
    ended = record.get("ended") or (trial.folder / "record.json").stat().st_mtime
    return int(1000 * record.get("started", ended - record["seconds"])), int(1000 * ended)


def _test_metrics(record: TrialRecord) -> dict[str, float]:
    return record.get("test_metrics") or _metrics_of_loss(record["loss_name"], record["test_loss"])


def _metrics_of_loss(name: str | None, loss: float | None) -> dict[str, float]:
    """Returns the metric that a reported loss is, for records of earlier versions, which have no other.

    >>> _metrics_of_loss("auc_loss", 0.25), _metrics_of_loss("poisson_log_loss", 0.25)
    ({'auc': 0.75}, {'poisson_log_loss': 0.25})
    """
    if name is None or loss is None:
        return {}
    return {"auc": 1.0 - loss} if name == "auc_loss" else {name: loss}


def _curve_metrics(
    points: Iterable[CurvePoint], loss_name: str | None, timestamp: Callable[[int], int]
) -> list[Metric]:
    metrics = []
    for point in points:
        values = {} if point["train_loss"] is None else {"train/loss": point["train_loss"]}
        validation = point.get("validation_metrics") or _metrics_of_loss(loss_name, point["validation_loss"])
        values |= {f"validation/{name}": value for name, value in validation.items()}
        at = timestamp(point["step"])
        metrics += [Metric(name, value, at, point["step"]) for name, value in values.items()]
    return metrics


def _inputs(client: MlflowClient, parent: ParentRun, trial: Trial) -> list[DatasetInput]:
    """Returns the input of the parent run that is the trial's data."""
    found = client.search_runs([parent["experiment"]], f"attributes.run_id = '{parent['mlflow_run']}'", max_results=1)
    inputs = [data for run in found if run.inputs is not None for data in run.inputs.dataset_inputs]
    wanted = trial.dataset, trial.data_fingerprint
    return [data for data in inputs if (data.dataset.name, data.dataset.digest) == wanted]
