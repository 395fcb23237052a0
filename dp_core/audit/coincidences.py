"""Coincidences among the participations of watched examples: who was together, and who came back after how long.

A table of participations lists (step, example) pairs. Its coincidences are of two kinds: two steps that have an example
in common, and two examples that have a step in common. Their number grows with the square of the participations, so
they are counted for as many examples, and over as many steps, as a fixed amount of work allows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

# About how many pairs of participations are looked at.
_MOST_PAIRS = 500_000
_FEWEST_EXAMPLES = 8


class Participations(NamedTuple):
    """Participations of some examples in some steps.

    Attributes:
        steps: The step of each participation, ascending.
        of: The example of each participation, counted from 0.
        number_of_steps: The number of steps.
        examples: The number of examples.
    """

    steps: np.ndarray
    of: np.ndarray
    number_of_steps: int
    examples: int

    def counts(self) -> np.ndarray:
        """Returns the number of participations of each example. Shape [examples]."""
        return np.bincount(self.of, minlength=self.examples)

    def part(self, steps: int, examples: int) -> Participations:
        """Returns the participations of the first examples in the first steps."""
        steps, examples = min(steps, self.number_of_steps), min(examples, self.examples)
        kept = (self.steps < steps) & (self.of < examples)
        return Participations(self.steps[kept], self.of[kept], steps, examples)


def common_examples(table: Participations, probability: float) -> tuple[Participations, np.ndarray, np.ndarray]:
    """Finds the pairs of steps with an example in common.

    Args:
        table: The participations.
        probability: The stated probability of a participation, which determines how many examples are looked at.

    Returns:
        The participations that were looked at, and the earlier and the later step of each pair of participations of one
        example.
    """
    expected = max(table.number_of_steps * probability, 1.0)
    examples = max(_FEWEST_EXAMPLES, int(2 * _MOST_PAIRS / (expected * (expected + 1))))
    steps = int(math.sqrt(2 * _MOST_PAIRS / _FEWEST_EXAMPLES) / probability)
    part = table.part(steps, examples)
    order = np.argsort(part.of, kind="stable")
    return part, *_pairs(part.of[order], part.steps[order])


def common_steps(table: Participations, probability: float) -> tuple[Participations, np.ndarray, np.ndarray]:
    """Finds the pairs of examples with a step in common.

    Returns:
        The participations that were looked at, and the two examples of each pair of participations in one step.
    """
    examples = max(_FEWEST_EXAMPLES, int(math.sqrt(2 * _MOST_PAIRS / max(table.number_of_steps, 1)) / probability))
    steps = int(2 * _MOST_PAIRS / max(_FEWEST_EXAMPLES * probability, 1.0) ** 2)
    part = table.part(steps, examples)
    return part, *_pairs(part.steps, part.of)


def most_frequent(first: np.ndarray, second: np.ndarray) -> tuple[int, int, int]:
    """Returns the pair that occurs most often and how often; (0, 0, 0) if there are no pairs."""
    if not len(first):
        return 0, 0, 0
    base = int(max(first.max(), second.max())) + 1
    # Sorting four bytes per code is twice as fast as eight, and counting is faster where there are few codes.
    kind = np.int32 if base * base < 2**31 else np.int64
    codes = np.minimum(first, second).astype(kind) * kind(base) + np.maximum(first, second).astype(kind)
    if base * base <= 4 * len(codes):
        counts = np.bincount(codes)
        return (*divmod(int(counts.argmax()), base), int(counts.max()))
    codes.sort()
    starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    lengths = np.diff(np.append(starts, len(codes)))
    best = int(lengths.argmax())
    return (*divmod(int(codes[starts[best]]), base), int(lengths[best]))


def _pairs(groups: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns all pairs of values of the same group; groups are adjacent.

    >>> [pairs.tolist() for pairs in _pairs(np.array([0, 0, 0, 1]), np.array([5, 6, 7, 8]))]
    [[5, 6, 5], [6, 7, 7]]
    """
    first, second = [np.zeros(0, values.dtype)], [np.zeros(0, values.dtype)]
    found = 0
    for distance in range(1, len(groups)):
        same = groups[distance:] == groups[:-distance]
        # A broken sampler can have many times the expected number of pairs. The first ones show it.
        if not same.any() or found > 8 * _MOST_PAIRS:
            break
        first.append(values[:-distance][same])
        second.append(values[distance:][same])
        found += len(first[-1])
    return np.concatenate(first), np.concatenate(second)
