"""Cyclic Poisson sampling, the sampler of correlated noise (``dp_core.accounting.banded_noise``).

Each example is assigned to one of b parts, independently, for the whole run. Step t samples with probability q·b from
part t mod b only. Neighbours, truncation and microbatches are as in ``dp_core.sampling``.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import dp_accounting
import numpy as np

from dp_core.accounting.events import poisson_event
from dp_core.sampling import Sampler


class Parts(NamedTuple):
    """All examples in random order; part p is ``order[bounds[p]:bounds[p + 1]]``."""

    order: np.ndarray
    bounds: np.ndarray


class _Assigned:
    """Holds a sampler's parts, so that N examples are assigned once and not once a step."""

    parts: Parts | None = None


@dataclasses.dataclass(frozen=True)
class CyclicPoissonSampler(Sampler):
    """Assigns each example to one of ``parts`` parts; step t is a Poisson sample of part t mod ``parts``.

    Taking part in a *round* of ``parts`` steps has probability q·parts, and that is what the accounting counts. It
    holds for noise that is correlated over at most ``parts`` steps.

    Attributes:
        parts: The number b of parts, at most 1/q.
    """

    parts: int = 1
    _kept: _Assigned = dataclasses.field(default_factory=_Assigned, init=False, repr=False, compare=False)

    name = "poisson"

    def __post_init__(self) -> None:
        most = self.examples // self.expected_batch_size
        if not 1 <= self.parts <= most:
            raise ValueError(
                f"bands must be from 1 to {most:,}, the number of batches of {self.expected_batch_size:,} in "
                f"{self.examples:,} examples, got {self.parts:,}"
            )

    @property
    def sampling_probability(self) -> float:
        return self.expected_batch_size / self.examples

    @property
    def round_probability(self) -> float:
        """The probability that an example is in one of the batches of a round."""
        return min(1.0, self.parts * self.expected_batch_size / self.examples)

    def rounds(self, steps: int) -> int:
        """Returns the number of rounds that ``steps`` steps have begun."""
        return -(-steps // self.parts)

    def indices(self, step: int, rng: np.random.Generator) -> np.ndarray:
        assigned = self._kept.parts
        if assigned is None:
            assigned = self._kept.parts = assign_parts(self)
        number = step % self.parts
        part = assigned.order[assigned.bounds[number] : assigned.bounds[number + 1]]
        size = min(int(rng.binomial(len(part), self.round_probability)), self.max_batch_size)
        return part[rng.choice(len(part), size, replace=False, shuffle=False)].astype(np.int64)

    def event(self, *, noise_multiplier: float, steps: int, group_size: int = 1) -> dp_accounting.DpEvent:
        if group_size > 1:
            raise ValueError("the guarantee of correlated noise (bands above 1) is for single examples, not for groups")
        return poisson_event(
            sampling_probability=self.round_probability,
            noise_multiplier=noise_multiplier,
            steps=self.rounds(steps),
        )


def assign_parts(sampler: CyclicPoissonSampler) -> Parts:
    """Assigns every example to a part, uniformly and independently; costs O(N) once.

    The sizes are drawn first, from their multinomial law, and then who is in which part.
    """
    # Streams of the same entropy are (step,) for batches, (epoch, 0) for epochs and (0, 1) for the coins of canaries.
    rng = np.random.default_rng(np.random.SeedSequence(sampler.entropy, spawn_key=(0, 2)))
    sizes = rng.multinomial(sampler.examples, np.full(sampler.parts, 1 / sampler.parts))
    order = np.arange(sampler.examples, dtype=np.int32 if sampler.examples < 2**31 else np.int64)
    rng.shuffle(order)
    return Parts(order, np.concatenate([[0], np.cumsum(sizes)]))
