"""Statistics for the data card, and digests for the fingerprint, computed over ranges of encoded rows."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tasks.data.prepared import Layout

# Part of every fingerprint: the number of rows in a digest.
ROWS_OF_A_DIGEST = 1 << 17
DAY_SECONDS = 86_400
UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_PIECES = 20


class RangeDigest(NamedTuple):
    """For each array the digest of its rows in a range, and its counts (see ``Statistics.by_split``)."""

    digests: dict[str, str]
    counts: dict[str, list[float]]


def digest_range(layout: Layout, first_row: int, last_row: int) -> RangeDigest:
    """Computes the digests and counts of a range of rows."""
    digests: dict[str, str] = {}
    counts: dict[str, list[float]] = {}
    for array in layout.arrays:
        rows = layout.read(array, first_row, last_row)
        digests[array] = hashlib.sha256(rows.reshape(-1).view(np.uint8).data).hexdigest()
        if array == "integers":
            counts[array] = np.isnan(rows).sum(axis=0).tolist()
        elif array == "categoricals":
            counts[array] = (rows == 0).sum(axis=0).tolist()
        else:
            counts[array] = [float(rows.sum(dtype=np.float64)), int(np.count_nonzero(rows))]
    return RangeDigest(digests, counts)


def counts_by_split(layout: Layout, found: Sequence[tuple[str, RangeDigest]]) -> dict[str, dict[str, list[float]]]:
    """Sums the counts of ranges by split."""
    sums: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for split, result in found:
        for array, counts in result.counts.items():
            sums[split][array] = sums[split].get(array, 0) + np.array(counts)
    return {split: {array: sums[split][array].tolist() for array in layout.arrays} for split, _ in layout.splits}


def label_sums_by_day(times: np.ndarray, unit: str, labels: Mapping[str, np.ndarray]) -> dict[int, list[float]]:
    """Returns for each day since 1970 its number of rows, then each task's sum of labels. Times are ascending."""
    days = np.floor_divide(times, DAY_SECONDS * UNITS_PER_SECOND[unit]).astype(np.int64)
    starts = np.flatnonzero(np.diff(days, prepend=days[:1] - 1))
    rows = np.diff(starts, append=len(days))
    sums = [np.add.reduceat(values, starts, dtype=np.float64) for values in labels.values()]
    table = np.column_stack([rows, *sums])
    return {int(day): row.tolist() for day, row in zip(days[starts], table, strict=True)}


def summed_days(parts: Iterable[Mapping[int, Sequence[float]]]) -> dict[int, list[float]]:
    """Sums the days of several blocks; days are in order."""
    total: dict[int, np.ndarray] = {}
    for part in parts:
        for day, row in part.items():
            total[day] = total.get(day, 0) + np.array(row)
    return {day: total[day].tolist() for day in sorted(total)}


def label_sums_by_position(layout: Layout) -> list[list[float]]:
    """Returns the same for equal pieces of a log without times, from first to last."""
    edges = np.linspace(0, layout.rows, min(_PIECES, layout.rows) + 1).astype(int).tolist()
    pieces = []
    for first, last in itertools.pairwise(edges):
        sums = [float(layout.read(f"label_{task}", first, last).sum(dtype=np.float64)) for task in layout.tasks]
        pieces.append([float(last - first), *sums])
    return pieces
