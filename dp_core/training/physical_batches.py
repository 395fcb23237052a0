"""Physical batches: a batch of any size, computed in pieces of a fixed shape that fit into memory.

The algorithm knows logical batches only: examples that were sampled together. Their clipped gradients are
summed before the noise is added. A logical batch is computed in pieces of ``rows`` rows, each padded at its end.
The cut changes nothing but the order of additions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dp_core.clipping.microbatches import Microbatches
from dp_core.sampling import SampledBatch

# Rows per piece are a multiple of this, so that 2, 4 or 8 devices get equal shares. For other numbers of
# devices the multiple is that number.
_ROW_MULTIPLE = 8


class PhysicalShape(NamedTuple):
    """The fixed shape that holds the largest logical batch.

    Attributes:
        pieces: Number of physical batches.
        rows: Rows of each.
    """

    pieces: int
    rows: int


class LaidOut(NamedTuple):
    """The rows of a logical batch.

    Attributes:
        indices: The example in each row, int64 of shape (pieces, rows); 0 in padding.
        mask: 1 for an example and 0 for padding, float32 of shape (pieces, rows).
        groups: The index of the first row of each row's group within its piece, int32 of shape
            (pieces, rows); None without microbatches.
        used: How many pieces hold examples; they come first.
    """

    indices: np.ndarray
    mask: np.ndarray
    groups: np.ndarray | None
    used: int


def physical_shape(
    max_batch_size: int, *, largest_rows: int, microbatches: Microbatches | None = None, devices: int = 1
) -> PhysicalShape:
    """Returns the shape with the fewest pieces of about ``largest_rows`` rows, evenly filled.

    Args:
        max_batch_size: Size of the largest logical batch.
        largest_rows: The most rows that fit into memory at once.
        microbatches: The group sizes, or None.
        devices: Number of devices that share the rows of a piece.

    Returns:
        A shape that holds any logical batch of up to ``max_batch_size`` examples. Rounding up to a multiple of
        the devices may exceed ``largest_rows`` by a few rows.

    >>> physical_shape(2500, largest_rows=1024)
    PhysicalShape(pieces=3, rows=840)
    """
    # A piece ends at the end of a group, so up to ``largest - 1`` of its rows may stay empty.
    lost = 0 if microbatches is None else microbatches.largest - 1
    multiple = _ROW_MULTIPLE if _ROW_MULTIPLE % devices == 0 else devices
    pieces = -(-max_batch_size // max(largest_rows - lost, multiple))
    rows = -(-max_batch_size // pieces) + lost
    return PhysicalShape(pieces, multiple * -(-rows // multiple))


def lay_out(sampled: SampledBatch, shape: PhysicalShape, microbatches: Microbatches | None = None) -> LaidOut:
    """Assigns the examples of a sampled batch to rows, without splitting a group across pieces.

    Args:
        sampled: The batch, with examples of a group adjacent.
        shape: The fixed shape, from ``physical_shape`` with the same microbatches.
        microbatches: The group sizes, or None. Members of a group beyond its largest size are dropped.
    """
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
