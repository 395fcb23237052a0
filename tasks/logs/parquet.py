"""Reads Parquet files in blocks of whole row groups.

Numbers may have any numeric type; tokens may be strings, integers or booleans; times may be timestamps, dates or
numbers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from tasks.config.dataset import Dataset
from tasks.config.sections import did_you_mean
from tasks.logs.files import IncompleteFile, RawFile
from tasks.logs.placeholders import as_number
from tasks.logs.rows import Block, Rows, finite
from tasks.logs.text_values import iso_times
from tasks.logs.token_dictionaries import TOKENS, as_tokens
from tasks.runtime.errors import UserError


@dataclass(frozen=True)
class ParquetReader:
    """An opened Parquet file. ``types`` has the used columns with their Arrow types."""

    file: RawFile
    dataset: Dataset
    types: tuple[tuple[str, str], ...]
    time_unit: str

    @classmethod
    def open(cls, file: RawFile, dataset: Dataset) -> ParquetReader:
        """Opens a file. Raises a ``UserError`` if it is incomplete, lacks a column, or a column has the wrong type."""
        file.check_path_columns(dataset.path_columns)
        schema = _parquet(file.path).schema_arrow
        kinds: dict[str, tuple[list[str], Callable[[pa.DataType], bool]]] = {
            "a number": (list(dataset.integer_columns), lambda kind: _is_number(kind) or pa.types.is_null(kind)),
            "a number or boolean": (dataset.label_columns, _is_label),
            "a string, dictionary, integer or boolean": (dataset.token_columns, _is_token),
            "a timestamp, date or number": (dataset.time_columns, _is_time),
        }
        types = []
        for wanted, (columns, is_fit) in kinds.items():
            for name in columns:
                if name in dataset.path_columns:
                    continue
                if schema.names.count(name) != 1:
                    raise UserError(f"{file.path} {_not_once(name, schema.names)}")
                if not is_fit(kind := schema.field(name).type):
                    raise UserError(f"{file.path}: column {name!r} has type {kind}; it must be {wanted}")
                types.append((name, str(kind)))
        units = {
            name: _path_unit(file.path_values[name], dataset.time_unit)
            if name in dataset.path_columns
            else _time_unit(schema.field(name).type, dataset.time_unit)
            for name in dataset.time_columns
        }
        if len(set(units.values())) > 1:
            raise UserError(f"{file.path}: the times in {', '.join(units)} have different types or units")
        typed = [name for name, _ in types if name in units and _is_temporal(schema.field(name).type)]
        if typed and dataset.time_format is not None:
            raise UserError(
                f"{file.path}: column {typed[0]!r} has type {schema.field(typed[0]).type}, which has its own unit: "
                "leave out `time_format`"
            )
        unit, _ = next(iter(units.values()), ("s", ""))
        return cls(file, dataset, tuple(types), unit)

    @property
    def schema(self) -> tuple[tuple[str, str], ...]:
        return self.types

    header_lines = 0

    def blocks(self, block_bytes: int) -> list[Block]:
        """Groups consecutive row groups into blocks of about ``block_bytes``, or of one larger row group."""
        metadata = _parquet(self.file.path).metadata
        blocks: list[Block] = []
        start = size = 0
        for group in range(metadata.num_row_groups):
            # At least eight bytes a value in memory; on disk they may be far smaller.
            more = max(
                metadata.row_group(group).total_byte_size,
                8 * len(self.dataset.used_columns) * metadata.row_group(group).num_rows,
            )
            if size and size + more > block_bytes:
                blocks.append(Block(len(blocks), start, group))
                start, size = group, 0
            size += more
        if metadata.num_rows:
            blocks.append(Block(len(blocks), start, metadata.num_row_groups))
        return blocks

    def read(self, block: Block) -> Rows:
        in_file = [name for name, _ in self.types]
        tokens = [name for name in self.dataset.token_columns if name in in_file]
        columns: dict[str, pa.Array] = {}
        try:
            file = _parquet(self.file.path, dictionaries=tokens)
            groups = list(range(block.start, block.stop))
            table = file.read_row_groups(groups, columns=in_file, use_threads=False).unify_dictionaries()
            for name in self.dataset.used_columns:
                if name in in_file:
                    columns[name] = self._typed(name, table[name].combine_chunks())
                else:
                    columns[name] = self._path_column(name, len(table))
        except (OSError, pa.ArrowException) as error:
            raise UserError(
                f"cannot read row groups {block.start} to {block.stop - 1} of {self.file.path}: {error}"
            ) from None
        rows = Rows(pa.table(columns), np.arange(len(table)), len(table), (), functools.partial(_row_text, table))
        return finite(rows, self.dataset)

    def _typed(self, name: str, column: pa.Array) -> pa.Array:
        if name in self.dataset.token_columns:
            return as_tokens(column)
        return _as_time(column) if name in self.dataset.time_columns else _as_float64(column)

    def _path_column(self, name: str, rows: int) -> pa.Array:
        text = pa.repeat(self.file.path_values[name], rows)
        if name in self.dataset.token_columns:
            return text.dictionary_encode().cast(TOKENS)
        if name in self.dataset.time_columns and as_number(self.file.path_values[name]) is None:
            times, bad = iso_times(text, ())
            if bad.any():
                raise UserError(f"{self.file.path}: {name}={text[0]} in the path is not a time")
            return times
        return text.cast(pa.float64())


def _parquet(path: Path, dictionaries: list[str] | None = None) -> pa.parquet.ParquetFile:
    try:
        return pa.parquet.ParquetFile(path, read_dictionary=dictionaries)
    except (OSError, pa.ArrowException) as error:
        raise IncompleteFile(f"the raw log {path} is not a complete Parquet file: {error}") from None


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _is_label(kind: pa.DataType) -> bool:
    return _is_number(kind) or pa.types.is_boolean(kind)


def _is_temporal(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _is_time(kind: pa.DataType) -> bool:
    return _is_temporal(kind) or _is_number(kind)


def _is_token(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    # Writers give a column in which every value is missing the type null.
    return text or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)


def _time_unit(kind: pa.DataType, of_numbers: str) -> tuple[str, str]:
    """Returns the unit of a column's times, and the type they are read as."""
    if _is_temporal(kind):
        return (kind.unit if pa.types.is_timestamp(kind) else "s"), "int64"
    return of_numbers, "int64" if pa.types.is_integer(kind) else "float64"


def _path_unit(text: str, of_numbers: str) -> tuple[str, str]:
    return (of_numbers, "float64") if as_number(text) is not None else ("us", "int64")


def _not_once(name: str, known: list[str]) -> str:
    if name in known:
        return f"has more than one column {name!r}"
    return f"has no column {name!r}{did_you_mean(name, known)}; it has: {', '.join(known)}"


def _as_float64(column: pa.Array) -> pa.Array:
    values = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)


def _as_time(column: pa.Array) -> pa.Array:
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    if pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    return _as_float64(column)


def _row_text(table: pa.Table, row: int) -> str:
    return json.dumps(table.slice(row, 1).to_pylist()[0], default=str, ensure_ascii=False)
