"""Logs pipeline runs to MLflow: one parent run per pipeline run, whose trials are runs nested in it.

The runs of trials are in ``trial_runs``, the UI's paths and views in ``mlflow_views``. ``MLFLOW_TRACKING_URI`` selects
another server than the embedded store.
"""

from __future__ import annotations

import functools
import getpass
import hashlib
import json
import logging
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from tasks.config.dataset import TASK_TITLES
from tasks.config.loading import Config
from tasks.config.selection import Selection
from tasks.data.prepared import Prepared
from tasks.owners.locks import one_at_a_time
from tasks.owners.runs import this_run
from tasks.owners.sweeping import OWNER
from tasks.runtime.home import CHECKOUT, MLFLOW_AT, home, whole_file
from tasks.runtime.mlflow_views import (
    NON_PRIVATE_EPSILON,
    STEPS_PER_EPSILON,
    SweepMetric,
    comparison_view,
    experiment_path,
    run_path,
    trials_view,
)
from tasks.runtime.moved_store import adopt_artifacts
from tasks.training.items import ParentRun
from tasks.training.sweep_names import varying_settings
from tasks.training.trial import Trial

_CONTEXT = "mlflow.data.context"
_LONGEST_NOTE = 8000
# By default MLflow's client repeats a request for four minutes before it says that nobody answers.
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def tracking_uri() -> str:
    """Returns ``MLFLOW_TRACKING_URI``, or the SQLite store in the home folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{embedded_store()}"


def embedded_store() -> Path:
    """Returns the database of the MLflow store in the home folder."""
    return home() / "mlflow" / "mlflow.db"


def remote_server() -> str | None:
    """Returns the address of the tracking server; None if the store is a database or a folder."""
    uri = tracking_uri()
    return uri.rstrip("/") if uri.startswith(("http://", "https://")) else None


def run_link(experiment: str, run_id: str) -> str:
    """Returns the address of a run's page in the MLflow UI.

    For the embedded store, that is the server that ``make up`` starts: at its port if it started this process, else at
    the default port.
    """
    uri = tracking_uri()
    embedded = not uri.startswith(("http://", "https://"))
    server = os.environ.get(MLFLOW_AT, "http://127.0.0.1:5000") if embedded else uri.rstrip("/")
    return f"{server}/#/{run_path(experiment, run_id)}"


def provenance(prepared: Mapping[str, Prepared]) -> dict[str, str]:
    """Returns the versions behind a result: the commit, the lock file's hash and the fingerprints of the data."""
    data = {f"data {name}": data.fingerprint for name, data in prepared.items()}
    return {"git commit": _git_commit(), "requirements.lock": _lock_hash(), **data}


def start_pipeline_run(
    config: Config,
    selection: Selection,
    name: str,
    prepared: Mapping[str, Prepared],
    cards: Mapping[str, Path],
    trials: Sequence[Trial] = (),
) -> ParentRun:
    """Opens the parent run, with prepared data as inputs and data cards as artifacts. Returns its ids.

    Args:
        config: The configuration.
        selection: What the run is about.
        name: The name of the run's folder.
        prepared: The data by dataset.
        cards: The data cards by dataset.
        trials: All trials of the run, whether trained yet or not.
    """
    client = open_client()
    varies = varying_settings(trials)
    experiment = _experiment(client, selection.pipeline, config.pipelines[selection.pipeline].title, varies)
    tags = {
        **origin_tags(f"make run PIPELINE={selection.pipeline} PROFILE={selection.profile}"),
        "pipeline": selection.pipeline,
        "profile": selection.profile,
        "data_fingerprint": ",".join(f"{dataset}={data.fingerprint}" for dataset, data in prepared.items()),
        "run": name,
        "varies": ", ".join(varies),
        "mlflow.note.content": config.pipelines[selection.pipeline].title,
    }
    run = client.create_run(experiment, run_name=_run_name(selection), tags=tags)
    chosen = {key: value for key, value in selection._asdict().items() if value is not None}
    log_in_batches(client, run.info.run_id, params=chosen)
    client.log_inputs(run.info.run_id, [data_input(data) for data in prepared.values()])
    for dataset, card in cards.items():
        client.log_text(run.info.run_id, card.read_text(encoding="utf-8"), f"data_cards/{dataset}.html")
    return {
        "mlflow_run": run.info.run_id,
        "experiment": experiment,
        "pipeline": selection.pipeline,
        "varies": varies,
    }


def add_trials(parent: ParentRun, trials: Iterable[Trial]) -> ParentRun:
    """Returns the parent run with the settings that tell ``trials`` apart: those of the run and of a new round."""
    varies = varying_settings(trials)
    if varies == parent["varies"]:
        return parent
    client = open_client()
    client.set_tag(parent["mlflow_run"], "varies", ", ".join(varies))
    client.set_experiment_tag(parent["experiment"], *trials_view(varies))
    return {**parent, "varies": varies}


def _run_name(selection: Selection) -> str:
    budgets = ", ".join(f"{epsilon:g}" for epsilon in selection.epsilons)
    return f"{selection.profile} · ε {budgets} · {', '.join(TASK_TITLES[task] for task in selection.tasks)}"


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


