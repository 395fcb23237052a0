"""Counts of which examples took part in which step: the evidence by which the audit judges a sampler.

Counts are taken of every batch that was trained on, at a cost of O(batch) and with a memory that does not grow with the
dataset:

- the size and a fingerprint of every batch; sets of examples that are equal, or equal but for a shift, have equal
  fingerprints, at any distance in time;
- examples that were in a batch twice, or do not exist, and steps that were not counted in turn;
- the number of participations of each of 64 equal blocks of the dataset, and of each residue class of examples modulo
  a prime, which has every example in some class;
- for up to 1,024 steps, evenly spread over the run, the number of examples of each block;
- the number of pairs of neighbours, examples i and i + 1, in a batch together;
- *all* participations of about 4,096 watched examples: runs of 16 neighbours that are spread over the dataset, with the
  first and the last example among them. In long runs the number of watched examples is halved as often as needed to
  keep at most 2¹⁸ participations.

The counts follow from the training data's order and the batches. They are not private.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import zlib
from typing import Any

import numpy as np

WATCHED_EXAMPLES = 4096
RUN_LENGTH = 16
BLOCKS = 64
CLASSES = 4093
MOST_BLOCK_ROWS = 1024
MOST_PARTICIPATIONS = 2**18

_LARGEST_INT32 = 2**31 - 1


@dataclasses.dataclass
class SamplingCounts:
    """What was counted of the batches of a run so far.

    Attributes:
        examples: The number N of training examples.
        sizes: The size of every batch.
        fingerprints: A 64-bit hash of the set of examples of every batch, the same for a shifted set.
        repeated: How many times an example was in a batch that it was in already.
        outside: How many indices were not from 0 to N − 1. They are not counted anywhere else.
        misplaced: How many batches did not belong to the next step.
        blocks: The participations of each block of examples. Shape [blocks].
        classes: The participations of each class of examples that are equal modulo ``CLASSES``. Shape [classes].
        neighbours: The number of pairs (i, i + 1) in a batch together, for even and for odd i.
        block_rows: For every ``block_stride``-th step the number of examples of each block.
        watched: For every step the watched examples in its batch, by their numbers.
        run_stride: Every how many-th run of neighbours is still watched.
    """

    examples: int
    sizes: list[int] = dataclasses.field(default_factory=list)
    fingerprints: list[int] = dataclasses.field(default_factory=list)
    repeated: int = 0
    outside: int = 0
    misplaced: int = 0
    blocks: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    classes: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    neighbours: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2, np.int64))
    block_rows: list[np.ndarray] = dataclasses.field(default_factory=list)
    block_stride: int = 1
    watched: list[np.ndarray] = dataclasses.field(default_factory=list)
    run_stride: int = 1

    def __post_init__(self) -> None:
        if not len(self.blocks):
            self.blocks = np.zeros(min(BLOCKS, self.examples), np.int64)
            self.classes = np.zeros(min(CLASSES, self.examples), np.int64)
        self._edges = block_edges(self.examples).astype(np.int32 if self.examples <= _LARGEST_INT32 else np.int64)
        self._participations = sum(len(numbers) for numbers in self.watched)
        # Runs begin at multiples of the spacing, and one more run has the last examples.
        self._spacing = max(1, self.examples // (WATCHED_EXAMPLES // RUN_LENGTH))
        self._regular_runs = (self.examples - 2 * RUN_LENGTH) // self._spacing + 1
        # Of the type of the sorted indices, so that NumPy converts nothing.
        self._last_run = self._edges.dtype.type(max(0, self.examples - RUN_LENGTH))

    @property
    def steps(self) -> int:
        """The number of batches that were counted."""
        return len(self.sizes)

    def add(self, step: int, indices: np.ndarray) -> None:
        """Counts the batch of a step.

        Args:
            step: The step's number, from 0. Steps must be counted in turn.
            indices: The examples of the batch in any order. Shape [size].
        """
        self.misplaced += step != self.steps
        self.sizes.append(len(indices))
        # Sorting four bytes per index is twice as fast as eight.
        ordered = np.sort(indices.astype(np.int32) if self.examples <= _LARGEST_INT32 else indices)
        if len(ordered) and (ordered[0] < 0 or ordered[-1] >= self.examples):
            inside = (ordered >= 0) & (ordered < self.examples)
            self.outside += int(np.count_nonzero(~inside))
            ordered = ordered[inside]
        gaps = ordered[1:] - ordered[:-1]
        self.repeated += int(np.count_nonzero(gaps == 0))
        left = ordered[:-1][gaps == 1]
        odd = int(np.count_nonzero(left & 1))
        self.neighbours += len(left) - odd, odd
        self.fingerprints.append(_fingerprint(ordered, gaps, self.examples))

        of_blocks = np.diff(np.searchsorted(ordered, self._edges))
        self.blocks += of_blocks
        # Three times as fast as the remainder of integers with a sign.
        classes = ordered - ordered // CLASSES * CLASSES
        self.classes += np.bincount(classes, minlength=len(self.classes))
        if (self.steps - 1) % self.block_stride == 0:
            self.block_rows.append(of_blocks)
            if len(self.block_rows) > MOST_BLOCK_ROWS:
                self.block_rows, self.block_stride = self.block_rows[::2], 2 * self.block_stride
        numbers = self._watched_in(ordered)
        self.watched.append(numbers)
        self._participations += len(numbers)
        if self._participations > MOST_PARTICIPATIONS:
            self._watch_fewer()

    def watched_numbers(self) -> np.ndarray:
        """Returns the numbers of the examples that are still watched, ascending."""
        numbers = np.arange(self._all_watched)
        return numbers[self._is_kept(numbers)]

    def participations(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the step and the example of each participation of a watched example, in order of the steps.

        Watched examples are counted from 0, without those that are no longer watched.
        """
        steps = np.repeat(np.arange(self.steps), [len(numbers) for numbers in self.watched])
        numbers = np.concatenate([np.zeros(0, np.uint16), *self.watched])
        return steps, np.searchsorted(self.watched_numbers(), numbers)

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as a JSON-able dictionary; long arrays are compressed."""
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            "fingerprints": _pack(np.array(self.fingerprints, np.uint64)),
            "blocks": self.blocks.tolist(),
            "classes": _pack(self.classes),
            "neighbours": self.neighbours.tolist(),
            "block_rows": _pack(np.array(self.block_rows, np.int32).reshape(-1)),
            "watched": _pack(np.concatenate([np.zeros(0, np.uint16), *self.watched])),
            "watched_sizes": _pack(np.array([len(numbers) for numbers in self.watched], np.int32)),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> SamplingCounts:
        """Reads what ``to_json`` returned."""
        sizes = _unpack(value["watched_sizes"], np.int32)
        blocks = np.array(value["blocks"], np.int64)
        return cls(
            **{name: value[name] for name in _PLAIN},
            fingerprints=_unpack(value["fingerprints"], np.uint64).tolist(),
            blocks=blocks,
            classes=_unpack(value["classes"], np.int64),
            neighbours=np.array(value["neighbours"], np.int64),
            block_rows=list(_unpack(value["block_rows"], np.int32).reshape(-1, len(blocks)).astype(np.int64)),
            watched=np.split(_unpack(value["watched"], np.uint16), np.cumsum(sizes)[:-1]) if len(sizes) else [],
        )

    @property
    def _all_watched(self) -> int:
        """The number of watched examples at the start of the run."""
        if self.examples <= WATCHED_EXAMPLES:
            return self.examples
        return RUN_LENGTH * (self._regular_runs + 1)

    def _watched_in(self, ordered: np.ndarray) -> np.ndarray:
        """Returns the numbers of the watched examples among these."""
        if self.examples <= WATCHED_EXAMPLES:
            numbers = ordered
        else:
            run = ordered // self._spacing
            regular = np.flatnonzero(ordered - run * self._spacing < RUN_LENGTH)
            run = run[regular]
            numbers = ordered[regular] - run * (self._spacing - RUN_LENGTH)
            last = ordered[np.searchsorted(ordered, self._last_run) :] - self._last_run
            regular_numbers = numbers[: np.searchsorted(run, self._regular_runs)]
            numbers = np.concatenate([regular_numbers, last + RUN_LENGTH * self._regular_runs])
        return (numbers if self.run_stride == 1 else numbers[self._is_kept(numbers)]).astype(np.uint16)

    def _is_kept(self, numbers: np.ndarray) -> np.ndarray:
        runs = numbers // RUN_LENGTH
        return (runs % self.run_stride == 0) | (runs == (self._all_watched - 1) // RUN_LENGTH)

    def _watch_fewer(self) -> None:
        """Drops every other run of neighbours; the first and the last run stay."""
        if self.run_stride * RUN_LENGTH >= self._all_watched:
            return
        self.run_stride *= 2
        self.watched = [numbers[self._is_kept(numbers)] for numbers in self.watched]
        self._participations = sum(len(numbers) for numbers in self.watched)


_PLAIN = ("examples", "sizes", "repeated", "outside", "misplaced", "block_stride", "run_stride")


def block_edges(examples: int) -> np.ndarray:
    """Returns the first example of each block, and N.

    >>> np.diff(block_edges(130)).tolist()[:4]
    [2, 2, 2, 2]
    """
    blocks = min(BLOCKS, examples)
    return np.arange(blocks + 1) * examples // blocks


def class_sizes(examples: int) -> np.ndarray:
    """Returns the number of examples in each residue class."""
    number = min(CLASSES, examples)
    return (examples - 1 - np.arange(number)) // CLASSES + 1


def _fingerprint(ordered: np.ndarray, gaps: np.ndarray, examples: int) -> int:
    """Returns a 64-bit hash of a set of examples in ascending order, with the gaps between them.

    It is the hash of the gaps around the circle of all examples, from the widest one on. So it is the same for equal
    sets, and for sets that differ by a shift.
    """
    if not len(ordered):
        return 0
    around = np.empty_like(ordered)
    around[:-1], around[-1] = gaps, ordered[0] + (examples - ordered[-1])
    widest = int(around.argmax())
    # Processors have instructions for SHA-256, so it is faster here than BLAKE2.
    hashed = hashlib.sha256(around[widest:].data)
    hashed.update(around[:widest].data)
    return int.from_bytes(hashed.digest()[:8], "little")


def _pack(values: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(values.astype(values.dtype.newbyteorder("<")).tobytes())).decode()


def _unpack(text: str, dtype: type) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.dtype(dtype).newbyteorder("<")).astype(dtype)
