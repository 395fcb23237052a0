"""Packages the released model of a trial as an MLflow model that takes raw rows, and logs it.

Everything that a prediction needs is inside: parameters, tokens, the log's description, our code, and the privacy
statement. What identifies the data is not: neither the trial's key, nor the data's fingerprint, nor counts of tokens.
"""

from __future__ import annotations

import importlib.metadata
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from dp_core.models.digest import parameters_digest
from dp_core.models.plain import NETWORKS
from tasks.config.dataset import TASK_TITLES, Dataset
from tasks.data.prepared import Prepared, open_prepared
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json, write_json, write_text
from tasks.serving.guard import guarantee_of, require_guarantee
from tasks.serving.predictor import DESCRIPTION, FORMAT, MODEL, PARAMETERS, STATEMENT, VOCABULARY
from tasks.serving.released import DATA, Guarantee
from tasks.serving.vendoring import vendor_code
from tasks.training.finished import FinishedTrial
from tasks.training.trial import Trial

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.models.model import Model

# The packages that a prediction needs. MLflow itself loads the model.
REQUIREMENTS = ("mlflow", "numpy", "pandas", "pyarrow")
# The name of the model within its run, and the tag that identifies whose it is.
MODEL_NAME, PUBLIC_NAME_TAG = "model", "public_name"
# Keys of a description that say where the log is or what reports show of it, not how to read it.
_NOT_DESCRIBED = {"raw", "synthetic", "description", "shares_budget_with", "segment_column"}


def log_model(
    finished: FinishedTrial,
    prepared: Prepared,
    dataset: Dataset,
    *,
    mlflow_run: str,
    epsilon_with_choice: float | None = None,
) -> str:
    """Logs a trial's model to an MLflow run, unless it was logged there before. Returns the model's URI.

    Args:
        finished: The trial.
        prepared: The data that it was trained on.
        dataset: The description of that data's log.
        mlflow_run: The id of the run, which may have ended.
        epsilon_with_choice: ε of all trainings that this one was chosen from, which is then what the model promises; by
            default that of this training alone.

    Raises:
        UserError: The model has no guarantee (``tasks.serving.guard``), or does not belong to the data.
    """
    from mlflow.entities import LoggedModelOutput
    from mlflow.models.model import Model

    from tasks.runtime.tracking import open_client

    _check(finished, prepared, dataset)
    client = open_client()
    run = client.get_run(mlflow_run)
    for output in run.outputs.model_outputs if run.outputs else []:
        earlier = client.get_logged_model(output.model_id)
        if earlier.tags.get(PUBLIC_NAME_TAG) == finished.public_name and str(earlier.status) == "READY":
            return f"models:/{earlier.model_id}"
    guarantee = guarantee_of(finished, epsilon_with_choice)
    logged = client.create_logged_model(
        run.info.experiment_id,
        MODEL_NAME,
        source_run_id=mlflow_run,
        tags={PUBLIC_NAME_TAG: finished.public_name, "task": finished.trial.task},
        params={"epsilon": f"{guarantee['epsilon']:g}", "delta": f"{guarantee['delta']:g}"},
    )
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            described = Model(run_id=mlflow_run, model_uuid=logged.model_id, model_id=logged.model_id)
            _save(finished, prepared, dataset, folder, described, guarantee)
            client.log_model_artifacts(logged.model_id, str(folder))
    except BaseException:
        client.finalize_logged_model(logged.model_id, "FAILED")
        raise
    client.log_outputs(mlflow_run, [LoggedModelOutput(logged.model_id, step=0)])
    client.finalize_logged_model(logged.model_id, "READY")
    return f"models:/{logged.model_id}"


def save_model(finished: FinishedTrial, prepared: Prepared, dataset: Dataset, folder: Path) -> None:
    """Writes a trial's model as an MLflow model into a new folder. Raises ``UserError`` as ``log_model`` does."""
    from mlflow.models.model import Model

    _check(finished, prepared, dataset)
    if folder.exists():
        raise UserError(f"{folder} exists: give a new folder")
    _save(finished, prepared, dataset, folder, Model(), guarantee_of(finished))


def find_prepared(trial: Trial) -> Prepared:
    """Returns the data that a trial was trained on. Raises ``UserError`` if it is not in this home."""
    for path in sorted((home() / "data" / trial.dataset).glob("*/schema.json")):
        if read_json(path).get("fingerprint") == trial.data_fingerprint:
            return open_prepared(path.parent)
    raise UserError(
        f"the prepared data of trial {trial.key} is not in {home() / 'data' / trial.dataset}: prepare it again"
    )


def find_run(trial: Trial) -> str:
    """Returns the id of a trial's newest MLflow run. Raises ``UserError`` if there is none."""
    from tasks.runtime.tracking import open_client, tracking_uri

    client = open_client()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.trial = '{trial.key}'", max_results=1)
    if not found:
        raise UserError(f"MLflow at {tracking_uri()} has no run of trial {trial.key}: run its pipeline again")
    return found[0].info.run_id


