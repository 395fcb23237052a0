"""Encodes parsed blocks into arrays in chronological order.

Rows that an earlier preparation encoded with the same ids are copied. If blocks follow each other in time, every block
writes its rows straight to their final positions. Otherwise rows are encoded block by block and then merged.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import dask
import numpy as np

from tasks.config.dataset import Dataset
from tasks.data.chronology import cut_at, is_in_order
from tasks.data.earlier_rows import ROWS_OF_A_COPY, EarlierRows, copy_rows
from tasks.data.following_events import count_following
from tasks.data.parsed_blocks import ParsedBlock
from tasks.data.parts import Part
from tasks.data.prepared import Layout
from tasks.data.statistics import DAY_SECONDS, UNITS_PER_SECOND, label_sums_by_day, summed_days
from tasks.data.vocabulary import Encoder
from tasks.runtime.parallel import Phase

_ROWS_OF_A_MERGE = 1 << 17
_ROWS_OF_A_TILE = 2048


def encode_rows(
    groups: Sequence[Sequence[Part]], encoder: Encoder, layout: Layout, *, earlier: EarlierRows | None, scratch: Path
) -> dict[int, list[float]]:
    """Writes the arrays of a layout, the rows of each group of parts in the order of time, one group after the other.

    Rows of ``earlier`` are the first of the first group. Returns the label sums by day, empty if rows have no times.
    """
    parts = [part for group in groups for part in group]
    unit = parts[0].summary["time_unit"]
    layout.allocate()
    labels = following_labels(parts[0].dataset, parts, unit, scratch)
    first_row = _copy(earlier.layout, layout) if earlier else 0
    days = [earlier.by_day] if earlier else []
    for number, group in enumerate(groups):
        new = group[earlier.parts :] if earlier and not number else group
        blocks = [block for part in new for block in part.blocks()]
        days += _encode_group(blocks, encoder, labels, unit, layout, first_row, scratch / f"group {number}")
        first_row += sum(block.rows for block in blocks)
    return summed_days(days)


def _encode_group(
    blocks: list[ParsedBlock],
    encoder: Encoder,
    labels: dict[Path, list[Path]],
    time_unit: str,
    layout: Layout,
    first_row: int,
    scratch: Path,
) -> list[dict[int, list[float]]]:
    """Writes the rows of blocks in the order of time, starting at ``first_row``. Returns their label sums by day."""
    times = [block.times() for block in blocks if block.dataset.time_column]
    if is_in_order(times):
        return _encode_blocks(blocks, encoder, labels, time_unit, layout, first_row)
    unsorted = layout._replace(folder=scratch, splits=(("all", sum(block.rows for block in blocks)),))
    unsorted.allocate()
    days = _encode_blocks(blocks, encoder, labels, time_unit, unsorted, 0)
    _sort(blocks, times, unsorted, layout, first_row)
    return days


def _copy(source: Layout, layout: Layout) -> int:
    """Copies the rows of an earlier preparation; returns their number."""
    phase, ranges = Phase("copy"), source.ranges(ROWS_OF_A_COPY)
    phase.compute(
        [dask.delayed(copy_rows)(source, layout, first, last) for _, first, last in ranges],
        [last - first for _, first, last in ranges],
    )
    phase.done(source.rows)
    return source.rows


def _encode_blocks(
    blocks: Sequence[ParsedBlock],
    encoder: Encoder,
    labels: dict[Path, list[Path]],
    time_unit: str,
    layout: Layout,
    first_row: int,
) -> list[dict[int, list[float]]]:
    phase, sizes = Phase("encode"), [block.rows for block in blocks]
    days = phase.compute(
        [
            dask.delayed(_encode_block)(block, encoder, layout, first, labels.get(block.file, []), time_unit)
            for block, first in zip(blocks, itertools.accumulate(sizes[:-1], initial=first_row), strict=True)
        ],
        sizes,
    )
    phase.done(sum(sizes))
    return days


def following_labels(dataset: Dataset, parts: Sequence[Part], time_unit: str, folder: Path) -> dict[Path, list[Path]]:
    """Counts following events; returns for each block a file of counts per kind of event."""
    blocks = [block for part in parts for block in part.all_blocks()]
    files: dict[Path, list[Path]] = {block.file: [] for block in blocks}
    for number, events in enumerate(dataset.following):
        phase, scratch = Phase("labels"), folder / f"following {number}"
        scratch.mkdir()
        counts = [scratch / f"{i}.npy" for i in range(len(blocks))]
        count_following(
            [block.following_rows(number) for block in blocks],
            [block.following_events(number) for block in blocks],
            counts,
            window=events.within_days * DAY_SECONDS * UNITS_PER_SECOND[time_unit],
            scratch=scratch,
            compute=phase.compute,
        )
        phase.done(sum(block.rows for block in blocks))
        for block, file in zip(blocks, counts, strict=True):
            files[block.file].append(file)
    return files


def _sort(blocks: list[ParsedBlock], times: list[np.ndarray], unsorted: Layout, layout: Layout, first_row: int) -> None:
    """Merges rows that were encoded block by block into chronological order, starting at ``first_row``."""
    phase = Phase("sort")
    edges = [*range(0, unsorted.rows, _ROWS_OF_A_MERGE), unsorted.rows]
    cuts = [cut_at(times, edge) for edge in edges]
    starts = np.cumsum([0, *(block.rows for block in blocks[:-1])])
    phase.compute(
        [
            dask.delayed(_merge_range)(_pieces(blocks, starts, *pair), unsorted, layout, first_row + edge)
            for edge, pair in zip(edges, itertools.pairwise(cuts), strict=False)
        ],
        np.diff(edges).tolist(),
    )
    phase.done(unsorted.rows)


def _encode_block(
    block: ParsedBlock, encoder: Encoder, layout: Layout, first_row: int, counts: list[Path], time_unit: str
) -> dict[int, list[float]]:
    """Writes the rows of a block into the arrays, starting at ``first_row``. Returns its label sums by day."""
    batch, dataset = block.load(), block.dataset
    integers = [batch.column(f"integer {position}").to_numpy() for position in range(layout.integers)]
    layout.write("integers", first_row, _stacked(integers, block.rows, np.float32))
    ids = [encoder.ids(position, tokens)[indices] for position, (indices, tokens) in enumerate(block.tokens())]
    layout.write("categoricals", first_row, _stacked(ids, block.rows, np.int32))
    labels = block_labels(block, counts)
    for task, values in labels.items():
        layout.write(f"label_{task}", first_row, values)
    return label_sums_by_day(block.times(), time_unit, labels) if dataset.time_column else {}


def block_labels(block: ParsedBlock, counts: Sequence[Path]) -> dict[str, np.ndarray]:
    """Returns the labels of a block's rows by task; ``counts`` are its files of ``following_labels``."""
    batch, dataset = block.load(), block.dataset
    labels: dict[str, np.ndarray] = {}
    for task, label in dataset.labels.items():
        if label.following is None:
            labels[task] = batch.column(f"label {task}").to_numpy()
        else:
            values = np.load(counts[dataset.following.index(label.following)])
            labels[task] = values if label.kind == "count" else (values > 0).astype(np.float32)
    return labels