def log_report(
    parent: ParentRun,
    *,
    metrics: Iterable[SweepMetric],
    files: Iterable[Path],
    note: str,
    relative_losses: Mapping[str, float | None],
    tags: Mapping[str, str] | None = None,
) -> None:
    """Adds a report to the parent run and closes it, and the relative losses to the runs of its trials.

    Args:
        parent: The parent run.
        metrics: The numbers of the report, which are logged over ε.
        files: The files of the report.
        note: The description of the run, in Markdown.
        relative_losses: The relative loss of each trial in percent by the id of its run; None where there is none.
        tags: More tags of the run.
    """
    client, run_id, now = open_client(), parent["mlflow_run"], int(time.time() * 1000)
    for trial_run, percent in relative_losses.items():
        _log_if_new(client, trial_run, "relative_loss_percent", percent, now)
    if relative_losses:
        client.set_experiment_tag(parent["experiment"], *comparison_view(relative_losses, parent["varies"]))
    log_in_batches(
        client,
        run_id,
        metrics=[Metric(one.name, one.value, now, one.step) for one in metrics],
        tags={"mlflow.note.content": note[:_LONGEST_NOTE], **(tags or {})},
    )
    for file in files:
        client.log_artifact(run_id, str(file))
    client.set_terminated(run_id)


def open_client() -> MlflowClient:
    """Returns a client of the store, which is created if it is missing and corrected if its home was moved."""
    return _client(tracking_uri())


@functools.lru_cache(maxsize=4)
def _client(uri: str) -> MlflowClient:
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    if uri.startswith("sqlite:///"):
        # It logs each table of a new store, and the traceback of each error, which it raises too.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        database = Path(uri.removeprefix("sqlite:///"))
        ensure_store(database)
        if database.parent == home() / "mlflow":
            adopt_artifacts(database.parent)
    return MlflowClient(tracking_uri=uri)


def ensure_store(database: Path) -> None:
    """Creates a store unless it is there: under another name, so that no process sees or leaves a part of one."""
    database.parent.mkdir(parents=True, exist_ok=True)
    if database.exists():
        return
    with one_at_a_time(f"store {database}", "is setting up MLflow's database"):
        if database.exists():
            return
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        with whole_file(database) as temporary:
            store = SqlAlchemyStore(f"sqlite:///{temporary}", (database.parent / "artifacts").as_uri())
            store.engine.dispose()


def _experiment(client: MlflowClient, name: str, title: str, varies: Sequence[str]) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        # A remote server decides where artifacts go; for the embedded store, they are kept beside it.
        embedded = "MLFLOW_TRACKING_URI" not in os.environ
        location = (home() / "mlflow" / "artifacts" / name).as_uri() if embedded else None
        try:
            client.create_experiment(name, artifact_location=location)
        except MlflowException as error:
            # Another run has created it in the meantime.
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = client.get_experiment_by_name(name)
        assert found is not None
    experiment = found.experiment_id
    tags = {
        # Without a kind, MLflow shows an experiment as one of generative AI.
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.experiment.primaryMetric.name": "relative_loss_percent",
        "mlflow.note.content": _description(title, experiment),
        **dict([trials_view(varies)] if varies else []),
    }
    for key, value in tags.items():
        if found.tags.get(key) != value:
            client.set_experiment_tag(experiment, key, value)
    return experiment


def _description(title: str, experiment: str) -> str:
    # MLflow shows the first line of a description until the user unfolds it.
    return f"""**[Trials with their metrics](#/{experiment_path(experiment)})** · {title}

A run is a pipeline run, and the runs nested in it are its trials. Open the link above for the trials' metrics and \
the parameters that vary, or a pipeline run's description for its result and a comparison of its trials.

- `relative_loss_percent`: how much larger the test loss is than that of the non-private baseline. The loss is \
1 − AUC for pCTR and pCVR, and the Poisson log loss for pConvs.
- `epsilon`: the audited ε. **{NON_PRIVATE_EPSILON:g} stands for ∞**, no privacy, so that baselines are on the charts. \
`epsilon_lower`: no accounting of the trial can give less.
- `test/…`, `validation/…`, `train/loss`: over a whole split; over training steps.
- Parameters that do not vary in the sweep begin with `unvaried/`.
- Metrics of pipeline runs are drawn over ε: the step is {STEPS_PER_EPSILON:,} · ε.
"""


def _log_if_new(client: MlflowClient, run_id: str, name: str, value: float | None, now: int) -> None:
    if value is not None and client.get_run(run_id).data.metrics.get(name) != value:
        client.log_batch(run_id, metrics=[Metric(name, value, now, 0)])


def log_in_batches(
    client: MlflowClient,
    run_id: str,
    *,
    params: Mapping[str, Any] | None = None,
    metrics: Iterable[Metric] = (),
    tags: Mapping[str, str] | None = None,
) -> None:
    """Logs to a run in as few requests as MLflow allows."""
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


def origin_tags(source: str) -> dict[str, str]:
    """Returns the tags that say who ran which version of what; ``source`` is the command or the module."""
    commit, run = _git_commit(), this_run()
    return {
        **({OWNER: run} if run else {}),
        "mlflow.user": _user(),
        "mlflow.source.name": source,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": commit.removesuffix("-dirty"),
        "mlflow.source.git.dirty": str(commit.endswith("-dirty")).lower(),
        "lock_hash": _lock_hash(),
    }


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, in a container
        return str(os.getuid())


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
