"""Reading text against a slow and obvious oracle, on whatever bytes a file may hold."""

from __future__ import annotations

import csv
import datetime
import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.descriptions import Dataset
from tasks.errors import UserError
from tasks.raw_files import RawFile, look_at
from tasks.raw_rows import timed
from tasks.text_logs import TextLogs
from tasks.text_values import iso_times

COLUMNS = ("n", "unused", "c", "time", "y")
SIZES = (1, 40, 1 << 20)
BOM = b"\xef\xbb\xbf"
LONG = 1 << 18  # longer than a field that Python's csv reads
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def dataset(form: str, **changes: Any) -> Dataset:
    described = {
        "format": form,
        "columns": COLUMNS,
        "integer_columns": ["n"],
        "categorical_columns": ["c"],
        "time_column": "time",
        "labels": {"pconvs": {"column": "y", "kind": "count"}},
        "missing": ["\\N", "-1"],
    }
    return Dataset.model_validate({**described, **changes})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "raw"


# The oracle: what every line of a text means.


def _fields(line: str, separator: str, *, quotes: bool) -> list[str] | None:
    """RFC 4180, one sign after the other; a quote inside an unquoted field stands for itself."""
    if not quotes:
        return line.split(separator)
    fields, at = [], 0
    while True:
        if line[at : at + 1] == '"':
            closed = re.compile(r'"((?:[^"]|"")*)"').match(line, at)
            if closed is None:
                return None
            fields.append(closed[1].replace('""', '"'))
            at = closed.end()
        else:
            stop = line.find(separator, at)
            stop = len(line) if stop < 0 else stop
            fields.append(line[at:stop])
            at = stop
        if at == len(line):
            return fields
        if line[at] != separator:
            return None
        at += 1


def _number(text: str, missing: Sequence[str]) -> float | None:
    """NaN for what is not a finite number."""
    if text in ("", *missing):
        return None
    if not re.fullmatch(r"[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*", text):
        return math.nan
    value = float(text)
    if value in [float(known) for known in missing if known != "\\N"]:
        return None
    return value if math.isfinite(value) else math.nan


ISO = r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)?)?"


