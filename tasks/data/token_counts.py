"""Counts tokens of the training split out of core, and selects those that get an id.

Every block writes the counts of its tokens, sharded by hash into *portions*; then each portion is summed over all
blocks. The number of portions grows with the number of distinct tokens, so memory holds one portion at a time,
however many tokens there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dask
import numpy as np
import pyarrow as pa

from tasks.data.parsed_blocks import ParsedBlock
from tasks.data.stable_hash import stable_hash
from tasks.data.vocabulary import SelectedTokens, TokenSelection, VocabularyNoise
from tasks.runtime.home import whole_file
from tasks.runtime.parallel import Phase

_SCHEMA = pa.schema({"token": pa.string(), "count": pa.int64()})


class _Portion(NamedTuple):
    """A shard of a column's tokens, and its position among the batches of a block's file."""

    column: int
    batch: int


def select_tokens(
    blocks: Sequence[ParsedBlock],
    training_rows: Sequence[int],
    selection: TokenSelection,
    *,
    phase: Phase,
    scratch: Path,
    portion_size: int = 500_000,
) -> tuple[list[pa.Table], list[VocabularyNoise | None]]:
    """Returns for each categorical column the selected tokens with their counts, and the noise of each portion.

    Args:
        blocks: The parsed blocks.
        training_rows: For each block, how many of its first rows belong to the training split.
        selection: Selects tokens by their counts.
        phase: Runs the Dask tasks.
        scratch: A folder for temporary files.
        portion_size: About how many tokens a portion has, counted once for each block that has them.
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
    noise: list[VocabularyNoise | None] = []
    for group, results in zip(groups, found, strict=True):
        for portion, selected in zip(group, results, strict=True):
            tables[portion.column].append(selected.table)
            noise.append(selected.noise)
    return [pa.concat_tables(portions) for portions in tables], noise


def _groups(distinct: np.ndarray, cuts: Sequence[int], portion_size: int) -> list[list[_Portion]]:
    """Groups small portions into tasks of about ``portion_size`` tokens."""
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
    """Counts the tokens in the first rows of a block; writes a batch for each portion of each column."""
    with whole_file(file, durable=False) as path, pa.ipc.new_file(str(path), _SCHEMA) as writer:
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


def _add_up(files: Sequence[Path], batches: Sequence[int], selection: TokenSelection) -> list[SelectedTokens]:
    """Sums portions over all blocks; returns the selected tokens of each."""
    return [selection.select(_sum(files, batch)) for batch in batches]


def _sum(files: Sequence[Path], batch: int) -> pa.Table:
    portions = [pa.ipc.open_file(pa.memory_map(str(file))).get_batch(batch) for file in files]
    grouped = pa.Table.from_batches(portions, _SCHEMA).group_by("token", use_threads=False)
    summed: Any = grouped.aggregate([("count", "sum")]).rename_columns(["token", "count"])
    return summed
