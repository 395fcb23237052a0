"""The text reader agrees with a slow and obvious oracle on arbitrary bytes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.config.dataset import Dataset
from tasks.logs.files import RawFile, inspect_file
from tasks.logs.rows import timed
from tasks.logs.text import TextReader
from tasks.runtime.errors import UserError
from tests.support.text_oracle import BOM, COLUMNS, DIALECTS, fields_of, line_of, lines_of

SIZES = (1, 40, 1 << 20)
LONG = 1 << 18  # longer than a field that Python's csv reads


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


class Found(NamedTuple):
    rows: dict[int, dict[str, Any]]
    bad: dict[int, tuple[str, str, str]]


def opened(file: RawFile, path: Path, description: Dataset) -> TextReader:
    return TextReader.open(file, path, description, DIALECTS[description.format])


def _read(logs: TextReader, block_bytes: int) -> Found:
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
    """Asserts that a file is refused only for a good reason, and that every line is read as by the oracle."""
    path.write_bytes(data)
    lines = lines_of(data, description)
    try:
        file = inspect_file(path)
    except UserError:
        assert not data.strip()
        return
    try:
        logs = opened(file, path, description)
    except UserError as error:
        _assert_refused_for_a_reason(str(error), data, description)
        # The same lines could be in a large file with a better start.
        logs = TextReader(
            file, path, description, DIALECTS[description.format], COLUMNS, len(BOM) if data.startswith(BOM) else 0
        )
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
    lines = [line_of(line, description) for line in data.removeprefix(BOM).split(b"\n") if line.strip()]
    if "the file is binary" in message:
        assert b"\0" in data
    elif "is empty" in message:
        assert not data.strip()
    elif "do not fit the dataset's description" in message:
        assert 2 * sum(line.wrong not in (None, "value") for line in lines) > len(lines)
    else:
        assert "this is a header line" in message
        assert lines[0].wrong == "value"


# Files of adversarial pieces.

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
    """Generates files of good lines, lines with odd fields, and noise."""
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
    """As in rows, an unclosed quote or text after a closing quote is an error."""
    for form, separator in (("csv", ","), ("tsv", "\t")):
        header = b"".join(noise).replace(b"," if form == "tsv" else b"\t", separator.encode())
        path.write_bytes(header + b"\n" + GOOD.replace(b",", separator.encode()) * 3)
        try:
            text = path.read_bytes().removeprefix(BOM).split(b"\n")[0].removesuffix(b"\r").decode()
            names = None if set(text) & {"\0", "\r"} else fields_of(text, separator, quotes=form == "csv")
        except UnicodeDecodeError:
            names = None
        description = dataset(form, header=True, columns=None)
        try:
            logs = opened(inspect_file(path), path, description)
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
    """Trailing line ends belong to no block, and the rows do not depend on the block size."""
    content = b"".join(b"%d,x,%s,2,3\n" % (i, b"a" * (i * 7 % 50)) for i in range(200))
    for data in (content, content.rstrip(), content + b"\n\r\n" * 5000, BOM + content.replace(b"\n", b"\r\n")):
        path.write_bytes(data)
        logs = opened(inspect_file(path), path, dataset("csv"))
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
    """A line with only a missing value is a row."""
    folder = tmp_path / "y=1" / "time=5" / "c=a"
    folder.mkdir(parents=True)
    raw = folder / "raw"
    raw.write_bytes(b"1\n2\n\n4\n")
    logs = opened(inspect_file(raw), raw, dataset("tsv", columns=["n"], path_columns=["y", "time", "c"]))
    for size in (1, 3, 100):
        found = _read(logs, size)
        assert sorted([*found.rows, *found.bad]) == [0, 1, 2, 3]
        assert [found.rows[row]["n"] for row in (0, 1, 3)] == [1, 2, 4]
        assert 2 in found.bad or found.rows[2]["n"] is None
