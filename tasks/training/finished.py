"""Trials that are trained already: found by their key, logged to the run that asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.errors import UserError
from tasks.home import read_json
from tasks.progress import format_seconds, note, say
from tasks.tracking import log_trial
from tasks.trial import Trial


def is_trained(trial: Trial) -> bool:
    return (trial.folder / "record.json").exists()


def log_trained(item: Mapping[str, Any], *, reused: bool) -> dict[str, Any]:
    """Logs a planned trial that is trained as a run of its own in MLflow; what the audit needs to know."""
    trial = Trial.model_validate(item["trial"])
    record = read_json(trial.folder / "record.json")
    mlflow_run = log_trial(item["parent"], trial, record, reused=reused)
    tell = note if reused else say
    tell(
        f"trial {item['number']} of {item['of']}, {trial.label()}: validation {_loss(record['validation_loss'])}, "
        f"test {_loss(record['test_loss'])}, {record['steps']:,} steps at {record['steps_per_second']:.0f}/s, "
        f"{'found' if reused else format_seconds(record['seconds'])}"
    )
    return {"trial": trial.key, "name": item["name"], "mlflow_run": mlflow_run, "run": item["run"]}


def find_trained(item: Mapping[str, Any]) -> dict[str, Any]:
    """What training returned for a planned trial, found again."""
    if not is_trained(Trial.model_validate(item["trial"])):
        raise UserError(f"trial {item['number']} ({item['name']}) is not trained yet: `python -m tasks train` first")
    return log_trained(item, reused=True)


def _loss(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4f}"
