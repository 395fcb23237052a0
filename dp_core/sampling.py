"""Which examples take part in which step, and the accounting that belongs to it.

A sampler draws the batches and says itself what they are worth: its event is what the accountant
judges. There are three.

*Poisson*: each example joins each batch independently with probability q. JAX wants fixed shapes: a
batch has room for ``max_batch_size`` examples and, in the rare case that more were drawn, is cut
down to that many at random.

*Balls in bins* (random allocation): in each epoch every example joins exactly one batch, any of them
equally likely, by itself. Batches vary in size like Poisson's, and are cut like them.

*Shuffle*: in each epoch the examples are shuffled and dealt out in batches of one size, what is left
over sitting out. No amplification by sampling is known that is worth stating, so none is: of each
epoch one batch's release sees an example, and ε is that of so many plain Gaussian releases. Others'
places depend on how many there are, so neighbours have the same number: an example is replaced by an
empty one (replace_special).

What cutting costs: fix the batches that the *other* examples form. As long as each of those leaves
room for one more, one example's presence is never hidden or felt through another's place, and the
mechanism is exactly the uncut one. Whether that holds does not depend on the one example, so the
probability τ that it ever fails is the same for both neighbours, and the whole is (ε, δ + τ)-private
if the uncut mechanism is (ε, δ)-private. ``max_batch_size`` is chosen so that τ is a small share of
δ, and τ is charged to δ.

For microbatches each sampled example draws its group by itself, so one example more or less changes
one group and no other. That a group has a largest size costs no privacy for the same reason.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from scipy import stats

from dp_core.binomials import smallest_above
from dp_core.events import BallsInBinsDpEvent, gaussian_event, poisson_event
from dp_core.lower_bound import SampledGaussian, epsilon_lower, shuffled_epsilon_lower

# The share of δ that cutting large batches may use up.
TRUNCATION_SHARE_OF_DELTA = 1e-3


class SampledBatch(NamedTuple):
    """Indices of the sampled examples and, for microbatches, each one's group, in order of the groups."""

    indices: np.ndarray
    groups: np.ndarray | None

    @property
    def size(self) -> int:
        return len(self.indices)


