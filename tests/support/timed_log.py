"""A log of twelve days with missing values and rare tokens, raw and prepared, for tests of data cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dp_core.models.spec import MLPSpec
from tasks.config.dataset import Dataset
from tasks.data.preparation import prepare
from tasks.data.prepared import Prepared, open_prepared

PRICE, SITE = "<b>price</b>", 'site & "co"'
MIN_COUNT = 8
MODELS = {"small": MLPSpec(hidden_layers=(16, 8)), "wide": MLPSpec(hidden_layers=(40,))}


def raw_table(rows: int = 3000) -> pd.DataFrame:
    """Returns rows out of order over twelve days without the fifth, with missing values and rare tokens."""
    rng = np.random.default_rng(0)
    day = rng.choice([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11], rows)
    seconds = rng.permutation(86_400)[:rows]
    tokens = np.array([f"site {int(n)}" for n in rng.pareto(0.7, rows) * 3], dtype=object)
    sales = rng.poisson(0.2 + 0.05 * day)
    return pd.DataFrame(
        {
            "when": pd.Timestamp("2024-02-25") + pd.to_timedelta(day * 86_400 + seconds, unit="s"),
            PRICE: np.where(rng.random(rows) < 0.3, np.nan, rng.integers(0, 1000, rows)),
            "full": rng.integers(0, 9, rows),
            SITE: np.where(rng.random(rows) < 0.125, None, tokens),
            "sales": sales,
        }
    )


def description(**changes: Any) -> Dataset:
    values: dict[str, Any] = {
        "format": "parquet",
        "time_column": "when",
        "integer_columns": (PRICE, "full"),
        "categorical_columns": (SITE,),
        "labels": {"pconvs": {"column": "sales", "kind": "count"}, "pcvr": {"column": "sales", "kind": "any"}},
    }
    return Dataset.model_validate({**values, **changes})


def prepared_from(folder: Path, table: pd.DataFrame, **changes: Any) -> Prepared:
    raw = folder / "logs <1>.parquet"
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), raw)
    return open_prepared(prepare("logs", description(**changes), raw, min_count=MIN_COUNT))
