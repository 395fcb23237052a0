"""Logs to MLflow: one parent run per pipeline run and one nested run per trial, each with its dataset as an input.

Parameters have the names of ``pipelines.yaml``. Runs are found again by their tags, so a step that Airflow retries logs
only once. ``MLFLOW_TRACKING_URI`` selects another server than the embedded store.
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
from typing import TYPE_CHECKING, Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from tasks.config.loading import Config
from tasks.config.selection import Selection
from tasks.data.prepared import Prepared
from tasks.privacy.audit_result import AuditResult
from tasks.runtime.home import CHECKOUT, MLFLOW_AT, home
from tasks.training.items import ParentRun
from tasks.training.trial import Trial

if TYPE_CHECKING:
    from tasks.training.finished import TrialRecord

_PARENT = "mlflow.parentRunId"
_CONTEXT = "mlflow.data.context"


def tracking_uri() -> str:
    """Returns ``MLFLOW_TRACKING_URI``, or the SQLite store in the home folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home() / 'mlflow' / 'mlflow.db'}"


def run_link(experiment: str, run_id: str) -> str:
    """Returns the address of a run's page in the MLflow UI.

    For the embedded store, that is the server that ``make up`` starts: at its port if it started this process, else at
    the default port.
    """
    uri = tracking_uri()
    embedded = not uri.startswith(("http://", "https://"))
    server = os.environ.get(MLFLOW_AT, "http://127.0.0.1:5000") if embedded else uri.rstrip("/")
    return f"{server}/#/experiments/{experiment}/runs/{run_id}"


def provenance(prepared: Mapping[str, Prepared]) -> dict[str, str]:
    """Returns the versions behind a result: the commit, the lock file's hash and the fingerprints of the data."""
    data = {f"data {name}": data.fingerprint for name, data in prepared.items()}
    return {"git commit": _git_commit(), "requirements.lock": _lock_hash(), **data}


def start_pipeline_run(
    config: Config, selection: Selection, name: str, prepared: Mapping[str, Prepared], cards: Mapping[str, Path]
) -> ParentRun:
    """Opens the parent run, with prepared data as inputs and data cards as artifacts. Returns its ids."""
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


def log_trial(parent: ParentRun, trial: Trial, record: TrialRecord, *, reused: bool) -> str:
    """Logs a trained trial as a nested run, which stays open until its audit. Returns the run's id."""
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
        Metric(name, value, now, point["step"])
        for point in record["curve"]
        for name, value in (
            ("train_loss", point["train_loss"]),
            (f"validation_{record['loss_name']}", point["validation_loss"]),
        )
        if value is not None
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
    _log(client, run_id, params=trial.flat_settings(), metrics=metrics)
    client.log_inputs(run_id, _inputs(client, parent, trial))
    return run_id


def data_input(prepared: Prepared) -> DatasetInput:
    """Returns prepared data as an input of a run, by which MLflow finds the runs of a dataset.

    The digest is the fingerprint, the profile has the number of rows, and the schema has the encoded columns' types.
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


def log_audit(run_id: str, audit: AuditResult, statement: Path) -> None:
    """Adds the audited ε and the privacy statement to a trial's run, and closes the run."""
    client = _client(tracking_uri())
    now = int(time.time() * 1000)
    attack = audit["attack"]
    measured = {
        "epsilon": audit["epsilon"],
        "epsilon_lower": audit["epsilon_lower"],
        "pld_epsilon": audit["pld_epsilon"],
        "rdp_epsilon": audit["rdp_epsilon"],
        "attack_epsilon_lower": attack and attack["epsilon_lower"],
    }
    metrics = [Metric(name, value, now, 0) for name, value in measured.items() if value is not None]
    _log(client, run_id, metrics=metrics, tags={"audit": audit["verdict"]})
    client.log_artifact(run_id, str(statement))
    client.set_terminated(run_id, "FAILED" if audit["verdict"] == "failed" else "FINISHED")


def log_report(parent_run: str, metrics: Mapping[str, float], files: Iterable[Path]) -> None:
    """Adds the report's metrics and files to the parent run, and closes it."""
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
        # A new store logs each table that it creates.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


def _experiment(client: MlflowClient, name: str) -> str:
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return experiment.experiment_id
    # A remote server decides where artifacts go; for the embedded store, they are kept beside it.
    embedded = "MLFLOW_TRACKING_URI" not in os.environ
    location = (home() / "mlflow" / "artifacts" / name).as_uri() if embedded else None
    return client.create_experiment(name, artifact_location=location)


def _find_child(client: MlflowClient, parent: ParentRun, trial: Trial) -> Run | None:
    query = f"tags.`{_PARENT}` = '{parent['mlflow_run']}' AND tags.trial = '{trial.key}'"
    found = client.search_runs([parent["experiment"]], query, max_results=1)
    return found[0] if found else None


def _inputs(client: MlflowClient, parent: ParentRun, trial: Trial) -> list[DatasetInput]:
    """Returns the input of the parent run that is the trial's data."""
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
    # The server accepts a thousand metrics per request.
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
