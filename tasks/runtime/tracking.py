"""MLflow: one parent run per pipeline run, one nested run per trial, each with the data that it is about.

Parameters carry the names of ``pipelines.yaml``. Runs are found again by their tags, so a step
that is tried twice logs once. ``MLFLOW_TRACKING_URI`` points elsewhere than the embedded store.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from tasks.config import Config
from tasks.encoded import Prepared, open_prepared
from tasks.home import CHECKOUT, MLFLOW_AT, home
from tasks.selection import Selection
from tasks.trial import Trial

_PARENT = "mlflow.parentRunId"
_CONTEXT = "mlflow.data.context"


def tracking_uri() -> str:
    """The store in force: ``MLFLOW_TRACKING_URI``, or SQLite below the home folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home() / 'mlflow' / 'mlflow.db'}"


def run_link(experiment: str, run_id: str) -> str:
    """Where a run is shown: on the server in force, or by the one that ``make up`` starts, at its usual port unless it
    has started this process."""
    uri = tracking_uri()
    embedded = not uri.startswith(("http://", "https://"))
    server = os.environ.get(MLFLOW_AT, "http://127.0.0.1:5000") if embedded else uri.rstrip("/")
    return f"{server}/#/experiments/{experiment}/runs/{run_id}"


def provenance(prepared: Mapping[str, str]) -> dict[str, str]:
    """What a result comes from: the code, the packages and the data."""
    data = {f"data {name}": open_prepared(Path(path)).fingerprint for name, path in prepared.items()}
    return {"git commit": _git_commit(), "requirements.lock": _lock_hash(), **data}


def start_pipeline_run(
    config: Config, selection: Selection, name: str, prepared: Mapping[str, Prepared], cards: Mapping[str, Path]
) -> dict[str, str]:
    """Opens the parent run, with each dataset's prepared data and card; returns what its children must know of it."""
    client = _client(tracking_uri())
    tags = {
        "pipeline": selection.pipeline,
        "profile": selection.profile,
        "data_fingerprint": ",".join(f"{dataset}={data.fingerprint}" for dataset, data in prepared.items()),
        "git_commit": _git_commit(),
        "lock_hash": _lock_hash(),
        "mlflow.note.content": config.pipelines[selection.pipeline].title,
    }
    experiment = _experiment(client, selection.pipeline)
    run = client.create_run(experiment, run_name=name, tags=tags)
    chosen = {key: value for key, value in selection._asdict().items() if value is not None}
    _log(client, run.info.run_id, params=chosen)
    client.log_inputs(run.info.run_id, [data_input(data) for data in prepared.values()])
    for dataset, card in cards.items():
        client.log_text(run.info.run_id, card.read_text(encoding="utf-8"), f"data_cards/{dataset}.html")
    return {"mlflow_run": run.info.run_id, "experiment": experiment, "pipeline": selection.pipeline}


def log_trial(parent: Mapping[str, str], trial: Trial, record: Mapping[str, Any], *, reused: bool) -> str:
    """Logs a trained trial as a nested run, left open for the audit; returns the run's id."""
    client = _client(tracking_uri())
    earlier = _find_child(client, parent, trial)
    if earlier is not None:
        return earlier.info.run_id
    tags = {
        _PARENT: parent["mlflow_run"],
        "pipeline": parent["pipeline"],
        "task": trial.task,
        "epsilon": trial.epsilon_label,
        "trial": trial.key,
        "data_fingerprint": trial.data_fingerprint,
        "git_commit": _git_commit(),
        "lock_hash": _lock_hash(),
        "reused": str(reused).lower(),
        "trial_folder": str(trial.folder),
    }
    run_id = client.create_run(parent["experiment"], run_name=trial.label(), tags=tags).info.run_id
    now = int(time.time() * 1000)
    metrics = [
        Metric(name, point[key], now, point["step"])
        for point in record["curve"]
        for name, key in (("train_loss", "train_loss"), (f"validation_{record['loss_name']}", "validation_loss"))
        if point[key] is not None
    ]
    finals = {
        "validation_loss": record["validation_loss"],
        "test_loss": record["test_loss"],
        "steps_per_second": record["steps_per_second"],
        "seconds": record["seconds"],
        "steps": record["steps"],
        "parameters": record["parameters"],
        "noise_multiplier": trial.noise_multiplier,
    }
    metrics += [Metric(name, value, now, record["steps"]) for name, value in finals.items() if value is not None]
    params = {name: value for name, value in trial.model_dump(mode="json").items() if value is not None}
    _log(client, run_id, params=params, metrics=metrics)
    client.log_inputs(run_id, _inputs(client, parent, trial))
    return run_id


