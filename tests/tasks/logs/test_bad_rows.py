"""Malformed raw files: each gives a clear error, or loses its bad rows to the quarantine and nothing else."""

from __future__ import annotations

import bz2
import csv
import functools
import gzip
import io
import json
import lzma
import os
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import parts as parts_module
from tasks.descriptions import Dataset
from tasks.encoded import open_prepared
from tasks.errors import UserError
from tasks.parts import QUARANTINE_COLUMNS
from tasks.prepare import prepare
from tasks.raw_files import look_at

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
# Rows out of the order of time, with missing values, and tokens that a CSV must quote.
START, TOKENS = 1_700_000_000, ("a", 'x,"y"', "größe", "-")
GOOD = [
    {"click": f"{i % 2}", "unused": "junk", "n": "" if i % 5 == 0 else f"{i - 30}", "c": TOKENS[i % 4]}
    | {"sales": f"{i % 3}", "time": f"{START + i * 7 % 60}"}
    for i in range(60)
]
GOOD_ROW = GOOD[7]


@pytest.fixture(autouse=True)
def home(own_home: Path) -> Path:
    return own_home


def described(form: str, **changes: Any) -> Dataset:
    return Dataset.model_validate({**TEXTS[form], **changes})


def line_of(form: str, row: dict[str, str], **changes: str) -> bytes:
    """How a row of a form of text reads; what is changed is written as it is given, but for quotes."""
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
    """The same rows as a Parquet file has them."""

    def column(name: str, kind: pa.DataType) -> pa.Array:
        values = [row[name] for row in rows]
        return pa.array([None if value in ("", "-") else int(value) for value in values], kind)

    numbers = {"click": pa.int8(), "n": pa.float64(), "sales": pa.float32(), "time": pa.int64()}
    columns = {name: column(name, kind) for name, kind in numbers.items()}
    return pa.table({"c": pa.array([row["c"] for row in rows], pa.string()), **columns})


@functools.cache
def _good_fingerprint(folder: Path) -> str:
    raw = write_text(folder / "good", "tsv", good_lines())
    return open_prepared(prepare("good", described("tsv"), raw, min_count=2)).fingerprint


