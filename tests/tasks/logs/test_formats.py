"""A log format that is registered from outside works like the built-in ones."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pydantic import ValidationError

from tasks.cli import main
from tasks.config.dataset import Dataset
from tasks.data.prepared import Prepared, open_prepared
from tasks.logs.files import RawFile
from tasks.logs.formats import LOG_FORMATS, LogFormat, register_format
from tasks.logs.rows import BadRow, Block, Rows
from tasks.prepare import prepare_datasets
from tasks.runtime.home import CHECKOUT

Row = dict[str, Any]
ROWS: list[Row] = [
    {"time": 1000 + 7 * i % 200, "n": None if i % 5 == 0 else i - 30, "c": "aab"[i % 3], "click": i % 2}
    for i in range(200)
]
COLUMNS: dict[str, Any] = {
    "time_column": "time",
    "integer_columns": ["n"],
    "categorical_columns": ["c"],
    "labels": {"pctr": {"column": "click", "kind": "binary"}},
    "tolerated_bad_rows": 0.1,
}


@dataclass(frozen=True)
class JsonLinesReader:
    """A row is a JSON object on a line of its own. A block is a range of lines."""

    file: RawFile
    content: Path
    dataset: Dataset
    time_unit = "s"
    header_lines = 0

    @property
    def schema(self) -> tuple[str, ...]:
        return tuple(self.dataset.used_columns)

    def blocks(self, block_bytes: int) -> list[Block]:
        lines = len(self.content.read_text().splitlines())
        step = -(-lines // 3)
        return [Block(number, at, min(at + step, lines)) for number, at in enumerate(range(0, lines, step))]

    def read(self, block: Block) -> Rows:
        lines = self.content.read_text().splitlines()[block.start : block.stop]
        rows: dict[int, Row] = {}
        bad: list[BadRow] = []
        for place, line in enumerate(lines):
            try:
                rows[place] = json.loads(line)
            except ValueError as error:
                bad.append(BadRow(place, "not JSON", str(error), line))
        table = pa.table({name: self._column(name, list(rows.values())) for name in self.dataset.used_columns})
        return Rows(table, np.array(list(rows)), len(lines), tuple(bad), lines.__getitem__)

    def _column(self, name: str, rows: list[Row]) -> pa.Array:
        values = [row[name] for row in rows]
        if name in self.dataset.token_columns:
            return pa.array(["" if value is None else value for value in values]).dictionary_encode()
        return pa.array(values, pa.float64())


def check_json_lines(dataset: Dataset) -> None:
    if dataset.columns is not None:
        raise ValueError("a line of JSON names its own columns: leave out `columns`")


JSON_LINES = LogFormat("json_lines", JsonLinesReader, check_json_lines)


@pytest.fixture
def json_lines() -> Iterator[None]:
    register_format(JSON_LINES)
    yield
    del LOG_FORMATS["json_lines"]


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Prepared]:
    """Runs ``validate`` and the preparation step on a file in a format."""

    def run(log_format: str, raw: Path, **changes: Any) -> Prepared:
        described = {"format": log_format, "raw": str(raw), **COLUMNS, **changes}
        pipelines = yaml.safe_load((CHECKOUT / "pipelines.yaml").read_text())
        pipelines["datasets"]["mine"] = described
        configuration = tmp_path / f"{log_format}.yaml"
        configuration.write_text(yaml.safe_dump(pipelines, sort_keys=False))
        monkeypatch.setenv("DP_ADS_CONFIG", str(configuration))
        assert main(["validate"]) == 0
        options = {"pipeline": "relative_loss", "profile": "smoke", "dataset": "mine", "tasks": ["pctr"]}
        (found,) = prepare_datasets(options)
        return open_prepared(Path(found["path"]))

    return run


def as_csv(path: Path) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)
    return path


def as_json(*more: str) -> bytes:
    return "\n".join([*map(json.dumps, ROWS[:100]), *more, *map(json.dumps, ROWS[100:])]).encode()


@pytest.mark.usefixtures("json_lines")
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_format_from_outside_gives_the_arrays_that_a_csv_gives(
    prepared: Callable[..., Prepared], tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    raw = tmp_path / "log"
    raw.write_bytes(pack(as_json()))
    mine = prepared("json_lines", raw)
    ours = prepared("csv", as_csv(tmp_path / "log.csv"), header=True)
    assert mine.path != ours.path
    assert mine.fingerprint == ours.fingerprint
    assert mine.categorical_columns[0].vocabulary_size > 1
    for split in ("train", "validation", "test"):
        pairs = zip(mine.split(split, "pctr").take(range(10)), ours.split(split, "pctr").take(range(10)), strict=True)
        for array, expected in pairs:
            np.testing.assert_array_equal(array, expected)


@pytest.mark.usefixtures("json_lines")
def test_bad_rows_of_a_format_from_outside_are_quarantined(prepared: Callable[..., Prepared], tmp_path: Path) -> None:
    raw = tmp_path / "log"
    raw.write_bytes(as_json("{broken"))
    found = prepared("json_lines", raw)
    assert found.statistics["bad_rows"] == {"not JSON": 1}
    (bad,) = csv.DictReader((found.path / "quarantine.csv").read_text().splitlines())
    assert (bad["line"], bad["reason"], bad["text"]) == ("101", "not JSON", "{broken")


@pytest.mark.usefixtures("json_lines")
def test_a_format_from_outside_checks_its_own_keys() -> None:
    with pytest.raises(ValidationError, match="a line of JSON names its own columns: leave out `columns`"):
        Dataset.model_validate({"format": "json_lines", "columns": ["time", "n", "c", "click"], **COLUMNS})


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match="no such name: 'json_lines'; known: tsv, csv, parquet"):
        Dataset.model_validate({"format": "json_lines", **COLUMNS})


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="a log format called 'csv' is registered already"):
        register_format(LogFormat("csv", JsonLinesReader, check_json_lines))
