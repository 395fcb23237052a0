"""A log that comes by days, written by hand, and a nightly entry for it."""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.config.dataset import Dataset
from tasks.config.loading import Config, load_config
from tasks.config.nightly import Nightly

COLUMNS = {
    "format": "parquet",
    "time_column": "when",
    "integer_columns": ["price"],
    "categorical_columns": ["site", "user"],
    "labels": {"pcvr": {"column": "sales", "kind": "any"}, "pconvs": {"column": "sales", "kind": "count"}},
    "vocabulary": "hash",
    "vocabulary_buckets": 50,
}
NIGHTLY = {
    "dataset": "logs",
    "task": "pcvr",
    "profile": "smoke",
    "schedule": "0 3 * * *",
    "window_days": 3,
    "epsilon": 1.0,
    "dp_sgd": {
        "optimizer": ["adam"],
        "learning_rate": [0.01],
        "batch_size": [16],
        "epochs": [1],
        "l2_clip_norm": [1.0],
    },
    "total": {"epsilon": 3.0, "delta": 1e-6},
}
FIRST = datetime.date(2026, 3, 1)


def day(number: int) -> str:
    """Returns a day, counted from 0."""
    return str(FIRST + datetime.timedelta(number))


def nightly_config(raw: Path | str, dataset: dict[str, Any] | None = None, **nightly: Any) -> Config:
    """Returns a configuration with the dataset ``logs`` and the nightly entry ``night``."""
    base = load_config()
    log = Dataset.model_validate({**COLUMNS, "raw": str(raw), **(dataset or {})})
    night = Nightly.model_validate({**NIGHTLY, **nightly})
    return base.model_copy(update={"datasets": {"logs": log}, "nightly": {"night": night}})


def day_rows(number: int, rows: int, *, rate: float = 0.2, seed: int = 0) -> pd.DataFrame:
    """Returns rows of a day in no order, many with equal times."""
    import numpy as np

    rng = np.random.default_rng([seed, number])
    seconds = rng.integers(0, max(2, rows // 2), rows) * (86_400 // max(2, rows // 2))
    return pd.DataFrame(
        {
            "when": pd.Timestamp(day(number)) + pd.to_timedelta(seconds, unit="s"),
            "price": np.where(rng.random(rows) < 0.1, None, rng.integers(-3, 2000, rows)),
            "site": rng.choice(["a", "b", "c", None], rows, p=[0.5, 0.3, 0.15, 0.05]),
            "user": [f"u{value}" for value in rng.integers(0, rows, rows)],
            "sales": rng.poisson(rate, rows),
        }
    )


def write_rows(path: Path, table: pd.DataFrame, *, settled: bool = True) -> Path:
    """Writes a file; ``settled`` gives it a time long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pa.schema(
        {
            "when": pa.timestamp("us"),
            "price": pa.int64(),
            "site": pa.string(),
            "user": pa.string(),
            "sales": pa.int64(),
        }
    )
    pq.write_table(pa.Table.from_pandas(table, schema, preserve_index=False), path, row_group_size=100)
    if settled:
        age(path)
    return path


def age(path: Path, seconds: float = 3600.0) -> None:
    """Sets the time of a file's last change to so long ago."""
    moment = time.time() - seconds
    os.utime(path, (moment, moment))


def deliver_day(folder: Path, number: int, rows: int = 200, **options: Any) -> Path:
    """Writes the file of a day."""
    return write_rows(folder / f"day={day(number)}" / "rows.parquet", day_rows(number, rows, **options))
