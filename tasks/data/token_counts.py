"""How often each token occurs in the training part, out of core.

Every block writes the counts of its tokens, cut by the tokens' hashes into *portions*; then each portion is added up
over all blocks, by itself. The number of portions grows with the number of distinct tokens, so that memory holds no
more of them than a portion has, however many there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dask
import numpy as np
import pyarrow as pa

from tasks.home import whole_file
from tasks.parallel import Phase
from tasks.parsed_blocks import ParsedBlock
from tasks.stable_hash import stable_hash
from tasks.vocabulary import Selection

_SCHEMA = pa.schema({"token": pa.string(), "count": pa.int64()})


class _Portion(NamedTuple):
    """One of the equal cuts of a column's tokens, and its place among the batches of a block's file."""

    column: int
    batch: int


def chosen_tokens(
    blocks: Sequence[ParsedBlock],
    training_rows: Sequence[int],
    selection: Selection,
    *,
    phase: Phase,
    scratch: Path,
    portion_size: int = 500_000,
) -> list[pa.Table]:
    """For each categorical column the tokens that the selection chooses, by the first rows of each block.

    A portion has about ``portion_size`` tokens, counted once for each block that they are in.
    """
    distinct = np.sum([block.distinct for block in blocks], axis=0)
    cuts = [int(count) for count in np.maximum(1, -(-distinct // portion_size))]
    folder = scratch / "counts"
    folder.mkdir()
    work = [(block, rows) for block, rows in zip(blocks, training_rows, strict=True) if rows]
    files = [folder / f"{number}.arrow" for number in range(len(work))]
    phase.compute(
        [dask.delayed(_write_counts)(block, rows, cuts, file) for (block, rows), file in zip(work, files, strict=True)],
        [rows for _, rows in work],
    )
    groups = _groups(distinct, cuts, portion_size)
    found = phase.compute([dask.delayed(_add_up)(files, [p.batch for p in group], selection) for group in groups])
    tables: list[list[pa.Table]] = [[] for _ in cuts]
    for group, results in zip(groups, found, strict=True):
        for portion, table in zip(group, results, strict=True):
            tables[portion.column].append(table)
    return [pa.concat_tables(portions) for portions in tables]


def _groups(distinct: np.ndarray, cuts: Sequence[int], portion_size: int) -> list[list[_Portion]]:
    """Portions that are worked on together: as many small ones as make up a large one."""
    groups: list[list[_Portion]] = []
    size = portion_size
    batch = itertools.count()
    for column, count in enumerate(cuts):
        for _ in range(count):
            tokens = int(distinct[column]) // count
            if size + tokens > portion_size:
                groups.append([])
                size = 0
            groups[-1].append(_Portion(column, next(batch)))
            size += tokens
    return groups


def _write_counts(block: ParsedBlock, rows: int, cuts: Sequence[int], file: Path) -> None:
    """Writes the counts of a block's tokens in its first rows, a batch for each portion of each column."""
    with whole_file(file) as path, pa.ipc.new_file(str(path), _SCHEMA) as writer:
        names = block.dataset.categorical_columns
        for name, (indices, dictionary), count in zip(names, block.tokens(), cuts, strict=True):
            counts = np.bincount(indices[:rows], minlength=len(dictionary))
            seen = np.flatnonzero(counts)
            edges = [0, len(seen)]
            if count > 1:
                portions = stable_hash(name, dictionary)[seen] % np.uint64(count)
                seen = seen[np.argsort(portions)]
                edges = [0, *np.cumsum(np.bincount(portions.astype(np.int64), minlength=count)).tolist()]
            batch = pa.record_batch([dictionary.take(pa.array(seen)), pa.array(counts[seen])], schema=_SCHEMA)
            for start, stop in itertools.pairwise(edges):
                writer.write_batch(batch.slice(start, stop - start))


def _add_up(files: Sequence[Path], batches: Sequence[int], selection: Selection) -> list[pa.Table]:
    """For each of some portions the chosen tokens, by their counts in all blocks."""
    return [selection.select(_sum(files, batch)) for batch in batches]


def _sum(files: Sequence[Path], batch: int) -> pa.Table:
    portions = [pa.ipc.open_file(pa.memory_map(str(file))).get_batch(batch) for file in files]
    grouped = pa.Table.from_batches(portions, _SCHEMA).group_by("token", use_threads=False)
    summed: Any = grouped.aggregate([("count", "sum")]).rename_columns(["token", "count"])
    return summed