@pytest.fixture
def good_fingerprint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the good rows alone, whatever the form that they are in."""
    return _good_fingerprint(tmp_path_factory.getbasetemp())


class Bad(NamedTuple):
    """A row that is put aside; … in the problem stands for anything."""

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
    """The prepared folder has the good rows, and tells exactly the others."""
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
    """No prepared folder and nothing temporary; what was parsed whole may stay."""
    assert [path for path in home.rglob("*") if path.name.startswith(".")] == []
    assert [path.name for path in (home / "data").glob(f"{name}/*") if path.name != "parts"] == []
    for part in (home / "data").glob(f"{name}/parts/*"):
        assert (part / "part.json").is_file()
        assert not list(part.glob("*.bad")) + list(part.glob("text"))


# Values that are wrong in any form of text: the column, the value, the reason and the problem.
VALUE_MISTAKES = {
    "letters": ("n", "abc", "not a number", "column 'n' has 'abc', which is not a finite number"),
    "number with a unit": ("n", "12kg", "not a number", "column 'n' has '12kg', which is not a finite number"),
    "spaces for a number": ("n", "  ", "not a number", "column 'n' has '  ', which is not a finite number"),
    "thousands": ("n", "1_000", "not a number", "column 'n' has '1_000', which is not a finite number"),
    "hexadecimal": ("n", "0x1F", "not a number", "column 'n' has '0x1F', which is not a finite number"),
    "arabic digits": ("n", "٣", "not a number", "column 'n' has '٣', which is not a finite number"),
    "infinite": ("n", "-inf", "not a number", "column 'n' has …-inf…, which is not a finite number"),
    "not a number": ("n", "NaN", "not a number", "column 'n' has …, which is not a finite number"),
    "too large": ("n", "1e999", "not a number", "column 'n' has …, which is not a finite number"),
    "label 2": ("click", "2", "label not allowed", "column 'click' has 2, …pctr (kind binary) must be 0 or 1"),
    "label 0.5": ("click", "0.5", "label not allowed", "column 'click' has 0.5, …must be 0 or 1"),
    "label missing": ("click", "", "label not allowed", "column 'click' has no value, …must be 0 or 1"),
    "label stands for missing": ("click", "-", "label not allowed", "column 'click' has no value, …must be 0 or 1"),
    "label text": ("click", "yes", "not a number", "column 'click' has 'yes', which is not a finite number"),
    "negative count": ("sales", "-1", "label not allowed", "column 'sales' has -1, …must be a whole number from 0 up"),
    "fractional count": ("sales", "1.5", "label not allowed", "column 'sales' has 1.5, …pconvs (kind count) must be…"),
    "time missing": ("time", "", "bad time", "the time column 'time' has no value"),
    "time is a word": ("time", "noon", "bad time", "column 'time' has 'noon', which is not a finite number"),
    "time infinite": ("time", "inf", "bad time", "column 'time' has …inf…, which is not a…number"),
}
DATE_MISTAKES = ["2023-13-01", "2023-02-30", "yesterday", "2023-10-01T25:00:00", "2023-10-01 12:60", "1.10.2023"]
# Lines that are no rows of their form.
FEW, MANY = "expected 6 fields separated by …, found 5 fields", "expected 6 fields separated by …, found 7 fields"
RETURN = "a carriage return inside the line; lines must end with \\n or \\r\\n"
QUOTES = "the quotes of the line do not match…; a row must be on one line"
LINE_MISTAKES = {
    "too few fields": ("tsv", b"1\tjunk\t3\ta\t0", "wrong number of fields", FEW),
    "too many fields": ("tsv", b"1\tjunk\t3\ta\t0\t1700000000\t", "wrong number of fields", MANY),
    "too few fields under a header": ("tsv with header", b"1\tjunk\t3\ta\t0", "wrong number of fields", FEW),
    "too few fields of a csv": ("csv with header", b'1,"junk",3,"a,b",0', "wrong number of fields", FEW),
    "too many fields of a csv": ("csv", b"1,junk,3,a,b,0,1700000000", "wrong number of fields", MANY),
    "blank line": ("tsv", b"", "wrong number of fields", "expected 6 fields…, found a blank line"),
    "blank line of a csv": ("csv", b"", "wrong number of fields", "expected 6 fields…, found a blank line"),
    "line of spaces": ("tsv", b"   ", "wrong number of fields", "expected 6 fields…, found 1 field"),
    "not UTF-8": ("tsv", b"1\tjunk\t3\t\xff\t0\t1700000000", "not text", "not UTF-8 text: byte 0xff at position 10…"),
    "not UTF-8 in an unused column": ("tsv", b"1\t\xe4\t3\ta\t0\t1700000000", "not text", "…byte 0xe4 at position 3…"),
    "half a UTF-8 letter": ("csv", b'1,"x",3,"\xc3",0,1700000000', "not text", "…byte 0xc3 at position 10…"),
    "return in a line": ("tsv", b"1\tx\t3\ta\rb\t0\t1700000000", "not text", RETURN),
    "return between rows": ("tsv", line_of("tsv", GOOD_ROW) + b"\r" + line_of("tsv", GOOD_ROW), "not text", RETURN),
    "return in quotes": ("csv", b'1,x,3,"a\rb",0,1700000000', "not text", RETURN),
    "quote never closed": ("csv", b'1,x,3,"a,0,1700000000', "wrong quotes", QUOTES),
    "quote never closed, unused": ("csv with header", b'1,"x,3,a,0,1700000000', "wrong quotes", QUOTES),
    "more after a quote": ("csv", b'1,x,3,"a"b,0,1700000000', "wrong quotes", QUOTES),
    "space after a quote": ("csv", b'1,"x" ,3,a,0,1700000000', "wrong quotes", QUOTES),
    "quote closed by mistake": ("csv", b'1,x,3,"a"",0,1700000000', "wrong quotes", QUOTES),
    "byte order mark": ("tsv", b"\xef\xbb\xbf" + line_of("tsv", GOOD_ROW), "not a number", "column 'click' has …"),
    "another header": ("tsv", "\t".join(NAMES).encode(), "not a number", "column 'n' has 'n', which is not…"),
}
# Every form reads values in the same way, so that a few show it.
ALSO_IN_CSV = ("letters", "not a number", "too large", "label 2", "time is a word")
MISTAKES: dict[str, tuple[str, bytes, str, str]] = LINE_MISTAKES | {
    f"{name}, {form}": (form, line_of(form, GOOD_ROW, **{column: value}), reason, problem)
    for form, names in {"tsv": VALUE_MISTAKES, "csv with header": ALSO_IN_CSV}.items()
    for name in names
    for column, value, reason, problem in [VALUE_MISTAKES[name]]
}
MISTAKES |= {
    f"date {value!r}": ("dates", line_of("dates", GOOD_ROW, time=value), "bad time", f"column 'time' has {value!r}, …")
    for value in DATE_MISTAKES
}
MISTAKES["date missing"] = ("dates", line_of("dates", GOOD_ROW, time=""), "bad time", "…'time' has no value")
COMPANION, COMPANION_PROBLEM = b"1", "expected 6 fields separated by …, found 1 field"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_row_is_put_aside(tmp_path: Path, good_fingerprint: str, mistake: str) -> None:
    """Whatever the line ends are, wherever the file is cut, and whatever else is wrong in the same block."""
    form, line, reason, problem = MISTAKES[mistake]
    first = 2 if "header" in form else 1
    text = line.decode("utf-8", "backslashreplace")
    problems = []
    for attempt, (end, block_bytes, with_other) in enumerate(
        [(b"\r\n", TINY, False), (b"\n", HUGE, False), (b"\r\n", HUGE, True)]
    ):
        lines = good_lines(form)
        lines.insert(5, line)
        lines.insert(50, line)
        raw = tmp_path / f"raw{attempt}"
        expected = [Bad(raw, first + 5, reason, problem, text), Bad(raw, first + 50, reason, problem, text)]
        if with_other:
            lines.append(COMPANION)
            other = Bad(raw, first + 62, "wrong number of fields", COMPANION_PROBLEM, "1")
            expected.append(other)
        write_text(raw, form, lines, end)
        folder = prepare("logs", described(form), raw, min_count=2, block_bytes=block_bytes)
        assert_put_aside(folder, expected, good_fingerprint)
        problems.append([bad.problem for bad in quarantine(folder)][:2])
    assert problems[1:] == problems[:1] * 2


def test_bad_last_lines_are_put_aside(tmp_path: Path, good_fingerprint: str) -> None:
    """A quote that is open at the end of the file, a last line that was cut off, and blank lines that mean nothing."""
    for form, line, reason in [
        ("csv", b'1,x,3,"a,0,1700000000', "wrong quotes"),
        ("tsv", b"1\tjunk\t3\ta", "wrong number of fields"),
        ("tsv", b"1\tjunk\t3\t\xc3", "not text"),
    ]:
        for end in (b"", b"\n", b"\r\n\r\n\n"):
            raw = tmp_path / "raw"
            raw.write_bytes(good_text(form) + line + end)
            folder = prepare("logs", described(form), raw, min_count=2, block_bytes=TINY)
            expected = [Bad(raw, 61, reason, "…", line.decode("utf-8", "backslashreplace"))]
            assert_put_aside(folder, expected, good_fingerprint)


def test_quote_that_the_next_line_closes(tmp_path: Path, good_fingerprint: str) -> None:
    """A row must be on one line; as many quotes as needed and as many fields are no excuse."""
    lines = good_lines("csv")
    lines[30:30] = [b'1,x,3,"a', b'b",0,1700000000']
    lines[10:10] = [b'1,"x,3,a,0,1700000000', b'1,x",3,a,0,1700000000']
    for block_bytes in (TINY, HUGE):
        raw = write_text(tmp_path / f"{block_bytes}", "csv", lines)
        folder = prepare("logs", described("csv"), raw, min_count=2, block_bytes=block_bytes)
        found = quarantine(folder)
        assert [(bad.line, bad.text) for bad in found][:1] == [(11, '1,"x,3,a,0,1700000000')]
        assert [(bad.line, bad.reason) for bad in found][-2:] == [
            (33, "wrong quotes"),
            (34, "wrong number of fields"),
        ]


def test_quote_in_an_unquoted_field_stands_for_itself(tmp_path: Path) -> None:
    """As Python and Arrow have it; a screen of 5" is no mistake, also where another row is one."""
    lines = good_lines("csv")
    lines[20] = b'1,x,3,5" screen,0,1700000000'
    lines[21] = b'1,x,3,a "b" c,0,1700000000'
    prints = set()
    for block_bytes, other in [(TINY, []), (HUGE, []), (HUGE, [COMPANION])]:
        raw = write_text(tmp_path / "raw", "csv", [*lines, *other])
        folder = prepare(f"logs{len(other)}", described("csv"), raw, min_count=1, block_bytes=block_bytes)
        prints.add(open_prepared(folder).fingerprint)
    assert len(prints) == 1


