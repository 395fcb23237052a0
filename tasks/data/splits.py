"""How rows are split: the first 80 % in time train, or the days of a window train and the newest day judges.

A split is a range of rows in the order of the arrays. Files may come in several groups; then each group is sorted by
time for itself, and the groups follow one another.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from tasks.config.dataset import SPLIT_FRACTIONS, Dataset
from tasks.data.chronology import cut_after, time_at
from tasks.data.parsed_blocks import ParsedBlock
from tasks.data.parts import Part
from tasks.data.schema import NightFacts
from tasks.runtime.errors import UserError

SPLITS = tuple(SPLIT_FRACTIONS)
FEWEST_ROWS = 10
# The share of the newest day, its first rows in time, that chooses among settings. The rest judges.
VALIDATION_SHARE = 0.1


class Boundaries(NamedTuple):
    """For each split its cut, and the last times of the first two splits, None if rows have no time."""

    cuts: list[np.ndarray]
    times: tuple[float, float] | None

    def sizes(self) -> list[int]:
        edges = [0, *(int(cut.sum()) for cut in self.cuts)]
        return [after - before for before, after in itertools.pairwise(edges)]


class Splitting(Protocol):
    """A rule of which rows are in which split."""

    @property
    def night(self) -> NightFacts | None:
        """What a night's folder says about itself, None for other folders."""

    def split_by(self, dataset: Dataset) -> str:
        """Returns the rule in words."""

    def groups(self, parts: Sequence[Part]) -> list[list[Part]]:
        """Returns the parts in the groups that are sorted by time separately."""

    def boundaries(self, parts: Sequence[Part], source: str) -> Boundaries:
        """Finds the boundaries of the splits; ``source`` names the log in errors."""


class Chronological:
    """The first 80 % of the rows in time are for training, the next 10 % for validation, the rest for test."""

    night = None

    def split_by(self, dataset: Dataset) -> str:
        return "timestamp" if dataset.time_column else "file order"

    def groups(self, parts: Sequence[Part]) -> list[list[Part]]:
        return [list(parts)]

    def boundaries(self, parts: Sequence[Part], source: str) -> Boundaries:
        """Finds the boundaries of the splits. Rows with equal times fall on the same side of a boundary."""
        dataset, blocks = parts[0].dataset, _blocks(parts)
        rows = sum(block.rows for block in blocks)
        if rows < FEWEST_ROWS:
            raise UserError(f"{source} has {rows} rows; a split needs at least {FEWEST_ROWS}")
        shares = itertools.accumulate(SPLIT_FRACTIONS.values())
        last = [int(share * rows) for share in itertools.islice(shares, 2)]
        sizes = np.array([block.rows for block in blocks])
        if not dataset.time_column:
            starts = np.cumsum(sizes) - sizes
            return Boundaries([*(np.clip(rank - starts, 0, sizes) for rank in last), sizes], None)
        times = [block.times() for block in blocks]
        moments = [time_at(times, rank - 1) for rank in last]
        boundaries = Boundaries([*(cut_after(times, moment) for moment in moments), sizes], (moments[0], moments[1]))
        totals = boundaries.sizes()
        for split, total in zip(SPLITS, totals, strict=True):
            if not total:
                raise UserError(
                    f"{source}: the {split} split would be empty, because too many rows have the same value of "
                    f"{dataset.time_column!r} (rows with equal times stay together, so the 80/10/10 split has "
                    f"{totals[0]}, {totals[1]} and {totals[2]} rows); use a finer time, or leave out `time_column` "
                    "to split by file order"
                )
        return boundaries


@dataclass(frozen=True)
class NewestDay:
    """All rows of the window are for training; the newest day's first tenth in time is validation, the rest test.

    A row belongs to the day of its file, whatever its time. The newest day's files are the last ``files``.
    """

    night: NightFacts
    files: int

    def split_by(self, dataset: Dataset) -> str:
        days = sorted(self.night["days"])[:-1]
        window = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        return f"day: {window} train; of {self.night['day']}, the first tenth in time validates and the rest tests"

    def groups(self, parts: Sequence[Part]) -> list[list[Part]]:
        return [list(parts[: -self.files]), list(parts[-self.files :])]

    def boundaries(self, parts: Sequence[Part], source: str) -> Boundaries:
        """Finds the boundaries of the splits. Rows with equal times fall on the same side of a boundary."""
        window, newest = map(_blocks, self.groups(parts))
        day, examples, rows = self.night["day"], sum(b.rows for b in window), sum(b.rows for b in newest)
        if examples < FEWEST_ROWS:
            raise UserError(f"the window of {day} has {examples} rows; training needs at least {FEWEST_ROWS}")
        tenth = int(VALIDATION_SHARE * rows)
        if tenth < FEWEST_ROWS:
            raise UserError(
                f"{day} has {rows} rows, too few to judge a model: the first tenth of them would be {tenth}, and the "
                f"validation split needs at least {FEWEST_ROWS}"
            )
        times = [block.times() for block in newest]
        moment = time_at(times, tenth - 1)
        before = np.array([block.rows for block in window])
        validation, all_newest = cut_after(times, moment), np.array([block.rows for block in newest])
        boundaries = Boundaries(
            [
                np.concatenate([before, np.zeros_like(all_newest)]),
                np.concatenate([before, validation]),
                np.concatenate([before, all_newest]),
            ],
            (max(float(block.last_time or 0) for block in window), moment),
        )
        totals = boundaries.sizes()
        if totals[2] < FEWEST_ROWS:
            raise UserError(
                f"the test rows of {day} would be {totals[2]} of {rows}, because too many rows have the same value of "
                f"{parts[0].dataset.time_column!r} and rows with equal times stay together: use a finer time"
            )
        return boundaries


def _blocks(parts: Sequence[Part]) -> list[ParsedBlock]:
    return [block for part in parts for block in part.blocks()]
