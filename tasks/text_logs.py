"""Text files in pieces: fields separated by a tab, a comma or another sign, with or without a header, in UTF-8.

A ``csv`` may have quoted fields (RFC 4180), in which a separator stands for itself; a ``tsv`` has none. A line is a
row in both. Times are numbers of seconds, or of what ``time_format`` says, or texts such as ``2023-10-01T12:30:00Z``;
a text without a time zone is in UTC.

A piece is first parsed as if nothing were wrong with it. Only if that fails are its lines looked at one by one.
"""

from __future__ import annotations

import csv
import datetime
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tasks.descriptions import Dataset
from tasks.errors import UserError
from tasks.raw_files import RawFile
from tasks.raw_rows import TOKENS, BadRow, Block, Rows
from tasks.sections import did_you_mean

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_LINE = 64 << 20
_LARGEST_BLOCK = 1 << 30
_START = 1 << 16
_NUMBER = r"^[ \t]*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?[ \t]*$"
_ISO = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_UNITS = {"seconds": "s", "milliseconds": "ms", "microseconds": "us", "iso8601": "us"}


class _Lines:
    """The lines of a block, taken apart only if somebody asks."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @functools.cached_property
    def all(self) -> list[bytes]:
        return self._data.removesuffix(b"\n").split(b"\n")

    def text(self, place: int) -> str:
        return self.all[place].removesuffix(b"\r").decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class TextLogs:
    """A text file of some columns, whose rows begin after ``start`` bytes.

    ``text`` is where the decompressed text is: the file itself, unless it is compressed.
    """

    file: RawFile
    text: Path
    dataset: Dataset
    columns: tuple[str, ...]
    start: int

    @classmethod
    def open(cls, file: RawFile, text: Path, dataset: Dataset) -> TextLogs:
        """Checks that the file is such a text and has the columns."""
        with text.open("rb") as opened:
            beginning = opened.read(_START)
            opened.seek(0)
            first_line = opened.readline(_LONGEST_LINE)
        if beginning.startswith(b"PAR1"):
            raise UserError(
                f"the raw logs {file.path} are a Parquet file, but the dataset's format is {dataset.format}"
            )
        if b"\0" in beginning:
            raise UserError(f"the raw logs {file.path} are not text: the file is binary")
        if not beginning.strip():
            raise UserError(f"the raw logs {file.path} are empty")
        start = len(_BYTE_ORDER_MARK) if beginning.startswith(_BYTE_ORDER_MARK) else 0
        columns = dataset.columns or ()
        if dataset.header:
            columns = tuple(_header(file, first_line[start:], dataset))
            start = len(first_line)
        logs = cls(file, text, dataset, columns, start)
        logs._check_columns()
        logs._check_first_lines(beginning[start:])
        return logs

    row_word = "line"

    @property
    def header_lines(self) -> int:
        return 1 if self.dataset.header else 0

    @property
    def time_unit(self) -> str:
        return _UNITS[self.dataset.time_format or "seconds"]

    @property
    def schema(self) -> tuple[str, ...]:
        """What must be the same in all files of a log."""
        return self.columns

    def blocks(self, block_bytes: int) -> list[Block]:
        """Cuts the file, without the blank lines at its end, after the first line end in every ``block_bytes``."""
        edges, block_bytes = [self.start], min(block_bytes, _LARGEST_BLOCK)
        with self.text.open("rb") as file:
            end = _end_of_text(file)
            for target in range(self.start + block_bytes, end, block_bytes):
                if target <= edges[-1]:
                    continue
                file.seek(target - 1)
                line = file.readline(_LONGEST_LINE)
                if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                    raise UserError(f"{self.file.path}: no line end in {_LONGEST_LINE >> 20} MB after byte {target}")
                if file.tell() < end:
                    edges.append(file.tell())
        edges.append(end)
        return [Block(i, edges[i], edges[i + 1]) for i in range(len(edges) - 1) if edges[i] < end]

    def read(self, block: Block) -> Rows:
        """The readable rows of a block, and the lines that are none."""
        with self.text.open("rb") as file:
            file.seek(block.start)
            data = file.read(block.stop - block.start)
        total = data.count(b"\n") + (not data.endswith(b"\n"))
        lines = _Lines(data)
        try:
            # What Arrow would read without a complaint, but not as one row a line, is a mistake here.
            if not _is_suspicious(data, quotes=self._quotes):
                table = self._parse(data)
                if table.num_rows == total:
                    return Rows(table, np.arange(total), total, (), lines.text)
        except pa.ArrowInvalid:
            pass
        bad = {place: problem for place, line in enumerate(lines.all) if (problem := self._problem(line))}
        well_formed = [place for place in range(total) if place not in bad]
        wrong = self._wrong_values([lines.all[place] for place in well_formed])
        bad |= {well_formed[row]: problem for row, problem in wrong.items()}
        kept = [place for place in well_formed if place not in bad]
        try:
            table = self._parse(b"\n".join(lines.all[place] for place in kept))
        except pa.ArrowInvalid as error:
            raise UserError(f"{self.file.path}, between bytes {block.start} and {block.stop}: {error}") from None
        if table.num_rows != len(kept):
            told = f"{len(kept)} lines hold {table.num_rows} rows"
            raise UserError(f"{self.file.path}, between bytes {block.start} and {block.stop}: {told}")
        found = (BadRow(place, *bad[place], lines.text(place)) for place in sorted(bad))
        return Rows(table, np.array(kept, np.int64), total, tuple(found), lines.text)

    @property
    def _quotes(self) -> bool:
        return self.dataset.format == "csv"

    @property
    def _in_file(self) -> list[str]:
        return [name for name in self.dataset.used_columns if name not in self.dataset.path_columns]

    def _types(self) -> dict[str, pa.DataType]:
        dataset = self.dataset
        time = pa.string() if dataset.time_format == "iso8601" else pa.float64()
        types = dict.fromkeys(dataset.number_columns, pa.float64()) | dict.fromkeys(dataset.time_columns, time)
        types |= dict.fromkeys(dataset.token_columns, TOKENS)
        return {name: types[name] for name in self._in_file}

    def _parse(self, data: bytes, types: dict[str, pa.DataType] | None = None) -> pa.Table:
        """Raises ``ArrowInvalid`` where a line has too few fields, or a value is not of its column's type."""
        types = types or self._types()
        if not data:
            table = pa.schema(types).empty_table()
        else:
            table = pa.csv.read_csv(
                pa.BufferReader(data),
                read_options=pa.csv.ReadOptions(column_names=self.columns, use_threads=False, block_size=len(data) + 1),
                parse_options=pa.csv.ParseOptions(
                    delimiter=self.dataset.separator,
                    quote_char='"' if self._quotes else False,
                    double_quote=self._quotes,
                ),
                convert_options=pa.csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(types),
                    null_values=["", *self.dataset.missing],
                    strings_can_be_null=False,
                ),
            )
        return self._with_times(self._with_path(table)) if types == self._types() else table

    def _with_path(self, table: pa.Table) -> pa.Table:
        """Adds the columns that are in the file's path, and in one order with the others."""
        for name in self.dataset.path_columns:
            column: pa.Array = pa.repeat(self.file.from_path[name], len(table))
            if name in self.dataset.token_columns:
                column = column.dictionary_encode().cast(TOKENS)
            elif name in self.dataset.number_columns or self.dataset.time_format != "iso8601":
                column = column.cast(pa.float64())
            table = table.append_column(name, column)
        return table.select(self.dataset.used_columns)

    def _with_times(self, table: pa.Table) -> pa.Table:
        if self.dataset.time_format != "iso8601":
            return table
        for name in self.dataset.time_columns:
            times, _ = iso_times(table[name].combine_chunks(), self.dataset.missing)
            table = table.set_column(table.column_names.index(name), name, times)
        return table

    def _problem(self, line: bytes) -> tuple[str, str] | None:
        """Why a line cannot be taken apart into the fields that it should have: a reason and the whole story."""
        line = line.removesuffix(b"\r")
        if b"\0" in line:
            return "not text", "the line has a zero byte"
        if b"\r" in line:
            return "not text", "a carriage return inside the line; lines must end with \\n or \\r\\n"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            found = f"byte 0x{line[error.start]:02x} at position {error.start + 1} of the line"
            return "not text", f"not UTF-8 text: {found}"
        if self._quotes and '"' in text:
            try:
                fields = len(next(csv.reader([text], delimiter=self.dataset.separator, strict=True)))
            except csv.Error as error:
                return "wrong quotes", f"the quotes of the line do not match ({error}); a row must be on one line"
        else:
            fields = text.count(self.dataset.separator) + 1
        if fields != len(self.columns):
            found = f"{fields} field{'s' if fields > 1 else ''}" if line else "a blank line"
            by = {"\t": "tabs", ",": "commas"}.get(self.dataset.separator, repr(self.dataset.separator))
            return "wrong number of fields", f"expected {len(self.columns)} fields separated by {by}, found {found}"
        return None

    def _wrong_values(self, lines: list[bytes]) -> dict[int, tuple[str, str]]:
        """The rows of well-formed lines whose numbers or times cannot be read."""
        if not lines:
            return {}
        typed = self._types()
        texts = {name: pa.string() for name, kind in typed.items() if kind != TOKENS}
        if not texts:
            return {}
        table = self._parse(b"\n".join(lines), texts)
        wrong: dict[int, tuple[str, str]] = {}
        for name in table.column_names:
            column = table[name].combine_chunks().fill_null("")
            if typed[name] == pa.string():
                _, bad = iso_times(column, self.dataset.missing)
                reason, should = "bad time", "a time such as 2023-10-01T12:30:00"
            else:
                good = pc.match_substring_regex(column, _NUMBER)
                known = pc.is_in(column, value_set=pa.array(["", *self.dataset.missing]))
                bad = ~pc.or_(good, known).to_numpy(zero_copy_only=False)
                is_time = name in self.dataset.time_columns
                reason, should = ("bad time", "a number") if is_time else ("not a number", "a finite number")
            for row in np.flatnonzero(bad):
                text = column[int(row)].as_py()
                wrong.setdefault(int(row), (reason, f"column {name!r} has {text[:80]!r}, which is not {should}"))
        return wrong

    def _check_columns(self) -> None:
        self.file.check_path_columns(self.dataset.path_columns)
        for name in self.dataset.used_columns:
            if name not in self.columns and name not in self.dataset.path_columns:
                hint = did_you_mean(name, self.columns)
                raise UserError(f"{self.file.path} has no column {name!r}{hint}; it has: {', '.join(self.columns)}")

    def _check_first_lines(self, beginning: bytes) -> None:
        """A description that does not fit shows in the first lines: no need to read on."""
        whole_lines = beginning.split(b"\n")
        lines = [line for line in (whole_lines[:-1] if len(beginning) >= _START // 2 else whole_lines) if line.strip()]
        problems = [(number, problem) for number, line in enumerate(lines) if (problem := self._problem(line))]
        if lines and 2 * len(problems) > len(lines):
            number, (_, story) = problems[0]
            raise UserError(
                f"{self.file.path}, line {number + self.header_lines + 1}: {story}; most of the first "
                f"{len(lines)} lines do not fit the dataset's description"
            )
        if not self.dataset.header and lines and not self._problem(lines[0]):
            wrong = self._wrong_values(lines[:1])
            names = lines[0].decode().strip().split(self.dataset.separator)
            if wrong and any(f"column {name!r} has {name!r}" in wrong[0][1] for name in names):
                raise UserError(
                    f"{self.file.path}, line 1: {wrong[0][1]}: this is a header line; say `header: true` instead "
                    "of listing the `columns`"
                )


def iso_times(texts: pa.Array, missing: tuple[str, ...]) -> tuple[pa.Array, np.ndarray]:
    """Microseconds since 1970 of texts in ISO 8601, null for a missing one, and which of them cannot be read."""
    absent = pc.is_in(texts, value_set=pa.array(["", *missing]))
    present = pc.if_else(absent, pa.scalar(None, pa.string()), texts)
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return present.cast(kind).cast(pa.int64()), np.zeros(len(texts), bool)
        except pa.ArrowInvalid:
            continue
    # Some texts have a time zone and some not, or some cannot be read.
    coded = present.dictionary_encode()
    values = [_microseconds(text) for text in coded.dictionary.to_pylist()]
    times = pa.array(values, pa.int64()).take(coded.indices)
    bad = times.is_null().to_numpy(zero_copy_only=False) & ~absent.to_numpy(zero_copy_only=False)
    return times, bad


def _microseconds(text: str) -> int | None:
    if not _ISO.fullmatch(text):
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)) - _EPOCH) // _MICROSECOND


def _header(file: RawFile, line: bytes, dataset: Dataset) -> list[str]:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise UserError(f"{file.path}, line 1: the header is not UTF-8 text") from None
    quoted = dataset.format == "csv"
    names = next(csv.reader([text], delimiter=dataset.separator)) if quoted else text.split(dataset.separator)
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{file.path}, line 1: the header has more than one column {name!r}")
    return names


def _is_suspicious(data: bytes, *, quotes: bool) -> bool:
    """Whether lines may not be rows: zero bytes, carriage returns of their own, a quote that nothing closes."""
    lone_returns = b"\r" in data and data.count(b"\r") != data.count(b"\r\n")
    return b"\0" in data or lone_returns or (quotes and data.count(b'"') % 2 == 1)


def _end_of_text(file: BinaryIO) -> int:
    """The size of a file without the line ends at its end."""
    end = file.seek(0, 2)
    while end:
        start = max(0, end - 4096)
        file.seek(start)
        kept = len(file.read(end - start).rstrip(b"\r\n"))
        if kept:
            return start + kept
        end = start
    return 0
