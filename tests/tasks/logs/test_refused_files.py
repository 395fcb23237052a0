"""Raw files that cannot be prepared are refused with a clear error and leave nothing half-written behind."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from tasks.config.dataset import Dataset
from tasks.data.preparation import prepare
from tasks.logs.files import inspect_file
from tasks.runtime.errors import UserError
from tests.support.raw_logs import (
    HUGE,
    NAMES,
    PARQUET,
    TEXTS,
    TINY,
    assert_nothing_half_written,
    described,
    good_lines,
    good_table,
    good_text,
    parquet_bytes,
    text_at_times,
    with_line,
)
from tests.tasks.logs.test_bad_rows import MISTAKES, PARQUET_MISTAKES


@pytest.fixture(autouse=True)
def home(own_home: Path) -> Path:
    return own_home


def _packed_zip(text: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("logs.tsv", text)
    return packed.getvalue()


def _replaced(name: str, values: pa.Array) -> pa.Table:
    table = good_table()
    return table.set_column(table.column_names.index(name), name, values)


class Refused(NamedTuple):
    """Files that cannot be prepared: their contents, their description, and parts of the error.

    The error names the first file, or the one in ``names``.
    """

    contents: dict[str, bytes]
    description: dict[str, Any]
    told: tuple[str, ...]
    names: str | None = None


TSV, CSV = TEXTS["tsv"], TEXTS["csv"]
TSV_HEADER, CSV_HEADER = TEXTS["tsv with header"], TEXTS["csv with header"]
TABS, COMMAS = "\t".join(NAMES).encode() + b"\n", ",".join(NAMES).encode() + b"\n"
ORDERED = {**TSV, "in_time_order": True}
WHOLE, TEXT, PACKED = parquet_bytes(good_table()), good_text(), gzip.compress(good_text())
FRAMED = pa.compress(TEXT, codec="zstd", asbytes=True)
EMPTY_TABLE = good_table([])
REFUSED = {
    "empty file": Refused({"a": b""}, TSV, ("is empty",)),
    "empty among others": Refused({"a": TEXT, "b": b""}, TSV, ("is empty",), "b"),
    "blank lines only": Refused({"a": b"\n\r\n \n\n"}, TSV, ("is empty",)),
    "byte order mark only": Refused({"a": b"\xef\xbb\xbf\n"}, TSV, ("0 rows",)),
    "only a header": Refused({"a": TABS}, TSV_HEADER, ("has 0 rows; a split needs at least 10",)),
    "only a header and blank lines": Refused({"a": COMMAS + b"\r\n\n"}, CSV_HEADER, ("has 0 rows",)),
    "nine rows": Refused({"a": b"\n".join(good_lines()[:9])}, TSV, ("has 9 rows; a split needs at least 10",)),
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
        {"a": TABS + TEXT}, TSV, ("line 1:", "'click'", "this is a header line; set `header: true`")
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
    "UTF-16": Refused({"a": TEXT.decode().encode("utf-16")}, TSV, ("is not text",)),
    "Latin-1 in every line": Refused(
        {"a": TEXT.replace(b"junk", b"\xfcber")}, TSV, ("line 1:", "not UTF-8: byte 0xfc", "most of the first 60")
    ),
    "zero byte early in the file": Refused(
        {"a": with_line(TEXT, 9, b"1\0")}, TSV, ("is not text: the file is binary",)
    ),
    "blank line before other fields": Refused(
        {"a": b"\n" + TEXT.replace(b"\t", b" ")}, TSV, ("line 2:", "expected 6 fields separated by tabs, found 1 field")
    ),
    "truncated gzip": Refused({"a": PACKED[: len(PACKED) // 2]}, TSV, ("is not a complete gzip file",)),
    "gzip without its last byte": Refused({"a": PACKED[:-1]}, TSV, ("is not a complete gzip file",)),
    "garbage after gzip": Refused({"a": PACKED + b"garbage"}, TSV, ("is not a complete gzip file",)),
    "damaged gzip": Refused({"a": PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:]}, TSV, ("is not a complete gzip file",)),
    "truncated gzip among others": Refused({"a": TEXT, "b": PACKED[:-20]}, TSV, ("is not a complete gzip file",), "b"),
    "gzip of nothing": Refused({"a": gzip.compress(b"")}, TSV, ("is empty",)),
    "gzip in gzip": Refused({"a": gzip.compress(PACKED)}, TSV, ("not text",)),
    "truncated zstd": Refused({"a": FRAMED[:-9]}, TSV, ("is not a complete zstd file",)),
    "corrupt zstd": Refused({"a": FRAMED[:9] + b"\xff" * 30 + FRAMED[39:]}, TSV, ("is not a complete zstd file",)),
    "zip": Refused({"a": _packed_zip(TEXT)}, TSV, ("compressed with zip: decompress", "gzip and zstd can be read")),
    "bzip2": Refused({"a": bz2.compress(TEXT)}, TSV, ("compressed with bzip2: decompress",)),
    "xz": Refused({"a": lzma.compress(TEXT)}, CSV, ("compressed with xz: decompress",)),
    "Parquet where text is described": Refused({"a": WHOLE}, TSV, ("is a Parquet file, but", "format is tsv")),
    "text where Parquet is described": Refused({"a": TEXT}, PARQUET, ("is not a complete Parquet file",)),
    "Parquet cut short": Refused({"a": WHOLE[:-100]}, PARQUET, ("is not a complete Parquet file",)),
    "only the end of Parquet": Refused({"a": WHOLE[-300:]}, PARQUET, ("is not a complete Parquet file",)),
    "damaged pages of Parquet": Refused(
        {"a": WHOLE[:4] + b"\xff" * 300 + WHOLE[304:]}, PARQUET, ("cannot read row groups 0 to 0",)
    ),
    "damaged page of a later Parquet": Refused(
        {"a": WHOLE, "b": WHOLE[:4] + b"\xff" * 300 + WHOLE[304:]}, PARQUET, ("cannot read row groups",), "b"
    ),
    "gzipped Parquet": Refused(
        {"a": gzip.compress(WHOLE)},
        PARQUET,
        ("compressed with gzip", "parquet files are read as they are: decompress"),
    ),
    "Parquet without rows": Refused({"a": parquet_bytes(EMPTY_TABLE)}, PARQUET, ("has 0 rows",)),
    "Parquet without a column": Refused(
        {"a": parquet_bytes(good_table().drop_columns(["sales"]))},
        PARQUET,
        ("has no column 'sales'; it has: c, click",),
    ),
    "Parquet label of text": Refused(
        {"a": parquet_bytes(_replaced("click", pa.array(["1"] * 60)))},
        PARQUET,
        ("'click' has type string; it must be",),
    ),
    "Parquet time of text": Refused(
        {"a": parquet_bytes(_replaced("time", pa.array(["2023"] * 60)))},
        PARQUET,
        ("'time' has type string; it must be",),
    ),
    "Parquet tokens that are not UTF-8": Refused(
        {"a": parquet_bytes(_replaced("c", pa.array([b"\xff"] * 60, pa.binary()).view(pa.string())))}, PARQUET, ("UTF",)
    ),
    "other order of the header": Refused(
        {"a": TABS + TEXT, "b": b"click\tn\tunused\tc\tsales\ttime\n" + TEXT},
        TSV_HEADER,
        ("does not have the columns of", "/a", "it has 'n' in place of 'unused'"),
        "b",
    ),
    "another column in the header": Refused(
        {"a": COMMAS + good_text("csv"), "b": COMMAS[:-1] + b",x\n" + good_text("csv").replace(b"\n", b",\n")},
        CSV_HEADER,
        ("does not have the columns of", "/a", "it has 'x' in place of nothing"),
        "b",
    ),
    "missing column in the second header": Refused(
        {"a": TABS + TEXT, "b": TABS.replace(b"time", b"zeit") + TEXT}, TSV_HEADER, ("has no column 'time'",), "b"
    ),
    "other types in the second Parquet": Refused(
        {"a": WHOLE, "b": parquet_bytes(_replaced("click", pa.array([1.0] * 60)))},
        PARQUET,
        ("does not have the columns of", "/a", "it has 'click' of type double in place of 'click' of type int8"),
        "b",
    ),
    "other unit of time in the second Parquet": Refused(
        {
            "a": parquet_bytes(_replaced("time", pa.array(range(60), pa.timestamp("s")))),
            "b": parquet_bytes(_replaced("time", pa.array(range(60), pa.timestamp("us")))),
        },
        PARQUET,
        ("does not have the columns of", "it has 'time' of type timestamp[us] in place of 'time' of type timestamp["),
        "b",
    ),
    "disorder": Refused(
        {"a": text_at_times(0, 5, 4)},
        ORDERED,
        ("line 3:", "22:13:24Z comes after 2023-11-14T22:13:25Z", "`in_time_order`"),
    ),
    "disorder late in the file": Refused({"a": text_at_times(*range(50), 48)}, ORDERED, ("line 51:", "comes after")),
    "disorder after a bad row": Refused(
        {"a": with_line(text_at_times(0, 5, 4), 3, b"1")}, ORDERED, ("line 4:", "comes after")
    ),
    "disorder under a header": Refused(
        {"a": TABS + text_at_times(0, 5, 4)}, {**TSV_HEADER, "in_time_order": True}, ("line 4:", "comes after")
    ),
    "disorder between files": Refused(
        {"a": text_at_times(100), "b": text_at_times(0)}, ORDERED, ("line 1:", "comes after"), "b"
    ),
    "disorder in Parquet": Refused(
        {"a": parquet_bytes(good_table(), row_group_size=9)},
        {**PARQUET, "in_time_order": True},
        ("row 10:", "comes after"),
    ),
    "one time": Refused({"a": text_at_times(*[0] * 59, 1)}, TSV, ("would be empty", "same value of 'time'")),
    "more bad rows than tolerated": Refused(
        {"a": with_line(TEXT, 7, b"1\tx")}, {**TSV, "tolerated_bad_rows": 0.01}, ("line 7:", "1 of 61 rows", "0.01")
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_file_is_refused(tmp_path: Path, home: Path, mistake: str) -> None:
    """The message does not depend on block boundaries, and nothing is left that could pass for a result."""
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
    """Also if a block begins with it and has another one."""
    raw = tmp_path / "raw"
    raw.write_bytes(text_at_times(*range(20), *range(19, 0, -1)))
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
        tmp_path / "missing": "does not exist",
        tmp_path / "day=*" / "*.tsv": "does not exist: no file matches the pattern",
        tmp_path / "folder": "is a folder without files",
        hidden: "is a folder without files",
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
        with pytest.raises(UserError, match=f"{re.escape(str(raw))} is not a complete"):
            inspect_file(raw).decompress(tmp_path / "text")
    raw.write_bytes(content)
    inspect_file(raw).decompress(tmp_path / "text")
    assert (tmp_path / "text").read_bytes() == TEXT


def test_cut_anywhere_a_parquet_file_is_refused(tmp_path: Path, home: Path) -> None:
    raw = tmp_path / "raw"
    for size in range(1, len(WHOLE), len(WHOLE) // 25):
        raw.write_bytes(WHOLE[:size])
        with pytest.raises(UserError, match=f"{re.escape(str(raw))} is not a complete Parquet file"):
            prepare("logs", Dataset.model_validate(PARQUET), raw, min_count=2)
    assert_nothing_half_written(home)


def test_there_are_enough_malformed_files() -> None:
    assert len(MISTAKES) + len(PARQUET_MISTAKES) + len(REFUSED) >= 100
