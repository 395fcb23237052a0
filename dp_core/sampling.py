"""Batch samplers: which examples take part in which step, and the accounting that belongs to it.

A sampler draws the batches and also produces the accounting event for them, so nobody retypes the sampling
probability or the number of releases. There are three samplers, and a form of the
first for correlated noise in ``dp_core.cyclic_sampling``.

*Poisson.* Each example joins each batch independently with probability q. JAX needs fixed shapes, so a batch
has ``max_batch_size`` slots. In the rare case that more examples are drawn, a random subset of that size is kept.

*Balls in bins* (random allocation). In each epoch, every example independently joins exactly one batch, chosen
uniformly. Batch sizes vary as they do with Poisson sampling and are truncated in the same way.

*Shuffle.* In each epoch, the examples are shuffled and dealt into batches of one size; the remainder sits out.
No useful amplification by sampling is known, so none is claimed: an example takes part in at most one release
per epoch, and ε is that of one plain Gaussian release per epoch.

*Neighbours* have equally many examples: one example is replaced by an empty one that contributes nothing
(``REPLACE_SPECIAL``, zeroing out). N is public: it determines q, the number of bins, the batch that a shuffled example
lands in, and δ. Adding or removing an example at a fixed q would have the same pair of distributions, hence the same
ε, but it would change N.

*What truncation costs.* Fix the batches that the other examples form. If each of them has room for one more
example, no example loses its slot because of this one, and the mechanism is exactly the untruncated one.
Whether that holds does not depend on the one example, so the probability τ that it ever fails is the same for
both neighbours. If the untruncated mechanism is (ε, δ)-DP, the truncated one is therefore (ε, δ + τ)-DP.
``max_batch_size`` is chosen so that τ is a small share of δ, and τ is charged to δ.

*Microbatches.* Each sampled example draws its group independently, so emptying one example changes
one group and no other. The limit on the size of a group costs no privacy for the same reason.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from scipy import stats

from dp_core.accounting.binomials import smallest_above
from dp_core.accounting.events import BallsInBinsDpEvent, gaussian_event, poisson_event
from dp_core.accounting.loss_cells import SampledGaussian
from dp_core.accounting.lower_bound import epsilon_lower
from dp_core.accounting.shuffled_lower_bound import shuffled_epsilon_lower
from dp_core.epochs import batches_per_epoch

# The share of δ that truncating large batches may use up.
TRUNCATION_SHARE_OF_DELTA = 1e-3


class SampledBatch(NamedTuple):
    """The examples of one step.

    Attributes:
        indices: Indices of the sampled examples, int64 of shape [size].
        groups: The microbatch of each example, ascending, of shape [size]; None without microbatches.
    """

    indices: np.ndarray
    groups: np.ndarray | None

    @property
    def size(self) -> int:
        """The number of sampled examples."""
        return len(self.indices)


@dataclasses.dataclass(frozen=True)
class Sampler(abc.ABC):
    """Draws batches and accounts for them.

    A batch depends only on the sampler's fields and the step, so a run that resumes from a checkpoint gets the
    same batches as one that was never interrupted.

    Attributes:
        examples: The number N of training examples. Public.
        expected_batch_size: The batch size that gradients are divided by.
        max_batch_size: The number of slots; larger batches are truncated to it.
        entropy: The seed. Secret in a run that is released.
        microbatch_size: The expected number of examples in a group; 1 for no groups.
    """

    examples: int
    expected_batch_size: int
    max_batch_size: int
    entropy: tuple[int, ...] = ()
    microbatch_size: int = 1

    name: ClassVar[str]
    neighboring_relation: ClassVar[NeighboringRelation] = NeighboringRelation.REPLACE_SPECIAL

    @property
    @abc.abstractmethod
    def sampling_probability(self) -> float:
        """The probability that an example is in a given batch."""

    @abc.abstractmethod
    def indices(self, step: int, rng: np.random.Generator) -> np.ndarray:
        """Returns the indices of a step's examples, at most ``max_batch_size`` of them, in any order."""

    @abc.abstractmethod
    def event(self, *, noise_multiplier: float, steps: int, group_size: int = 1) -> dp_accounting.DpEvent:
        """Returns the accounting event of ``steps`` noisy sums over these batches, without truncation.

        Args:
            noise_multiplier: Standard deviation of the noise over the sum's sensitivity to one example.
            steps: The number of steps that were run.
            group_size: The number of examples that neighbours differ in, for user-level privacy.

        Returns:
            An event that is valid under ``neighboring_relation``.
        """

    def batch(self, step: int) -> SampledBatch:
        """Returns the examples of a step, with their microbatches if there are any."""
        rng = np.random.default_rng(np.random.SeedSequence(self.entropy, spawn_key=(step,)))
        indices = self.indices(step, rng)
        if self.microbatch_size == 1:
            return SampledBatch(indices, None)
        groups = rng.integers(max(1, round(self.expected_batch_size / self.microbatch_size)), size=len(indices))
        order = np.argsort(groups, kind="stable")
        return SampledBatch(indices[order], groups[order])

    def truncation_delta(self, steps: int, group_size: int = 1) -> float:
        """Returns an upper bound on τ, the part of δ that truncation uses up.

        τ is the probability that in some step the other examples leave fewer than ``group_size`` slots. The bound
        is a union bound over the steps.

        >>> PoissonSampler(examples=100, expected_batch_size=50, max_batch_size=100).truncation_delta(steps=10)
        0.0
        """
        if self.max_batch_size >= self.examples:
            return 0.0
        overfull = stats.binom.sf(self.max_batch_size - group_size, self.examples, self.sampling_probability)
        return min(1.0, steps * float(overfull))

    def commonly_claimed_event(self, *, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent | None:
        """Returns the event that is often claimed for such batches but is not valid; None if there is none."""
        return None

    def epsilon_lower(self, *, noise_multiplier: float, steps: int, delta: float) -> float | None:
        """Returns a lower bound on every valid ε of these noisy sums at ``delta``; None if none is known."""
        return None


@dataclasses.dataclass(frozen=True)
class PoissonSampler(Sampler):
    """Each example joins each batch independently with probability q = expected_batch_size / examples."""

    name = "poisson"

    @property
    def sampling_probability(self) -> float:
        return self.expected_batch_size / self.examples

    def indices(self, step: int, rng: np.random.Generator) -> np.ndarray:
        """Draws a size from Binomial(N, q), then that many distinct examples. This is exactly Poisson sampling."""
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


class DealtEpoch(NamedTuple):
    """One epoch's examples in random order; batch b is ``order[bounds[b]:bounds[b + 1]]``."""

    epoch: int
    order: np.ndarray
    bounds: np.ndarray


class _LastEpoch:
    """Holds a sampler's most recent epoch, so that N examples are shuffled once an epoch and not once a step.

    It is replaced whole: a reader in another thread sees the old epoch or the new one.
    """

    dealt: DealtEpoch | None = None


@dataclasses.dataclass(frozen=True)
class EpochSampler(Sampler):
    """Deals the examples into the batches of an epoch, each example into at most one."""

    _last: _LastEpoch = dataclasses.field(default_factory=_LastEpoch, init=False, repr=False, compare=False)

    @property
    @abc.abstractmethod
    def batches_per_epoch(self) -> int:
        """The number of steps in an epoch."""

    @property
    def sampling_probability(self) -> float:
        return 1 / self.batches_per_epoch

    def epochs(self, steps: int) -> int:
        """Returns the number of epochs that ``steps`` steps have begun."""
        return -(-steps // self.batches_per_epoch)

    def indices(self, step: int, rng: np.random.Generator) -> np.ndarray:
        epoch, number = divmod(step, self.batches_per_epoch)
        dealt = self._last.dealt
        if dealt is None or dealt.epoch != epoch:
            dealt = self._last.dealt = deal(self, epoch)
        start, end = dealt.bounds[number], dealt.bounds[number + 1]
        return dealt.order[start : min(end, start + self.max_batch_size)].astype(np.int64)

    @abc.abstractmethod
    def sizes(self, rng: np.random.Generator) -> np.ndarray:
        """Returns the number of examples of each batch of an epoch, of shape [batches_per_epoch]."""


@dataclasses.dataclass(frozen=True)
class ShuffledSampler(EpochSampler):
    """Shuffles the examples in each epoch and deals them into batches of exactly ``expected_batch_size``."""

    name = "shuffle"

    @property
    def batches_per_epoch(self) -> int:
        return int(batches_per_epoch(self.name, self.examples, self.expected_batch_size))

    def sizes(self, rng: np.random.Generator) -> np.ndarray:
        return np.full(self.batches_per_epoch, self.expected_batch_size)

    def truncation_delta(self, steps: int, group_size: int = 1) -> float:
        return 0.0

    def event(self, *, noise_multiplier: float, steps: int, group_size: int = 1) -> dp_accounting.DpEvent:
        return gaussian_event(noise_multiplier=noise_multiplier, releases=self.epochs(steps), group_size=group_size)

    def commonly_claimed_event(self, *, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent | None:
        return poisson_event(
            sampling_probability=self.expected_batch_size / self.examples,
            noise_multiplier=noise_multiplier,
            steps=steps,
        )

    def epsilon_lower(self, *, noise_multiplier: float, steps: int, delta: float) -> float | None:
        """Returns the lower bound of the first epoch alone, in which some examples may not have been dealt (yet)."""
        first = min(steps, self.batches_per_epoch)
        dealt = first * self.expected_batch_size / self.examples
        return shuffled_epsilon_lower(steps=first, noise_multiplier=noise_multiplier, delta=delta, dealt=dealt)


@dataclasses.dataclass(frozen=True)
class BallsInBinsSampler(EpochSampler):
    """Puts each example into one uniformly chosen batch of each epoch, independently of the others."""

    name = "balls_in_bins"

    @property
    def batches_per_epoch(self) -> int:
        return int(batches_per_epoch(self.name, self.examples, self.expected_batch_size))

    def sizes(self, rng: np.random.Generator) -> np.ndarray:
        bins = self.batches_per_epoch
        return rng.multinomial(self.examples, np.full(bins, 1 / bins))

    def event(self, *, noise_multiplier: float, steps: int, group_size: int = 1) -> dp_accounting.DpEvent:
        epochs = self.epochs(steps)
        if group_size > 1:
            # All examples of a group may land in one batch. No better bound than that is claimed.
            return gaussian_event(noise_multiplier=noise_multiplier, releases=epochs, group_size=group_size)
        epoch = BallsInBinsDpEvent(self.batches_per_epoch, noise_multiplier)
        return dp_accounting.SelfComposedDpEvent(epoch, epochs)


SAMPLERS: dict[str, type[Sampler]] = {
    sampler.name: sampler for sampler in (PoissonSampler, ShuffledSampler, BallsInBinsSampler)
}


def named_sampler(name: str, fields: tuple[int, int, int, tuple[int, ...], int], *, bands: int = 1) -> Sampler:
    """Returns the sampler of a name, with the fields of ``Sampler`` in their order."""
    if name not in SAMPLERS:
        raise ValueError(f"unknown sampler {name!r}; known: {', '.join(SAMPLERS)}")
    if bands == 1:
        return SAMPLERS[name](*fields)
    if name != "poisson":
        raise ValueError(f"correlated noise (bands above 1) is accounted for with sampler 'poisson', not {name!r}")
    from dp_core.cyclic_sampling import CyclicPoissonSampler

    return CyclicPoissonSampler(*fields, parts=bands)


def make_sampler(
    name: str = "poisson",
    *,
    examples: int,
    expected_batch_size: int,
    steps: int,
    target_delta: float,
    entropy: Sequence[int] = (),
    microbatch_size: int = 1,
    bands: int = 1,
) -> Sampler:
    """Makes a sampler with as many slots per batch as truncation needs to stay negligible.

    Args:
        name: A key of ``SAMPLERS``.
        examples: The number N of training examples.
        expected_batch_size: From 1 to N.
        steps: The number of steps that will be run at most.
        target_delta: The δ of the whole training.
        entropy: The seed of the batches.
        microbatch_size: The expected number of examples in a group; 1 for no groups.
        bands: The number of steps that noise is correlated over; 1 for independent noise.

    Returns:
        A sampler with ``truncation_delta(steps)`` of at most ``TRUNCATION_SHARE_OF_DELTA`` of ``target_delta``.

    Raises:
        ValueError: If the sampler is unknown, or the batch size or the number of bands is out of range.
    """
    if not 0 < expected_batch_size <= examples:
        raise ValueError(f"expected_batch_size must be from 1 to {examples}, got {expected_batch_size}")
    fields = (examples, expected_batch_size, expected_batch_size, tuple(entropy), microbatch_size)
    sampler = named_sampler(name, fields, bands=bands)
    if isinstance(sampler, ShuffledSampler):
        return sampler
    allowed = TRUNCATION_SHARE_OF_DELTA * target_delta / steps
    # The extra slot is for the example that the neighbour has more.
    largest = smallest_above(allowed, examples, sampler.sampling_probability) + 1
    return dataclasses.replace(sampler, max_batch_size=min(examples, largest))


def deal(sampler: EpochSampler, epoch: int) -> DealtEpoch:
    """Shuffles all examples and deals them into the batches of an epoch; costs O(N)."""
    rng = np.random.default_rng(np.random.SeedSequence(sampler.entropy, spawn_key=(epoch, 0)))
    bounds = np.concatenate([[0], np.cumsum(sampler.sizes(rng))])
    order = np.arange(sampler.examples, dtype=np.int32 if sampler.examples < 2**31 else np.int64)
    rng.shuffle(order)
    return DealtEpoch(epoch, order, bounds)
