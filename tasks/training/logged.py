"""Logs finished trials to the MLflow run that asks for them, whether it trained them or found them."""

from __future__ import annotations

from tasks.outages.unlogged import logged
from tasks.runtime.errors import UserError
from tasks.runtime.progress import format_seconds, note, say
from tasks.runtime.trial_runs import log_trial
from tasks.training.finished import FinishedTrial, is_trained
from tasks.training.items import PlannedTrial, TrainedTrial
from tasks.training.trial import Trial


def log_finished(item: PlannedTrial, *, reused: bool) -> TrainedTrial:
    """Logs a planned trial that is finished as a run of its own in MLflow, and returns the audit's input.

    ``reused`` is whether an earlier run trained it.
    """
    trial = Trial.model_validate(item["trial"])
    record = FinishedTrial.open(trial).record
    mlflow_run = logged(
        item["run"],
        lambda: log_trial(item["parent"], trial, record, reused=reused, recipes=item.get("recipes", [])),
        "",
    )
    show = note if reused else say
    show(
        f"trial {item['number']} of {item['of']}, {trial.label()}: validation {_loss(record['validation_loss'])}, "
        f"test {_loss(record['test_loss'])}, {record['steps']:,} steps at {record['steps_per_second']:.0f}/s, "
        f"{'found' if reused else format_seconds(record['seconds'])}"
    )
    return {"trial": trial.key, "name": item["name"], "mlflow_run": mlflow_run, "run": item["run"]}


def find_finished(item: PlannedTrial) -> TrainedTrial:
    """Finds a planned trial that an earlier step or run trained, and logs it. Raises if it is not trained yet."""
    if not is_trained(Trial.model_validate(item["trial"])):
        raise UserError(
            f"trial {item['number']} ({item['name']}) is not trained yet: "
            f"run `python -m tasks train --pipeline {item['parent']['pipeline']}` first"
        )
    return log_finished(item, reused=True)


def _loss(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4f}"
