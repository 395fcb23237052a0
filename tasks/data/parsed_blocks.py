"""Parses a block of a raw file into an Arrow file that later phases memory-map.

The file has the rows that ``keep_rows`` selects, in chronological order: log-transformed integers, dictionary-encoded
tokens, labels and times.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.config.dataset import Dataset, FollowingEvents
from tasks.data.features import log_transform
from tasks.data.following_events import write_events, write_rows
from tasks.data.stable_hash import combined_hash, stable_hash
from tasks.logs.formats import LogReader
from tasks.logs.rows import Block, Rows, label_values, labelled, timed, wanted
from tasks.logs.token_dictionaries import narrowed
from tasks.runtime.home import whole_file


@dataclass(frozen=True)
class ParsedBlock:
    """A parsed block and what is known of it without opening the file.

    ``distinct`` is the size of each categorical column's dictionary.
    """

    file: Path
    rows: int
    distinct: tuple[int, ...]
    first_time: float | None
    last_time: float | None
    dataset: Dataset

    def load(self) -> pa.RecordBatch:
        return pa.ipc.open_file(pa.memory_map(str(self.file))).get_batch(0)

    def times(self) -> np.ndarray:
        """Returns the times in ascending order."""
        return self.load().column("time").to_numpy()

    def tokens(self) -> list[tuple[np.ndarray, pa.Array]]:
        """Returns for each categorical column the rows' indices into its dictionary, and the dictionary."""
        batch = self.load()
        columns = [batch.column(f"token {i}") for i in range(len(self.dataset.categorical_columns))]
        return [(column.indices.to_numpy(), column.dictionary) for column in columns]

    def following_rows(self, number: int) -> Path:
        return self.file.with_suffix(f".rows{number}")

    def following_events(self, number: int) -> Path:
        return self.file.with_suffix(f".events{number}")


class Disorder(NamedTuple):
    """The first row that has an earlier time than the row before it."""

    place: int
    time: float
    time_before: float


class Opening(NamedTuple):
    """How the rows of a block came: the place and time of the first, and the first that is out of order."""

    first_place: int = 0
    time: float | None = None
    disorder: Disorder | None = None


class BlockReport(NamedTuple):
    """What parsing a block found; ``lines`` counts all its rows, ``rows`` those that were kept."""

    number: int
    lines: int
    rows: int
    distinct: list[int]
    first_time: float | None
    last_time: float | None
    opening: Opening
    missing: dict[str, int]
    bad: Counter[str]


def parse_block(reader: LogReader, block: Block, folder: Path) -> BlockReport:
    """Parses a block into an Arrow file in a folder."""
    dataset = reader.dataset
    rows = timed(reader.read(block), dataset)
    all_rows = rows  # rows that `keep_rows` drops may carry events
    rows = labelled(wanted(rows, dataset), dataset)
    rows, opening = _in_order(rows, dataset)
    table = rows.table

    columns: dict[str, pa.Array] = {}
    missing: dict[str, int] = {}
    for number, name in enumerate(dataset.integer_columns):
        missing[name] = table[name].null_count
        columns[f"integer {number}"] = pa.array(log_transform(table[name].to_numpy()))
    for number, name in enumerate(dataset.categorical_columns):
        tokens = table[name].combine_chunks()
        missing[name] = _empty(tokens)
        columns[f"token {number}"] = narrowed(tokens)
    for task, label in dataset.labels.items():
        if label.column is not None:
            columns[f"label {task}"] = pa.array(label_values(table, label))
    if dataset.time_column:
        columns["time"] = table[dataset.time_column].combine_chunks()
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    with (
        whole_file(folder / f"{block.number}.arrow", durable=False) as path,
        pa.ipc.new_file(str(path), batch.schema) as file,
    ):
        file.write_batch(batch)
    for number, events in enumerate(dataset.following):
        _write_following(
            folder / f"{block.number}.arrow", number, events, rows=rows, all_rows=all_rows, dataset=dataset
        )
    if rows.bad:
        with whole_file(folder / f"{block.number}.bad", durable=False) as path:
            path.write_text(json.dumps(sorted(rows.bad)), encoding="utf-8")

    times = columns["time"].to_numpy() if dataset.time_column and table.num_rows else None
    return BlockReport(
        number=block.number,
        lines=rows.total,
        rows=table.num_rows,
        distinct=[len(columns[f"token {i}"].dictionary) for i in range(len(dataset.categorical_columns))],
        first_time=None if times is None else times[0].item(),
        last_time=None if times is None else times[-1].item(),
        opening=opening,
        missing=missing,
        bad=Counter(bad.reason for bad in rows.bad),
    )


def _in_order(rows: Rows, dataset: Dataset) -> tuple[Rows, Opening]:
    """Sorts rows by time, stably; also returns how they came."""
    if not dataset.time_column or not rows.table.num_rows:
        return rows, Opening()
    times = rows.table[dataset.time_column].combine_chunks().to_numpy()
    opening = Opening(int(rows.places[0]), times[0].item())
    back = np.flatnonzero(times[1:] < times[:-1])
    if not len(back):
        return rows, opening
    first = int(back[0]) + 1
    disorder = Disorder(int(rows.places[first]), times[first].item(), times[first - 1].item())
    order = np.argsort(times, kind="stable")
    in_order = replace(rows, table=rows.table.take(pa.array(order)), places=rows.places[order])
    return in_order, opening._replace(disorder=disorder)


def _empty(tokens: pa.DictionaryArray) -> int:
    """Counts the rows with the token "", which means missing."""
    indices = tokens.indices.to_numpy()
    empty = np.flatnonzero(pc.equal(tokens.dictionary, "").to_numpy(zero_copy_only=False))
    return sum(int(np.count_nonzero(indices == index)) for index in empty)


def _write_following(
    block: Path, number: int, events: FollowingEvents, *, rows: Rows, all_rows: Rows, dataset: Dataset
) -> None:
    """Writes the input of ``following_events``: the rows with their times, and the events that any row carries."""
    ids, when = all_rows.table[events.event].combine_chunks(), all_rows.table[events.event_time].combine_chunks()
    keys, known = _keys(all_rows.table, events)
    has_id = pc.not_equal(ids.dictionary, "").to_numpy(zero_copy_only=False)[ids.indices.to_numpy()]
    is_event = known & has_id & when.is_valid().to_numpy(zero_copy_only=False)
    hashes = stable_hash(events.event, ids.dictionary)[ids.indices.to_numpy()]
    times = when.filter(pa.array(is_event)).to_numpy()
    write_events(block.with_suffix(f".events{number}"), keys[is_event], hashes[is_event], times)
    keys, known = _keys(rows.table, events)
    # Rows without a key get keys of their own: a shared one could exceed the size of a group.
    keys = np.where(known, keys, combined_hash([np.arange(len(keys), dtype=np.uint64)]))
    own_times = rows.table[dataset.time_column].combine_chunks().to_numpy()
    write_rows(block.with_suffix(f".rows{number}"), keys, own_times)


def _keys(table: pa.Table, events: FollowingEvents) -> tuple[np.ndarray, np.ndarray]:
    """Hashes the columns that rows share with events; also returns a mask of rows where none is missing."""
    known, hashes = np.ones(table.num_rows, bool), []
    for name in events.same:
        tokens = table[name].combine_chunks()
        indices = tokens.indices.to_numpy()
        hashes.append(stable_hash(name, tokens.dictionary)[indices])
        known &= pc.not_equal(tokens.dictionary, "").to_numpy(zero_copy_only=False)[indices]
    return combined_hash(hashes), known
