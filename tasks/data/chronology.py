"""The chronological order over sorted blocks, found without loading all times into memory.

Rows with equal times keep the order of the log. A position in the overall order is a *cut*: for each block, the number
of its rows that come before.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np


def is_in_order(blocks: Sequence[np.ndarray]) -> bool:
    """Whether the blocks, one after the other, are in order already."""
    ends = [(times[0], times[-1]) for times in blocks]
    return all(before[1] <= after[0] for before, after in itertools.pairwise(ends))


def time_at(blocks: Sequence[np.ndarray], rank: int) -> float | int:
    """Returns the time of the row at a position, counted from 0.

    >>> time_at([np.array([1, 5, 9]), np.array([2, 5, 7])], 3)
    5
    """
    low, high = np.zeros(len(blocks), np.int64), np.array([len(times) for times in blocks])
    while True:
        # Weighted median of medians: each round discards at least a quarter of the remaining rows.
        left = np.flatnonzero(high > low)
        middles = np.array([blocks[int(block)][(low[block] + high[block]) // 2] for block in left])
        order = np.argsort(middles)
        weights = np.cumsum((high - low)[left][order])
        pivot = middles[order[np.searchsorted(weights, weights[-1] / 2)]]
        below, up_to = _before(blocks, pivot), _up_to(blocks, pivot)
        if rank < below.sum():
            high = np.minimum(high, below)
        elif rank >= up_to.sum():
            low = np.maximum(low, up_to)
        else:
            return pivot.item()


def cut_after(blocks: Sequence[np.ndarray], time: float) -> np.ndarray:
    """Returns the cut after all rows with at most this time."""
    return _up_to(blocks, time)


def cut_at(blocks: Sequence[np.ndarray], rank: int) -> np.ndarray:
    """Returns the cut with ``rank`` rows before it."""
    if rank == sum(len(times) for times in blocks):
        return np.array([len(times) for times in blocks])
    time = time_at(blocks, rank)
    below = _before(blocks, time)
    same = _up_to(blocks, time) - below
    earlier = np.cumsum(same) - same
    return below + np.clip(rank - below.sum() - earlier, 0, same)


def _before(blocks: Sequence[np.ndarray], time: float) -> np.ndarray:
    return np.array([np.searchsorted(times, time, "left") for times in blocks])


def _up_to(blocks: Sequence[np.ndarray], time: float) -> np.ndarray:
    return np.array([np.searchsorted(times, time, "right") for times in blocks])
