"""Label rates along a log, as the data card plots them: by day, or by position where rows have no times."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tasks.data.prepared import Prepared

_MAX_PIECES = 400
_X_TICKS = 3


class Piece(NamedTuple):
    """Consecutive rows of the log: their place on the x axis, their number, and each task's sum of labels."""

    x: float
    name: str
    rows: float
    label_sums: Sequence[float]


class LabelRates(NamedTuple):
    """The pieces of a log in order, with the x axis that they stand on.

    ``split_starts`` maps each split but the first to the place where it begins.
    """

    pieces: Sequence[Piece]
    x_label: str
    x_ticks: Mapping[float, str]
    split_starts: Mapping[str, float]


def label_rates(prepared: Prepared) -> LabelRates:
    """Returns label sums by day, or by position if the log has no times."""
    return _by_day(prepared) if prepared.statistics["by_day"] else _by_position(prepared)


def _by_day(prepared: Prepared) -> LabelRates:
    """Merges neighbouring days where the log has more than ``_MAX_PIECES``."""
    by_day = list(prepared.statistics["by_day"].items())
    merged = -(-len(by_day) // _MAX_PIECES)
    pieces = []
    for start in range(0, len(by_day), merged):
        days = by_day[start : start + merged]
        rows, *sums = np.sum([row for _, row in days], axis=0).tolist()
        name = days[0][0] if merged == 1 else f"{days[0][0]} to {days[-1][0]}"
        pieces.append(Piece(float(np.datetime64(days[0][0], "D").astype(np.int64)), name, rows, sums))
    # A split begins in the piece that holds its first row.
    ends = np.cumsum([piece.rows for piece in pieces])
    starts = {
        name: pieces[int(np.searchsorted(ends, before, "right"))].x for name, before in _rows_before(prepared).items()
    }
    first, last = int(pieces[0].x), int(pieces[-1].x)
    step = max(1, -(-(last - first) // _X_TICKS))
    x_ticks = {float(day): str(np.datetime64(day, "D")) for day in range(first, last + 1, step)}
    return LabelRates(pieces, "day" if merged == 1 else f"{merged} days", x_ticks, starts)


def _by_position(prepared: Prepared) -> LabelRates:
    total, before, pieces = prepared.statistics["rows"], 0.0, []
    for rows, *sums in prepared.statistics["by_position"]:
        name = f"{100 * before / total:.0f} to {100 * (before + rows) / total:.0f} %"
        pieces.append(Piece((before + rows / 2) / total, name, rows, sums))
        before += rows
    starts = {name: before / total for name, before in _rows_before(prepared).items()}
    x_ticks = {tenth / 10: f"{10 * tenth} %" for tenth in (2, 4, 6, 8)}
    return LabelRates(pieces, "position in the log", x_ticks, starts)


def _rows_before(prepared: Prepared) -> dict[str, int]:
    """Returns the number of rows before each split but the first."""
    ends = itertools.accumulate(split["rows"] for split in prepared.splits.values())
    return dict(zip(list(prepared.splits)[1:], ends, strict=False))
