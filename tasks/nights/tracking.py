"""Nights in MLflow: a run for each night, with its trainings nested in it, and one run with all nights as lines.

The experiment has the name of the DAG. The run ``all nights`` has a step for each night: days since its first night.
Metrics on the newest day's labels are exact unless the evaluation is private; they are for you, not for publication.
"""

from __future__ import annotations

import datetime
import math
import os
import time
from collections.abc import Mapping

from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from tasks.config.dataset import TaskName
from tasks.data.prepared import Prepared
from tasks.nights.record import Night, dag_id
from tasks.runtime.home import home
from tasks.runtime.tracking import data_input, log_in_batches, open_client, origin_tags
from tasks.training.items import ParentRun

ALL_NIGHTS = "all nights"
_KIND = "kind"


def start_night_run(night: Night, prepared: Prepared, varies: list[str]) -> ParentRun:
    """Opens the night's run, or finds the one of an earlier attempt. Returns its ids."""
    client, name, day = open_client(), night["name"], night["day"]
    experiment = _experiment(client, name)
    found = client.search_runs([experiment], f"tags.night = '{day}' AND tags.{_KIND} = 'night'", max_results=1)
    if found:
        run_id = found[0].info.run_id
        client.update_run(run_id, "RUNNING")
    else:
        tags = {
            **origin_tags(f"python -m tasks night {name} --day {day}"),
            _KIND: "night",
            "night": day,
            "window": f"{night['window'][0]} to {night['window'][-1]}",
            "champion": "false",
            "data_fingerprint": prepared.fingerprint,
        }
        run_id = client.create_run(experiment, run_name=f"night {day}", tags=tags).info.run_id
        client.log_inputs(run_id, [data_input(prepared)])
    return {"mlflow_run": run_id, "experiment": experiment, "pipeline": dag_id(name), "varies": varies}


def log_night(night: Night, task: TaskName, *, promoted: bool, budget_left: float | None) -> None:
    """Adds the decision and its numbers to the night's run, closes it, and adds a step to the run of all nights."""
    client, parent, now = open_client(), night["parent"], int(time.time() * 1000)
    numbers = _numbers(night, task, budget_left)
    if promoted:
        tag_champion(night["name"], night["day"])
    tags = {
        "champion": str(promoted).lower(),
        "status": night["status"],
        "model_version": str(night["version"]),
        "ledger_head": night["ledger_head"],
        "mlflow.note.content": night["sentence"],
    }
    log_in_batches(
        client,
        parent["mlflow_run"],
        metrics=[Metric(name, value, now, 0) for name, value in numbers.items()],
        tags=tags,
    )
    client.set_terminated(parent["mlflow_run"])
    line, first = _all_nights(client, parent["experiment"], night)
    step = (datetime.date.fromisoformat(night["day"]) - datetime.date.fromisoformat(first)).days
    log_in_batches(client, line, metrics=[Metric(name, value, now, step) for name, value in numbers.items()])


def tag_champion(name: str, day: str) -> None:
    """Tags the run of a night as the champion's, and no other run."""
    client = open_client()
    nights = client.search_runs([_experiment(client, name)], f"tags.{_KIND} = 'night'", max_results=50_000)
    for run in nights:
        champion = str(run.data.tags.get("night") == day).lower()
        if run.data.tags.get("champion") != champion:
            client.set_tag(run.info.run_id, "champion", champion)


def _numbers(night: Night, task: TaskName, budget_left: float | None) -> dict[str, float]:
    found = night["comparison"] or {}
    losses = {"challenger": found.get("challenger_loss"), "champion": found.get("champion_loss")}
    metric = "poisson_log_loss" if task == "pconvs" else "auc"
    numbers: dict[str, float | None] = {
        f"{who}/{metric}": loss if loss is None or task == "pconvs" else 1 - loss for who, loss in losses.items()
    }
    numbers |= {f"{who}/calibration": found.get(f"{who}_calibration") for who in losses}
    numbers |= {"epsilon": night["epsilon"], "budget_left": budget_left}
    return {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}


def _all_nights(client: MlflowClient, experiment: str, night: Night) -> tuple[str, str]:
    """Returns the run with a step for each night, and the day that its step 0 stands for."""
    found = client.search_runs([experiment], f"tags.{_KIND} = '{ALL_NIGHTS}'", max_results=1)
    if found:
        return found[0].info.run_id, found[0].data.tags["first_night"]
    tags: Mapping[str, str] = {
        **origin_tags(f"python -m tasks nights {night['name']}"),
        _KIND: ALL_NIGHTS,
        "first_night": night["day"],
        "mlflow.note.content": f"Every night as a step: days since {night['day']}.",
    }
    run_id = client.create_run(experiment, run_name=ALL_NIGHTS, tags=dict(tags)).info.run_id
    client.set_terminated(run_id)
    return run_id, night["day"]


def _experiment(client: MlflowClient, name: str) -> str:
    found = client.get_experiment_by_name(dag_id(name))
    if found is not None:
        return found.experiment_id
    # A remote server decides where artifacts go; for the embedded store, they are kept beside it.
    embedded = "MLFLOW_TRACKING_URI" not in os.environ
    location = (home() / "mlflow" / "artifacts" / dag_id(name)).as_uri() if embedded else None
    experiment = client.create_experiment(dag_id(name), artifact_location=location)
    tags = {
        # Without a kind, MLflow shows an experiment as one of generative AI.
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.note.content": f"Nightly retrains of {name}. The run “{ALL_NIGHTS}” has a step for each night; the "
        "other runs are the nights, with their trainings nested in them.",
    }
    for key, value in tags.items():
        client.set_experiment_tag(experiment, key, value)
    return experiment
