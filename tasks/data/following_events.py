"""Counts the events that followed a row, out of core: for example conversions of the same user within 30 days.

The rows and events of a key may be anywhere in a log that does not fit into memory. So every block is written sorted
by key, and the keys are cut into ranges, called *groups*: a group needs one slice of each block's files. A first round
of Dask tasks counts, one task per group; a second round restores the row order of each block. Memory holds the groups
in flight. Tasks are idempotent and may even run twice at the same time: a file appears whole, with the same content.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa

from tasks.runtime.home import whole_file

_KEYS = 2**64
_LAST_TIME = 2**63 - 1


def write_rows(path: Path, keys: np.ndarray, times: np.ndarray) -> None:
    """Writes the rows of a block that need a label, as keys and times.

    Args:
        path: The file to write.
        keys: uint64 hashes of what rows share with their events, uniform because groups are ranges of keys.
        times: int64, or finite float64.
    """
    order = np.argsort(keys)
    _write_block(path, {"key": keys[order], "time": times[order], "place": order})


def write_events(path: Path, keys: np.ndarray, events: np.ndarray, times: np.ndarray) -> None:
    """Writes the events of a block: keys and times as in ``write_rows``, and uint64 ids of the events."""
    kept = _earliest(keys, events, times)
    _write_block(path, {"key": keys[kept], "event": events[kept], "time": times[kept]})


def count_following(
    rows: Sequence[Path],
    events: Sequence[Path],
    counts: Sequence[Path],
    *,
    window: float,
    scratch: Path,
    compute: Callable[[list[Any]], list[Any]],
    group_size: int = 1_000_000,
) -> None:
    """Counts for every row the distinct events of its key with 0 ≤ event time - row time ≤ ``window``.

    An event with several times under a key counts once, by the earliest. Times are compared exactly.

    Args:
        rows: For each block its file of ``write_rows``.
        events: For each block its file of ``write_events``.
        counts: For each block the .npy file to write: float32, in the row order that ``write_rows`` was given.
        window: In the unit of the times.
        scratch: A folder for temporary files.
        compute: Runs Dask tasks.
        group_size: About how many rows and events a task holds. A key is never divided.
    """
    if not window >= 0:
        raise ValueError(f"the window must be 0 or more, not {window}")
    if not len(rows) == len(events) == len(counts):
        raise ValueError(f"{len(rows)} files of rows, {len(events)} of events and {len(counts)} of counts")
    if not rows:
        return
    total = _check_times([*rows, *events])
    groups = max(1, -(-total // group_size))
    edges = [group * _KEYS // groups for group in range(groups + 1)]
    # A folder per call: a task of an earlier call that outlives an error cannot write into this one.
    with tempfile.TemporaryDirectory(dir=scratch, prefix="following-", ignore_cleanup_errors=True) as folder:
        files = [Path(folder) / str(group) for group in range(groups)]
        # One graph node holds all paths: a copy in every task would make the graph quadratic.
        paths = dask.delayed((list(rows), list(events)), traverse=False)
        compute(
            [
                dask.delayed(_count_group)(paths, edges[group], edges[group + 1] - 1, window, file)
                for group, file in enumerate(files)
            ]
        )
        saved = dask.delayed(files, traverse=False)
        blocks = enumerate(zip(rows, counts, strict=True))
        compute([dask.delayed(_write_counts)(saved, block, *of_block) for block, of_block in blocks])


def _earliest(keys: np.ndarray, events: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Returns the indices of each key's events at their earliest time, sorted by key."""
    order = np.lexsort((times, events, keys))
    keys, events = keys[order], events[order]
    first = np.ones(len(order), bool)
    first[1:] = (keys[1:] != keys[:-1]) | (events[1:] != events[:-1])
    return order[first]


def _write_block(path: Path, columns: dict[str, np.ndarray]) -> None:
    for name in columns.keys() & {"key", "event"}:
        if columns[name].dtype != np.uint64:
            raise ValueError(f"{path}: {name}s must be uint64, not {columns[name].dtype}")
    if columns["time"].dtype not in (np.int64, np.float64):
        raise ValueError(f"{path}: times must be int64 or float64, not {columns['time'].dtype}")
    if not np.isfinite(columns["time"]).all():
        raise ValueError(f"{path}: a time is not finite")
    batch = pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in columns.items()})
    with whole_file(path, durable=False) as temporary, pa.ipc.new_file(str(temporary), batch.schema) as writer:
        writer.write_batch(batch)