def _moment(text: str) -> int | None:
    """Microseconds since 1970 by Python's reading."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)) - EPOCH) // datetime.timedelta(
        microseconds=1
    )


class Line(NamedTuple):
    """What is wrong with a line: nothing, its fields, or a value; and its values."""

    wrong: str | None
    values: dict[str, Any]


def _line(line: bytes, description: Dataset) -> Line:
    line = line.removesuffix(b"\r")
    if b"\0" in line or b"\r" in line:
        return Line("not text", {})
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return Line("not text", {})
    fields = _fields(text, description.separator, quotes=description.format == "csv")
    if description.format == "csv" and len(text) < 100_000:
        try:
            by_python = next(csv.reader([text], delimiter=description.separator, strict=True)) or [""]
        except csv.Error:
            by_python = None
        assert fields == by_python
    if fields is None:
        return Line("wrong quotes", {})
    if len(fields) != len(COLUMNS):
        return Line("wrong number of fields", {})
    texts = dict(zip(COLUMNS, fields, strict=True))
    values: dict[str, Any] = {name: _number(texts[name], description.missing) for name in ("n", "y", "time")}
    values["c"] = "" if texts["c"] in description.missing else texts["c"]
    if description.time_format == "iso8601":
        absent = texts["time"] in ("", *description.missing)
        values["time"] = _moment(texts["time"]) if not absent and re.fullmatch(ISO, texts["time"], re.ASCII) else None
    if any(isinstance(value, float) and math.isnan(value) for value in values.values()) or values["time"] is None:
        return Line("value", {})
    return Line(None, values)


def _lines(data: bytes, description: Dataset) -> list[Line]:
    """Of a file without its byte order mark and the line ends at its end."""
    text = data.removeprefix(BOM).rstrip(b"\r\n")
    return [_line(line, description) for line in text.split(b"\n")] if text else []


# What the code says.


class Found(NamedTuple):
    rows: dict[int, dict[str, Any]]
    bad: dict[int, tuple[str, str, str]]


def _read(logs: TextLogs, block_bytes: int) -> Found:
    found, before, edge = Found({}, {}), 0, logs.start
    for block in logs.blocks(block_bytes):
        assert block.start == edge < block.stop
        edge = block.stop
        rows = timed(logs.read(block), logs.dataset)
        assert len(rows.places) + len(rows.bad) == rows.total
        for place, values in zip(rows.places.tolist(), rows.table.to_pylist(), strict=True):
            found.rows[before + place] = values
        for bad in rows.bad:
            found.bad[before + bad.place] = (bad.reason, bad.problem, bad.text)
        before += rows.total
    return found


def check(path: Path, data: bytes, description: Dataset) -> None:
    """Opening a file is refused only where that is right, and every line is read as the oracle does."""
    path.write_bytes(data)
    lines = _lines(data, description)
    try:
        file = look_at(path)
    except UserError:
        assert not data.strip()
        return
    try:
        logs = TextLogs.open(file, path, description)
    except UserError as error:
        _assert_refused_for_a_reason(str(error), data, description)
        # The same lines may stand in a large file that begins better.
        logs = TextLogs(file, path, description, COLUMNS, len(BOM) if data.startswith(BOM) else 0)
    readings = [_read(logs, size) for size in SIZES]
    for found in readings:
        assert sorted([*found.rows, *found.bad]) == list(range(len(lines)))
        wrong = {number: line.wrong for number, line in enumerate(lines) if line.wrong}
        assert {number: reason for number, (reason, _, _) in found.bad.items() if number not in wrong} == {}
        assert {number: values for number, values in found.rows.items() if number in wrong} == {}
        assert found.rows == {number: line.values for number, line in enumerate(lines) if not line.wrong}
        for number, reason in wrong.items():
            assert found.bad[number][0] in ((reason,) if reason != "value" else ("not a number", "bad time"))
    for found in readings[1:]:
        assert found.bad == readings[0].bad


def _assert_refused_for_a_reason(message: str, data: bytes, description: Dataset) -> None:
    lines = [_line(line, description) for line in data.removeprefix(BOM).split(b"\n") if line.strip()]
    if "the file is binary" in message:
        assert b"\0" in data
    elif "are empty" in message:
        assert not data.strip()
    elif "do not fit the dataset's description" in message:
        assert 2 * sum(line.wrong not in (None, "value") for line in lines) > len(lines)
    else:
        assert "this is a header line" in message
        assert lines[0].wrong == "value"


# Files of nasty pieces.

NUMBERS = ["0", "7", "-1", "+5", "1e5", "-2.50", " 42 ", "1.", ".5", "12345678901234567890", "1e-400", "", "\\N"]
NOT_NUMBERS = ["nan", "NaN", "inf", "-inf", "1e999", "abc", "-", "+", ".", "e5", "1e", "0x1F", "1_0", "٣", "5 5", " "]
WORDS = ["a", "größe", "\\N", "n", "x y", "\u2028", "\x85", "\x0b", "\ufeff", "'", "\\", '5"', 'a"b"', "null", "NULL"]
TIMES = ["1700000000", "1.5", "0", "2023-10-01", "2023-10-01T12:30:00", "2023-10-01 12:30:00.25Z", "2023-02-30"]
QUOTED = ['"a"', '""', '"a,b"', '"a""b"', '"1"', '"\t"', '"', '"a', 'a"', '"a"b', '"a" ', '""""', '"""', ' "a"']
NOISE = [b"\0", b"\xff", b"\xc3", b"\r", b"\r\r", b"\n", b"\r\n", BOM, b"\t", b",", b'"', b" ", b"\xc3\xa9", b"1"]
BYTES = [*(text.encode() for text in (*NUMBERS, *NOT_NUMBERS, *WORDS, *TIMES, *QUOTED)), *NOISE]