def test_zero_byte_late_in_the_file(tmp_path: Path) -> None:
    lines = [line_of("tsv", GOOD_ROW, time=str(START + i)) for i in range(2600)]
    raw = write_text(tmp_path / "raw", "tsv", lines)
    assert raw.stat().st_size > 1 << 16
    expected = open_prepared(prepare("logs", described("tsv"), raw, min_count=2)).fingerprint
    lines.insert(2550, b"1\tx\t3\ta\0\t0\t1700000000")
    for block_bytes in (30_000, HUGE):
        raw = write_text(tmp_path / f"{block_bytes}", "tsv", lines)
        folder = prepare("logs", described("tsv"), raw, min_count=2, block_bytes=block_bytes)
        bad = Bad(raw, 2551, "not text", "the line has a zero byte", "1\tx\t3\ta\0\t0\t1700000000")
        assert_put_aside(folder, [bad], expected)


def test_very_long_lines(tmp_path: Path, good_fingerprint: str) -> None:
    """A bad line as long as a file without line ends is put aside like any other."""
    for form, separator in (("tsv", b"\t"), ("csv", b",")):
        lines = good_lines(form)
        long = b"1" + separator + b"x" * 200_000
        lines.insert(30, long)
        raw = write_text(tmp_path / form, form, lines)
        for block_bytes in (TINY, HUGE):
            folder = prepare(f"logs{block_bytes}", described(form), raw, min_count=2, block_bytes=block_bytes)
            bad = Bad(raw, 31, "wrong number of fields", "…found 2 fields", long.decode())
            assert_put_aside(folder, [bad], good_fingerprint)


def test_very_long_quoted_field_is_no_mistake(tmp_path: Path) -> None:
    """Also in a block in which another line is bad."""
    lines = good_lines("csv")
    lines[30] = b'1,x,3,"' + b"x" * 200_000 + b'",0,1700000000'
    wanted = prepare("logs", described("csv"), write_text(tmp_path / "a", "csv", lines), min_count=1)
    raw = write_text(tmp_path / "b", "csv", [*lines, COMPANION])
    folder = prepare("logs", described("csv"), raw, min_count=1)
    expected = [Bad(raw, 61, "wrong number of fields", COMPANION_PROBLEM, "1")]
    assert_put_aside(folder, expected, open_prepared(wanted).fingerprint)