def _check(finished: FinishedTrial, prepared: Prepared, dataset: Dataset) -> None:
    require_guarantee(finished)
    trial = finished.trial
    if trial.model.name not in NETWORKS:
        raise UserError(
            f"a model of kind {trial.model.name!r} comes from a plug-in and cannot be packaged; "
            f"models that can: {', '.join(NETWORKS)}"
        )
    if prepared.fingerprint != trial.data_fingerprint:
        raise UserError(f"trial {trial.key} was not trained on the data in {prepared.path}")
    described = dataset.integer_columns, dataset.categorical_columns
    if described != (prepared.integer_columns, tuple(column.name for column in prepared.categorical_columns)):
        raise UserError(
            f"the description of {trial.dataset} does not have the columns that {prepared.path} was made of"
        )


def _save(
    finished: FinishedTrial,
    prepared: Prepared,
    dataset: Dataset,
    folder: Path,
    described: Model,
    guarantee: Guarantee,
) -> None:
    import mlflow.pyfunc

    trial = finished.trial
    # It says that it validates the example, whenever it does.
    logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        # MLflow copies it into the folder `data`.
        data, code = Path(scratch) / Path(DATA).name, Path(scratch) / "code"
        _write_data(finished, prepared, dataset, guarantee, data)
        loader = vendor_code(code)
        mlflow.pyfunc.save_model(
            str(folder),
            loader_module=loader,
            data_path=str(data),
            code_paths=[str(path) for path in code.iterdir()],
            mlflow_model=described,
            signature=_signature(trial, dataset),
            input_example=example_rows(dataset),
            pip_requirements=[f"{name}=={importlib.metadata.version(name)}" for name in REQUIREMENTS],
            metadata={"task": trial.task, "prediction": _meaning(trial), **guarantee},
        )


def _meaning(trial: Trial) -> str:
    what = "expected number of conversions" if trial.task == "pconvs" else "probability"
    return f"{TASK_TITLES[trial.task]}: {what}"


def _write_data(
    finished: FinishedTrial, prepared: Prepared, dataset: Dataset, guarantee: Guarantee, folder: Path
) -> None:
    """Writes the files that ``tasks.serving.predictor`` reads."""
    folder.mkdir(parents=True)
    parameters: dict[str, Any] = finished.read_parameters()
    np.savez(folder / PARAMETERS, **parameters)
    # What was measured of a private vocabulary's noise is for the audit alone.
    vocabulary = {key: prepared.vocabulary[key] for key in ("kind", "buckets") if key in prepared.vocabulary}
    facts = {
        "format": FORMAT,
        "task": finished.trial.task,
        "dataset": finished.trial.dataset,
        "integer_columns": list(prepared.integer_columns),
        "categorical_columns": [column.name for column in prepared.categorical_columns],
        "missing": list(dataset.missing),
        "vocabulary": vocabulary,
        "network": finished.trial.model.model_dump(mode="json"),
        "parameters_digest": parameters_digest(parameters),
        "guarantee": guarantee,
    }
    write_json(folder / MODEL, facts)
    write_json(folder / DESCRIPTION, dataset.model_dump(mode="json", exclude=_NOT_DESCRIBED, exclude_defaults=True))
    write_text(folder / STATEMENT, finished.statement.read_text(encoding="utf-8"))
    if vocabulary["kind"] != "hash":
        # Without the counts: nothing needs them, and those of a threshold are exact.
        known = pa.parquet.read_table(prepared.path / VOCABULARY, columns=["column", "id", "token"])
        known = known.sort_by([("column", "ascending"), ("id", "ascending")])
        pa.parquet.write_table(known.select(["column", "token"]), folder / VOCABULARY, compression="zstd")


def _signature(trial: Trial, dataset: Dataset) -> ModelSignature:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema, TensorSpec
    from mlflow.types.schema import AnyType

    # A log may have a number as text and a token as a number, and any value may be missing.
    names = [*dataset.integer_columns, *dataset.categorical_columns]
    features: list[ColSpec | TensorSpec] = [ColSpec(AnyType(), name, required=False) for name in names]
    return ModelSignature(Schema(features), Schema([ColSpec(DataType.double, trial.task)]))


def example_rows(dataset: Dataset) -> pd.DataFrame:
    """Returns two made-up rows: one with every value, and one with none.

    They are not from the log: whoever may use the model may see its example, and a row of the training data there would
    be published without any noise. Nor do they have tokens of the vocabulary, which a threshold does not protect.
    """
    import pandas as pd

    values = {name: 10 * (number + 1) for number, name in enumerate(dataset.integer_columns)}
    tokens = {name: f"example {number + 1}" for number, name in enumerate(dataset.categorical_columns)}
    example = pd.DataFrame([{**values, **tokens}, dict.fromkeys({**values, **tokens})], dtype=object)
    # MLflow compares the names with numbers, which pandas warns of unless they are objects.
    return example.set_axis(pd.Index(example.columns, dtype=object), axis="columns")
