"""Preparation agrees with a slow and obvious oracle in every format, and fails cleanly."""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.config.dataset import Dataset
from tasks.data import parts
from tasks.data import preparation as prepare_module
from tasks.data.preparation import prepare
from tasks.data.prepared import open_prepared
from tasks.runtime.errors import UserError
from tests.support.preparation_oracle import (
    TIMED_TSV,
    TSV,
    TSV_COLUMNS,
    assert_equals_oracle,
    dataset,
    oracle,
    random_rows,
    tsv_values,
    write_tsv,
)

PARQUET = {
    "format": "parquet",
    "time_column": "when",
    "integer_columns": ["whole", "real"],
    "categorical_columns": ["text", "coded", "number"],
    "labels": {"pcvr": {"column": "sales", "kind": "any"}, "pconvs": {"column": "sales", "kind": "count"}},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("timed", [False, True], ids=["file order", "time"])
def test_tsv_equals_oracle_whatever_the_blocks_and_threads(tmp_path: Path, home: Path, timed: bool) -> None:
    description = dataset(TIMED_TSV if timed else TSV)
    rows = random_rows(1511, timed=timed)
    raw = write_tsv(tmp_path / "logs.tsv", rows)
    expected = oracle(description, tsv_values(description, rows), min_count=3)
    fingerprints = set()
    for attempt, block_bytes in enumerate([700, 4096, 32 << 20]):
        with dask.config.set(num_workers=1 + 3 * (attempt % 2)):
            folder = prepare(f"logs{attempt}", description, raw, min_count=3, block_bytes=block_bytes)
        assert folder.parent == home / "data" / f"logs{attempt}"
        assert_equals_oracle(folder, description, expected, min_count=3)
        fingerprints.add(open_prepared(folder).fingerprint)
    assert len(fingerprints) == 1
    schema = json.loads((folder / "schema.json").read_text())
    assert schema["split_by"] == ("timestamp" if timed else "file order")
    assert schema["source"] == {"path": "logs.tsv", "files": 1, "bytes": raw.stat().st_size}
    assert schema["ceiling"] is None
    assert sum(split["rows"] for split in schema["splits"].values()) == len(rows)
    train = [t for t, split in zip(expected["order"], expected["split_of"], strict=True) if split == "train"]
    last = pd.Timestamp(max(train), unit="s").strftime("%Y-%m-%dT%H:%M:%SZ") if timed else None
    assert schema["splits"]["train"]["last_time"] == last


def parquet_table(rows: int, seed: int = 0) -> pa.Table:
    draw = random.Random(seed)
    texts = [draw.choice([None, "", "x", "y", f"rare{row}"]) for row in range(rows)]
    times = [1_700_000_000_000 + 250 * draw.randint(0, rows // 3) for _ in range(rows)]
    coded = pa.array([draw.choice(["p", "q", None, ""]) for _ in range(rows)]).dictionary_encode()
    return pa.table(
        {
            "ignored": pa.array([[1]] * rows),
            "when": pa.array(times, pa.timestamp("ms")),
            "whole": pa.array([draw.choice([None, 0, -5, 2**62 + 1, 9]) for _ in range(rows)], pa.int64()),
            "real": pa.array([draw.choice([None, math.nan, -0.5, 1e18]) for _ in range(rows)]),
            "text": pa.array(texts),
            "coded": coded,
            "number": pa.array([draw.choice([None, 1, 2, draw.randint(0, 500)]) for _ in range(rows)], pa.int16()),
            "sales": pa.array([draw.randint(0, 3) for _ in range(rows)], pa.uint8()),
        }
    )


def test_parquet_equals_oracle_whatever_the_row_groups(tmp_path: Path) -> None:
    description, table = dataset(PARQUET), parquet_table(997)
    expected = oracle(description, table.to_pylist(), min_count=4)
    fingerprints = set()
    for size in (10, 64, 5000):
        raw = tmp_path / f"{size}.parquet"
        pq.write_table(table, raw, row_group_size=size)
        folder = prepare("clicks", description, raw, min_count=4)
        assert_equals_oracle(folder, description, expected, min_count=4)
        fingerprints.add(open_prepared(folder).fingerprint)
    assert len(fingerprints) == 1
    order = sorted(expected["order"])
    splits = open_prepared(folder).splits
    assert splits["train"]["first_time"] == order[0].isoformat(timespec="seconds") + "Z"
    assert splits["test"]["last_time"] == order[-1].isoformat(timespec="seconds") + "Z"


@pytest.mark.parametrize(
    "times",
    [
        pa.array(range(50, 0, -1), pa.int32()),
        pa.array([row / 7 for row in range(50)], pa.float64()),
        pa.array(range(50), pa.date32()),
        pa.array(range(50), pa.timestamp("ns", tz="UTC")),
    ],
    ids=lambda times: str(times.type),
)
def test_parquet_times_of_any_type(tmp_path: Path, times: pa.Array) -> None:
    description = dataset(PARQUET)
    table = parquet_table(50).set_column(1, "when", times)
    pq.write_table(table, tmp_path / "raw", row_group_size=7)
    ranks = np.argsort(np.argsort(times.to_numpy(zero_copy_only=False)))
    values = [{**row, "when": int(rank)} for rank, row in zip(ranks, table.to_pylist(), strict=True)]
    folder = prepare("clicks", description, tmp_path / "raw", min_count=2)
    assert_equals_oracle(folder, description, oracle(description, values, 2), 2)


def test_parquet_times_that_are_plain_numbers(tmp_path: Path, home: Path) -> None:
    """``time_format`` sets the unit for days and windows; times that cannot be in that unit are refused."""
    table = parquet_table(60)
    milliseconds = pa.array([1_700_000_000_000 + 3_600_000 * row for row in range(60)], pa.int64())
    pq.write_table(table.set_column(1, "when", milliseconds), tmp_path / "raw")
    prepared = open_prepared(prepare("ms", dataset(PARQUET, time_format="milliseconds"), tmp_path / "raw", min_count=2))
    assert list(prepared.statistics["by_day"]) == ["2023-11-14", "2023-11-15", "2023-11-16", "2023-11-17"]
    assert prepared.splits["train"]["first_time"] == "2023-11-14T22:13:20Z"
    fails(home, dataset(PARQUET), tmp_path / "raw", "more than 300 years from 1970", "`time_format: milliseconds`")
    pq.write_table(table, tmp_path / "typed")
    with pytest.raises(UserError, match=r"'when' has type timestamp\[ms\], which has its own unit: leave out"):
        prepare("typed", dataset(PARQUET, time_format="milliseconds"), tmp_path / "typed", min_count=2)


@pytest.mark.parametrize("unused", ["integer_columns", "categorical_columns"])
def test_a_kind_of_column_may_be_absent(tmp_path: Path, unused: str) -> None:
    description, rows = dataset(TSV, **{unused: []}), random_rows(60)
    folder = prepare("logs", description, write_tsv(tmp_path / "raw", rows), min_count=2, block_bytes=1)
    assert_equals_oracle(folder, description, oracle(description, tsv_values(description, rows), 2), 2)
    integers, categoricals, _ = open_prepared(folder).split("test", "pctr").take([0, 1])
    assert {integers.shape, categoricals.shape} == {(2, 0), (2, 2)}


@pytest.mark.parametrize("text", ["crlf", "no final line end", "blank lines at the end", "byte order mark"])
def test_forms_of_text_that_mean_the_same(tmp_path: Path, text: str) -> None:
    rows = random_rows(200)
    plain = write_tsv(tmp_path / "plain", rows).read_bytes()
    other = {
        "crlf": plain.replace(b"\n", b"\r\n"),
        "no final line end": plain.rstrip(b"\n"),
        "blank lines at the end": plain + b"\n\r\n\n",
        "byte order mark": b"\xef\xbb\xbf" + plain,
    }[text]
    (tmp_path / "other").write_bytes(other)
    found = [
        open_prepared(prepare("logs", dataset(TSV), tmp_path / name, min_count=2, block_bytes=700)).fingerprint
        for name in ("plain", "other")
    ]
    assert found[0] == found[1]


def write_formats(folder: Path, rows: list[list[str]]) -> dict[str, tuple[Dataset, Path | str]]:
    """Writes the same timed log in many formats."""
    names, base = [*TSV_COLUMNS, "time"], {key: value for key, value in TIMED_TSV.items() if key != "columns"}
    quoted = [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in [names, *rows]]
    plain = write_tsv(folder / "plain.tsv", rows)
    write_tsv(folder / "header.tsv", [names, *rows])
    (folder / "quoted.csv").write_text("\r\n".join(quoted) + "\r\n", newline="")
    quotes_where_needed = ([f'"{f.replace(chr(34), 2 * chr(34))}"' if '"' in f else f for f in row] for row in rows)
    (folder / "semicolon.csv").write_text("".join(";".join(row) + "\n" for row in quotes_where_needed))
    (folder / "packed.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (folder / "packed.zst").write_bytes(pa.Codec("zstd").compress(plain.read_bytes(), asbytes=True))
    for number, start in enumerate(range(0, len(rows), 150)):
        (folder / "many").mkdir(exist_ok=True)
        write_tsv(folder / "many" / f"part{number}.tsv", rows[start : start + 150])
    iso = [[*row[:-1], str(pd.Timestamp(float(row[-1]), unit="s"))] for row in rows]
    write_tsv(folder / "iso.tsv", iso)
    milliseconds = [[*row[:-1], str(round(1000 * float(row[-1])))] for row in rows]
    write_tsv(folder / "milliseconds.tsv", milliseconds)
    values = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    numbers = {name: pd.to_numeric(pd.Series(values[name])) for name in ("click", "n1", "n2", "sales")}
    times = pa.array([round(1e6 * float(text)) for text in values["time"]], pa.timestamp("us"))
    tokens = {name: values[name] for name in ("c1", "c2")}
    pq.write_table(pa.table({**tokens, **numbers, "time": times}), folder / "logs.parquet", row_group_size=100)
    return {
        "plain": (dataset(TIMED_TSV), plain),
        "header": (dataset(base, header=True), folder / "header.tsv"),
        "quoted": (dataset(base, format="csv", header=True), folder / "quoted.csv"),
        "semicolon": (dataset(TIMED_TSV, format="csv", delimiter=";"), folder / "semicolon.csv"),
        "gzip": (dataset(TIMED_TSV), folder / "packed.gz"),
        "zstd": (dataset(TIMED_TSV), folder / "packed.zst"),
        "folder": (dataset(TIMED_TSV), folder / "many"),
        "pattern": (dataset(TIMED_TSV), str(folder / "many" / "part*.tsv")),
        "iso8601": (dataset(TIMED_TSV, time_format="iso8601"), folder / "iso.tsv"),
        "milliseconds": (dataset(TIMED_TSV, time_format="milliseconds"), folder / "milliseconds.tsv"),
        "parquet": (dataset(base, format="parquet"), folder / "logs.parquet"),
    }


def test_formats_that_mean_the_same(tmp_path: Path) -> None:
    rows = random_rows(800, timed=True)
    found = {}
    for name, (described, raw) in write_formats(tmp_path, rows).items():
        prepared = open_prepared(prepare(name, described, raw, min_count=3, block_bytes=9000))
        found[name] = prepared.fingerprint, prepared.splits, prepared.statistics["by_day"]
    assert {name for name, value in found.items() if value != found["plain"]} == set()


def test_days_in_the_path_are_a_column(tmp_path: Path) -> None:
    """As the time of all rows of a file, and as a token. Boundaries fall between days."""
    rows = random_rows(500)
    for day in range(10):
        folder = tmp_path / "raw" / f"day=2023-10-{day + 1:02}"
        folder.mkdir(parents=True)
        write_tsv(folder / "logs.tsv", rows[50 * day : 50 * day + 50])
    described = dataset(TSV, path_columns=["day"], time_column="day", time_format="iso8601")
    prepared = open_prepared(prepare("logs", described, tmp_path / "raw", min_count=2))
    assert [split["rows"] for split in prepared.splits.values()] == [400, 50, 50]
    assert prepared.splits["validation"]["first_time"] == prepared.splits["validation"]["last_time"]
    assert prepared.splits["validation"]["first_time"] == "2023-10-09T00:00:00Z"
    assert list(prepared.statistics["by_day"]) == [f"2023-10-{day + 1:02}" for day in range(10)]
    as_token = dataset(TSV, path_columns=["day"], categorical_columns=["c1", "day"])
    ids = open_prepared(prepare("tokens", as_token, tmp_path / "raw", min_count=2)).split("train", "pctr").categoricals
    assert len(set(ids[:50, 1])) == 1
    assert len(set(ids[:, 1])) == 8


@pytest.mark.parametrize("timed", [False, True], ids=["file order", "time"])
def test_nothing_of_later_parts_is_in_the_vocabulary(tmp_path: Path, timed: bool) -> None:
    """Changing every value after the training split changes no byte of it."""
    described, rows = dataset(TIMED_TSV if timed else TSV), random_rows(400, timed=timed)
    first = prepare("logs", described, write_tsv(tmp_path / "a", rows), min_count=2, block_bytes=2000)
    later = rows[320:]
    if timed:
        last = float(sorted(float(row[-1]) for row in rows)[319])
        later = [row for row in rows if float(row[-1]) > last]
    for row in later:
        row[2], row[4], row[5] = "99", "never seen in training", "a"
    second = prepare("logs", described, write_tsv(tmp_path / "b", rows), min_count=2, block_bytes=2000)
    assert np.all(open_prepared(second).split("validation", "pctr").categoricals[:, 0] == 0)
    assert np.all(open_prepared(second).split("test", "pctr").categoricals[:, 0] == 0)
    for file in ["vocabulary.parquet", *(f"train/{p.name}" for p in (first / "train").iterdir())]:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file
    assert open_prepared(first).fingerprint != open_prepared(second).fingerprint


def test_ceiling_beside_the_raw_file_is_kept(tmp_path: Path) -> None:
    raw = write_tsv(tmp_path / "raw", random_rows(100))
    (tmp_path / "ceiling.json").write_text('{"pctr": {"auc_loss": 0.2}}')
    assert open_prepared(prepare("logs", dataset(TSV), raw, min_count=2)).ceiling == {"pctr": {"auc_loss": 0.2}}


def fails(home: Path, description: Dataset, raw: Path, *parts: str, block_bytes: int = 1000) -> None:
    """Asserts that preparation fails with all these parts in the message and leaves only complete parts behind."""
    with pytest.raises(UserError) as caught:
        prepare("logs", description, raw, min_count=2, block_bytes=block_bytes)
    for part in (str(raw), *parts):
        assert part in str(caught.value)
    folders = list((home / "data" / "logs").iterdir())
    assert [folder.name for folder in folders] in ([], ["parts"])
    assert all((part / "part.json").exists() for folder in folders for part in folder.iterdir())


def test_after_an_error_no_block_is_still_at_work(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    working, second_started = [], threading.Event()

    def parse_block(logs: Any, block: Any, folder: Path) -> SimpleNamespace:
        if block.number == 0:
            second_started.wait(5)
            raise UserError(f"{logs.file.path}: the first block is wrong")
        working.append(block.number)
        second_started.set()
        time.sleep(0.3)
        (folder / f"{block.number}.arrow").write_bytes(b"late")
        working.remove(block.number)
        return SimpleNamespace(lines=0)

    monkeypatch.setattr(parts, "parse_block", parse_block)
    with dask.config.set(num_workers=2):
        fails(home, dataset(TSV), write_tsv(tmp_path / "raw", random_rows(200)), "the first block is wrong")
    assert second_started.is_set()
    assert working == []


def test_splits_that_would_be_empty(tmp_path: Path, home: Path) -> None:
    rows = random_rows(100, timed=True)
    fails(home, dataset(TSV), write_tsv(tmp_path / "few", random_rows(9)), "has 9 rows")
    for name, times in {"validation": [1] * 95 + [2] * 5, "test": [1] * 80 + [2] * 20}.items():
        for row, value in zip(rows, times, strict=True):
            row[-1] = str(value)
        raw = write_tsv(tmp_path / name, rows)
        fails(home, dataset(TIMED_TSV), raw, f"the {name} split would be empty", "same value of 'time'")
    smallest = prepare("small", dataset(TSV), write_tsv(tmp_path / "ten", random_rows(10)), min_count=1)
    assert [split["rows"] for split in open_prepared(smallest).splits.values()] == [8, 1, 1]


def test_raw_file_that_changes_meanwhile(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, parse_block = write_tsv(tmp_path / "raw", random_rows(100)), parts.parse_block

    def touch(*arguments: Any) -> Any:
        os.utime(raw, ns=(1, 1))
        return parse_block(*arguments)

    monkeypatch.setattr(parts, "parse_block", touch)
    fails(home, dataset(TSV), raw, "changed while")


def test_second_call_finds_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = write_tsv(tmp_path / "raw", random_rows(100))
    first = prepare("logs", dataset(TSV), raw, min_count=2)
    said = capsys.readouterr().out
    assert all(f"▸ {phase}: " in said for phase in ("read", "vocabulary", "encode", "check"))
    assert "rows/s" in said
    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "parse_files", None)
        described = dataset(TSV, description="other words", raw="elsewhere")
        assert prepare("logs", described, raw, min_count=2, block_bytes=99) == first
    assert "already prepared" in capsys.readouterr().out
    assert prepare("logs", dataset(TSV), raw, min_count=3) != first
    assert prepare("logs", dataset(TSV, integer_columns=["n1"]), raw, min_count=2) != first
    assert prepare("logs", dataset(TSV, vocabulary="threshold"), raw, min_count=2) == first
    os.utime(raw, ns=(1, 1))
    assert prepare("logs", dataset(TSV), raw, min_count=2) != first