def data_input(prepared: Prepared) -> DatasetInput:
    """Prepared data as an input of a run: what MLflow shows of it, and finds runs by.

    Its digest is the fingerprint. Rows are in the profile, columns with their types as they are encoded in the schema.
    """
    columns = [
        *({"name": name, "type": "float", "required": False} for name in prepared.integer_columns),
        *({"name": column.name, "type": "integer", "required": True} for column in prepared.categorical_columns),
        *({"name": f"label {task}", "type": "float", "required": True} for task in prepared.tasks),
    ]
    rows = {name: split["rows"] for name, split in prepared.splits.items()}
    source = {"uri": prepared.source["path"], "files": prepared.source["files"], "bytes": prepared.source["bytes"]}
    dataset = Dataset(
        name=prepared.dataset,
        digest=prepared.fingerprint,
        source_type="local" if prepared.ceiling is None else "synthetic",
        source=json.dumps(source),
        schema=json.dumps({"mlflow_colspec": columns}),
        profile=json.dumps({"num_rows": sum(rows.values()), **rows}),
    )
    return DatasetInput(dataset, [InputTag(_CONTEXT, "training")])


def log_audit(run_id: str, audit: Mapping[str, Any], statement: Path) -> None:
    """Adds the audited ε and the privacy statement to a trial's run, and ends it."""
    client = _client(tracking_uri())
    now = int(time.time() * 1000)
    attack = audit.get("attack") or {}
    measured = {name: audit.get(name) for name in ("epsilon", "epsilon_lower", "pld_epsilon", "rdp_epsilon")}
    measured["attack_epsilon_lower"] = attack.get("epsilon_lower")
    metrics = [Metric(name, value, now, 0) for name, value in measured.items() if value is not None]
    _log(client, run_id, metrics=metrics, tags={"audit": audit["verdict"]})
    client.log_artifact(run_id, str(statement))
    client.set_terminated(run_id, "FINISHED" if audit["verdict"] == "passed" else "FAILED")


def log_report(parent_run: str, metrics: Mapping[str, float], files: Iterable[Path]) -> None:
    """Adds the tables to the parent run, and ends it."""
    client = _client(tracking_uri())
    now = int(time.time() * 1000)
    _log(client, parent_run, metrics=[Metric(name, value, now, 0) for name, value in metrics.items()])
    for file in files:
        client.log_artifact(parent_run, str(file))
    client.set_terminated(parent_run)


@functools.lru_cache(maxsize=4)
def _client(uri: str) -> MlflowClient:
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        # A new store tells of each table that it makes.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


def _experiment(client: MlflowClient, name: str) -> str:
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return experiment.experiment_id
    # A remote server decides by itself where artifacts go; the embedded store keeps them beside it.
    embedded = "MLFLOW_TRACKING_URI" not in os.environ
    location = (home() / "mlflow" / "artifacts" / name).as_uri() if embedded else None
    return client.create_experiment(name, artifact_location=location)


def _find_child(client: MlflowClient, parent: Mapping[str, str], trial: Trial) -> Run | None:
    query = f"tags.`{_PARENT}` = '{parent['mlflow_run']}' AND tags.trial = '{trial.key}'"
    found = client.search_runs([parent["experiment"]], query, max_results=1)
    return found[0] if found else None


def _inputs(client: MlflowClient, parent: Mapping[str, str], trial: Trial) -> list[DatasetInput]:
    """The trial's data among the inputs of its parent run."""
    found = client.search_runs([parent["experiment"]], f"attributes.run_id = '{parent['mlflow_run']}'", max_results=1)
    inputs = [data for run in found if run.inputs is not None for data in run.inputs.dataset_inputs]
    wanted = trial.dataset, trial.data_fingerprint
    return [data for data in inputs if (data.dataset.name, data.dataset.digest) == wanted]


def _log(
    client: MlflowClient,
    run_id: str,
    *,
    params: Mapping[str, Any] | None = None,
    metrics: Iterable[Metric] = (),
    tags: Mapping[str, str] | None = None,
) -> None:
    metrics = list(metrics)
    client.log_batch(
        run_id,
        metrics=metrics[:1000],
        params=[Param(name, str(value)) for name, value in (params or {}).items()],
        tags=[RunTag(name, value) for name, value in (tags or {}).items()],
    )
    # The server takes a thousand metrics a request.
    for start in range(1000, len(metrics), 1000):
        client.log_batch(run_id, metrics=metrics[start : start + 1000])


@functools.lru_cache(maxsize=1)
def _git_commit() -> str:
    try:
        command = ["git", "-C", str(CHECKOUT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


@functools.lru_cache(maxsize=1)
def _lock_hash() -> str:
    lock = CHECKOUT / "requirements.lock"
    return hashlib.blake2b(lock.read_bytes(), digest_size=8).hexdigest() if lock.exists() else "unknown"