def _mapped(path: Path) -> pa.RecordBatch:
    # Every group opens every block, and starting threads for a few columns would take longer.
    options = pa.ipc.IpcReadOptions(use_threads=False)
    return pa.ipc.open_file(pa.memory_map(str(path)), options=options).get_batch(0)


def _check_times(paths: list[Path]) -> int:
    """Returns the number of rows and events. Raises if times have different types, as one would be rounded."""
    total, kinds = 0, {}
    for path in paths:
        batch = _mapped(path)
        total += batch.num_rows
        kinds[str(batch["time"].type)] = path
    if len(kinds) > 1:
        raise ValueError("times of more than one type: " + ", ".join(f"{kinds[kind]} has {kind}" for kind in kinds))
    return total


def _slices(paths: list[Path], first_key: int, last_key: int, *names: str) -> Iterator[list[np.ndarray]]:
    """Yields for each block its columns in the key range, both ends included."""
    for path in paths:
        batch = _mapped(path)
        keys = batch["key"].to_numpy()
        begin, end = np.searchsorted(keys, np.uint64(first_key)), np.searchsorted(keys, np.uint64(last_key), "right")
        # Copied, so that only one file is mapped at a time.
        yield [batch[name].to_numpy()[begin:end].copy() for name in names]


def _count_group(paths: tuple[list[Path], list[Path]], first_key: int, last_key: int, window: float, to: Path) -> None:
    """Writes the counts of a group, block after block, after a header with the offsets of each block."""
    row_paths, event_paths = paths
    rows = list(_slices(row_paths, first_key, last_key, "key", "time"))
    ends = np.cumsum([len(rows) + 1, *(len(keys) for keys, _ in rows)])
    row_keys, row_times = map(np.concatenate, zip(*rows, strict=True))
    del rows
    columns = zip(*_slices(event_paths, first_key, last_key, "key", "event", "time"), strict=True)
    keys, events, times = map(np.concatenate, columns)
    kept = _earliest(keys, events, times)
    counts = _count(row_keys, row_times, keys[kept], times[kept], window)
    with whole_file(to, durable=False) as temporary:
        np.concatenate([ends, counts]).tofile(temporary)


def _count(
    row_keys: np.ndarray, row_times: np.ndarray, keys: np.ndarray, times: np.ndarray, window: float
) -> np.ndarray:
    """Counts the events that followed each row."""
    counts = np.zeros(len(row_keys), np.int64)
    if not len(keys):
        return counts
    known, key_ranks = np.unique(keys, return_inverse=True)
    moments, time_ranks = np.unique(times, return_inverse=True)
    # A (key, time) pair as one integer, by ranks instead of values: exact, and ordered like the pairs.
    pairs = np.sort(key_ranks * len(moments) + time_ranks)

    key_ranks = np.searchsorted(known, row_keys)
    rows = np.flatnonzero(known[np.minimum(key_ranks, len(known) - 1)] == row_keys)
    lowest, starts = key_ranks[rows] * len(moments), row_times[rows]
    before = np.searchsorted(pairs, lowest + np.searchsorted(moments, starts))
    until = np.searchsorted(pairs, lowest + np.searchsorted(moments, _last_times(starts, window), "right"))
    counts[rows] = until - before
    return counts


def _last_times(times: np.ndarray, window: float) -> np.ndarray:
    """Returns the last representable time inside the window of each time."""
    if times.dtype == np.int64:
        # Modulo 2**64 the distance of any two times is exact, and no sum exceeds the last time.
        until_last = np.uint64(_LAST_TIME) - times.view(np.uint64)
        return times + np.minimum(until_last, np.uint64(int(min(window, 2**64 - 1)))).view(np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = times + float(window)
        # The rounding error of a sum is a float64 itself (Knuth's TwoSum): negative if it was rounded up.
        added = sums - times
        error = (times - (sums - added)) + (window - added)
        return np.where(error < 0, np.nextafter(sums, -np.inf), sums)


def _write_counts(groups: list[Path], block: int, rows: Path, to: Path) -> None:
    """Collects the counts of a block from all groups and restores its row order."""
    slices = []
    for path in groups:
        begin, end = np.fromfile(path, np.int64, 2, offset=8 * block)
        slices.append(np.fromfile(path, np.int64, end - begin, offset=8 * begin))
    place = _mapped(rows)["place"].to_numpy()
    counts = np.empty(len(place), np.float32)
    counts[place] = np.concatenate(slices)
    with whole_file(to, durable=False) as temporary, temporary.open("wb") as file:
        np.save(file, counts)
