"""Reads UTF-8 text files in blocks: separated fields, with or without a header.

A ``csv`` may have quoted fields (RFC 4180); a ``tsv`` has no quoting. In both, a line is a row. Times are numbers, in
seconds unless ``time_format`` says otherwise, or ISO 8601 such as ``2023-10-01T12:30:00Z``, in UTC unless they have a
time zone.

A block is first parsed by Arrow in one go. Only if that fails are its lines checked one by one.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tasks.config.dataset import Dataset
from tasks.config.sections import did_you_mean
from tasks.logs.files import RawFile
from tasks.logs.placeholders import as_number
from tasks.logs.rows import BadRow, Block, Rows
from tasks.logs.text_lines import LONGEST_LINE, Dialect, Lines, count_lines, end_of_text, is_suspicious, split
from tasks.logs.text_values import iso_microseconds, iso_times, not_finite
from tasks.logs.token_dictionaries import TOKENS, dictionary_encoded
from tasks.runtime.errors import UserError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LARGEST_BLOCK = 1 << 30
# Arrow parses a block in chunks of this many bytes, which stay in the processor's cache.
_PARSED_AT_ONCE = 1 << 20
_START = 1 << 16


@dataclass(frozen=True)
class TextReader:
    """An opened text file.

    Attributes:
        text: The path of the text: the file's own, or of its decompressed copy.
        columns: The names of all fields of a line.
        start: The offset of the first row in bytes.
    """

    file: RawFile
    text: Path
    dataset: Dataset
    dialect: Dialect
    columns: tuple[str, ...]
    start: int

    @classmethod
    def open(cls, file: RawFile, text: Path, dataset: Dataset, dialect: Dialect) -> TextReader:
        """Opens a file. Raises a ``UserError`` if it is not text, lacks a column, or does not fit the description."""
        with text.open("rb") as opened:
            beginning = opened.read(_START)
            opened.seek(0)
            first_line = opened.readline(LONGEST_LINE)
        if beginning.startswith(b"PAR1"):
            raise UserError(f"the raw log {file.path} is a Parquet file, but the dataset's format is {dataset.format}")
        if b"\0" in beginning:
            raise UserError(f"the raw log {file.path} is not text: the file is binary")
        if not beginning.strip():
            raise UserError(f"the raw log {file.path} is empty")
        start = len(_BYTE_ORDER_MARK) if beginning.startswith(_BYTE_ORDER_MARK) else 0
        columns = dataset.columns or ()
        if dataset.header:
            columns = tuple(_header(file, first_line[start:], dialect))
            start = len(first_line)
        logs = cls(file, text, dataset, dialect, columns, start)
        logs._check_columns()
        logs._check_path()
        logs._check_first_lines(beginning[start:])
        return logs

    @property
    def header_lines(self) -> int:
        return 1 if self.dataset.header else 0

    @property
    def time_unit(self) -> str:
        return self.dataset.time_unit

    @property
    def schema(self) -> tuple[str, ...]:
        return self.columns

    def blocks(self, block_bytes: int) -> list[Block]:
        """Cuts the file at line ends into blocks of about ``block_bytes``. Trailing blank lines belong to no block."""
        edges, block_bytes = [self.start], min(block_bytes, _LARGEST_BLOCK)
        with self.text.open("rb") as file:
            end = end_of_text(file)
            # Equal blocks, because a short one at the end would leave workers idle.
            pieces = max(1, -(-(end - self.start) // block_bytes))
            step = max(1, -(-(end - self.start) // pieces))
            for target in range(self.start + step, end, step):
                if target <= edges[-1]:
                    continue
                file.seek(target - 1)
                line = file.readline(LONGEST_LINE)
                if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                    raise UserError(
                        f"{self.file.path}: a line longer than {LONGEST_LINE >> 20} MB starts before byte {target}"
                    )
                if file.tell() < end:
                    edges.append(file.tell())
        edges.append(end)
        return [Block(i, edges[i], edges[i + 1]) for i in range(len(edges) - 1) if edges[i] < end]

    def read(self, block: Block) -> Rows:
        """Reads the rows of a block; lines that are not rows are in ``bad``."""
        with self.text.open("rb") as file:
            file.seek(block.start)
            data = file.read(block.stop - block.start)
        total, lines = count_lines(data), Lines(data)
        table = self._parse_whole(data, total)
        if table is not None:
            return Rows(table, np.arange(total), total, (), lines.text)
        return self._read_lines(block, lines, total)

    def _parse_whole(self, data: bytes, total: int) -> pa.Table | None:
        """Parses a block in one go; returns None if something is wrong with it."""
        # Arrow accepts some text that is not one row per line. That is a mistake here.
        if is_suspicious(data, self.dialect, checks_text=not self._reads_everything):
            return None
        try:
            table, is_readable = self._parse(data, _PARSED_AT_ONCE)
        except pa.ArrowInvalid:
            return None
        return table if is_readable and table.num_rows == total else None

    def _read_lines(self, block: Block, lines: Lines, total: int) -> Rows:
        """Checks the lines of a block one by one, and parses the good ones."""
        bad = {place: problem for place, line in enumerate(lines.all) if (problem := self._problem(line))}
        well_formed = [place for place in range(total) if place not in bad]
        wrong = self._wrong_values([lines.all[place] for place in well_formed])
        bad |= {well_formed[row]: problem for row, problem in wrong.items()}
        kept = [place for place in well_formed if place not in bad]
        where = f"{self.file.path}, between bytes {block.start} and {block.stop}"
        try:
            text = b"\n".join(lines.all[place] for place in kept)
            table, _ = self._parse(text, len(text) + 1)
        except pa.ArrowInvalid as error:
            raise UserError(f"{where}: {error}") from None
        if table.num_rows != len(kept):
            raise UserError(f"{where}: {len(kept)} lines hold {table.num_rows} rows")
        found = (BadRow(place, *bad[place], lines.text(place)) for place in sorted(bad))
        return Rows(table, np.array(kept, np.int64), total, tuple(found), lines.text)

    @property
    def _in_file(self) -> list[str]:
        return [name for name in self.dataset.used_columns if name not in self.dataset.path_columns]

    def _types(self) -> dict[str, pa.DataType]:
        dataset = self.dataset
        time = pa.string() if dataset.time_format == "iso8601" else pa.float64()
        types = dict.fromkeys(dataset.number_columns, pa.float64()) | dict.fromkeys(dataset.time_columns, time)
        types |= dict.fromkeys(dataset.token_columns, pa.string())
        return {name: types[name] for name in self._in_file}

    @property
    def _reads_everything(self) -> bool:
        """Whether Arrow parses every field, and so finds text that is not UTF-8."""
        return set(self.columns) <= set(self.dataset.used_columns)

    def _parse(self, data: bytes, at_once: int) -> tuple[pa.Table, bool]:
        """Returns the rows with the columns of the path, and whether all numbers are finite and all times valid.

        Raises ``ArrowInvalid`` if a line has too few fields or a value is not of its column's type.
        """
        table = self._with_path(self._fields(data, self._types(), at_once))
        is_readable = True
        for name in self.dataset.token_columns:
            # Faster than in the parser, and one dictionary for all chunks.
            if table[name].type != TOKENS:
                table = table.set_column(table.column_names.index(name), name, dictionary_encoded(table[name]))
        for name in [*self.dataset.number_columns, *self.dataset.time_columns]:
            column = table[name].combine_chunks()
            if pa.types.is_floating(column.type):
                is_readable &= pc.all(pc.is_finite(column), min_count=0).as_py()
            else:
                times, bad = iso_times(column, self.dataset.missing)
                table = table.set_column(table.column_names.index(name), name, times)
                is_readable &= not bad.any()
        return table, is_readable

    def _fields(self, data: bytes, types: dict[str, pa.DataType], at_once: int) -> pa.Table:
        if not data:
            return pa.schema(types).empty_table()
        if data.startswith(_BYTE_ORDER_MARK):
            data = _BYTE_ORDER_MARK + data  # Arrow strips one; the mark of the file itself is not in the data.
        # One check of the whole is cheaper than Arrow's check of every value.
        is_ascii = data.isascii()
        return pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(column_names=self.columns, use_threads=False, block_size=at_once),
            parse_options=pa.csv.ParseOptions(
                delimiter=self.dialect.separator,
                quote_char='"' if self.dialect.quotes else False,
                double_quote=self.dialect.quotes,
            ),
            convert_options=pa.csv.ConvertOptions(
                check_utf8=not is_ascii,
                column_types=types,
                include_columns=list(types),
                null_values=["", *self.dataset.missing],
                strings_can_be_null=False,
            ),
        )

    def _with_path(self, table: pa.Table) -> pa.Table:
        """Appends the columns of the path and returns the used columns in order."""
        for name in self.dataset.path_columns:
            column: pa.Array = pa.repeat(self.file.path_values[name], len(table))
            if name in self.dataset.token_columns:
                column = column.dictionary_encode().cast(TOKENS)
            elif name in self.dataset.number_columns or self.dataset.time_format != "iso8601":
                column = column.cast(pa.float64())
            table = table.append_column(name, column)
        return table.select(self.dataset.used_columns)

    def _problem(self, line: bytes) -> tuple[str, str] | None:
        """Returns why a line cannot be split into its fields, as a reason and a message; None if it can."""
        line = line.removesuffix(b"\r")
        if b"\0" in line:
            return "not text", "the line contains a zero byte"
        if b"\r" in line:
            return "not text", "the line contains a carriage return; lines must end with \\n or \\r\\n"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            return "not text", f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1} of the line"
        try:
            fields = len(split(text, self.dialect))
        except csv.Error as error:
            return "wrong quotes", f"unbalanced quotes ({error}); a row must be on one line"
        if fields != len(self.columns) or not text:
            found = f"{fields} field{'s' if fields > 1 else ''}" if text else "a blank line"
            by = {"\t": "tabs", ",": "commas"}.get(self.dialect.separator, repr(self.dialect.separator))
            return "wrong number of fields", f"expected {len(self.columns)} fields separated by {by}, found {found}"
        return None

    def _wrong_values(self, lines: list[bytes]) -> dict[int, tuple[str, str]]:
        """Returns the lines with a number or time that cannot be parsed, with the reason and a message."""
        if not lines:
            return {}
        texts = {name: pa.string() for name in self._types() if name not in self.dataset.token_columns}
        if not texts:
            return {}
        text = b"\n".join(lines)
        table = self._fields(text, texts, len(text) + 1)
        wrong: dict[int, tuple[str, str]] = {}
        for name in table.column_names:
            column = table[name].combine_chunks().fill_null("")
            if name in self.dataset.time_columns and self.dataset.time_format == "iso8601":
                _, bad = iso_times(column, self.dataset.missing)
                reason, should = "bad time", "a time such as 2023-10-01T12:30:00"
            else:
                bad = not_finite(column, self.dataset.missing)
                reason = "bad time" if name in self.dataset.time_columns else "not a number"
                should = "a finite number"
            for row in np.flatnonzero(bad):
                text = column[int(row)].as_py()
                wrong.setdefault(int(row), (reason, f"column {name!r} has {text[:80]!r}, not {should}"))
        return wrong

    def _check_columns(self) -> None:
        for name in self.dataset.used_columns:
            if name not in self.columns and name not in self.dataset.path_columns:
                hint = did_you_mean(name, self.columns)
                raise UserError(f"{self.file.path} has no column {name!r}{hint}; it has: {', '.join(self.columns)}")

    def _check_path(self) -> None:
        self.file.check_path_columns(self.dataset.path_columns)
        for name in self.dataset.path_columns:
            text = self.file.path_values[name]
            if name in self.dataset.time_columns and self.dataset.time_format == "iso8601":
                is_wrong = iso_microseconds(text) is None
            else:
                is_wrong = name not in self.dataset.token_columns and as_number(text) is None
            if is_wrong:
                kind = "time" if name in self.dataset.time_columns else "number"
                raise UserError(f"{self.file.path}: {name}={text} in the path is not a {kind}")

    def _check_first_lines(self, beginning: bytes) -> None:
        """Raises a ``UserError`` if the first lines show that the description does not fit the file."""
        lines = beginning.split(b"\n")
        if len(beginning) >= _START // 2:
            lines.pop()  # may be incomplete
        numbered = [(number, line) for number, line in enumerate(lines, self.header_lines + 1) if line.strip()]
        problems = [(number, problem) for number, line in numbered if (problem := self._problem(line))]
        if numbered and 2 * len(problems) > len(numbered):
            number, (_, message) = problems[0]
            raise UserError(
                f"{self.file.path}, line {number}: {message}; most of the first {len(numbered)} lines do not fit the "
                "dataset's description"
            )
        if not self.dataset.header and numbered and not self._problem(numbered[0][1]):
            fields = split(numbered[0][1].decode().removesuffix("\r"), self.dialect)
            numbers = {*self.dataset.number_columns, *self.dataset.time_columns}
            named = [name for name, text in zip(self.columns, fields, strict=True) if name in numbers and name == text]
            if named:
                raise UserError(
                    f"{self.file.path}, line {numbered[0][0]}: column {named[0]!r} has {named[0]!r}: this is a header "
                    "line; set `header: true` and leave out `columns`"
                )


def _header(file: RawFile, line: bytes, dialect: Dialect) -> list[str]:
    try:
        text = line.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UserError(f"{file.path}, line 1: the header is not UTF-8") from None
    if "\r" in text:
        raise UserError(
            f"{file.path}, line 1: the header contains a carriage return; lines must end with \\n or \\r\\n"
        )
    try:
        names = split(text, dialect)
    except csv.Error as error:
        raise UserError(f"{file.path}, line 1: unbalanced quotes in the header ({error})") from None
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{file.path}, line 1: the header has more than one column {name!r}")
    return names
