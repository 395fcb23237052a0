"""A batch of any size on memory of a given size: physical batches of one fixed shape.

A logical batch is what the algorithm knows: its examples were sampled together, and their clipped
gradients are added up before noise. It is computed in pieces of ``rows`` rows, padded at their ends.
How it is cut changes nothing but the order of additions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dp_core.microbatches import Microbatches
from dp_core.sampling import SampledBatch

# Pieces are cut evenly over this many devices (or a divisor, or a multiple that is asked for).
_ROW_MULTIPLE = 8


class PhysicalShape(NamedTuple):
    """``pieces`` physical batches of ``rows`` rows hold the largest logical batch."""

    pieces: int
    rows: int


class LaidOut(NamedTuple):
    """A logical batch in its pieces: which example is in which row.

    ``indices`` and ``mask`` have shape (pieces, rows), and so has ``groups``, where each row holds
    the number of its group's first row; without microbatches it is None. The first ``used`` pieces
    hold examples.
    """

    indices: np.ndarray
    mask: np.ndarray
    groups: np.ndarray | None
    used: int


def physical_shape(
    max_batch_size: int, *, largest_rows: int, microbatches: Microbatches | None = None, devices: int = 1
) -> PhysicalShape:
    """The fewest pieces of at most about ``largest_rows`` rows, evenly filled.

    >>> physical_shape(2500, largest_rows=1024)
    PhysicalShape(pieces=3, rows=840)
    """
    # A piece ends where a group does, so up to a group less one row of each may stay empty.
    lost = 0 if microbatches is None else microbatches.largest - 1
    multiple = _ROW_MULTIPLE if _ROW_MULTIPLE % devices == 0 else devices
    pieces = -(-max_batch_size // max(largest_rows - lost, multiple))
    rows = -(-max_batch_size // pieces) + lost
    return PhysicalShape(pieces, multiple * -(-rows // multiple))


def lay_out(sampled: SampledBatch, shape: PhysicalShape, microbatches: Microbatches | None = None) -> LaidOut:
    """Puts a sampled batch into its pieces, no group across two of them."""
    indices, mask = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    if microbatches is None or sampled.groups is None:
        indices.reshape(-1)[: sampled.size] = sampled.indices
        mask.reshape(-1)[: sampled.size] = 1
        return LaidOut(indices, mask, None, -(-sampled.size // shape.rows))

    first = np.searchsorted(sampled.groups, sampled.groups)
    kept = np.arange(sampled.size) - first < microbatches.largest
    examples, names = sampled.indices[kept], sampled.groups[kept]
    first = np.searchsorted(names, names)
    groups = np.tile(np.arange(shape.rows, dtype=np.int32), (shape.pieces, 1))
    start = used = 0
    while start < len(examples):
        stop = min(start + shape.rows, len(examples))
        if stop < len(examples):
            stop = int(first[stop])
        rows = slice(0, stop - start)
        indices[used, rows], mask[used, rows] = examples[start:stop], 1
        groups[used, rows] = first[start:stop] - start
        start, used = stop, used + 1
    return LaidOut(indices, mask, groups, used)
