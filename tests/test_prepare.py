"""Preparation against a slow and obvious oracle, and every mistake in a raw file with its message."""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import prepare as prepare_module
from tasks.descriptions import Dataset
from tasks.encoded import open_prepared
from tasks.errors import UserError
from tasks.prepare import prepare

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


def dataset(base: dict[str, Any], **changes: Any) -> Dataset:
    return Dataset.model_validate({**base, **changes})


def random_rows(rows: int, *, timed: bool = False, seed: int = 0) -> list[list[str]]:
    """Rows of text with empties, negatives, huge values, rare tokens, and times out of order with ties."""
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
    """What the arrays must be, from rows with None for a missing value."""
    n = len(rows)
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
    assert sorted(path.name for path in folder.iterdir()) == sorted(["schema.json", "vocabulary.parquet", *SPLITS])
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
    assert schema["source"] == {"path": "logs.tsv", "bytes": raw.stat().st_size}
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
    assert splits["train"]["first_time"] == order[0].isoformat(timespec="seconds")
    assert splits["test"]["last_time"] == order[-1].isoformat(timespec="seconds")


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


def test_vocabulary_comes_from_the_training_part_only(tmp_path: Path) -> None:
    rows = random_rows(400)
    first = prepare("logs", dataset(TSV), write_tsv(tmp_path / "a", rows), min_count=2, block_bytes=2000)
    for row in rows[320:]:
        row[2], row[4], row[5] = "99", "never seen in training", "a"
    second = prepare("logs", dataset(TSV), write_tsv(tmp_path / "b", rows), min_count=2, block_bytes=2000)
    assert np.all(open_prepared(second).split("validation", "pctr").categoricals[:, 0] == 0)
    assert np.all(open_prepared(second).split("test", "pctr").categoricals[:, 0] == 0)
    for file in ["vocabulary.parquet", *(f"train/{p.name}" for p in (first / "train").iterdir())]:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file
    assert open_prepared(first).fingerprint != open_prepared(second).fingerprint


@pytest.mark.parametrize(("column", "value"), [(0, "1"), (2, "8"), (4, "new"), (6, "9")])
def test_fingerprint_changes_with_one_value(tmp_path: Path, column: int, value: str) -> None:
    rows = random_rows(100)
    rows[-1] = ["0", "", "7", "7", "a", "1", "2"]
    before = prepare("logs", dataset(TSV), write_tsv(tmp_path / "a", rows), min_count=2)
    rows[-1][column] = value
    after = prepare("logs", dataset(TSV), write_tsv(tmp_path / "b", rows), min_count=2)
    assert open_prepared(before).fingerprint != open_prepared(after).fingerprint


def test_fingerprint_changes_with_the_name_of_a_token(tmp_path: Path) -> None:
    folders = []
    for name in ("one", "two"):
        rows = [["0", "", "1", "2", name, "same", "0"]] * 50
        folders.append(prepare("logs", dataset(TSV), write_tsv(tmp_path / name, rows), min_count=2))
    first, second = (open_prepared(folder) for folder in folders)
    np.testing.assert_array_equal(first.split("train", "pctr").categoricals, second.split("train", "pctr").categoricals)
    assert first.fingerprint != second.fingerprint


def test_second_call_finds_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = write_tsv(tmp_path / "raw", random_rows(100))
    first = prepare("logs", dataset(TSV), raw, min_count=2)
    said = capsys.readouterr().out
    assert all(f"▸ {phase}: " in said for phase in ("read", "vocabulary", "encode"))
    assert "rows/s" in said
    with monkeypatch.context() as patch:
        patch.setattr(prepare_module, "open_logs", None)
        described = dataset(TSV, description="other words", raw="elsewhere")
        assert prepare("logs", described, raw, min_count=2, block_bytes=99) == first
    assert "already prepared" in capsys.readouterr().out
    assert prepare("logs", dataset(TSV), raw, min_count=3) != first
    assert prepare("logs", dataset(TSV, integer_columns=["n1"]), raw, min_count=2) != first
    assert prepare("logs", dataset(TSV, vocabulary="threshold"), raw, min_count=2) == first
    os.utime(raw, ns=(1, 1))
    assert prepare("logs", dataset(TSV), raw, min_count=2) != first