def _stacked(columns: list[np.ndarray], rows: int, dtype: type) -> np.ndarray:
    """Stacks columns into an array, a tile of rows at a time so that it stays in the processor's cache."""
    array: np.ndarray = np.empty((rows, len(columns)), dtype)
    for start in range(0, rows, _ROWS_OF_A_TILE):
        tile = array[start : start + _ROWS_OF_A_TILE]
        for position, column in enumerate(columns):
            tile[:, position] = column[start : start + _ROWS_OF_A_TILE]
    return array


class _Piece(NamedTuple):
    """The rows ``low`` to ``high`` of a block between two cuts, and their position in the unsorted arrays."""

    block: ParsedBlock
    low: int
    high: int
    start: int


def _pieces(blocks: list[ParsedBlock], starts: np.ndarray, before: np.ndarray, after: np.ndarray) -> list[_Piece]:
    return [
        _Piece(block, int(low), int(high), int(start + low))
        for block, start, low, high in zip(blocks, starts, before, after, strict=True)
        if high > low
    ]


def _merge_range(pieces: list[_Piece], unsorted: Layout, layout: Layout, first_row: int) -> None:
    """Writes the rows between two cuts in chronological order."""
    times = np.concatenate([piece.block.times()[piece.low : piece.high] for piece in pieces])
    order = np.argsort(times, kind="stable")
    for array in layout.arrays:
        rows = [unsorted.read(array, piece.start, piece.start + piece.high - piece.low) for piece in pieces]
        layout.write(array, first_row, np.concatenate(rows)[order])