@dataclasses.dataclass(frozen=True)
class Sampler(abc.ABC):
    """Batch ``step`` depends on ``entropy`` and ``step`` alone."""

    examples: int
    expected_batch_size: int
    max_batch_size: int
    entropy: tuple[int, ...] = ()
    microbatch_size: int = 1

    name: ClassVar[str]
    neighboring_relation: ClassVar[NeighboringRelation] = NeighboringRelation.ADD_OR_REMOVE_ONE

    @property
    @abc.abstractmethod
    def sampling_probability(self) -> float:
        """The probability that an example is in a given batch."""

    @abc.abstractmethod
    def indices(self, step: int, rng: np.random.Generator) -> np.ndarray:
        """The examples of a step, in any order."""

    @abc.abstractmethod
    def event(self, *, noise_multiplier: float, steps: int, group_size: int = 1) -> dp_accounting.DpEvent:
        """What ``steps`` noisy sums over these batches are to an accountant.

        For adding or removing ``group_size`` examples: those of one user.
        """

    def batch(self, step: int) -> SampledBatch:
        rng = np.random.default_rng(np.random.SeedSequence(self.entropy, spawn_key=(step,)))
        indices = self.indices(step, rng)
        if self.microbatch_size == 1:
            return SampledBatch(indices, None)
        groups = rng.integers(max(1, round(self.expected_batch_size / self.microbatch_size)), size=len(indices))
        order = np.argsort(groups, kind="stable")
        return SampledBatch(indices[order], groups[order])

    def truncation_delta(self, steps: int, group_size: int = 1) -> float:
        """A bound on τ: the probability that some batch of the others leaves no room for ``group_size`` more.

        >>> PoissonSampler(examples=100, expected_batch_size=50, max_batch_size=100).truncation_delta(steps=10)
        0.0
        """
        if self.max_batch_size >= self.examples:
            return 0.0
        overfull = stats.binom.sf(self.max_batch_size - group_size, self.examples, self.sampling_probability)
        return min(1.0, steps * float(overfull))

    def as_others_claim(self, *, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent | None:
        """What is commonly claimed for such batches and does not hold, if anything is."""
        return None

    def epsilon_lower(self, *, noise_multiplier: float, steps: int, delta: float) -> float | None:
        """A number that ε is certainly not below, or None where none is known."""
        return None


@dataclasses.dataclass(frozen=True)
class PoissonSampler(Sampler):
    name = "poisson"

    @property
    def sampling_probability(self) -> float:
        return self.expected_batch_size / self.examples

    def indices(self, step: int, rng: np.random.Generator) -> np.ndarray:
        """Draws a count from Binomial(N, q), then that many distinct examples: Poisson sampling, exactly."""
        size = min(int(rng.binomial(self.examples, self.sampling_probability)), self.max_batch_size)
        return rng.choice(self.examples, size, replace=False, shuffle=False)

    def event(self, *, noise_multiplier: float, steps: int, group_size: int = 1) -> dp_accounting.DpEvent:
        return poisson_event(
            sampling_probability=self.sampling_probability,
            noise_multiplier=noise_multiplier,
            steps=steps,
            group_size=group_size,
        )

    def epsilon_lower(self, *, noise_multiplier: float, steps: int, delta: float) -> float | None:
        return epsilon_lower([SampledGaussian(self.sampling_probability, noise_multiplier, steps)], delta)


class _EpochSampler(Sampler):
    """An example takes part at most once in an epoch of ``batches_per_epoch`` steps."""

    @property
    @abc.abstractmethod
    def batches_per_epoch(self) -> int: ...

    @property
    def sampling_probability(self) -> float:
        return 1 / self.batches_per_epoch

    def epochs(self, steps: int) -> int:
        """How many epochs were begun."""
        return -(-steps // self.batches_per_epoch)

    def indices(self, step: int, rng: np.random.Generator) -> np.ndarray:
        epoch, number = divmod(step, self.batches_per_epoch)
        order, bounds = _dealt(self, epoch)
        return order[bounds[number] : min(bounds[number + 1], bounds[number] + self.max_batch_size)].astype(np.int64)

    @abc.abstractmethod
    def sizes(self, rng: np.random.Generator) -> np.ndarray:
        """How many examples each batch of an epoch gets."""


@dataclasses.dataclass(frozen=True)
class ShuffledSampler(_EpochSampler):
    name = "shuffle"
    neighboring_relation = NeighboringRelation.REPLACE_SPECIAL

    @property
    def batches_per_epoch(self) -> int:
        return self.examples // self.expected_batch_size

    def sizes(self, rng: np.random.Generator) -> np.ndarray:
        return np.full(self.batches_per_epoch, self.expected_batch_size)

    def truncation_delta(self, steps: int, group_size: int = 1) -> float:
        return 0.0

    def event(self, *, noise_multiplier: float, steps: int, group_size: int = 1) -> dp_accounting.DpEvent:
        return gaussian_event(noise_multiplier=noise_multiplier, releases=self.epochs(steps), group_size=group_size)

    def as_others_claim(self, *, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent | None:
        return poisson_event(
            sampling_probability=self.expected_batch_size / self.examples,
            noise_multiplier=noise_multiplier,
            steps=steps,
        )

    def epsilon_lower(self, *, noise_multiplier: float, steps: int, delta: float) -> float | None:
        """Of the first epoch alone, of whose examples some may not have been dealt out, or not yet."""
        first = min(steps, self.batches_per_epoch)
        dealt = first * self.expected_batch_size / self.examples
        return shuffled_epsilon_lower(steps=first, noise_multiplier=noise_multiplier, delta=delta, dealt=dealt)


@dataclasses.dataclass(frozen=True)
class BallsInBinsSampler(_EpochSampler):
    name = "balls_in_bins"

    @property
    def batches_per_epoch(self) -> int:
        return max(1, round(self.examples / self.expected_batch_size))

    def sizes(self, rng: np.random.Generator) -> np.ndarray:
        bins = self.batches_per_epoch
        return rng.multinomial(self.examples, np.full(bins, 1 / bins))

    def event(self, *, noise_multiplier: float, steps: int, group_size: int = 1) -> dp_accounting.DpEvent:
        epochs = self.epochs(steps)
        if group_size > 1:
            # The examples of a group may all fall into one batch. Nothing better is claimed than that they do.
            return gaussian_event(noise_multiplier=noise_multiplier, releases=epochs, group_size=group_size)
        epoch = BallsInBinsDpEvent(self.batches_per_epoch, noise_multiplier)
        return dp_accounting.SelfComposedDpEvent(epoch, epochs)


SAMPLERS: dict[str, type[Sampler]] = {
    sampler.name: sampler for sampler in (PoissonSampler, ShuffledSampler, BallsInBinsSampler)
}


def make_sampler(
    name: str = "poisson",
    *,
    examples: int,
    expected_batch_size: int,
    steps: int,
    target_delta: float,
    entropy: Sequence[int] = (),
    microbatch_size: int = 1,
) -> Sampler:
    """A sampler whose batches are cut, over all ``steps``, with probability at most a share of δ."""
    if not 0 < expected_batch_size <= examples:
        raise ValueError(f"expected_batch_size must be from 1 to {examples}, got {expected_batch_size}")
    if name not in SAMPLERS:
        raise ValueError(f"unknown sampler {name!r}; known: {', '.join(SAMPLERS)}")
    sampler = SAMPLERS[name](examples, expected_batch_size, expected_batch_size, tuple(entropy), microbatch_size)
    if isinstance(sampler, ShuffledSampler):
        return sampler
    allowed = TRUNCATION_SHARE_OF_DELTA * target_delta / steps
    # One more leaves room for the neighbour's.
    largest = smallest_above(allowed, examples, sampler.sampling_probability) + 1
    return dataclasses.replace(sampler, max_batch_size=min(examples, largest))


def steps_for_epochs(*, examples: int, batch_size: int, epochs: float, sampler: str = "poisson") -> int:
    """
    >>> steps_for_epochs(examples=1010, batch_size=64, epochs=2)
    32
    >>> steps_for_epochs(examples=1010, batch_size=64, epochs=2, sampler="shuffle")
    30
    """
    made = SAMPLERS[sampler](examples, batch_size, batch_size)
    per_epoch = made.batches_per_epoch if isinstance(made, _EpochSampler) else examples / batch_size
    return max(1, math.ceil(epochs * per_epoch))


@functools.lru_cache(maxsize=1)
def _dealt(sampler: _EpochSampler, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """An epoch's examples in random order, and where each of its batches begins and ends."""
    rng = np.random.default_rng(np.random.SeedSequence(sampler.entropy, spawn_key=(epoch, 0)))
    bounds = np.concatenate([[0], np.cumsum(sampler.sizes(rng))])
    order = np.arange(sampler.examples, dtype=np.int32 if sampler.examples < 2**31 else np.int64)
    rng.shuffle(order)
    return order, bounds
