"""A description of what a training run really did to its data, and what that is worth.

Training writes the record; the audit judges it. Neither the configuration nor the planned number
of steps enters: the record counts the steps that were run.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import dp_accounting

from dp_core.accounting import NEIGHBORING_RELATION, EpsilonBound, epsilon_bound
from dp_core.adaptive_clipping import combined_noise_multiplier
from dp_core.sampling import poisson_event, truncation_delta

# How far one example more or less can move a sum of clipped vectors, in clip norms. Alone, an
# example adds a vector of at most one; in a group it turns one such vector into another.
ALONE, IN_A_GROUP = 1.0, 2.0


def proven_sensitivity(microbatch_size: int) -> float:
    """In clip norms, under adding or removing one example."""
    return ALONE if microbatch_size == 1 else IN_A_GROUP


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismRecord:
    """Noisy sums of clipped gradients over Poisson samples, as they were run.

    ``noise_multiplier`` is relative to ``sensitivity`` clip norms, and ``count_noise_multiplier`` to
    the sensitivity of one of the count that steers an adaptive clip norm. ``l2_clip_norm`` is the
    first step's.
    """

    sampler: str
    examples: int
    sampling_probability: float
    expected_batch_size: int
    max_batch_size: int
    steps: int
    noise_multiplier: float
    l2_clip_norm: float
    clipping: str = "fixed"
    count_noise_multiplier: float | None = None
    microbatch_size: int = 1
    sensitivity: float = ALONE
    sampled_examples: int
    largest_batch: int
    neighboring_relation: str = NEIGHBORING_RELATION.name.lower()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> MechanismRecord:
        return cls(**value)

    def event(self) -> dp_accounting.DpEvent:
        """What was run, for the sensitivity that can be proven."""
        if self.sampler != "poisson":
            raise ValueError(f"no accounting for sampler {self.sampler!r}; known: poisson")
        noise_multiplier = self.noise_multiplier * self.sensitivity / proven_sensitivity(self.microbatch_size)
        if self.clipping == "adaptive":
            noise_multiplier = combined_noise_multiplier(noise_multiplier, self.count_noise_multiplier or 0.0)
        return poisson_event(
            sampling_probability=self.sampling_probability, noise_multiplier=noise_multiplier, steps=self.steps
        )

    def as_claimed(self) -> MechanismRecord | None:
        """The record of a mechanism whose sensitivity were what the noise was scaled to, if that is too little.

        The paper scales the noise of a group's mean to one clip norm. The ε that follows is not a
        guarantee under adding or removing an example.
        """
        if self.sensitivity >= proven_sensitivity(self.microbatch_size):
            return None
        return dataclasses.replace(self, microbatch_size=1, sensitivity=ALONE)

    def truncation_delta(self) -> float:
        """What cutting over-long batches costs, from the sizes that were in force."""
        return truncation_delta(
            examples=self.examples,
            sampling_probability=self.sampling_probability,
            max_batch_size=self.max_batch_size,
            steps=self.steps,
        )

    def epsilon_bound(self, target_delta: float) -> EpsilonBound:
        """ε of what was run, at ``target_delta`` in all: the share that truncation uses is taken off first."""
        left = target_delta - self.truncation_delta()
        if left <= 0:
            raise ValueError("cutting large batches alone uses up delta: max_batch_size is too small")
        return epsilon_bound(self.event(), left)

    def sampling_defect(self) -> str | None:
        """Why the batches cannot have come from the stated sampler, or None.

        The number of examples seen over all steps is Binomial(steps·N, q). A correct sampler is
        outside six standard deviations less than once in 10⁸ runs.
        """
        expected = self.steps * self.examples * self.sampling_probability
        deviation = (expected * (1 - self.sampling_probability)) ** 0.5
        if abs(self.sampled_examples - expected) > 6 * deviation + 1e-9:
            return (
                f"{self.sampled_examples:,} examples were sampled over {self.steps:,} steps, where Poisson sampling "
                f"at probability {self.sampling_probability:.3g} gives {expected:,.0f} ± {deviation:,.0f}"
            )
        if self.largest_batch > self.max_batch_size:
            return f"a batch of {self.largest_batch:,} exceeds the stated maximum of {self.max_batch_size:,}"
        return None
