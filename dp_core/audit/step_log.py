"""Step log: compares what each step reports from the device with the batch that was sampled for it.

The expected number and checksum of a batch's rows are computed here in NumPy from the training data, independently of
the code that reads batches and lays them out. ``dp_core.training.witness`` defines the checksum.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from dp_core.sampling import SampledBatch
from dp_core.training.witness import COLUMN_STRIDE, MISSING, MULTIPLIERS

_ROWS_AT_ONCE = 1 << 16


def row_hashes(integers: np.ndarray, categoricals: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the hash of every row of a dataset at weight 1; uint32 of shape (rows,).

    Args:
        integers: float32 of shape (rows, integer columns).
        categoricals: Integers of shape (rows, slots).
        labels: float32 of shape (rows,).
    """
    hashes = np.empty(len(labels), np.uint32)
    for start in range(0, len(labels), _ROWS_AT_ONCE):
        rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(labels)))
        total = np.zeros(len(rows), np.uint32)
        columns = [
            *(_bits(column) for column in np.asarray(integers[rows]).T),
            *(column.astype(np.uint32) for column in np.asarray(categoricals[rows]).T),
            _bits(np.asarray(labels[rows])),
            _bits(np.ones_like(total, np.float32)),
        ]
        for number, column in enumerate(columns, start=1):
            total += _mixed(column ^ np.uint32(number * COLUMN_STRIDE % 2**32))
        hashes[rows] = _mixed(total)
    return hashes


def _bits(values: np.ndarray) -> np.ndarray:
    values = np.ascontiguousarray(values, np.float32)
    return np.where(np.isnan(values), np.uint32(MISSING), values.view(np.uint32))


def _mixed(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> np.uint32(16))) * np.uint32(MULTIPLIERS[0])
    words = (words ^ (words >> np.uint32(15))) * np.uint32(MULTIPLIERS[1])
    return words ^ (words >> np.uint32(16))


def expected_rows(
    batch: SampledBatch, hashes: np.ndarray, *, present: np.ndarray, largest_group: int | None
) -> tuple[int, int]:
    """Returns how many rows a step must compute with, and their checksum.

    Args:
        batch: The sampled slots.
        hashes: The hash of every slot, from ``row_hashes``.
        present: Whether each of the batch's slots holds an example; a canary's slot may be empty.
        largest_group: The most members of a group, of which the first are kept; None without microbatches.
    """
    slots = batch.indices[present]
    if batch.groups is None or largest_group is None:
        return len(slots), int(np.sum(_mixed(hashes[slots]), dtype=np.uint32))
    groups = batch.groups[present]
    _, number = np.unique(groups, return_inverse=True)
    place = np.arange(len(groups)) - np.searchsorted(groups, groups)  # the position of a member in its group
    kept = place < largest_group
    totals = np.zeros(number.max(initial=-1) + 1, np.uint32)
    np.add.at(totals, number[kept], hashes[slots[kept]])
    return int(kept.sum()), int(np.sum(_mixed(totals), dtype=np.uint32))


@dataclasses.dataclass
class StepLog:
    """What the device reported over a run, against what was sampled.

    Attributes:
        steps: Number of reports.
        out_of_turn: Number of steps whose counter on the device was not the number of steps counted so far.
        other_rows: Number of steps that computed with another number of rows than were sampled.
        other_contents: Number of steps that computed with as many rows as were sampled, but other ones.
        first: The first disagreement, in words.
        other_given: Number of dispatches that ran with another method, noise key or numbers than the run's.
        breaks: Number of dispatches that began with another state than the one before had ended with.
        state: The checksum of the state after the last dispatch; of the first state before any.
    """

    steps: int = 0
    out_of_turn: int = 0
    other_rows: int = 0
    other_contents: int = 0
    first: str | None = None
    other_given: int = 0
    breaks: int = 0
    state: int | None = None

    def add_dispatch(self, *, given: bool, before: int, after: int) -> None:
        """Adds one dispatch.

        Args:
            given: Whether it ran with the run's method, noise key and numbers.
            before: The checksum of the state that it began with.
            after: The checksum of the state that it ended with.
        """
        self.other_given += not given
        self.breaks += before != self.state
        self.state = after

    def add(self, reported: tuple[int, int, int], expected: tuple[int, int]) -> None:
        """Adds one step.

        Args:
            reported: The device's step counter, number of rows and checksum.
            expected: The number of rows and the checksum, from ``expected_rows``.
        """
        number, rows, checksum = reported
        wanted, wanted_checksum = expected
        wrong = []
        if number != self.steps:
            self.out_of_turn += 1
            wrong.append(f"the device counted it as step {number:,}")
        if rows != wanted:
            self.other_rows += 1
            wrong.append(f"it computed with {rows:,} rows where {wanted:,} were sampled")
        elif checksum != wanted_checksum:
            self.other_contents += 1
            wrong.append("the rows that it computed with are not the sampled ones")
        if wrong and self.first is None:
            self.first = f"step {self.steps:,}: {' and '.join(wrong)}"
        self.steps += 1

    def defects(self, steps: int) -> list[str]:
        """Returns what is wrong with a run that recorded ``steps`` steps. A correct run is never blamed."""
        found = []
        if self.steps != steps:
            found.append(f"{steps:,} steps are recorded, but the device reported {self.steps:,}")
        wrong = {
            "ran out of turn": self.out_of_turn,
            "computed with another number of rows than were sampled": self.other_rows,
            "computed with other rows than were sampled": self.other_contents,
        }
        found += [f"{count:,} of {self.steps:,} steps {what} ({self.first})" for what, count in wrong.items() if count]
        if self.other_given:
            found.append(
                f"{self.other_given:,} dispatches ran with another method, noise key or numbers than the run's"
            )
        if self.breaks:
            found.append(
                f"the state was changed outside of the compiled program: {self.breaks:,} dispatches began with another "
                "state than the one before had ended with"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