def test_rows_of_compressed_files_have_their_lines(tmp_path: Path, good_fingerprint: str) -> None:
    bad_line = line_of("csv with header", GOOD_ROW, n="abc")
    header = ",".join(NAMES).encode()
    text = b"\n".join([header, *good_lines("csv with header")[:20], bad_line, *good_lines("csv with header")[20:]])
    pieces = text.partition(bad_line)
    packed = {
        "gzip": gzip.compress(text),
        "gzip members": b"".join(map(gzip.compress, pieces)),
        "zstd": pa.compress(text, codec="zstd", asbytes=True),
        "zstd frames": b"".join(pa.compress(piece, codec="zstd", asbytes=True) for piece in pieces),
    }
    for name, content in packed.items():
        raw = tmp_path / name
        raw.write_bytes(content)
        folder = prepare("logs", described("csv with header"), raw, min_count=2, block_bytes=TINY)
        expected = [Bad(raw, 22, "not a number", "column 'n' has 'abc', …", bad_line.decode())]
        assert_put_aside(folder, expected, good_fingerprint)


def test_rows_of_several_files_have_their_file(tmp_path: Path, good_fingerprint: str) -> None:
    lines = good_lines("tsv with header")
    bad_line = line_of("tsv", GOOD_ROW, click="7")
    files = [
        write_text(tmp_path / f"day_{day}.tsv", "tsv with header", [bad_line] * bad + lines[20 * day : 20 * day + 20])
        for day, bad in enumerate([1, 0, 2])
    ]
    for block_bytes in (100, HUGE):
        folder = prepare(
            f"logs{block_bytes}", described("tsv with header"), files, min_count=2, block_bytes=block_bytes
        )
        rest = "label not allowed", "column 'click' has 7, …must be 0 or 1", bad_line.decode()
        expected = [Bad(files[0], 2, *rest), Bad(files[2], 2, *rest), Bad(files[2], 3, *rest)]
        assert_put_aside(folder, expected, good_fingerprint)


PARQUET_MISTAKES: dict[str, tuple[str, Any, str, str]] = {
    "infinite": ("n", float("-inf"), "not a number", "column 'n' has -inf, which is not a finite number"),
    "label missing": ("click", None, "label not allowed", "column 'click' has no value, …must be 0 or 1"),
    "label 2": ("click", 2, "label not allowed", "column 'click' has 2, …must be 0 or 1"),
    "negative count": ("sales", -3, "label not allowed", "column 'sales' has -3, …must be a whole number from 0 up"),
    "fractional count": ("sales", 0.25, "label not allowed", "column 'sales' has 0.25, …must be a whole number…"),
    "infinite count": ("sales", float("inf"), "not a number", "column 'sales' has inf, …"),
    "no time": ("time", None, "bad time", "the time column 'time' has no value"),
}


@pytest.mark.parametrize("mistake", PARQUET_MISTAKES)
def test_bad_row_of_parquet_is_put_aside(tmp_path: Path, good_fingerprint: str, mistake: str) -> None:
    column, value, reason, problem = PARQUET_MISTAKES[mistake]
    good = good_table()
    row = {"click": 1, "n": 3.0, "c": "ü", "sales": 0.0, "time": START, column: value}
    bad = pa.Table.from_pylist([row], good.schema)
    table = pa.concat_tables([good.slice(0, 33), bad, good.slice(33)])
    for group_rows in (7, 1000):
        raw = tmp_path / f"{group_rows}.parquet"
        pq.write_table(table, raw, row_group_size=group_rows)
        folder = prepare("logs", Dataset.model_validate(PARQUET), raw, min_count=2, block_bytes=1)
        found = quarantine(folder)
        assert_put_aside(folder, [Bad(raw, 34, reason, problem, found[0].text)], good_fingerprint)
        assert json.loads(found[0].text) == row


EVENTS = {
    "format": "tsv",
    "columns": ["user", "n", "time", "id", "when"],
    "time_column": "time",
    "time_format": "iso8601",
    "integer_columns": ["n"],
    "tolerated_bad_rows": 0.2,
    "labels": {
        "pconvs": {
            "kind": "count",
            "following": {"event": "id", "event_time": "when", "same": ["user"], "within_days": 30},
        }
    },
}


def test_bad_time_of_an_event_is_put_aside(tmp_path: Path) -> None:
    """An event must not vanish from a label because its time cannot be read."""
    lines = [f"u{i % 3}\t{i}\t2023-10-01T12:{i:02}:00\te{i}\t2023-10-02T12:{i:02}:00".encode() for i in range(40)]
    description = Dataset.model_validate(EVENTS)
    clean = write_text(tmp_path / "clean", "tsv", lines)
    expected = open_prepared(prepare("logs", description, clean, min_count=1)).fingerprint
    line = b"u1\t1\t2023-10-01T13:00:00\te99\t2023-02-30"
    problem = "column 'when' has '2023-02-30', which is not a time…"
    for attempt, others in enumerate([[], [b"u1"]]):
        raw = write_text(tmp_path / f"raw{attempt}", "tsv", [*lines[:9], line, *lines[9:], *others])
        rows = [Bad(raw, 10, "bad time", problem, line.decode())]
        if others:
            rows.append(Bad(raw, 42, "wrong number of fields", "…found 1 field", "u1"))
        for block_bytes in (TINY, HUGE):
            folder = prepare(f"logs{block_bytes}", description, raw, min_count=1, block_bytes=block_bytes)
            assert_put_aside(folder, rows, expected)