def test_ceiling_beside_the_raw_file_is_kept(tmp_path: Path) -> None:
    raw = write_tsv(tmp_path / "raw", random_rows(100))
    (tmp_path / "ceiling.json").write_text('{"pctr": {"auc_loss": 0.2}}')
    assert open_prepared(prepare("logs", dataset(TSV), raw, min_count=2)).ceiling == {"pctr": {"auc_loss": 0.2}}


def fails(home: Path, description: Dataset, raw: Path, *parts: str, block_bytes: int = 1000) -> None:
    """Preparing must fail with one message that has all the parts, and leave no file behind."""
    with pytest.raises(UserError) as caught:
        prepare("logs", description, raw, min_count=2, block_bytes=block_bytes)
    for part in (str(raw), *parts):
        assert part in str(caught.value)
    left = [path for path in home.rglob("*") if path != home / "data" and path != home / "data" / "logs"]
    assert left == []


def test_raw_file_that_cannot_be_read(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(home, dataset(TSV), tmp_path / "missing.tsv", "do not exist")
    fails(home, dataset(TSV), tmp_path, "are a folder")
    for name, content in {"empty": b"", "blank": b"\n\n"}.items():
        (tmp_path / name).write_bytes(content)
        fails(home, dataset(TSV), tmp_path / name, "are empty" if name == "empty" else "has 0 rows")
    os.mkfifo(tmp_path / "pipe")
    fails(home, dataset(TSV), tmp_path / "pipe", "not a regular file")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    raw = write_tsv(tmp_path / "raw", random_rows(20))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        fails(home, dataset(TSV), raw, "cannot read the raw logs", "Permission denied")


GOOD = ["1", "", "3", "4", "a", "b", "0"]
BAD_LINES = {
    "too few fields": (b"1\t\t3\t4\ta\tb", ["expected 7 fields", "found 6 fields"]),
    "too many fields": (b"1\t\t3\t4\ta\tb\t0\t", ["expected 7 fields", "found 8 fields"]),
    "blank line": (b"", ["expected 7 fields", "found a blank line"]),
    "letters": (b"1\t\t3\tabc\ta\tb\t0", ["column 'n2' has 'abc'", "not a finite number"]),
    "infinite": (b"1\t\tinf\t4\ta\tb\t0", ["column 'n1' has 'inf'", "not a finite number"]),
    "too large": (b"1\t\t3\t-1e999\ta\tb\t0", ["column 'n2' has '-1e999'"]),
    "nan": (b"1\t\tNaN\t4\ta\tb\t0", ["column 'n1' has 'NaN'"]),
    "not UTF-8": (b"1\t\t3\t4\t\xff\tb\t0", ["not UTF-8 text: byte 0xff at position 8"]),
    "zero byte": (b"1\t\t3\t4\ta\0\tb\t0", ["zero byte"]),
    "carriage return": (b"1\t\t3\t4\ta\tb\t0\r1\t\t3\t4\ta\tb\t0", ["carriage return"]),
    "label 2": (b"2\t\t3\t4\ta\tb\t0", ["column 'click' has 2", "pctr (kind binary) must be 0 or 1"]),
    "label half": (b"0.5\t\t3\t4\ta\tb\t0", ["column 'click' has 0.5", "must be 0 or 1"]),
    "label missing": (b"\t\t3\t4\ta\tb\t0", ["column 'click' has no value", "must be 0 or 1"]),
    "label text": (b"yes\t\t3\t4\ta\tb\t0", ["column 'click' has 'yes'", "not a finite number"]),
    "negative count": (b"1\t\t3\t4\ta\tb\t-1", ["column 'sales' has -1", "a whole number from 0 up"]),
    "broken count": (b"1\t\t3\t4\ta\tb\t1.5", ["column 'sales' has 1.5", "pcvr (kind any)"]),
}


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("mistake", BAD_LINES)
def test_bad_line_is_named(tmp_path: Path, home: Path, mistake: str, end: bytes) -> None:
    line, messages = BAD_LINES[mistake]
    for number in (1, 83, 6000):
        if number == 1 and not line:
            continue
        good = "\t".join(GOOD).encode()
        lines = [good] * 7000
        lines[number - 1] = line
        raw = tmp_path / "raw"
        raw.write_bytes(end.join(lines))
        if mistake == "zero byte" and number < 6000:  # Near the start it is seen when the file is opened.
            fails(home, dataset(TSV), raw, "the file is binary")
        else:
            fails(home, dataset(TSV), raw, f"line {number}:", *messages, block_bytes=30_000)


def test_mistakes_that_could_hide_each_other(tmp_path: Path, home: Path) -> None:
    good = "\t".join(GOOD).encode()
    raw = tmp_path / "raw"
    # A carriage return that ends a row and a blank line: as many rows as lines.
    raw.write_bytes(b"\n".join([good] * 20 + [good + b"\r" + good, b""] + [good] * 20))
    fails(home, dataset(TSV), raw, "line 21:", "carriage return", block_bytes=1 << 20)
    raw.write_bytes(b"\xef\xbb\xbf" + b"\n".join([good] * 20 + [good + b"x"]))
    fails(home, dataset(TSV), raw, "line 21:", "column 'sales' has '0x'", block_bytes=1 << 20)


def test_after_an_error_no_block_is_still_at_work(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    working, second_started = [], threading.Event()

    def read_block(logs: Any, block: Any, parsed: Path) -> int:
        if block.index == 0:
            second_started.wait(5)
            raise UserError(f"{logs.path}: the first block is wrong")
        working.append(block.index)
        second_started.set()
        time.sleep(0.3)
        parsed.write_bytes(b"late")
        working.remove(block.index)
        return 1

    monkeypatch.setattr(prepare_module, "_read_block", read_block)
    with dask.config.set(num_workers=2):
        fails(home, dataset(TSV), write_tsv(tmp_path / "raw", random_rows(200)), "the first block is wrong")
    assert second_started.is_set()
    assert working == []


def test_files_of_another_format(tmp_path: Path, home: Path) -> None:
    text = write_tsv(tmp_path / "logs.tsv", random_rows(100))
    (tmp_path / "logs.tsv.gz").write_bytes(gzip.compress(text.read_bytes()))
    fails(home, dataset(TSV), tmp_path / "logs.tsv.gz", "compressed with gzip: decompress")
    pq.write_table(parquet_table(100), tmp_path / "logs.parquet")
    fails(home, dataset(TSV), tmp_path / "logs.parquet", "are a Parquet file", "format is tsv")
    fails(home, dataset(PARQUET), text, "not a whole Parquet file")
    whole = (tmp_path / "logs.parquet").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    fails(home, dataset(PARQUET), tmp_path / "cut", "not a whole Parquet file")
    (tmp_path / "damaged").write_bytes(whole[:4] + b"\xff" * 900 + whole[904:])
    fails(home, dataset(PARQUET), tmp_path / "damaged", "cannot read row group 0")
    header = [TSV_COLUMNS, *random_rows(100)]
    fails(home, dataset(TSV), write_tsv(tmp_path / "header", header), "line 1:", "is this a header line?")


def test_parquet_columns_that_do_not_fit(tmp_path: Path, home: Path) -> None:
    raw, table = tmp_path / "raw.parquet", parquet_table(100)

    def check(changed: pa.Table, *parts: str) -> None:
        pq.write_table(changed, raw, row_group_size=30)
        fails(home, dataset(PARQUET), raw, *parts)

    def replaced(name: str, values: Any) -> pa.Table:
        return table.set_column(table.schema.get_field_index(name), name, pa.array(values))

    renamed = table.rename_columns(["ignored", "when", "whole", "real", "texts", "coded", "number", "sales"])
    check(renamed, "has no column 'text' (did you mean 'texts'?); it has: ignored, when, whole")
    check(replaced("whole", ["1"] * 100), "column 'whole' has type string; it must be a number")
    check(replaced("text", [0.5] * 100), "column 'text' has type double; it must be a string, dictionary")
    check(replaced("when", ["2024"] * 100), "column 'when' has type string; it must be a timestamp")
    check(replaced("real", [1.0] * 70 + [-math.inf] + [1.0] * 29), "row 71:", "column 'real' has -inf")
    check(replaced("sales", [1] * 40 + [None] + [1] * 59), "row 41:", "column 'sales' has no value")
    check(replaced("sales", [1] * 99 + [-2]), "row 100:", "column 'sales' has -2")
    check(replaced("when", [*range(35), None, *range(64)]), "row 36:", "time column 'when' has no value")


def test_splits_that_would_be_empty(tmp_path: Path, home: Path) -> None:
    rows = random_rows(100, timed=True)
    fails(home, dataset(TSV), write_tsv(tmp_path / "few", random_rows(9)), "has 9 rows")
    for name, times in {"validation": [1] * 95 + [2] * 5, "test": [1] * 80 + [2] * 20}.items():
        for row, value in zip(rows, times, strict=True):
            row[-1] = str(value)
        raw = write_tsv(tmp_path / name, rows)
        fails(home, dataset(TIMED_TSV), raw, f"the {name} part would be empty", "same value of 'time'")
    smallest = prepare("small", dataset(TSV), write_tsv(tmp_path / "ten", random_rows(10)), min_count=1)
    assert [split["rows"] for split in open_prepared(smallest).splits.values()] == [8, 1, 1]


def test_missing_time_is_named(tmp_path: Path, home: Path) -> None:
    rows = random_rows(100, timed=True)
    rows[56][-1] = ""
    raw = write_tsv(tmp_path / "raw", rows)
    fails(home, dataset(TIMED_TSV), raw, "line 57:", "the time column 'time' has no value")


def test_raw_file_that_changes_meanwhile(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = write_tsv(tmp_path / "raw", random_rows(100))
    write = prepare_module._write

    def touch(*args: Any, **kwargs: Any) -> Any:
        os.utime(raw, ns=(1, 1))
        return write(*args, **kwargs)

    monkeypatch.setattr(prepare_module, "_write", touch)
    fails(home, dataset(TSV), raw, "changed while")


def test_take_copies_any_rows(tmp_path: Path) -> None:
    raw = write_tsv(tmp_path / "raw", random_rows(100))
    split = open_prepared(prepare("logs", dataset(TSV), raw, min_count=2)).split("train", "pconvs")
    assert len(split) == split.rows == 80
    for indices in ([5, 3, 3, -1], np.array([79, 0]), np.arange(80) % 3 == 0, []):
        integers, categoricals, labels = split.take(indices)
        wanted = np.arange(80)[np.array(indices, dtype=None if len(indices) else int)]
        np.testing.assert_array_equal(integers, split.integers[wanted])
        np.testing.assert_array_equal(categoricals, split.categoricals[wanted])
        np.testing.assert_array_equal(labels, split.labels[wanted])
        assert integers.flags.writeable
        assert categoricals.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        split.labels[0] = 1


def test_prepared_folder_that_does_not_fit_its_schema(tmp_path: Path) -> None:
    raw = write_tsv(tmp_path / "raw", random_rows(100))
    with pytest.raises(UserError, match="no prepared data"):
        open_prepared(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no schema\.json"):
        open_prepared(tmp_path)
    folder = prepare("logs", dataset(TSV), raw, min_count=2)
    with pytest.raises(UserError, match="no label for 'sales'; it has: pctr, pcvr, pconvs"):
        open_prepared(folder).split("train", "sales")
    with pytest.raises(UserError, match="no split is called 'dev'; there are: train, validation, test"):
        open_prepared(folder).split("dev", "pctr")
    labels = folder / "test" / "label_pcvr.npy"
    whole = labels.read_bytes()
    for content, message in [
        (whole[:-8], "cannot be read"),
        (b"", "cannot be read"),
        (None, "cannot be read"),
    ]:
        labels.unlink() if content is None else labels.write_bytes(content)
        with pytest.raises(UserError, match=message):
            open_prepared(folder)
    np.save(labels, np.zeros(10))
    with pytest.raises(UserError, match=r"is float64 \(10,\), but the schema says float32 \(10,\)"):
        open_prepared(folder)
    (folder / "schema.json").write_text("{}")
    with pytest.raises(UserError, match="not a schema of prepared data"):
        open_prepared(folder)


def test_reading_needs_no_dask() -> None:
    code = "import sys, tasks.encoded; sys.exit('dask' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)
