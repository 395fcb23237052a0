"""A small log in several formats, and models of it that may be released, for tests of serving."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dp_core.clipping.layers import initial_parameters
from dp_core.models.digest import parameters_digest
from tasks.config.dataset import Dataset
from tasks.data.preparation import prepare
from tasks.data.prepared import Prepared, open_prepared
from tasks.privacy.audit_result import AuditResult
from tasks.runtime.home import write_json, write_text
from tasks.training.finished import FinishedTrial, flat_parameters
from tasks.training.setup import build_model
from tasks.training.trial import Trial
from tests.support.records import record
from tests.support.trials import make_trial

NAME = "tiny_log"
COLUMNS = ("conversions", "time", "price", "visits", "color", "city", "junk")
FEATURES = ("price", "visits", "color", "city")
Row = dict[str, str]
_COMMON: dict[str, Any] = {
    "time_column": "time",
    "missing": ["-1", "none"],
    "integer_columns": ["price", "visits"],
    "categorical_columns": ["color", "city"],
    "labels": {
        "pcvr": {"column": "conversions", "kind": "any"},
        "pconvs": {"column": "conversions", "kind": "count"},
    },
    "tolerated_bad_rows": 0.5,
}
FORMS: dict[str, dict[str, Any]] = {
    "tsv": {"format": "tsv", "columns": list(COLUMNS)},
    "csv": {"format": "csv", "header": True},
    "parquet": {"format": "parquet"},
}


def describe(form: str, **changes: Any) -> Dataset:
    return Dataset.model_validate({**_COMMON, **FORMS[form], **changes})


def log_rows(rows: int = 400, seed: int = 0) -> list[Row]:
    """Returns rows as text, in the order of time: numbers of all kinds, missing values, tokens of all kinds."""
    rng = np.random.default_rng(seed)
    prices = ["", "-1", "none", "0", "12.5", "-3", "1e3", "9007199254740993", "250"]
    colors = ["", "none", "red", "grün", "a b", "7", "7.0", "-1", *(f"color {i}" for i in range(6))]
    return [
        {
            "conversions": str(rng.poisson(0.4)),
            "time": str(1000 + 2 * i),
            "price": str(rng.choice(prices)),
            "visits": str(rng.integers(-1, 40)),
            "color": str(rng.choice(colors)),
            "city": str(rng.integers(0, 30)),
            "junk": "x",
        }
        for i in range(rows)
    ]


def write_log(path: Path, form: str, rows: Iterable[Row], columns: Sequence[str] = COLUMNS) -> Path:
    """Writes rows in the format of a form, with some columns. A file whose name ends with gz is compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "parquet":
        pq.write_table(_table(list(rows), columns), path, row_group_size=97)
        return path
    separator = "," if form == "csv" else "\t"
    lines = [separator.join(columns)] if form == "csv" else []
    lines += [separator.join(row[name] for name in columns) for row in rows]
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def _table(rows: list[Row], columns: Sequence[str]) -> pa.Table:
    def numbers(name: str) -> pa.Array:
        return pa.array([None if row[name] in ("", "none") else float(row[name]) for row in rows], pa.float64())

    kinds = {"price": numbers, "visits": numbers, "conversions": numbers}
    made = {
        name: kinds[name](name) if name in kinds else pa.array([row[name] or None for row in rows]) for name in columns
    }
    if "time" in made:
        made["time"] = pa.array([int(row["time"]) for row in rows])
    return pa.table(made)


def raw_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Returns the features of rows as a text log has them."""
    return pd.DataFrame([{name: row[name] for name in FEATURES} for row in rows])


def prepare_log(folder: Path, form: str = "tsv", rows: Sequence[Row] | None = None, **changes: Any) -> Prepared:
    raw = write_log(folder / f"log.{form}", form, log_rows() if rows is None else rows)
    return open_prepared(prepare(NAME, describe(form, **changes), raw, min_count=5))


def secret_trial(prepared: Prepared, **changes: Any) -> Trial:
    return make_trial(prepared, dataset=NAME, randomness="secret", noise_multiplier=2.0, **changes)


def finish(trial: Trial, prepared: Prepared, *, verdict: str | None = "passed", **evidence: Any) -> FinishedTrial:
    """Writes what a training and a passed audit leave, with random parameters instead of trained ones."""
    split = prepared.split("test", trial.task)
    model, rng = build_model(trial, prepared, None), np.random.default_rng(5)
    parameters = flat_parameters(initial_parameters(model, rng, split.integers[:1], split.categoricals[:1]))
    # Initial tables are so small that tokens would not matter, and expected counts would be enormous.
    scales = {"table": np.float32(30), "output/kernel": np.float32(0.2)}
    for name, array in parameters.items():
        parameters[name] = array * next((scale for end, scale in scales.items() if name.endswith(end)), np.float32(1))
    trial.folder.mkdir(parents=True)
    arrays: dict[str, Any] = dict(parameters)
    np.savez(trial.folder / "parameters.npz", **arrays)
    written = {"trial": trial.model_dump(mode="json"), "mechanism": record().to_json(), "test_loss": 0.2}
    write_json(trial.folder / "record.json", {**written, "vocabulary": prepared.vocabulary})
    found = {"releases_the_last_state": True, "released": parameters_digest(parameters), **evidence}
    write_json(trial.folder / "evidence.json", found)
    finished = FinishedTrial.open(trial)
    if verdict is not None:
        result = dict.fromkeys(AuditResult.__annotations__)
        found = {"verdict": verdict, "findings": [], "epsilon": 1.25, "target_delta": trial.target_delta}
        write_json(trial.folder / "audit.json", {**result, **found})
        write_text(finished.statement, f"# The privacy of {finished.public_name}\n")
    return finished