def _packed_zip(text: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("logs.tsv", text)
    return packed.getvalue()


def _parquet(table: pa.Table, **options: Any) -> bytes:
    packed = io.BytesIO()
    pq.write_table(table, packed, **options)
    return packed.getvalue()


def _replaced(name: str, values: pa.Array) -> pa.Table:
    table = good_table()
    return table.set_column(table.column_names.index(name), name, values)


def _times(*values: int) -> bytes:
    """Good rows with other times, as a TSV."""
    times = [*values, *range(values[-1], values[-1] + 60 - len(values))]
    return b"".join(line_of("tsv", row, time=str(START + time)) + b"\n" for row, time in zip(GOOD, times, strict=True))


def _with(text: bytes, number: int, line: bytes) -> bytes:
    """A text with another line before one of its lines, numbered from 1."""
    lines = text.split(b"\n")
    return b"\n".join([*lines[: number - 1], line, *lines[number - 1 :]])


class Refused(NamedTuple):
    """Files that cannot be prepared: what they hold, how they are described, and what the error says.

    The first file's path is in the error, unless ``names`` says that another's is.
    """

    contents: dict[str, bytes]
    description: dict[str, Any]
    told: tuple[str, ...]
    names: str | None = None


TSV, CSV = TEXTS["tsv"], TEXTS["csv"]
TSV_HEADER, CSV_HEADER = TEXTS["tsv with header"], TEXTS["csv with header"]
TABS, COMMAS = "\t".join(NAMES).encode() + b"\n", ",".join(NAMES).encode() + b"\n"
ORDERED = {**TSV, "in_time_order": True}
WHOLE, TEXT, PACKED = _parquet(good_table()), good_text(), gzip.compress(good_text())
FRAMED = pa.compress(TEXT, codec="zstd", asbytes=True)
EMPTY_TABLE = good_table([])
REFUSED = {
    "empty file": Refused({"a": b""}, TSV, ("are empty",)),
    "empty among others": Refused({"a": TEXT, "b": b""}, TSV, ("are empty",), "b"),
    "blank lines only": Refused({"a": b"\n\r\n \n\n"}, TSV, ("are empty",)),
    "byte order mark only": Refused({"a": b"\xef\xbb\xbf\n"}, TSV, ("0 rows",)),
    "only a header": Refused({"a": TABS}, TSV_HEADER, ("has 0 rows; 10 are the fewest",)),
    "only a header and blank lines": Refused({"a": COMMAS + b"\r\n\n"}, CSV_HEADER, ("has 0 rows",)),
    "nine rows": Refused({"a": b"\n".join(good_lines()[:9])}, TSV, ("has 9 rows; 10 are the fewest",)),
    "nine rows and a bad one": Refused({"a": b"\n".join([*good_lines()[:9], b"1"])}, TSV, ("has 9 rows",)),
    "commas for tabs": Refused(
        {"a": good_text("csv")}, TSV, ("line 1:", "expected 6 fields separated by tabs, found 1 field")
    ),
    "tabs for commas": Refused({"a": TEXT}, CSV, ("line 1:", "expected 6 fields separated by commas, found")),
    "semicolons": Refused(
        {"a": TEXT.replace(b"\t", b";")}, {**TSV, "delimiter": "|"}, ("line 1:", "separated by '|', found 1 field")
    ),
    "wrong delimiter under a header": Refused(
        {"a": COMMAS + good_text("csv")}, TSV_HEADER, ("has no column 'n'; it has: click,unused,n,c,sales,time",)
    ),
    "header of a tsv not described": Refused(
        {"a": TABS + TEXT}, TSV, ("line 1:", "'click'", "this is a header line; say `header: true`")
    ),
    "header of a csv not described": Refused({"a": COMMAS + good_text("csv")}, CSV, ("line 1:", "is a header line")),
    "quoted header not described": Refused(
        {"a": b'"click","unused","n","c","sales","time"\n' + good_text("csv")}, CSV, ("line 1:", "is a header line")
    ),
    "header described and not there": Refused(
        {"a": b"\n".join(good_lines()[8:])}, TSV_HEADER, ("has no column 'n'; it has: 0, junk, -22, a",)
    ),
    "header described and a field twice": Refused({"a": TEXT}, TSV_HEADER, ("line 1:", "more than one column '0'")),
    "names twice in a header": Refused(
        {"a": TABS.replace(b"unused", b"n") + TEXT}, TSV_HEADER, ("line 1:", "more than one column 'n'")
    ),
    "missing column": Refused(
        {"a": COMMAS.replace(b"sales", b"salles") + good_text("csv")},
        CSV_HEADER,
        ("has no column 'sales' (did you mean 'salles'?); it has: click, unused, n, c, salles, time",),
    ),
    "header is not UTF-8": Refused({"a": TABS.replace(b"unused", b"\xe4") + TEXT}, TSV_HEADER, ("line 1:", "UTF-8")),
    "header with an open quote": Refused({"a": COMMAS.replace(b"un", b'"un') + good_text("csv")}, CSV_HEADER, ()),
    "blank line for a header": Refused({"a": b"\n" + TABS + TEXT}, TSV_HEADER, ("has no column 'n'",)),
    "line ends of old tsv": Refused({"a": TEXT.replace(b"\n", b"\r")}, TSV, ("line 1:", "carriage return")),
    "line ends of old tsv with header": Refused(
        {"a": (TABS + TEXT).replace(b"\n", b"\r")}, TSV_HEADER, ("line 1:", "carriage return")
    ),
    "line ends of old csv with header": Refused(
        {"a": (COMMAS + good_text("csv")).replace(b"\n", b"\r")}, CSV_HEADER, ("line 1:", "carriage return")
    ),
    "UTF-16": Refused({"a": TEXT.decode().encode("utf-16")}, TSV, ("are not text",)),
    "Latin-1 in every line": Refused(
        {"a": TEXT.replace(b"junk", b"\xfcber")}, TSV, ("line 1:", "not UTF-8 text: byte 0xfc", "most of the first 60")
    ),
    "zero byte early in the file": Refused({"a": _with(TEXT, 9, b"1\0")}, TSV, ("are not text: the file is binary",)),
    "blank line before other fields": Refused(
        {"a": b"\n" + TEXT.replace(b"\t", b" ")}, TSV, ("line 2:", "expected 6 fields separated by tabs, found 1 field")
    ),
    "truncated gzip": Refused({"a": PACKED[: len(PACKED) // 2]}, TSV, ("is not a whole gzip file",)),
    "gzip without its last byte": Refused({"a": PACKED[:-1]}, TSV, ("is not a whole gzip file",)),
    "garbage after gzip": Refused({"a": PACKED + b"garbage"}, TSV, ("is not a whole gzip file",)),
    "damaged gzip": Refused({"a": PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:]}, TSV, ("is not a whole gzip file",)),
    "truncated gzip among others": Refused({"a": TEXT, "b": PACKED[:-20]}, TSV, ("is not a whole gzip file",), "b"),
    "gzip of nothing": Refused({"a": gzip.compress(b"")}, TSV, ("are empty",)),
    "gzip in gzip": Refused({"a": gzip.compress(PACKED)}, TSV, ("not text",)),
    "truncated zstd": Refused({"a": FRAMED[:-9]}, TSV, ("is not a whole zstd file",)),
    "corrupt zstd": Refused({"a": FRAMED[:9] + b"\xff" * 30 + FRAMED[39:]}, TSV, ("is not a whole zstd file",)),
    "zip": Refused({"a": _packed_zip(TEXT)}, TSV, ("compressed with zip: decompress", "gzip and zstd can be read")),
    "bzip2": Refused({"a": bz2.compress(TEXT)}, TSV, ("compressed with bzip2: decompress",)),
    "xz": Refused({"a": lzma.compress(TEXT)}, CSV, ("compressed with xz: decompress",)),
    "Parquet where text is described": Refused({"a": WHOLE}, TSV, ("are a Parquet file, but", "format is tsv")),
    "text where Parquet is described": Refused({"a": TEXT}, PARQUET, ("are not a whole Parquet file",)),
    "Parquet cut short": Refused({"a": WHOLE[:-100]}, PARQUET, ("are not a whole Parquet file",)),
    "only the end of Parquet": Refused({"a": WHOLE[-300:]}, PARQUET, ("are not a whole Parquet file",)),
    "damaged pages of Parquet": Refused(
        {"a": WHOLE[:4] + b"\xff" * 300 + WHOLE[304:]}, PARQUET, ("cannot read row groups 0 to 0",)
    ),
    "damaged page of a later Parquet": Refused(
        {"a": WHOLE, "b": WHOLE[:4] + b"\xff" * 300 + WHOLE[304:]}, PARQUET, ("cannot read row groups",), "b"
    ),
    "gzipped Parquet": Refused(
        {"a": gzip.compress(WHOLE)}, PARQUET, ("compressed with gzip", "a Parquet file is compressed inside")
    ),
    "Parquet without rows": Refused({"a": _parquet(EMPTY_TABLE)}, PARQUET, ("has 0 rows",)),
    "Parquet without a column": Refused(
        {"a": _parquet(good_table().drop_columns(["sales"]))}, PARQUET, ("has no column 'sales'; it has: c, click",)
    ),
    "Parquet label of text": Refused(
        {"a": _parquet(_replaced("click", pa.array(["1"] * 60)))}, PARQUET, ("'click' has type string; it must be",)
    ),
    "Parquet time of text": Refused(
        {"a": _parquet(_replaced("time", pa.array(["2023"] * 60)))}, PARQUET, ("'time' has type string; it must be",)
    ),
    "Parquet tokens that are not UTF-8": Refused(
        {"a": _parquet(_replaced("c", pa.array([b"\xff"] * 60, pa.binary()).view(pa.string())))}, PARQUET, ("UTF",)
    ),
    "other order of the header": Refused(
        {"a": TABS + TEXT, "b": b"click\tn\tunused\tc\tsales\ttime\n" + TEXT},
        TSV_HEADER,
        ("has other columns than", "/a", "'n' where that has 'unused'"),
        "b",
    ),
    "another column in the header": Refused(
        {"a": COMMAS + good_text("csv"), "b": COMMAS[:-1] + b",x\n" + good_text("csv").replace(b"\n", b",\n")},
        CSV_HEADER,
        ("has other columns than", "/a", "'x' where that has 'nothing'"),
        "b",
    ),
    "missing column in the second header": Refused(
        {"a": TABS + TEXT, "b": TABS.replace(b"time", b"zeit") + TEXT}, TSV_HEADER, ("has no column 'time'",), "b"
    ),
    "other types in the second Parquet": Refused(
        {"a": WHOLE, "b": _parquet(_replaced("click", pa.array([1.0] * 60)))},
        PARQUET,
        ("has other columns than", "/a", "'click' of type double where that has 'click' of type int8"),
        "b",
    ),
    "other unit of time in the second Parquet": Refused(
        {
            "a": _parquet(_replaced("time", pa.array(range(60), pa.timestamp("s")))),
            "b": _parquet(_replaced("time", pa.array(range(60), pa.timestamp("us")))),
        },
        PARQUET,
        ("has other columns than", "'time' of type timestamp[us] where that has 'time' of type timestamp["),
        "b",
    ),
    "disorder": Refused(
        {"a": _times(0, 5, 4)}, ORDERED, ("line 3:", "22:13:24Z comes after 2023-11-14T22:13:25Z", "`in_time_order`")
    ),
    "disorder late in the file": Refused({"a": _times(*range(50), 48)}, ORDERED, ("line 51:", "comes after")),
    "disorder after a bad row": Refused({"a": _with(_times(0, 5, 4), 3, b"1")}, ORDERED, ("line 4:", "comes after")),
    "disorder under a header": Refused(
        {"a": TABS + _times(0, 5, 4)}, {**TSV_HEADER, "in_time_order": True}, ("line 4:", "comes after")
    ),
    "disorder between files": Refused({"a": _times(100), "b": _times(0)}, ORDERED, ("line 1:", "comes after"), "b"),
    "disorder in Parquet": Refused(
        {"a": _parquet(good_table(), row_group_size=9)}, {**PARQUET, "in_time_order": True}, ("row 10:", "comes after")
    ),
    "one time": Refused({"a": _times(*[0] * 59, 1)}, TSV, ("would be empty", "same value of 'time'")),
    "more bad rows than tolerated": Refused(
        {"a": _with(TEXT, 7, b"1\tx")}, {**TSV, "tolerated_bad_rows": 0.01}, ("line 7:", "1 of 61 rows", "0.01")
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_file_is_refused(tmp_path: Path, home: Path, mistake: str) -> None:
    """With the same message wherever the file is cut, and nothing left that could be taken for a result."""
    case = REFUSED[mistake]
    for name, content in case.contents.items():
        (tmp_path / name).write_bytes(content)
    messages = set()
    for block_bytes in (TINY, HUGE):
        with pytest.raises(UserError) as caught:
            prepare(
                f"logs{block_bytes}",
                Dataset.model_validate(case.description),
                [tmp_path / name for name in case.contents],
                min_count=2,
                block_bytes=block_bytes,
            )
        message = str(caught.value)
        for part in (str(tmp_path / (case.names or next(iter(case.contents)))), *case.told):
            assert part in message
        messages.add(re.sub(r"All of them are in \S+", "", message))
        assert_nothing_half_written(home)
    assert len(messages) == 1


def test_first_disorder_is_told(tmp_path: Path) -> None:
    """Also where a block begins with it and has another."""
    raw = tmp_path / "raw"
    raw.write_bytes(_times(*range(20), *range(19, 0, -1)))
    for size in (1, 560, 570, HUGE):
        with pytest.raises(UserError, match=r"raw, line 22: the time 2023-11-14T22:13:38Z comes after"):
            prepare(f"logs{size}", Dataset.model_validate(ORDERED), raw, min_count=2, block_bytes=size)


def test_files_that_are_not_there(tmp_path: Path, home: Path) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    hidden = tmp_path / "hidden"
    (hidden / "_temporary").mkdir(parents=True)
    for name in ("_SUCCESS", ".part.crc", "_temporary/part"):
        (hidden / name).write_bytes(TEXT)
    os.mkfifo(tmp_path / "pipe")
    for raw, told in {
        tmp_path / "missing": "do not exist",
        tmp_path / "day=*" / "*.tsv": "do not exist: no file matches the pattern",
        tmp_path / "folder": "are a folder without files",
        hidden: "are a folder without files",
        tmp_path / "pipe": "not a regular file",
    }.items():
        with pytest.raises(UserError, match=f"{re.escape(str(raw))} .*{told}"):
            prepare("logs", described("tsv"), raw, min_count=2)
        assert_nothing_half_written(home)


@pytest.mark.parametrize("content", [PACKED, FRAMED], ids=["gzip", "zstd"])
def test_cut_anywhere_a_compressed_file_is_refused(tmp_path: Path, content: bytes) -> None:
    raw = tmp_path / "raw"
    for size in range(4, len(content)):
        raw.write_bytes(content[:size])
        with pytest.raises(UserError, match=f"{re.escape(str(raw))} is not a whole"):
            look_at(raw).decompress(tmp_path / "text")
    raw.write_bytes(content)
    look_at(raw).decompress(tmp_path / "text")
    assert (tmp_path / "text").read_bytes() == TEXT


def test_cut_anywhere_a_parquet_file_is_refused(tmp_path: Path, home: Path) -> None:
    raw = tmp_path / "raw"
    for size in range(1, len(WHOLE), len(WHOLE) // 25):
        raw.write_bytes(WHOLE[:size])
        with pytest.raises(UserError, match=f"{re.escape(str(raw))} are not a whole Parquet file"):
            prepare("logs", Dataset.model_validate(PARQUET), raw, min_count=2)
    assert_nothing_half_written(home)


BAD_LINES = [
    (3, b"1\tx"),
    (8, line_of("tsv", GOOD_ROW, n="abc")),
    (9, line_of("tsv", GOOD_ROW, click="2")),
    (20, b"1\tx\t3"),
    (41, line_of("tsv", GOOD_ROW, time="")),
    (55, line_of("tsv", GOOD_ROW, n="inf")),
    (66, b""),
]
BAD_TEXT = functools.reduce(lambda text, bad: _with(text, *bad), BAD_LINES[:-1], TEXT) + b"\n1\tx\n"


def _inodes(parts: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in [*parts.iterdir(), *parts.rglob("*.*")]}


def test_more_bad_rows_than_tolerated(tmp_path: Path, home: Path, good_fingerprint: str) -> None:
    """An error with counts and the first few; after the tolerance is raised, nothing is parsed again."""
    raw = tmp_path / "raw"
    raw.write_bytes(BAD_TEXT)
    for block_bytes in (TINY, HUGE):
        name = f"logs{block_bytes}"
        with pytest.raises(UserError) as caught:
            prepare(name, described("tsv", tolerated_bad_rows=0.1), raw, min_count=2, block_bytes=block_bytes)
        head, *first, last = str(caught.value).splitlines()
        assert head.startswith("8 of 68 rows cannot be read (4 wrong number of fields, 2 not a number, 1 ")
        assert all(f"1 {reason}" in head for reason in ("label not allowed", "bad time"))
        assert head.endswith("; `tolerated_bad_rows` allows a share of 0.1. The first:")
        numbers = [number for number, _ in BAD_LINES[:5]]
        assert [line.split(": ")[0] for line in first] == [f"  {raw}, line {number}" for number in numbers]
        assert first[1].endswith("column 'n' has 'abc', which is not a finite number")
        assert_nothing_half_written(home, name)
        listed = re.fullmatch(r"All of them are in (\S+)", last)
        assert listed
        kept = quarantine(Path(listed[1]).parent)
        before = _inodes(home / "data" / name / "parts")
        folder = prepare(name, described("tsv", tolerated_bad_rows=0.12), raw, min_count=2, block_bytes=block_bytes)
        assert_put_aside(folder, [bad._replace(problem="…") for bad in kept], good_fingerprint)
        assert [bad.line for bad in kept] == [*(number for number, _ in BAD_LINES[:6]), 67, 68]
        assert _inodes(home / "data" / name / "parts") == before


def test_tolerance_is_a_share_of_all_rows(tmp_path: Path) -> None:
    """One of a thousand is tolerated unless the description says otherwise, and counted over all files."""
    description = Dataset.model_validate({k: v for k, v in TSV.items() if k != "tolerated_bad_rows"})
    assert description.tolerated_bad_rows == 0.001
    lines = [line_of("tsv", GOOD_ROW, time=str(START + i)) for i in range(1998)]
    one = write_text(tmp_path / "one", "tsv", [*lines[:500], COMPANION, COMPANION])
    two = write_text(tmp_path / "two", "tsv", lines[500:])
    assert len(quarantine(prepare("logs", description, [one, two], min_count=2))) == 2
    with pytest.raises(UserError, match=r"2 of 502 rows cannot be read \(2 wrong number of fields\)"):
        prepare("logs", description, one, min_count=2)
    more = write_text(tmp_path / "more", "tsv", [*lines[500:], COMPANION])
    with pytest.raises(UserError, match=r"3 of 2,001 rows") as caught:
        prepare("logs", description, [one, more], min_count=2)
    assert "quarantine.csv and 1 more such files" in str(caught.value)
    none = Dataset.model_validate({**TSV, "tolerated_bad_rows": 0})
    assert not (prepare("logs", none, two, min_count=2) / "quarantine.csv").exists()


def test_tolerance_that_is_lowered_later_counts(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(BAD_TEXT)
    prepare("logs", described("tsv", tolerated_bad_rows=0.2), raw, min_count=2)
    with pytest.raises(UserError, match="8 of 68 rows cannot be read"):
        prepare("logs", described("tsv", tolerated_bad_rows=0.01), raw, min_count=2)


def test_nothing_half_written_is_taken_for_finished(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, good_fingerprint: str
) -> None:
    """Not after an interrupt, nor what a killed process left behind."""
    raw = write_text(tmp_path / "raw", "tsv", good_lines())

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for step in ("_summary", "_join_quarantine", "write_json"):
        with monkeypatch.context() as patch:
            patch.setattr(parts_module, step, interrupt)
            with pytest.raises(KeyboardInterrupt):
                prepare("logs", described("tsv"), raw, min_count=2)
        assert_nothing_half_written(home)
    folder = prepare("logs", described("tsv"), raw, min_count=2)
    part = next((folder.parent / "parts").iterdir())
    for finished in (part, folder):
        finished.rename(finished.with_name(f".{finished.name}.killed"))
    (part.with_name(f".{part.name}.killed") / "0.arrow").write_bytes(b"half")
    again = prepare("logs", described("tsv"), raw, min_count=2)
    assert again == folder
    assert open_prepared(again).fingerprint == good_fingerprint


def test_there_are_enough_malformed_files() -> None:
    assert len(MISTAKES) + len(PARQUET_MISTAKES) + len(REFUSED) >= 100