def _encoded(*texts: Sequence[str]) -> st.SearchStrategy[bytes]:
    return st.sampled_from([text.encode() for some in texts for text in some])


def files(form: str, times: Sequence[str]) -> st.SearchStrategy[bytes]:
    """Files of good lines, lines with odd fields and mere noise, in all mixtures."""
    separator = b"," if form == "csv" else b"\t"
    good_number, good_time, words = _encoded(NUMBERS), _encoded(times), _encoded(WORDS)
    good = st.tuples(good_number, words, words, good_time, good_number)
    odd_value = st.one_of(good_number, _encoded(NOT_NUMBERS), _encoded(QUOTED))
    odd = st.tuples(odd_value, words, _encoded(WORDS, QUOTED), st.one_of(good_time, odd_value), good_number)
    strange = st.lists(st.sampled_from(BYTES), min_size=4, max_size=6)
    line = st.one_of(good, good, odd, strange).map(separator.join)
    noise = st.lists(st.sampled_from([*BYTES, separator]), max_size=12).map(b"".join)
    end = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r\n", b"\n\n", b"\r", b"\r\r\n"])
    lines = st.lists(st.tuples(st.one_of(line, line, line, noise), end), max_size=9)
    joined = lines.map(lambda pairs: b"".join(piece for pair in pairs for piece in pair))
    start = st.sampled_from([b"", b"", b"", BOM, BOM + BOM])
    return st.tuples(start, joined, st.one_of(st.just(b""), noise)).map(b"".join)


GOOD = b"1,x,a,2,3\n"


@settings(derandomize=True, deadline=None, max_examples=70)
@given(data=files("csv", TIMES[:3]))
@example(data=GOOD * 3 + b"1,\xff,a,2,3\n" + GOOD * 3)
@example(data=GOOD * 3 + b'1,x,"a"b,2,3\n' + GOOD * 3)
@example(data=GOOD * 3 + b'"1,x,a,2,3\n1",x,a,2,3\n' + GOOD * 3)
@example(data=GOOD * 3 + b'1,x,"a\n2,3\n' + GOOD + b'1,x,b",2,3\n\n' + GOOD * 3)
@example(data=BOM + GOOD * 3 + BOM + GOOD + GOOD * 3)
@example(data=BOM + BOM + b'"1",x,a,2,3\n' + GOOD * 3)
@example(data=BOM + BOM + b'"1,x",a,2,3\n' + GOOD * 3)
@example(data=GOOD * 3 + b'1,x,"' + b"a" * LONG + b'",2,3\n' + GOOD)
@example(data=GOOD * 3 + b'1,x,"' + b"a" * LONG + b'",2,3\n1\n' + GOOD)
@example(data=GOOD * 3 + b"1,x,a,2," + b"9" * 400 + b"\n" + GOOD)
@example(data=GOOD * 3 + b"nan,x,a,2,3\n" + GOOD + b"1e999,x,a,nan,3\nabc,x,a,2,3\n")
def test_any_csv_is_read_as_the_oracle_does(path: Path, data: bytes) -> None:
    check(path, data, dataset("csv"))


@settings(derandomize=True, deadline=None, max_examples=70)
@given(data=files("tsv", TIMES[:3]))
@example(data=GOOD.replace(b",", b"\t") * 3 + b"1\t\xff\ta\t2\t3\n" + GOOD.replace(b",", b"\t") * 3)
@example(data=GOOD.replace(b",", b"\t") * 3 + b'1\t"\t"\ta\t2\n' + GOOD.replace(b",", b"\t") * 3)
def test_any_tsv_is_read_as_the_oracle_does(path: Path, data: bytes) -> None:
    check(path, data, dataset("tsv"))


