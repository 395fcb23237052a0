"""The work of ``tasks.data.preparation`` done by Polars in memory, to compare with.

``prepare_plainly`` is a first version: read, transform, count, join, write. ``prepare_tuned`` is the fastest that we
found with Polars 2.1: the log is scanned by the streaming engine, which transforms numbers while it parses,
and stays in memory; vocabularies are counted by the streaming engine; tokens are cast to an Enum of their vocabulary;
the splits are written at the same time, without compression or statistics.

Seconds for 1,000,000 rows on 2 shared cores. Best of 12, in turns: tuned 1.87; with ``read_csv`` and numbers
transformed during encoding 2.04; the same with numbers read as Float64 2.03. Best of 2 to 4, in turns, with one change
to the tuned version (2.1 in these rounds; 0.3 either way is noise):

- numbers read as Int64: 2.1; as Float64: 2.2; logarithms in float32: 2.4
- files with lz4: 2.3; snappy or zstd: 2.5; with statistics: 2.5; smaller pages: 2.3; smaller row groups: 2.6
- encoded eagerly, then ``write_parquet`` of each split: 2.4
- vocabularies counted in memory: 2.7
- a join for each column in place of the Enum: 2.7; ``replace_strict``: 3.3
- tokens cast to Categorical, and ids taken from an array by their codes: 2.8; parsed as Categorical: 3.5
- nothing kept in memory, with one scan for the vocabularies and one for the encoding: 2.8
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from tasks.config.dataset import Dataset
from tasks.data.prepared import open_prepared

_TOLERANCE = 1e-6


def prepare_plainly(dataset: Dataset, raw: Path, folder: Path, *, min_count: int) -> Path:
    """Writes ``train``, ``validation`` and ``test.parquet`` with the values of our arrays, and null for NaN."""
    folder.mkdir(parents=True)
    (label,), types = dataset.label_columns, _types(dataset)
    logs = pl.read_csv(raw, separator="\t", has_header=False, quote_char=None, schema=types, empty_string_is_null=False)
    train, validation = int(0.8 * logs.height), int(0.9 * logs.height)
    logs = logs.with_columns(
        pl.col(label).cast(pl.Float32), *(_log_transform(name) for name in dataset.integer_columns)
    )
    for name in dataset.categorical_columns:
        counts = logs[:train][name].value_counts().filter(pl.col("count") >= min_count)
        ordered = counts.sort("count", name, descending=[True, False])
        ids = ordered.select(name, pl.int_range(1, pl.len() + 1, dtype=pl.Int32).alias("id"))
        found = logs.select(name).join(ids, on=name, how="left", maintain_order="left")["id"]
        logs = logs.with_columns(found.fill_null(0).alias(name))
    for split, rows in {"train": logs[:train], "validation": logs[train:validation], "test": logs[validation:]}.items():
        rows.write_parquet(folder / f"{split}.parquet", compression="uncompressed")
    return folder


def prepare_tuned(dataset: Dataset, raw: Path, folder: Path, *, min_count: int) -> Path:
    """Writes the same files, faster."""
    folder.mkdir(parents=True)
    (label,), types = dataset.label_columns, _types(dataset)
    logs = (
        pl.scan_csv(raw, separator="\t", has_header=False, quote_char=None, schema=types, empty_string_is_null=False)
        .with_columns(pl.col(label).cast(pl.Float32), *(_log_transform(name) for name in dataset.integer_columns))
        .collect(engine="streaming")
    )
    train, validation = int(0.8 * logs.height), int(0.9 * logs.height)
    vocabularies = pl.collect_all(
        [
            logs.lazy()
            .head(train)
            .group_by(name)
            .len("count")
            .filter(pl.col("count") >= min_count)
            .sort("count", name, descending=[True, False])
            .select(name)
            for name in dataset.categorical_columns
        ],
        engine="streaming",
    )
    numbers = pl.col(label, *dataset.integer_columns)
    ids = [_ids(vocabulary.to_series()) for vocabulary in vocabularies]
    splits = {"train": logs[:train], "validation": logs[train:validation], "test": logs[validation:]}
    pl.collect_all(
        [
            split.lazy()
            .select(numbers, *ids)
            .sink_parquet(folder / f"{name}.parquet", compression="uncompressed", statistics=False, lazy=True)
            for name, split in splits.items()
        ],
        engine="streaming",
    )
    return folder


def _types(dataset: Dataset) -> dict[str, pl.DataType]:
    types: dict[str, pl.DataType] = {name: pl.String() for name in dataset.columns or ()}
    numbers: dict[str, pl.DataType] = {name: pl.Int32() for name in dataset.number_columns}
    return types | numbers


def _log_transform(name: str) -> pl.Expr:
    column = pl.col(name)
    return (column.sign() * column.abs().cast(pl.Float64).log1p()).cast(pl.Float32).alias(name)


def _ids(vocabulary: pl.Series) -> pl.Expr:
    """Returns the ids of tokens: positions in the vocabulary, from 1. The cast makes other tokens null, here 0."""
    known = pl.col(vocabulary.name).cast(pl.Enum(vocabulary), strict=False)
    return (known.to_physical().cast(pl.Int32) + 1).fill_null(0)


def first_difference(prepared: Path, peer: Path) -> str | None:
    """Describes the first difference between our arrays and Polars' files, beyond rounding. None if there is none."""
    ours = open_prepared(prepared)
    (task,) = ours.tasks
    for name in ours.splits:
        split, frame = ours.split(name, task), pl.read_parquet(peer / f"{name}.parquet")
        if len(split) != frame.height:
            return f"{name} has {len(split):,} rows and Polars' {frame.height:,}"
        columns = [
            (task, split.labels),
            *zip(ours.integer_columns, split.integers.T, strict=True),
            *((column.name, ids) for column, ids in zip(ours.categorical_columns, split.categoricals.T, strict=True)),
        ]
        for (column, values), series in zip(columns, frame.get_columns(), strict=True):
            theirs = series.to_numpy()
            if column in ours.integer_columns:
                equal = np.isclose(values, theirs, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
            else:
                equal = values == theirs
            if not equal.all():
                row = int(np.argmin(equal))
                return f"{name}, column {column}, row {row:,}: {values[row]}, and Polars' {theirs[row]}"
    return None
