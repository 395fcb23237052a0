"""The rows of a block: typed columns of the readable ones, and the bad ones with their reasons.

Every reader returns the same column types: numbers are float64 with null for a missing value, tokens are
dictionary-encoded strings with "" for a missing value, and times are int64 or float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.config.dataset import Dataset, Label
from tasks.logs.placeholders import as_number, with_missing

# Labels have 32 bits, which hold every whole number up to this one.
LARGEST_COUNT = 2**24


class Block(NamedTuple):
    """A piece of a raw file, from ``start`` to ``stop`` in the reader's own unit: bytes of text, or row groups."""

    number: int
    start: int
    stop: int


class BadRow(NamedTuple):
    """A row for the quarantine: its place in the block from 0, the reason, a message, and the row itself as text."""

    place: int
    reason: str
    problem: str
    text: str


@dataclass(frozen=True)
class Rows:
    """The rows of a block.

    Attributes:
        table: The used columns of the readable rows.
        places: The place of each readable row in the block, from 0.
        total: The number of rows with the bad ones.
        text_at: Returns the row at a place of the block as text.
    """

    table: pa.Table
    places: np.ndarray
    total: int
    bad: tuple[BadRow, ...]
    text_at: Callable[[int], str]

    def without(self, reason: str, wrong: np.ndarray, problem: Callable[[int], str]) -> Rows:
        """Moves the masked rows to ``bad``; ``problem`` returns the message for a row of the table."""
        if not wrong.any():
            return self
        found = [
            BadRow(int(self.places[row]), reason, problem(int(row)), self.text_at(int(self.places[row])))
            for row in np.flatnonzero(wrong)
        ]
        kept = replace(self, bad=(*self.bad, *found))
        return kept.only(~wrong)

    def only(self, chosen: np.ndarray) -> Rows:
        """Returns the masked rows. The others are dropped, not bad."""
        if chosen.all():
            return self
        return replace(self, table=self.table.filter(pa.array(chosen)), places=self.places[chosen])


def finite(rows: Rows, dataset: Dataset) -> Rows:
    """Moves rows with an infinite number or time to ``bad``."""
    for name in [*dataset.number_columns, *dataset.time_columns]:
        column = rows.table[name].combine_chunks()
        if pa.types.is_floating(column.type):
            reason = "bad time" if name in dataset.time_columns else "not a number"
            infinite = ~pc.is_finite(column).fill_null(True).to_numpy(zero_copy_only=False)
            rows = rows.without(reason, infinite, functools.partial(_infinite, name, column))
    return rows


def timed(rows: Rows, dataset: Dataset) -> Rows:
    """Replaces placeholders for missing values, and moves rows without a time to ``bad`` if they need one."""
    rows = replace(rows, table=with_missing(rows.table, dataset.missing))
    if dataset.time_column:
        absent = rows.table[dataset.time_column].combine_chunks().is_null().to_numpy(zero_copy_only=False)
        rows = rows.without("bad time", absent, lambda _: f"the time column {dataset.time_column!r} has no value")
    return rows


def wanted(rows: Rows, dataset: Dataset) -> Rows:
    """Returns the rows that ``keep_rows`` selects."""
    for name, values in dataset.keep_rows.items():
        column = rows.table[name].combine_chunks()
        if pa.types.is_dictionary(column.type):
            chosen = pc.is_in(column.dictionary, value_set=pa.array(values, pa.string())).to_numpy(zero_copy_only=False)
            rows = rows.only(chosen[column.indices.to_numpy()])
        else:
            numbers = [number for number in map(as_number, values) if number is not None]
            rows = rows.only(np.isin(column.to_numpy(zero_copy_only=False), numbers))
    return rows


def labelled(rows: Rows, dataset: Dataset) -> Rows:
    """Moves rows with an invalid label to ``bad``."""
    for task, label in dataset.labels.items():
        if label.column is None:
            continue
        column = rows.table[label.column].combine_chunks()
        wrong = ~_is_allowed(column.to_numpy(zero_copy_only=False), label)
        rows = rows.without("label not allowed", wrong, functools.partial(_not_allowed, task, label, column))
    return rows


def label_values(table: pa.Table, label: Label) -> np.ndarray:
    """Returns the labels of a column as float32."""
    values = table[label.column].to_numpy()
    return (values > 0 if label.kind == "any" else values).astype(np.float32)


def _infinite(name: str, column: pa.Array, row: int) -> str:
    return f"column {name!r} has {column[row]}, not a finite number"


def _not_allowed(task: str, label: Label, column: pa.Array, row: int) -> str:
    value = column[row].as_py()
    found = "no value" if value is None else f"{value:.17g}"
    allowed = "0 or 1" if label.kind == "binary" else "a whole number, 0 or more"
    if value is not None and value > LARGEST_COUNT and label.kind == "count":
        allowed += f", at most {LARGEST_COUNT:,}"
    return f"column {label.column!r} has {found}, but the label of {task} (kind {label.kind}) must be {allowed}"


def _is_allowed(values: np.ndarray, label: Label) -> np.ndarray:
    if label.kind == "binary":
        return np.isin(values, (0, 1))
    largest = LARGEST_COUNT if label.kind == "count" else np.inf
    return (values >= 0) & (values == np.floor(values)) & (values <= largest)
