"""A description of what a training run really did to its data, and what that is worth.

Training writes the record; the audit judges it. Neither the configuration nor the planned number
of steps enters: the record counts the steps that were run.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import dp_accounting

from dp_core.accounting import NEIGHBORING_RELATION, EpsilonBound, epsilon_bound
from dp_core.sampling import poisson_event, truncation_delta


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismRecord:
    """Noisy sums of clipped gradients over Poisson samples, as they were run."""

    sampler: str
    examples: int
    sampling_probability: float
    expected_batch_size: int
    max_batch_size: int
    steps: int
    noise_multiplier: float
    l2_clip_norm: float
    sampled_examples: int
    largest_batch: int
    neighboring_relation: str = NEIGHBORING_RELATION.name.lower()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> MechanismRecord:
        return cls(**value)

    def event(self) -> dp_accounting.DpEvent:
        if self.sampler != "poisson":
            raise ValueError(f"no accounting for sampler {self.sampler!r}; known: poisson")
        return poisson_event(
            sampling_probability=self.sampling_probability, noise_multiplier=self.noise_multiplier, steps=self.steps
        )

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
