"""A description of what a training run really did to its data, and what that is worth.

Training writes the record; the audit judges it. Neither the configuration nor the planned number
of steps enters: the record counts the steps that were run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import dp_accounting
from dp_accounting import NeighboringRelation

from dp_core.accounting import EpsilonBound, epsilon_bound
from dp_core.adaptive_clipping import combined_noise_multiplier
from dp_core.sampling import SAMPLERS, Sampler

# How far one example more or less can move a sum of clipped vectors, in clip norms. Alone, an
# example adds a vector of at most one; in a group it turns one such vector into another.
ALONE, IN_A_GROUP = 1.0, 2.0


def proven_sensitivity(microbatch_size: int) -> float:
    """In clip norms, under adding or removing one example."""
    return ALONE if microbatch_size == 1 else IN_A_GROUP


class VocabularyRelease(NamedTuple):
    """A vocabulary that was chosen from the training examples with noise: a Gaussian release, and a δ of its own.

    ``draw`` tells one draw of the noise from another: the same logs prepared anew are a release of their own,
    with the same numbers.
    """

    noise_multiplier: float
    delta: float
    draw: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismRecord:
    """Noisy sums of clipped gradients over sampled batches, as they were run.

    ``noise_multiplier`` is relative to ``sensitivity`` clip norms, and ``count_noise_multiplier`` to
    the sensitivity of one of the count that steers an adaptive clip norm. ``l2_clip_norm`` is the
    first step's.
    """

    sampler: str
    examples: int
    expected_batch_size: int
    max_batch_size: int
    steps: int
    noise_multiplier: float
    l2_clip_norm: float
    clipping: str = "fixed"
    count_noise_multiplier: float | None = None
    microbatch_size: int = 1
    sensitivity: float = ALONE
    vocabulary: VocabularyRelease | None = None

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> MechanismRecord:
        vocabulary = value["vocabulary"]
        return cls(**{**value, "vocabulary": None if vocabulary is None else VocabularyRelease(*vocabulary)})

    @property
    def stated_sampler(self) -> Sampler:
        """The sampler that the record names, which does the accounting."""
        if self.sampler not in SAMPLERS:
            raise ValueError(f"no accounting for sampler {self.sampler!r}; known: {', '.join(SAMPLERS)}")
        return SAMPLERS[self.sampler](
            self.examples, self.expected_batch_size, self.max_batch_size, microbatch_size=self.microbatch_size
        )

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        return self.stated_sampler.neighboring_relation

    @property
    def effective_noise_multiplier(self) -> float:
        """Of all that a step releases, relative to the sensitivity that can be proven."""
        return self._noise_for(proven_sensitivity(self.microbatch_size))

    def _noise_for(self, clip_norms: float) -> float:
        """The noise multiplier of all that a step releases, for an example that moves the sum by so many clip norms."""
        noise_multiplier = self.noise_multiplier * self.sensitivity / clip_norms
        if self.clipping == "adaptive":
            return combined_noise_multiplier(noise_multiplier, self.count_noise_multiplier or 0.0)
        return noise_multiplier

    def training_event(self, *, group_size: int = 1) -> dp_accounting.DpEvent:
        """The noisy sums alone, for ``group_size`` examples of one user."""
        return self.stated_sampler.event(
            noise_multiplier=self.effective_noise_multiplier, steps=self.steps, group_size=group_size
        )

    def truncation_delta(self, *, group_size: int = 1) -> float:
        """What cutting over-long batches costs, from the sizes that were in force."""
        return self.stated_sampler.truncation_delta(self.steps, group_size)

    def epsilon_bound(self, target_delta: float, *, group_size: int = 1) -> EpsilonBound:
        """ε of what was run, at ``target_delta`` in all."""
        return compose([self], group_size=group_size).epsilon_bound(target_delta)

    def epsilon_lower(self, target_delta: float) -> float | None:
        """What no accounting of this training can be below, or None where that is not known.

        It is of the noisy sums on the worst data, as the upper bound is: one that was
        found by an attack on the trained model can be, and mostly is, lower still.
        """
        # An example that is alone in its group moves the sum by one clip norm; that more is possible is not known.
        noise_multiplier = self._noise_for(ALONE)
        if noise_multiplier == 0:
            return None
        # Cutting batches may have changed what is seen with so much probability, either way.
        delta = target_delta + self.truncation_delta()
        return self.stated_sampler.epsilon_lower(steps=self.steps, noise_multiplier=noise_multiplier, delta=delta)

    def as_claimed(self) -> MechanismRecord | None:
        """The record of a mechanism whose sensitivity were what the noise was scaled to, if that is too little.

        The paper scales the noise of a group's mean to one clip norm. The ε that follows is not a
        guarantee under adding or removing an example.
        """
        if self.sensitivity >= proven_sensitivity(self.microbatch_size):
            return None
        return dataclasses.replace(self, microbatch_size=1, sensitivity=ALONE)


class Composition(NamedTuple):
    """Everything that was released from the same examples: an event, and what is taken off δ beside it."""

    event: dp_accounting.DpEvent
    spent_delta: float
    neighboring_relation: NeighboringRelation

    def epsilon_bound(self, target_delta: float) -> EpsilonBound:
        left = target_delta - self.spent_delta
        if left <= 0:
            raise ValueError(
                f"cutting large batches and choosing the vocabulary take {self.spent_delta:.2g}, all of "
                f"δ = {target_delta:.2g}: max_batch_size is too small, or the vocabulary's share too large"
            )
        return epsilon_bound(self.event, left, neighboring_relation=self.neighboring_relation)


def compose(records: Iterable[MechanismRecord], *, group_size: int = 1) -> Composition:
    """What publishing the models of one or several runs on the same examples releases.

    A vocabulary that runs share, drawn once, is released once. ``group_size`` is for so many examples of one user.
    """
    records = list(records)
    events = [record.training_event(group_size=group_size) for record in records]
    spent = sum(record.truncation_delta(group_size=group_size) for record in records)
    for vocabulary in dict.fromkeys(record.vocabulary for record in records if record.vocabulary is not None):
        if group_size > 1:
            raise ValueError("a private vocabulary's guarantee is for single examples, not for groups of them")
        events.append(dp_accounting.GaussianDpEvent(vocabulary.noise_multiplier))
        spent += vocabulary.delta
    relations = {record.neighboring_relation for record in records}
    # Where batches are shuffled the neighbours have an empty example, which the other samplers' bounds hold for too.
    relation = relations.pop() if len(relations) == 1 else NeighboringRelation.REPLACE_SPECIAL
    return Composition(events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events), spent, relation)