@settings(derandomize=True, deadline=None, max_examples=50)
@given(data=files("tsv", TIMES[3:]))
@example(data=b"1\tx\ta\t2023-10-01\t3\n" * 3 + b"1\tx\ta\t2023-02-30\t3\n")
@example(data=b"1\tx\ta\t2023-10-01\t3\n" * 3 + b"1\tx\ta\t2023-10-01T12\t3\n")
def test_any_text_with_dates_is_read_as_the_oracle_does(path: Path, data: bytes) -> None:
    check(path, data, dataset("tsv", time_format="iso8601"))


@settings(derandomize=True, deadline=None, max_examples=50)
@given(noise=st.lists(st.sampled_from([*BYTES, b",", b"\t", *(name.encode() for name in COLUMNS)]), max_size=10))
@example(noise=[b",".join(name.encode() for name in COLUMNS)])
@example(noise=[b",".join(b'"%s"' % name.encode() for name in COLUMNS)])
@example(noise=[b"n,unused,c,time,y\r1,x,a,2,3"])
@example(noise=[b"n,unused,c,time,y," + b"z" * LONG])
@example(noise=[b'n,unused,c,time,y,"z'])
def test_any_header_is_read_or_refused(path: Path, noise: list[bytes]) -> None:
    """As the rows are: a quote that nothing closes, or more after one that is closed, is a mistake."""
    for form, separator in (("csv", ","), ("tsv", "\t")):
        header = b"".join(noise).replace(b"," if form == "tsv" else b"\t", separator.encode())
        path.write_bytes(header + b"\n" + GOOD.replace(b",", separator.encode()) * 3)
        try:
            text = path.read_bytes().removeprefix(BOM).split(b"\n")[0].removesuffix(b"\r").decode()
            names = None if set(text) & {"\0", "\r"} else _fields(text, separator, quotes=form == "csv")
        except UnicodeDecodeError:
            names = None
        description = dataset(form, header=True, columns=None)
        try:
            logs = TextLogs.open(look_at(path), path, description)
        except UserError as error:
            told = str(error)
        else:
            assert names is not None
            assert logs.columns == tuple(names)
            assert logs.start == path.read_bytes().index(b"\n") + 1
            continue
        assert str(path) in told
        fits = names is not None and len(names) == len(set(names)) and set(names) >= set(description.used_columns)
        assert not fits or "do not fit the dataset's description" in told


def test_blocks_are_whole_lines_of_about_the_wanted_size(path: Path) -> None:
    """Without the line ends at the end of the file, and the same rows whatever the size."""
    content = b"".join(b"%d,x,%s,2,3\n" % (i, b"a" * (i * 7 % 50)) for i in range(200))
    for data in (content, content.rstrip(), content + b"\n\r\n" * 5000, BOM + content.replace(b"\n", b"\r\n")):
        path.write_bytes(data)
        logs = TextLogs.open(look_at(path), path, dataset("csv"))
        for size in (1, 10, 333, 5000, 1 << 30, 1 << 40):
            blocks = logs.blocks(size)
            assert [block.number for block in blocks] == list(range(len(blocks)))
            assert blocks[0].start == logs.start
            assert blocks[-1].stop == len(data.rstrip(b"\r\n"))
            for block, following in itertools.pairwise(blocks):
                assert block.stop == following.start
                assert data[block.stop - 1 : block.stop] == b"\n"
                assert block.stop - block.start < size + 80
        assert _read(logs, 333) == _read(logs, 1 << 30)


def test_column_of_the_path_in_a_file_of_one_column(tmp_path: Path) -> None:
    """A line is a row also if it has nothing but a missing value."""
    folder = tmp_path / "y=1" / "time=5" / "c=a"
    folder.mkdir(parents=True)
    raw = folder / "raw"
    raw.write_bytes(b"1\n2\n\n4\n")
    logs = TextLogs.open(look_at(raw), raw, dataset("tsv", columns=["n"], path_columns=["y", "time", "c"]))
    for size in (1, 3, 100):
        found = _read(logs, size)
        assert sorted([*found.rows, *found.bad]) == [0, 1, 2, 3]
        assert [found.rows[row]["n"] for row in (0, 1, 3)] == [1, 2, 4]
        assert 2 in found.bad or found.rows[2]["n"] is None


