"""Poisson sampling with a largest size, and the accounting that belongs to it.

Each example joins each batch independently with probability q, which is what the accountant
assumes. JAX wants fixed shapes: a batch has room for ``max_batch_size`` examples and, in the rare
case that more were drawn, is cut down to that many at random.

What cutting costs: fix the batches that the *other* examples form. As long as each of those leaves
room for one more, one example's presence is never hidden or felt through another's place, and the
mechanism is exactly Poisson-subsampled. Whether that holds does not depend on the one example, so
the probability τ that it ever fails is the same for both neighbours, and the whole is
(ε, δ + τ)-private if the uncut mechanism is (ε, δ)-private. ``max_batch_size`` is chosen so that τ
is a small share of δ, and τ is charged to δ.

For microbatches each sampled example draws its group by itself, so one example more or less changes
one group and no other. That a group has a largest size costs no privacy for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import dp_accounting
import numpy as np
from scipy import stats

# The share of δ that cutting large batches may use up.
TRUNCATION_SHARE_OF_DELTA = 1e-3


class SampledBatch(NamedTuple):
    """Indices of the sampled examples and, for microbatches, each one's group, in order of the groups."""

    indices: np.ndarray
    groups: np.ndarray | None

    @property
    def size(self) -> int:
        return len(self.indices)


class PoissonSampler(NamedTuple):
    """Which examples take part in which step. Batch ``step`` depends on ``entropy`` and ``step`` alone."""

    examples: int
    expected_batch_size: int
    max_batch_size: int
    entropy: tuple[int, ...]
    microbatch_size: int = 1

    @property
    def sampling_probability(self) -> float:
        return self.expected_batch_size / self.examples

    def batch(self, step: int) -> SampledBatch:
        """Draws a count from Binomial(N, q), then that many distinct examples: Poisson sampling, exactly."""
        rng = np.random.default_rng(np.random.SeedSequence(self.entropy, spawn_key=(step,)))
        size = min(int(rng.binomial(self.examples, self.sampling_probability)), self.max_batch_size)
        indices = rng.choice(self.examples, size, replace=False, shuffle=False)
        if self.microbatch_size == 1:
            return SampledBatch(indices, None)
        groups = rng.integers(max(1, round(self.expected_batch_size / self.microbatch_size)), size=size)
        order = np.argsort(groups, kind="stable")
        return SampledBatch(indices[order], groups[order])


def make_sampler(
    *,
    examples: int,
    expected_batch_size: int,
    steps: int,
    target_delta: float,
    entropy: Sequence[int],
    microbatch_size: int = 1,
) -> PoissonSampler:
    """A sampler whose batches are cut, over all ``steps``, with probability at most a share of δ."""
    if not 0 < expected_batch_size <= examples:
        raise ValueError(f"expected_batch_size must be from 1 to {examples}, got {expected_batch_size}")
    allowed = TRUNCATION_SHARE_OF_DELTA * target_delta / steps
    probability = expected_batch_size / examples
    # isf is the smallest k with P[count > k] ≤ allowed; one more leaves room for the neighbour's.
    max_batch_size = min(examples, int(stats.binom.isf(allowed, examples, probability)) + 1)
    return PoissonSampler(examples, expected_batch_size, max_batch_size, tuple(entropy), microbatch_size)


def poisson_event(*, sampling_probability: float, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
    """The accounting event of ``steps`` Gaussian releases, each on a Poisson sample."""
    release = dp_accounting.GaussianDpEvent(noise_multiplier)
    step = dp_accounting.PoissonSampledDpEvent(sampling_probability, release)
    return dp_accounting.SelfComposedDpEvent(step, steps)


def truncation_delta(*, examples: int, sampling_probability: float, max_batch_size: int, steps: int) -> float:
    """A bound on τ: the probability that some batch of the others leaves no room for one more.

    >>> truncation_delta(examples=100, sampling_probability=0.5, max_batch_size=100, steps=10)
    0.0
    """
    if max_batch_size >= examples:
        return 0.0
    return min(1.0, steps * float(stats.binom.sf(max_batch_size - 1, examples, sampling_probability)))


def steps_for_epochs(*, examples: int, batch_size: int, epochs: float) -> int:
    """
    >>> steps_for_epochs(examples=1000, batch_size=64, epochs=2)
    32
    """
    return max(1, math.ceil(epochs * examples / batch_size))
