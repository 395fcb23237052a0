"""Raw logs for tests: good rows in every format, and checks of the quarantine."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.config.dataset import Dataset
from tasks.data.parts import QUARANTINE_COLUMNS
from tasks.data.prepared import open_prepared

TINY, HUGE = 500, 1 << 20
NAMES = ["click", "unused", "n", "c", "sales", "time"]
COMMON = {
    "time_column": "time",
    "integer_columns": ["n"],
    "categorical_columns": ["c"],
    "labels": {"pctr": {"column": "click", "kind": "binary"}, "pconvs": {"column": "sales", "kind": "count"}},
    "missing": ["-"],
    "tolerated_bad_rows": 0.2,
}
PARQUET = {"format": "parquet", **COMMON}
TEXTS: dict[str, dict[str, Any]] = {
    "tsv": {"format": "tsv", "columns": NAMES, **COMMON},
    "tsv with header": {"format": "tsv", "header": True, **COMMON},
    "csv": {"format": "csv", "columns": NAMES, **COMMON},
    "csv with header": {"format": "csv", "header": True, **COMMON},
    "dates": {"format": "tsv", "columns": NAMES, **COMMON, "time_format": "iso8601"},
}
# Unsorted rows with missing values, and tokens that a CSV must quote.
START, TOKENS = 1_700_000_000, ("a", 'x,"y"', "größe", "-")
GOOD = [
    {"click": f"{i % 2}", "unused": "junk", "n": "" if i % 5 == 0 else f"{i - 30}", "c": TOKENS[i % 4]}
    | {"sales": f"{i % 3}", "time": f"{START + i * 7 % 60}"}
    for i in range(60)
]
GOOD_ROW = GOOD[7]


def described(form: str, **changes: Any) -> Dataset:
    return Dataset.model_validate({**TEXTS[form], **changes})


def line_of(form: str, row: dict[str, str], **changes: str) -> bytes:
    """Formats a row as a line of text; changed fields are written as given, apart from quotes."""
    row = dict(row)
    if form == "dates":
        row["time"] = datetime.fromtimestamp(int(row["time"]), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fields = [changes.get(name, row[name]) for name in NAMES]
    if form.startswith("csv"):
        quoted = [f'"{field.replace(chr(34), chr(34) * 2)}"' for field in fields]
        return ",".join(
            q if name in ("c", "unused") else f for name, f, q in zip(NAMES, fields, quoted, strict=True)
        ).encode()
    return "\t".join(fields).encode()


def write_text(path: Path, form: str, lines: Sequence[bytes], end: bytes = b"\n") -> Path:
    header = [(b"," if form.startswith("csv") else b"\t").join(name.encode() for name in NAMES)]
    path.write_bytes(b"".join(line + end for line in [*(header if "header" in form else []), *lines]))
    return path


def good_lines(form: str = "tsv") -> list[bytes]:
    return [line_of(form, row) for row in GOOD]


def good_text(form: str = "tsv") -> bytes:
    return b"".join(line + b"\n" for line in good_lines(form))


def good_table(rows: Sequence[dict[str, str]] = GOOD) -> pa.Table:
    """Returns the same rows as an Arrow table."""

    def column(name: str, kind: pa.DataType) -> pa.Array:
        values = [row[name] for row in rows]
        return pa.array([None if value in ("", "-") else int(value) for value in values], kind)

    numbers = {"click": pa.int8(), "n": pa.float64(), "sales": pa.float32(), "time": pa.int64()}
    columns = {name: column(name, kind) for name, kind in numbers.items()}
    return pa.table({"c": pa.array([row["c"] for row in rows], pa.string()), **columns})


class Bad(NamedTuple):
    """A row in the quarantine; … in the problem matches anything."""

    file: Path
    line: int
    reason: str
    problem: str
    text: str


def quarantine(folder: Path) -> list[Bad]:
    with (folder / "quarantine.csv").open(encoding="utf-8", newline="") as file:
        limit = csv.field_size_limit(1 << 30)
        try:
            header, *rows = list(csv.reader(file))
        finally:
            csv.field_size_limit(limit)
    assert tuple(header) == QUARANTINE_COLUMNS == Bad._fields
    return [Bad(Path(file), int(line), *rest) for file, line, *rest in rows]


def assert_put_aside(folder: Path, expected: Sequence[Bad], fingerprint: str) -> None:
    """Asserts that a prepared folder has the good rows and exactly these bad ones in quarantine."""
    found = quarantine(folder)
    assert [bad._replace(problem="") for bad in found] == [bad._replace(problem="") for bad in expected]
    for bad, wanted in zip(found, expected, strict=True):
        pattern = ".*".join(re.escape(piece) for piece in wanted.problem.split("…"))
        assert re.fullmatch(pattern, bad.problem), (bad.problem, wanted.problem)
    prepared = open_prepared(folder)
    assert prepared.fingerprint == fingerprint
    statistics = json.loads((folder / "schema.json").read_text())["statistics"]
    assert statistics["bad_rows"] == Counter(bad.reason for bad in expected)
    assert statistics["rows"] == sum(split["rows"] for split in prepared.splits.values())


def assert_nothing_half_written(home: Path, name: str = "*") -> None:
    """Asserts that there is no prepared folder and nothing temporary; complete parts may stay."""
    assert [path for path in home.rglob("*") if path.name.startswith(".")] == []
    assert [path.name for path in (home / "data").glob(f"{name}/*") if path.name != "parts"] == []
    for part in (home / "data").glob(f"{name}/parts/*"):
        assert (part / "part.json").is_file()
        assert not list(part.glob("*.bad")) + list(part.glob("decompressed"))


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    packed = io.BytesIO()
    pq.write_table(table, packed, **options)
    return packed.getvalue()


def text_at_times(*values: int) -> bytes:
    """Returns the good rows at other times, as a TSV."""
    times = [*values, *range(values[-1], values[-1] + 60 - len(values))]
    return b"".join(line_of("tsv", row, time=str(START + time)) + b"\n" for row, time in zip(GOOD, times, strict=True))


def with_line(text: bytes, number: int, line: bytes) -> bytes:
    """Inserts a line before a line of a text, numbered from 1."""
    lines = text.split(b"\n")
    return b"\n".join([*lines[: number - 1], line, *lines[number - 1 :]])
