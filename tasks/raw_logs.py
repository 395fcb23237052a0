"""Raw logs as typed Arrow tables, one block at a time: byte ranges of a TSV, row groups of a Parquet file.

Both readers give the same kind of table: numbers are float64 with null for a missing value, categoricals
are dictionary-encoded strings with "" for a missing value. What cannot be read as such is a ``UserError``
with the place and the value.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tasks.descriptions import Dataset
from tasks.errors import UserError

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"(\xb5/\xfd": "zstd",
}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONGEST_LINE = 64 << 20
_LARGEST_BLOCK = 1 << 30
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
_TOKENS = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class Block:
    """A part of a raw file: the bytes ``start`` to ``stop`` of a TSV, or the rows of a Parquet row group."""

    index: int
    start: int
    stop: int


def check_file(path: Path) -> None:
    """Raises a ``UserError`` unless the path is a readable file with something in it."""
    try:
        if path.is_dir():
            raise UserError(f"the raw logs {path} are a folder; give a single file")
        if not path.exists():
            raise UserError(f"the raw logs {path} do not exist")
        if not path.is_file():
            raise UserError(f"the raw logs {path} are not a regular file")
        with path.open("rb") as file:
            first = file.read(8)
    except OSError as error:
        raise UserError(f"cannot read the raw logs {path}: {error.strerror}") from None
    if not first:
        raise UserError(f"the raw logs {path} are empty")
    for magic, name in _COMPRESSED.items():
        if first.startswith(magic):
            raise UserError(f"the raw logs {path} are compressed with {name}: decompress the file first")


def open_logs(path: Path, dataset: Dataset) -> TsvLogs | ParquetLogs:
    """A reader of the file, after a check that the file has the dataset's format and columns."""
    check_file(path)
    if dataset.format == "tsv":
        return TsvLogs.open(path, dataset)
    return ParquetLogs.open(path, dataset)


def _label_columns(dataset: Dataset) -> list[str]:
    return [label.column for label in dataset.labels.values()]


def _number_columns(dataset: Dataset) -> list[str]:
    return list(dict.fromkeys([*dataset.integer_columns, *_label_columns(dataset), *_time_column(dataset)]))


def _time_column(dataset: Dataset) -> list[str]:
    return [dataset.time_column] if dataset.time_column else []


