"""Bad rows go to the quarantine with their place and reason, and no good row is lost with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.config.dataset import Dataset
from tasks.data.preparation import prepare
from tasks.data.prepared import open_prepared
from tests.support.raw_logs import (
    GOOD_ROW,
    HUGE,
    NAMES,
    PARQUET,
    START,
    TINY,
    Bad,
    assert_put_aside,
    described,
    good_lines,
    good_table,
    good_text,
    line_of,
    quarantine,
    write_text,
)


@pytest.fixture(autouse=True)
def home(own_home: Path) -> Path:
    return own_home


# Values that are wrong in any text format: the column, the value, the reason and the message.
VALUE_MISTAKES = {
    "letters": ("n", "abc", "not a number", "column 'n' has 'abc', not a finite number"),
    "number with a unit": ("n", "12kg", "not a number", "column 'n' has '12kg', not a finite number"),
    "spaces for a number": ("n", "  ", "not a number", "column 'n' has '  ', not a finite number"),
    "thousands": ("n", "1_000", "not a number", "column 'n' has '1_000', not a finite number"),
    "hexadecimal": ("n", "0x1F", "not a number", "column 'n' has '0x1F', not a finite number"),
    "arabic digits": ("n", "٣", "not a number", "column 'n' has '٣', not a finite number"),
    "infinite": ("n", "-inf", "not a number", "column 'n' has …-inf…, not a finite number"),
    "not a number": ("n", "NaN", "not a number", "column 'n' has …, not a finite number"),
    "too large": ("n", "1e999", "not a number", "column 'n' has …, not a finite number"),
    "label 2": ("click", "2", "label not allowed", "column 'click' has 2, …pctr (kind binary) must be 0 or 1"),
    "label 0.5": ("click", "0.5", "label not allowed", "column 'click' has 0.5, …must be 0 or 1"),
    "label missing": ("click", "", "label not allowed", "column 'click' has no value, …must be 0 or 1"),
    "label stands for missing": ("click", "-", "label not allowed", "column 'click' has no value, …must be 0 or 1"),
    "label text": ("click", "yes", "not a number", "column 'click' has 'yes', not a finite number"),
    "negative count": ("sales", "-1", "label not allowed", "column 'sales' has -1, …must be a whole number, 0 or more"),
    "fractional count": ("sales", "1.5", "label not allowed", "column 'sales' has 1.5, …pconvs (kind count) must be…"),
    "count beyond 32 bits": ("sales", "1e308", "label not allowed", "column 'sales' has 1e+308, …at most 16,777,216"),
    "count that would be rounded": ("sales", "16777217", "label not allowed", "column 'sales' has 16777217, …at most…"),
    "time missing": ("time", "", "bad time", "the time column 'time' has no value"),
    "time is a word": ("time", "noon", "bad time", "column 'time' has 'noon', not a finite number"),
    "time infinite": ("time", "inf", "bad time", "column 'time' has …inf…, not a…number"),
}
DATE_MISTAKES = ["2023-13-01", "2023-02-30", "yesterday", "2023-10-01T25:00:00", "2023-10-01 12:60", "1.10.2023"]
# Lines that are not rows of their format.
FEW, MANY = "expected 6 fields separated by …, found 5 fields", "expected 6 fields separated by …, found 7 fields"
RETURN = "the line contains a carriage return; lines must end with \\n or \\r\\n"
QUOTES = "unbalanced quotes…; a row must be on one line"
LINE_MISTAKES = {
    "too few fields": ("tsv", b"1\tjunk\t3\ta\t0", "wrong number of fields", FEW),
    "too many fields": ("tsv", b"1\tjunk\t3\ta\t0\t1700000000\t", "wrong number of fields", MANY),
    "too few fields under a header": ("tsv with header", b"1\tjunk\t3\ta\t0", "wrong number of fields", FEW),
    "too few fields of a csv": ("csv with header", b'1,"junk",3,"a,b",0', "wrong number of fields", FEW),
    "too many fields of a csv": ("csv", b"1,junk,3,a,b,0,1700000000", "wrong number of fields", MANY),
    "blank line": ("tsv", b"", "wrong number of fields", "expected 6 fields…, found a blank line"),
    "blank line of a csv": ("csv", b"", "wrong number of fields", "expected 6 fields…, found a blank line"),
    "line of spaces": ("tsv", b"   ", "wrong number of fields", "expected 6 fields…, found 1 field"),
    "not UTF-8": ("tsv", b"1\tjunk\t3\t\xff\t0\t1700000000", "not text", "not UTF-8: byte 0xff at position 10…"),
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
    "another header": ("tsv", "\t".join(NAMES).encode(), "not a number", "column 'n' has 'n', not…"),
}
# All formats parse values in the same way, so a few are enough for csv.
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
    """With any line ends, any block boundaries, and other bad rows in the same block."""
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
    """An unclosed quote or a truncated line at the end of a file; trailing blank lines are ignored."""
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
    """A row must be on one line, even if the next line closes the quote."""
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
    """As in Python and Arrow: 5" is valid, also in a block with a bad row."""
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
        bad = Bad(raw, 2551, "not text", "the line contains a zero byte", "1\tx\t3\ta\0\t0\t1700000000")
        assert_put_aside(folder, [bad], expected)


def test_very_long_lines(tmp_path: Path, good_fingerprint: str) -> None:
    """A very long bad line goes to the quarantine like any other."""
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
    """Also in a block with a bad line."""
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
    "infinite": ("n", float("-inf"), "not a number", "column 'n' has -inf, not a finite number"),
    "label missing": ("click", None, "label not allowed", "column 'click' has no value, …must be 0 or 1"),
    "label 2": ("click", 2, "label not allowed", "column 'click' has 2, …must be 0 or 1"),
    "negative count": ("sales", -3, "label not allowed", "column 'sales' has -3, …must be a whole number, 0 or more"),
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
    """An event with an invalid time makes its row bad instead of silently lowering a label."""
    lines = [f"u{i % 3}\t{i}\t2023-10-01T12:{i:02}:00\te{i}\t2023-10-02T12:{i:02}:00".encode() for i in range(40)]
    description = Dataset.model_validate(EVENTS)
    clean = write_text(tmp_path / "clean", "tsv", lines)
    expected = open_prepared(prepare("logs", description, clean, min_count=1)).fingerprint
    line = b"u1\t1\t2023-10-01T13:00:00\te99\t2023-02-30"
    problem = "column 'when' has '2023-02-30', not a time…"
    for attempt, others in enumerate([[], [b"u1"]]):
        raw = write_text(tmp_path / f"raw{attempt}", "tsv", [*lines[:9], line, *lines[9:], *others])
        rows = [Bad(raw, 10, "bad time", problem, line.decode())]
        if others:
            rows.append(Bad(raw, 42, "wrong number of fields", "…found 1 field", "u1"))
        for block_bytes in (TINY, HUGE):
            folder = prepare(f"logs{block_bytes}", description, raw, min_count=1, block_bytes=block_bytes)
            assert_put_aside(folder, rows, expected)