# Dates.

DATES = ["2023-10-01", "1969-12-31", "2024-02-29", "2023-02-29", "2023-13-01", "2023-00-10", "0001-01-01", "9999-12-31"]
DATES += [
    "0000-01-01",
    "20231001",
    "2023-1-1",
    "2023-W40-1",
    "2023-274",
    "yesterday",
    "12023-01-01",
    "٢٠٢٣-10-01",
    "2023",
]
CLOCKS = ["", "T12:30", " 12:30:00", "T23:59:59.5", "T00:00:00.000001", "T12:30:00.123456", "T24:00:00", "T12:60:00"]
CLOCKS += ["T12", "T1230", "T12:30:60", "T12:30:00.1234567", "T12:30:00.123456789", "t12:30", "T12:30:", "T12:30:00,5"]
ZONES = ["", "", "Z", "+02:00", "-0530", "+14", "-00:00", "+24:00", "+05:60", "z", " UTC", "+2", "+02:00:30"]
PIECES = st.tuples(st.sampled_from(DATES), st.sampled_from(CLOCKS), st.sampled_from(ZONES))
STAMPS = st.datetimes(min_value=datetime.datetime(1, 1, 2), max_value=datetime.datetime(9999, 12, 30))


def _times(texts: list[str], missing: tuple[str, ...] = ()) -> list[int | str | None]:
    """The times, with ``"bad"`` for those that cannot be read."""
    times, bad = iso_times(pa.array(texts, pa.string()), missing)
    assert times.type == pa.int64()
    assert len(times) == len(bad) == len(texts)
    assert all(time is None for time, wrong in zip(times.to_pylist(), bad, strict=True) if wrong)
    return ["bad" if wrong else time for time, wrong in zip(times.to_pylist(), bad, strict=True)]


def _assert_as_python_reads_it(text: str, found: int | str | None) -> None:
    """What is read is what Python reads; and what has the usual form is read."""
    if text in ("", "-"):
        assert found is None
    elif found != "bad":
        assert found == _moment(text), text
    elif re.fullmatch(ISO, text, re.ASCII):
        assert _moment(text) is None, text


@pytest.mark.parametrize("clock", CLOCKS)
def test_single_times_are_read_as_python_does(clock: str) -> None:
    for date in DATES:
        for zone in ZONES:
            text = f"{date}{clock}{zone}"
            _assert_as_python_reads_it(text, _times([text])[0])


@settings(derandomize=True, deadline=None, max_examples=120)
@given(
    pieces=st.lists(PIECES, max_size=6),
    stamps=st.lists(STAMPS, max_size=4),
    zone=st.sampled_from(["", "Z", "+05:30"]),
    absent=st.booleans(),
)
def test_a_time_means_the_same_beside_any_others(
    pieces: list[tuple[str, str, str]], stamps: list[datetime.datetime], zone: str, absent: bool
) -> None:
    """With and without time zones, mistakes and missing values among them."""
    texts = [*("".join(piece) for piece in pieces), *(stamp.isoformat() + zone for stamp in stamps)]
    texts += ["", "-"] if absent else []
    together = _times(texts, ("-",))
    assert together == [_times([text], ("-",))[0] for text in texts]
    for text, found in zip(texts, together, strict=True):
        _assert_as_python_reads_it(text, found)


def test_raw_file_knows_the_columns_of_its_path() -> None:
    assert RawFile(Path("/a=1/b-c=2/=3/d=/e=f=g/h=4"), 1, 0, None).from_path == {"a": "1", "d": "", "e": "f=g"}