@dataclass(frozen=True)
class TsvLogs:
    """Tab-separated text in UTF-8 without header, quotes or escapes. Times are seconds since 1970."""

    path: Path
    dataset: Dataset
    columns: tuple[str, ...]

    @classmethod
    def open(cls, path: Path, dataset: Dataset) -> TsvLogs:
        columns = dataset.columns or ()
        for name in columns:
            if columns.count(name) > 1:
                raise UserError(f"column {name!r} stands more than once in the dataset's `columns`")
        with path.open("rb") as file:
            start = file.read(1 << 16)
        if start.startswith(b"PAR1"):
            raise UserError(f"the raw logs {path} are a Parquet file, but the dataset's format is tsv")
        if b"\0" in start:
            raise UserError(f"the raw logs {path} are not tab-separated text: the file is binary")
        return cls(path, dataset, tuple(columns))

    def blocks(self, block_bytes: int) -> list[Block]:
        """Cuts the file, without the blank lines at its end, after the first line end in every ``block_bytes``."""
        edges, block_bytes = [0], min(block_bytes, _LARGEST_BLOCK)
        with self.path.open("rb") as file:
            end = _end_of_text(file)
            for target in range(block_bytes, end, block_bytes):
                if target <= edges[-1]:
                    continue
                file.seek(target - 1)
                line = file.readline(_LONGEST_LINE)
                if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                    raise UserError(f"{self.path}: no line end in {_LONGEST_LINE >> 20} MB after byte {target}")
                if file.tell() < end:
                    edges.append(file.tell())
        edges.append(end)
        return [Block(i, edges[i], edges[i + 1]) for i in range(len(edges) - 1) if end]

    def read(self, block: Block) -> pa.Table:
        with self.path.open("rb") as file:
            file.seek(block.start)
            data = file.read(block.stop - block.start)
        lines = data.count(b"\n") + (not data.endswith(b"\n"))
        try:
            table = self._parse(data)
        except pa.ArrowInvalid as error:
            raise self._explain(block, data, str(error)) from None
        # Arrow takes a lone carriage return for a line end and skips blank lines; here both are mistakes.
        lone_returns = b"\r" in data and data.count(b"\r") != data.count(b"\r\n")
        if table.num_rows != lines or lone_returns or b"\0" in data:
            raise self._explain(block, data, f"{lines} lines hold {table.num_rows} rows")
        for name in _number_columns(self.dataset):
            if not pc.all(pc.is_finite(table[name]), min_count=0).as_py():
                raise self._explain(block, data, f"column {name!r} has a value that is not finite")
        return table

    def place(self, block: Block, row: int) -> str:
        """Where a row of a block is, for a person; lines count from 1."""
        line, left = row + 1, block.start
        with self.path.open("rb") as file:
            while left and (chunk := file.read(min(left, 1 << 22))):
                line += chunk.count(b"\n")
                left -= len(chunk)
        return f"{self.path}, line {line}"

    def time_text(self, value: float) -> str:
        return _iso(value, "s") + "Z"

    def _parse(self, data: bytes) -> pa.Table:
        types = dict.fromkeys(_number_columns(self.dataset), pa.float64()) | dict.fromkeys(
            self.dataset.categorical_columns, _TOKENS
        )
        return pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(column_names=self.columns, use_threads=False, block_size=len(data) + 1),
            parse_options=pa.csv.ParseOptions(delimiter="\t", quote_char=False, double_quote=False),
            convert_options=pa.csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=False
            ),
        )

    def _explain(self, block: Block, data: bytes, reason: str) -> UserError:
        """Finds the first line that is wrong, now that it is known that there is one."""
        numbers = [(self.columns.index(name), name) for name in _number_columns(self.dataset)]
        if block.start == 0:
            data = data.removeprefix(_BYTE_ORDER_MARK)
        for row, line in enumerate(data.removesuffix(b"\n").split(b"\n")):
            problem = self._problem(line.removesuffix(b"\r"), numbers)
            if problem:
                return UserError(f"{self.place(block, row)}: {problem}")
        return UserError(f"{self.path}, in the block from byte {block.start} to {block.stop}: {reason}")

    def _problem(self, line: bytes, numbers: list[tuple[int, str]]) -> str | None:
        if b"\0" in line:
            return "not tab-separated text: the line has a zero byte"
        if b"\r" in line:
            return "a carriage return inside the line; lines must end with \\n or \\r\\n"
        try:
            fields = line.decode("utf-8").split("\t")
        except UnicodeDecodeError as error:
            return f"not UTF-8 text: byte 0x{line[error.start]:02x} at position {error.start + 1} of the line"
        if len(fields) != len(self.columns):
            found = f"{len(fields)} fields" if line else "a blank line"
            return f"expected {len(self.columns)} fields separated by tabs, found {found}"
        for position, name in numbers:
            text = fields[position]
            if text and not (_NUMBER.fullmatch(text) and math.isfinite(float(text))):
                header = "; is this a header line? The file must not have one" if text == name else ""
                return f"column {name!r} has {text[:80]!r}, which is not a finite number{header}"
        return None


