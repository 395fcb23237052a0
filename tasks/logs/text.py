"""Text files in pieces: fields separated by a tab, a comma or another sign, with or without a header, in UTF-8.

A ``csv`` may have quoted fields (RFC 4180), in which a separator stands for itself; a ``tsv`` has none. A line is a
row in both. Times are numbers of seconds, or of what ``time_format`` says, or texts such as ``2023-10-01T12:30:00Z``;
a text without a time zone is in UTC.

A piece is first parsed as if nothing were wrong with it. Only if that fails are its lines looked at one by one.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tasks.descriptions import Dataset
from tasks.errors import UserError
from tasks.raw_files import RawFile
from tasks.raw_rows import BadRow, Block, Rows, as_number
from tasks.sections import did_you_mean
from tasks.text_lines import LONGEST_LINE, Lines, count_lines, end_of_text, is_suspicious, split
from tasks.text_values import iso_microseconds, iso_times, not_finite
from tasks.token_dictionaries import TOKENS, dictionary_encoded

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LARGEST_BLOCK = 1 << 30
# Arrow works on so many bytes of a block at once, which stay in the processor's cache.
_PARSED_AT_ONCE = 1 << 20
_START = 1 << 16


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
            first_line = opened.readline(LONGEST_LINE)
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
        logs._check_path()
        logs._check_first_lines(beginning[start:])
        return logs

    row_word = "line"

    @property
    def header_lines(self) -> int:
        return 1 if self.dataset.header else 0

    @property
    def time_unit(self) -> str:
        return self.dataset.time_unit

    @property
    def schema(self) -> tuple[str, ...]:
        """What must be the same in all files of a log."""
        return self.columns

    def blocks(self, block_bytes: int) -> list[Block]:
        """Cuts the file, without the blank lines at its end, at line ends into pieces of about ``block_bytes``."""
        edges, block_bytes = [self.start], min(block_bytes, _LARGEST_BLOCK)
        with self.text.open("rb") as file:
            end = end_of_text(file)
            # Pieces of one size, because a short one at the end would leave workers without work.
            pieces = max(1, -(-(end - self.start) // block_bytes))
            step = max(1, -(-(end - self.start) // pieces))
            for target in range(self.start + step, end, step):
                if target <= edges[-1]:
                    continue
                file.seek(target - 1)
                line = file.readline(LONGEST_LINE)
                if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                    raise UserError(f"{self.file.path}: no line end in {LONGEST_LINE >> 20} MB after byte {target}")
                if file.tell() < end:
                    edges.append(file.tell())
        edges.append(end)
        return [Block(i, edges[i], edges[i + 1]) for i in range(len(edges) - 1) if edges[i] < end]

    def read(self, block: Block) -> Rows:
        """The readable rows of a block, and the lines that are none."""
        with self.text.open("rb") as file:
            file.seek(block.start)
            data = file.read(block.stop - block.start)
        total = count_lines(data)
        lines = Lines(data)
        try:
            # What Arrow would read without a complaint, but not as one row a line, is a mistake here.
            if not is_suspicious(data, self.dataset, checks_text=not self._reads_everything):
                table, is_readable = self._parse(data, _PARSED_AT_ONCE)
                if table.num_rows == total and is_readable:
                    return Rows(table, np.arange(total), total, (), lines.text)
        except pa.ArrowInvalid:
            pass
        bad = {place: problem for place, line in enumerate(lines.all) if (problem := self._problem(line))}
        well_formed = [place for place in range(total) if place not in bad]
        wrong = self._wrong_values([lines.all[place] for place in well_formed])
        bad |= {well_formed[row]: problem for row, problem in wrong.items()}
        kept = [place for place in well_formed if place not in bad]
        try:
            text = b"\n".join(lines.all[place] for place in kept)
            table, _ = self._parse(text, len(text) + 1)
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
        types |= dict.fromkeys(dataset.token_columns, pa.string())
        return {name: types[name] for name in self._in_file}

    @property
    def _reads_everything(self) -> bool:
        """Whether Arrow looks at every field, and so notices what is not UTF-8."""
        return set(self.columns) <= set(self.dataset.used_columns)

    def _parse(self, data: bytes, at_once: int) -> tuple[pa.Table, bool]:
        """The rows of a text, with the columns of its path, and whether all numbers are finite and all times are times.

        Raises ``ArrowInvalid`` where a line has too few fields, or a value is not of its column's type.
        """
        table = self._with_path(self._fields(data, self._types(), at_once))
        is_readable = True
        for name in self.dataset.token_columns:
            # Faster than to let the parser do it, and one dictionary for all that was parsed apart.
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
            data = _BYTE_ORDER_MARK + data  # Arrow takes one away, and the file's own is not in the data.
        # Arrow would look at every value again, where one look at the whole is enough.
        is_checked = data.isascii()
        return pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(column_names=self.columns, use_threads=False, block_size=at_once),
            parse_options=pa.csv.ParseOptions(
                delimiter=self.dataset.separator,
                quote_char='"' if self._quotes else False,
                double_quote=self._quotes,
            ),
            convert_options=pa.csv.ConvertOptions(
                check_utf8=not is_checked,
                column_types=types,
                include_columns=list(types),
                null_values=["", *self.dataset.missing],
                strings_can_be_null=False,
            ),
        )

    def _with_path(self, table: pa.Table) -> pa.Table:
        """With the columns that are in the file's path, in one order."""
        for name in self.dataset.path_columns:
            column: pa.Array = pa.repeat(self.file.from_path[name], len(table))
            if name in self.dataset.token_columns:
                column = column.dictionary_encode().cast(TOKENS)
            elif name in self.dataset.number_columns or self.dataset.time_format != "iso8601":
                column = column.cast(pa.float64())
            table = table.append_column(name, column)
        return table.select(self.dataset.used_columns)

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
        try:
            fields = len(split(text, self.dataset))
        except csv.Error as error:
            return "wrong quotes", f"the quotes of the line do not match ({error}); a row must be on one line"
        if fields != len(self.columns) or not text:
            found = f"{fields} field{'s' if fields > 1 else ''}" if text else "a blank line"
            by = {"\t": "tabs", ",": "commas"}.get(self.dataset.separator, repr(self.dataset.separator))
            return "wrong number of fields", f"expected {len(self.columns)} fields separated by {by}, found {found}"
        return None

    def _wrong_values(self, lines: list[bytes]) -> dict[int, tuple[str, str]]:
        """The rows of well-formed lines whose numbers or times cannot be read."""
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
                wrong.setdefault(int(row), (reason, f"column {name!r} has {text[:80]!r}, which is not {should}"))
        return wrong

    def _check_columns(self) -> None:
        for name in self.dataset.used_columns:
            if name not in self.columns and name not in self.dataset.path_columns:
                hint = did_you_mean(name, self.columns)
                raise UserError(f"{self.file.path} has no column {name!r}{hint}; it has: {', '.join(self.columns)}")

    def _check_path(self) -> None:
        self.file.check_path_columns(self.dataset.path_columns)
        for name in self.dataset.path_columns:
            text = self.file.from_path[name]
            if name in self.dataset.time_columns and self.dataset.time_format == "iso8601":
                is_wrong = iso_microseconds(text) is None
            else:
                is_wrong = name not in self.dataset.token_columns and as_number(text) is None
            if is_wrong:
                kind = "time" if name in self.dataset.time_columns else "number"
                raise UserError(f"{self.file.path}: {name}={text} in the path is not a {kind}")

    def _check_first_lines(self, beginning: bytes) -> None:
        """A description that does not fit shows in the first lines: no need to read on."""
        lines = beginning.split(b"\n")
        if len(beginning) >= _START // 2:
            lines.pop()  # cut short
        numbered = [(number, line) for number, line in enumerate(lines, self.header_lines + 1) if line.strip()]
        problems = [(number, problem) for number, line in numbered if (problem := self._problem(line))]
        if numbered and 2 * len(problems) > len(numbered):
            number, (_, story) = problems[0]
            raise UserError(
                f"{self.file.path}, line {number}: {story}; most of the first {len(numbered)} lines do not fit the "
                "dataset's description"
            )
        if not self.dataset.header and numbered and not self._problem(numbered[0][1]):
            fields = split(numbered[0][1].decode().removesuffix("\r"), self.dataset)
            numbers = {*self.dataset.number_columns, *self.dataset.time_columns}
            named = [name for name, text in zip(self.columns, fields, strict=True) if name in numbers and name == text]
            if named:
                raise UserError(
                    f"{self.file.path}, line {numbered[0][0]}: column {named[0]!r} has {named[0]!r}: this is a header "
                    "line; say `header: true` instead of listing the `columns`"
                )


def _header(file: RawFile, line: bytes, dataset: Dataset) -> list[str]:
    try:
        text = line.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UserError(f"{file.path}, line 1: the header is not UTF-8 text") from None
    if "\r" in text:
        raise UserError(f"{file.path}, line 1: a carriage return in the header; lines must end with \\n or \\r\\n")
    try:
        names = split(text, dataset)
    except csv.Error as error:
        raise UserError(f"{file.path}, line 1: the quotes of the header do not match ({error})") from None
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{file.path}, line 1: the header has more than one column {name!r}")
    return names
