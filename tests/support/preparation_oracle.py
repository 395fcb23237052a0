"""Logs to prepare, and a slow and obvious preparation to compare ours with."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tasks.config.dataset import Dataset
from tasks.data.prepared import open_prepared

SPLITS = ("train", "validation", "test")
TSV_COLUMNS = ["click", "unused", "n1", "n2", "c1", "c2", "sales"]
TSV = {
    "format": "tsv",
    "columns": TSV_COLUMNS,
    "integer_columns": ["n1", "n2"],
    "categorical_columns": ["c1", "c2"],
    "labels": {
        "pctr": {"column": "click", "kind": "binary"},
        "pcvr": {"column": "sales", "kind": "any"},
        "pconvs": {"column": "sales", "kind": "count"},
    },
}
TIMED_TSV = {**TSV, "columns": [*TSV_COLUMNS, "time"], "time_column": "time"}


def dataset(base: dict[str, Any], **changes: Any) -> Dataset:
    return Dataset.model_validate({**base, **changes})


def random_rows(rows: int, *, timed: bool = False, seed: int = 0) -> list[list[str]]:
    """Returns rows with empty, negative and huge values, rare tokens, and unsorted times with ties."""
    draw = random.Random(seed)
    numbers = ["", "0", "-1", "7", "-250", "3.5", "1e300", "-12345678901234567890", " 42 ", "+5"]
    table = []
    for row in range(rows):
        rare = [f"only{row}", "größe", "a b", '"quoted', "\\N"]
        c1 = draw.choice(["", "a", "b", "B", *rare]) if row < 0.8 * rows else draw.choice(["a", "late"])
        c2 = f"{int(draw.paretovariate(0.7)):x}"
        fields = [draw.choice("01"), "junk\x0b", draw.choice(numbers), draw.choice(numbers), c1, c2]
        fields.append(str(max(0, draw.randint(-3, 4))))
        table.append([*fields, f"{1_700_000_000 + draw.randint(0, rows // 4) / 2}"] if timed else fields)
    return table


def write_tsv(path: Path, rows: list[list[str]], end: str = "\n") -> Path:
    path.write_bytes("".join("\t".join(row) + end for row in rows).encode())
    return path


def oracle(description: Dataset, rows: list[dict[str, Any]], min_count: int) -> dict[str, Any]:
    """Computes the expected arrays from rows with None for missing values."""
    n = len(rows)
    if description.time_column:
        rows = sorted(rows, key=lambda row: row[description.time_column])
    order = [row[description.time_column] for row in rows] if description.time_column else list(range(n))
    t80, t90 = sorted(order)[int(0.8 * n) - 1], sorted(order)[int(0.9 * n) - 1]
    split_of = ["train" if t <= t80 else "validation" if t <= t90 else "test" for t in order]
    ids: dict[str, dict[str, int]] = {}
    counts: dict[str, Counter[str]] = {}
    for name in description.categorical_columns:
        training = [row[name] for row, split in zip(rows, split_of, strict=True) if split == "train"]
        counts[name] = Counter("" if token is None else str(token) for token in training)
        kept = sorted((-count, token) for token, count in counts[name].items() if count >= min_count)
        ids[name] = {token: number for number, (_, token) in enumerate(kept, start=1)}
    result: dict[str, Any] = {"ids": ids, "counts": counts, "order": order, "split_of": split_of}
    for split in SPLITS:
        chosen = [row for row, name in zip(rows, split_of, strict=True) if name == split]
        integers = [[_logged(row[name]) for name in description.integer_columns] for row in chosen]
        tokens = [
            [ids[c].get("" if row[c] is None else str(row[c]), 0) for c in description.categorical_columns]
            for row in chosen
        ]
        shape = (len(chosen), -1) if chosen else (0, 0)
        result[split] = {
            "integers": np.array(integers, np.float32).reshape(shape) if description.integer_columns else None,
            "categoricals": np.array(tokens, np.int32).reshape(shape) if description.categorical_columns else None,
        }
        for task, label in description.labels.items():
            values = [float(row[label.column]) for row in chosen]
            if label.kind == "any":
                values = [float(value > 0) for value in values]
            result[split][f"label_{task}"] = np.array(values, np.float32)
    return result


def _logged(value: float | None) -> float:
    if value is None or math.isnan(value):
        return math.nan
    return math.copysign(math.log1p(abs(value)), value)


def tsv_values(description: Dataset, rows: list[list[str]]) -> list[dict[str, Any]]:
    assert description.columns is not None
    parsed = []
    for row in rows:
        values: dict[str, Any] = dict(zip(description.columns, row, strict=True))
        labels = [label.column for label in description.labels.values()]
        times = [description.time_column] if description.time_column else []
        for name in {*description.integer_columns, *labels, *times}:
            values[name] = float(values[name]) if values[name] else None
        parsed.append(values)
    return parsed


def assert_equals_oracle(folder: Path, description: Dataset, expected: dict[str, Any], min_count: int) -> None:
    prepared = open_prepared(folder)
    names = ["manifest.json", "schema.json", "vocabulary.parquet", *SPLITS]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    for split in SPLITS:
        for file in ["integers", "categoricals", *(f"label_{task}" for task in description.labels)]:
            actual = np.load(folder / split / f"{file}.npy", mmap_mode="r")
            assert actual.flags.c_contiguous
            wanted = expected[split][file]
            if wanted is None:
                assert actual.shape == (prepared.splits[split]["rows"], 0)
            elif file == "integers":
                assert actual.dtype == np.float32
                np.testing.assert_allclose(actual, wanted, rtol=2e-7, err_msg=f"{split} {file}")
            else:
                np.testing.assert_array_equal(actual, wanted, err_msg=f"{split} {file}", strict=True)
    vocabulary = pd.read_parquet(folder / "vocabulary.parquet").to_dict("records")
    assert vocabulary == [
        {"column": name, "id": number, "token": token, "count": expected["counts"][name][token]}
        for name in description.categorical_columns
        for token, number in expected["ids"][name].items()
    ]
    for column in prepared.categorical_columns:
        size = len(expected["ids"][column.name]) + 1
        assert (column.vocabulary_size, column.embedding_dimension) == (size, max(1, int(2 * size**0.25)))
    assert prepared.integer_columns == description.integer_columns
    assert prepared.vocabulary == {"kind": "threshold", "min_count": min_count}