@dataclass(frozen=True)
class ParquetLogs:
    """A Parquet file; numbers may have any numeric type, categoricals string, dictionary or integer type."""

    path: Path
    dataset: Dataset
    time_unit: str
    time_suffix: str

    @classmethod
    def open(cls, path: Path, dataset: Dataset) -> ParquetLogs:
        schema = _parquet(path).schema_arrow
        roles = {
            "a number": (dataset.integer_columns, _is_number),
            "a number or boolean": (_label_columns(dataset), _is_label),
            "a string, dictionary, integer or boolean": (dataset.categorical_columns, _is_categorical),
            "a timestamp, date or number": (_time_column(dataset), _is_time),
        }
        for wanted, (columns, allowed) in roles.items():
            for name in columns:
                if schema.names.count(name) != 1:
                    raise UserError(f"{path} {_not_once(name, schema.names)}")
                if not allowed(kind := schema.field(name).type):
                    raise UserError(f"{path}: column {name!r} has type {kind}; it must be {wanted}")
        unit, suffix = "s", "Z"
        if dataset.time_column and _is_temporal(kind := schema.field(dataset.time_column).type):
            unit = kind.unit if pa.types.is_timestamp(kind) else "s"
            suffix = "Z" if getattr(kind, "tz", None) else ""
        return cls(path, dataset, unit, suffix)

    def blocks(self, block_bytes: int) -> list[Block]:
        """One block for each row group that has rows, whatever its size."""
        metadata = _parquet(self.path).metadata
        blocks, start = [], 0
        for index in range(metadata.num_row_groups):
            stop = start + metadata.row_group(index).num_rows
            if stop > start:
                blocks.append(Block(index, start, stop))
            start = stop
        return blocks

    def read(self, block: Block) -> pa.Table:
        numbers, tokens = _number_columns(self.dataset), self.dataset.categorical_columns
        columns: dict[str, pa.Array] = {}
        try:
            file = _parquet(self.path, dictionaries=list(tokens))
            table = file.read_row_group(block.index, columns=[*numbers, *tokens], use_threads=False)
            table = table.unify_dictionaries()
            for name in numbers:
                convert = _as_time if name == self.dataset.time_column else _as_float64
                columns[name] = convert(table[name].combine_chunks())
            for name in tokens:
                columns[name] = _as_tokens(table[name].combine_chunks())
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"cannot read row group {block.index} of {self.path}: {error}") from None
        for name in numbers:
            infinite = np.flatnonzero(pc.is_inf(columns[name]).fill_null(False).to_numpy(zero_copy_only=False))
            if len(infinite):
                value = columns[name][int(infinite[0])].as_py()
                place = self.place(block, int(infinite[0]))
                raise UserError(f"{place}: column {name!r} has {value}, which is not a finite number")
        return pa.table(columns)

    def place(self, block: Block, row: int) -> str:
        """Where a row of a block is, for a person; rows count from 1."""
        return f"{self.path}, row {block.start + row + 1}"

    def time_text(self, value: float) -> str:
        return _iso(value, self.time_unit) + self.time_suffix


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


def _parquet(path: Path, dictionaries: list[str] | None = None) -> pa.parquet.ParquetFile:
    try:
        return pa.parquet.ParquetFile(path, read_dictionary=dictionaries)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"the raw logs {path} are not a whole Parquet file: {error}") from None


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _is_label(kind: pa.DataType) -> bool:
    return _is_number(kind) or pa.types.is_boolean(kind)


def _is_temporal(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _is_time(kind: pa.DataType) -> bool:
    return _is_temporal(kind) or _is_number(kind)


def _is_categorical(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return text or pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def _not_once(name: str, known: list[str]) -> str:
    if name in known:
        return f"has more than one column {name!r}"
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"has no column {name!r}{hint}; it has: {', '.join(known)}"


def _as_float64(column: pa.Array) -> pa.Array:
    values = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)


def _as_time(column: pa.Array) -> pa.Array:
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    if pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    return _as_float64(column)


def _as_tokens(column: pa.Array) -> pa.DictionaryArray:
    """Strings in a dictionary, "" for null. The dictionary may hold a token twice."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    tokens = column.dictionary.cast(pa.string()).fill_null("")
    indices = column.indices.cast(pa.int32())
    if indices.null_count:
        indices = indices.fill_null(len(tokens))
        tokens = pa.concat_arrays([tokens, pa.array([""], pa.string())])
    return pa.DictionaryArray.from_arrays(indices, tokens)


def _iso(value: float, unit: str) -> str:
    try:
        return str(np.int64(math.floor(value)).astype(f"datetime64[{unit}]").astype("datetime64[s]"))
    except (OverflowError, ValueError):
        return str(value)
