"""One block of a raw file, parsed: from its rows to an Arrow file that every later phase maps into memory.

It has the wanted rows in the order of time: log-transformed integers, dictionary-encoded tokens, labels, time.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.descriptions import Dataset, FollowingEvents
from tasks.following_events import write_events, write_rows
from tasks.home import whole_file
from tasks.parquet_logs import ParquetLogs
from tasks.raw_rows import Block, Rows, label_values, labelled, timed, wanted
from tasks.stable_hash import combined_hash, stable_hash
from tasks.text_logs import TextLogs
from tasks.token_dictionaries import narrowed

Logs = TextLogs | ParquetLogs


@dataclass(frozen=True)
class ParsedBlock:
    """The rows of a piece of a raw file, and what is known of them without looking.

    ``distinct`` is the length of each categorical column's dictionary.
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
        """In ascending order."""
        return self.load().column("time").to_numpy()

    def tokens(self) -> list[tuple[np.ndarray, pa.Array]]:
        """For each categorical column each row's index into the block's dictionary, and that dictionary."""
        batch = self.load()
        columns = [batch.column(f"token {i}") for i in range(len(self.dataset.categorical_columns))]
        return [(column.indices.to_numpy(), column.dictionary) for column in columns]

    def following_rows(self, number: int) -> Path:
        return self.file.with_suffix(f".rows{number}")

    def following_events(self, number: int) -> Path:
        return self.file.with_suffix(f".events{number}")


def parse_block(logs: Logs, block: Block, folder: Path) -> dict[str, Any]:
    """Parses a block into an Arrow file; returns what is known of it."""
    dataset = logs.dataset
    rows = timed(logs.read(block), dataset)
    carried = rows
    rows = labelled(wanted(rows, dataset), dataset)
    rows, opening = _in_order(rows, dataset)
    table = rows.table

    columns: dict[str, pa.Array] = {}
    missing: dict[str, int] = {}
    for number, name in enumerate(dataset.integer_columns):
        missing[name] = table[name].null_count
        columns[f"integer {number}"] = pa.array(_log_transform(table[name].to_numpy()))
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
    with whole_file(folder / f"{block.number}.arrow") as path, pa.ipc.new_file(str(path), batch.schema) as file:
        file.write_batch(batch)
    for number, events in enumerate(dataset.following):
        _write_following(folder / f"{block.number}.arrow", number, events, rows=rows, carried=carried, dataset=dataset)
    if rows.bad:
        with whole_file(folder / f"{block.number}.bad") as path:
            path.write_text(json.dumps(sorted(rows.bad)), encoding="utf-8")

    times = columns["time"].to_numpy() if dataset.time_column and table.num_rows else None
    return {
        "number": block.number,
        "lines": rows.total,
        "rows": table.num_rows,
        "distinct": [len(columns[f"token {i}"].dictionary) for i in range(len(dataset.categorical_columns))],
        "first_time": None if times is None else times[0].item(),
        "last_time": None if times is None else times[-1].item(),
        **opening,
        "missing": missing,
        "bad": Counter(bad.reason for bad in rows.bad),
    }


def _log_transform(values: np.ndarray) -> np.ndarray:
    """sign(x)·log(1 + |x|); a missing value stays NaN."""
    return np.copysign(np.log1p(np.abs(values)), values).astype(np.float32)


def _in_order(rows: Rows, dataset: Dataset) -> tuple[Rows, dict[str, Any]]:
    """The rows by their time, those of one time as they were; and how they came.

    ``disorder`` is the first row that came after a later one: its place, its time and that of the one before it.
    """
    opening: dict[str, Any] = {"first_place": 0, "opening_time": None, "disorder": None}
    if not dataset.time_column or not rows.table.num_rows:
        return rows, opening
    times = rows.table[dataset.time_column].combine_chunks().to_numpy()
    opening |= {"first_place": int(rows.places[0]), "opening_time": times[0].item()}
    back = np.flatnonzero(times[1:] < times[:-1])
    if not len(back):
        return rows, opening
    first = int(back[0]) + 1
    opening["disorder"] = [int(rows.places[first]), times[first].item(), times[first - 1].item()]
    order = np.argsort(times, kind="stable")
    return Rows(rows.table.take(pa.array(order)), rows.places[order], rows.total, rows.bad, rows.text_at), opening


def _empty(tokens: pa.DictionaryArray) -> int:
    """How many rows have the token "", which stands for a missing one."""
    indices = tokens.indices.to_numpy()
    empty = np.flatnonzero(pc.equal(tokens.dictionary, "").to_numpy(zero_copy_only=False))
    return sum(int(np.count_nonzero(indices == index)) for index in empty)


def _write_following(
    block: Path, number: int, events: FollowingEvents, *, rows: Rows, carried: Rows, dataset: Dataset
) -> None:
    """Writes what ``tasks.following_events`` needs: the rows with their times, and the events that any row carries."""
    ids, when = carried.table[events.event].combine_chunks(), carried.table[events.event_time].combine_chunks()
    keys, known = _keys(carried.table, events)
    has_id = pc.not_equal(ids.dictionary, "").to_numpy(zero_copy_only=False)[ids.indices.to_numpy()]
    there = known & has_id & when.is_valid().to_numpy(zero_copy_only=False)
    hashes = stable_hash(events.event, ids.dictionary)[ids.indices.to_numpy()]
    times = when.filter(pa.array(there)).to_numpy()
    write_events(block.with_suffix(f".events{number}"), keys[there], hashes[there], times)
    keys, known = _keys(rows.table, events)
    # Rows that cannot have events get keys of their own: one for all of them would be more than a group can hold.
    keys = np.where(known, keys, combined_hash([np.arange(len(keys), dtype=np.uint64)]))
    own_times = rows.table[dataset.time_column].combine_chunks().to_numpy()
    write_rows(block.with_suffix(f".rows{number}"), keys, own_times)


def _keys(table: pa.Table, events: FollowingEvents) -> tuple[np.ndarray, np.ndarray]:
    """A hash of the columns that events and rows share, and where none of them is missing."""
    known, hashes = np.ones(table.num_rows, bool), []
    for name in events.same:
        tokens = table[name].combine_chunks()
        indices = tokens.indices.to_numpy()
        hashes.append(stable_hash(name, tokens.dictionary)[indices])
        known &= pc.not_equal(tokens.dictionary, "").to_numpy(zero_copy_only=False)[indices]
    return combined_hash(hashes), known
