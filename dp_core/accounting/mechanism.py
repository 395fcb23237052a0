"""The mechanism record: what a training run did to its data, and the ε that follows from it.

Training writes the record, and the audit computes ε from it. The record describes what ran, not what was
configured or planned: its number of steps is counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

import dp_accounting
from dp_accounting import NeighboringRelation

from dp_core.accounting.epsilon import EpsilonBound, epsilon_bound
from dp_core.accounting.events import gaussian_event
from dp_core.accounting.noise_split import combined_noise_multiplier
from dp_core.accounting.noise_tails import LARGEST_MODEL, MOST_SUMMANDS, SUPPORT, NoiseTails, TailCharge, tail_charge
from dp_core.clipping.factors import clip_factor
from dp_core.sampling import SAMPLERS, Sampler, named_sampler

# How far emptying one example can move a sum of clipped vectors, in clip norms. An example by itself
# adds a vector of norm at most 1. An example in a group turns one such vector into another.
ALONE, IN_A_GROUP = 1.0, 2.0


def proven_sensitivity(microbatch_size: int) -> float:
    """Returns the sensitivity of a clipped sum to emptying one example, in clip norms.

    Args:
        microbatch_size: The number of examples per clipped mean gradient; 1 for per-example clipping.

    Returns:
        1 for per-example clipping; 2 for microbatches, where an example can turn its group's clipped mean into
        its opposite.
    """
    return ALONE if microbatch_size == 1 else IN_A_GROUP


class VocabularyRelease(NamedTuple):
    """A vocabulary that was chosen privately from the training examples (``dp_core.partition_selection``).

    Attributes:
        noise_multiplier: Of the Gaussian release of the token counts, relative to its sensitivity.
        delta: The part of δ that the threshold uses up.
        draw: Identifies the draw of the noise. Preparing the same logs again is another release with the same
            numbers.
    """

    noise_multiplier: float
    delta: float
    draw: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismRecord:
    """The noisy sums of clipped gradients over sampled batches that a run released.

    Attributes:
        sampler: A key of ``dp_core.sampling.SAMPLERS``.
        examples: The number N of training examples.
        expected_batch_size: The batch size that the sampler aimed at.
        max_batch_size: The number of slots per batch.
        steps: The number of steps that were run.
        noise_multiplier: The noise's standard deviation, in units of ``sensitivity`` clip norms.
        l2_clip_norm: The clip norm of the first step.
        clipping: The name of the clip factor.
        count_noise_multiplier: The noise on the count that an adaptive clip norm follows, which has sensitivity 1.
        microbatch_size: The number of examples per clipped mean gradient; 1 for per-example clipping.
        sensitivity: The sensitivity that the noise was scaled to, in clip norms.
        vocabulary: The private vocabulary that the examples were encoded with, if any.
        coordinates: The number of coordinates of the gradient sum. This and the next two have defaults for trainings
            that are only asked about: a model larger than any here, with the noise of secret runs.
        noise_support: The largest size of a normal draw, in its standard deviations.
        noise_summands: The number of draws that are summed for the noise of a coordinate.
        label_rate_noise_multiplier: The noise on the sum of labels that the initial bias was computed from, relative
            to its sensitivity; None if nothing of the kind was released (``dp_core.training.label_rate``).
        bands: The number of steps that noise is correlated over, and of the parts that batches are sampled from in
            turn; 1 for independent noise. No column of the noise's matrix may be longer than 1 (``banded_noise``).
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
    coordinates: int = LARGEST_MODEL
    noise_support: float = SUPPORT
    noise_summands: int = MOST_SUMMANDS
    label_rate_noise_multiplier: float | None = None
    bands: int = 1

    def to_json(self) -> dict[str, Any]:
        """Returns the record as a JSON-able dictionary."""
        value = dataclasses.asdict(self)
        # Left out where there is none, so that records without it are as they always were.
        if self.label_rate_noise_multiplier is None:
            del value["label_rate_noise_multiplier"]
        if self.bands == 1:
            del value["bands"]
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> MechanismRecord:
        """Reads what ``to_json`` returned.

        Raises:
            KeyError: If a field is missing, other than those of the label rate and the bands, which came later. No
                default stands in for the others: earlier noise did not reach as far.
        """
        value = {"label_rate_noise_multiplier": None, "bands": 1, **value}
        value = {field.name: value[field.name] for field in dataclasses.fields(cls)}
        vocabulary = value["vocabulary"]
        return cls(**{**value, "vocabulary": None if vocabulary is None else VocabularyRelease(*vocabulary)})

    @property
    def stated_sampler(self) -> Sampler:
        """The sampler that the record names, which provides the accounting."""
        if self.sampler not in SAMPLERS:
            raise ValueError(f"no accounting for sampler {self.sampler!r}; known: {', '.join(SAMPLERS)}")
        fields = (self.examples, self.expected_batch_size, self.max_batch_size, (), self.microbatch_size)
        return named_sampler(self.sampler, fields, bands=self.bands)

    @property
    def neighboring_relation(self) -> NeighboringRelation:
        """What neighbouring datasets differ in, which depends on the sampler."""
        return self.stated_sampler.neighboring_relation

    @property
    def effective_noise_multiplier(self) -> float:
        """The noise multiplier of everything a step releases, relative to the proven sensitivity."""
        return self._noise_for(proven_sensitivity(self.microbatch_size))

    def _noise_for(self, clip_norms: float) -> float:
        """Returns the noise multiplier of everything a step releases if one example moves the sum by ``clip_norms``."""
        noise_multiplier = self.noise_multiplier * self.sensitivity / clip_norms
        if clip_factor(self.clipping).adaptive:
            return combined_noise_multiplier(noise_multiplier, self.count_noise_multiplier or 0.0)
        return noise_multiplier

    def training_event(self, *, group_size: int = 1) -> dp_accounting.DpEvent:
        """Returns the event of the noisy sums, and of the label rate if it was released for this training.

        The vocabulary and truncation are not in it.

        Args:
            group_size: The number of examples that neighbours differ in, for user-level privacy.
        """
        sums = self.stated_sampler.event(
            noise_multiplier=self.effective_noise_multiplier, steps=self.steps, group_size=group_size
        )
        if self.label_rate_noise_multiplier is None:
            return sums
        rate = gaussian_event(noise_multiplier=self.label_rate_noise_multiplier, releases=1, group_size=group_size)
        return dp_accounting.ComposedDpEvent([sums, rate])

    def truncation_delta(self, *, group_size: int = 1) -> float:
        """Returns the part of δ that truncation uses up: of large batches, and of the noise.

        Both follow from what was in force: the slots of a batch, and how far the noise reaches.
        """
        batches = self.stated_sampler.truncation_delta(self.steps, group_size)
        return min(1.0, batches + self.tail_charge(group_size=group_size).delta)

    def tail_charge(self, *, group_size: int = 1) -> TailCharge:
        """Returns what the missing tails of the noise do to δ (``dp_core.accounting.noise_tails``)."""
        # The count that steers an adaptive clip norm is one more noisy coordinate.
        coordinates = self.coordinates + clip_factor(self.clipping).adaptive
        return tail_charge(
            self.stated_sampler,
            steps=self.steps,
            noise_multiplier=self.effective_noise_multiplier,
            tails=NoiseTails(coordinates, self.noise_support, self.noise_summands),
            group_size=group_size,
        )

    def epsilon_bound(self, target_delta: float, *, group_size: int = 1) -> EpsilonBound:
        """Returns an upper bound on ε of what ran, where ``target_delta`` covers everything.

        Args:
            target_delta: The δ of the whole guarantee, including truncation and the vocabulary's part.
            group_size: The number of examples that neighbours differ in.

        Raises:
            ValueError: If truncation and the vocabulary use up all of δ.
        """
        return compose([self], group_size=group_size).epsilon_bound(target_delta)

    def epsilon_lower(self, target_delta: float) -> float | None:
        """Returns a lower bound on every valid ε of this training; None if none is known for its sampler.

        Like the upper bound, it is for the noisy sums on worst-case data. What an attack on the trained model
        shows can be, and usually is, lower.
        """
        # An example that is alone in its group moves the sum by one clip norm. It is not known that it can do more.
        noise_multiplier = self._noise_for(ALONE)
        if noise_multiplier == 0:
            return None
        # With up to this probability, truncation changed what is observed, in either direction.
        delta = target_delta + self.truncation_delta()
        return self.stated_sampler.epsilon_lower(steps=self.steps, noise_multiplier=noise_multiplier, delta=delta)

    def as_claimed(self) -> MechanismRecord | None:
        """Returns the record that the noise scaling pretends, if it is below the proven sensitivity; else None.

        The paper scales the noise of microbatches to a sensitivity of one clip norm. The ε of the returned record
        is not a guarantee.
        """
        if self.sensitivity >= proven_sensitivity(self.microbatch_size):
            return None
        return dataclasses.replace(self, microbatch_size=1, sensitivity=ALONE)


class Composition(NamedTuple):
    """Everything that was released from the same examples.

    Attributes:
        event: The composition of all releases.
        spent_delta: The part of δ that truncation and private vocabularies use up.
        neighboring_relation: What neighbouring datasets differ in.
        lost_share: The share of what is left of δ that truncated noise uses up besides.
    """

    event: dp_accounting.DpEvent
    spent_delta: float
    neighboring_relation: NeighboringRelation
    lost_share: float = 0.0

    def epsilon_bound(self, target_delta: float) -> EpsilonBound:
        """Returns an upper bound on ε, where ``target_delta`` covers ``spent_delta`` as well.

        Raises:
            ValueError: If ``spent_delta`` uses up all of δ.
        """
        left = (target_delta - self.spent_delta) * (1 - self.lost_share)
        if left <= 0:
            raise ValueError(
                f"truncating large batches and the noise, and choosing the vocabulary, use up {self.spent_delta:.2g}, "
                f"which is all of δ = {target_delta:.2g}: max_batch_size is too small, or the noise "
                "multiplier is, or the vocabulary's share of δ is too large"
            )
        return epsilon_bound(self.event, left, neighboring_relation=self.neighboring_relation)


def compose(records: Iterable[MechanismRecord], *, group_size: int = 1) -> Composition:
    """Composes everything that publishing the models of runs on the same examples releases.

    Runs that share a draw of a private vocabulary release it once.

    Args:
        records: The mechanisms of the runs, at least one.
        group_size: The number of examples that neighbours differ in, for user-level privacy.

    Returns:
        The composition; its ``epsilon_bound`` holds for all the models together.

    Raises:
        ValueError: If ``group_size`` is above 1 and a record has a private vocabulary.
    """
    records = list(records)
    events = [record.training_event(group_size=group_size) for record in records]
    spent = sum(record.truncation_delta(group_size=group_size) for record in records)
    for vocabulary in dict.fromkeys(record.vocabulary for record in records if record.vocabulary is not None):
        if group_size > 1:
            raise ValueError("the guarantee of a private vocabulary is for single examples, not for groups")
        events.append(dp_accounting.GaussianDpEvent(vocabulary.noise_multiplier))
        spent += vocabulary.delta
    relations = {record.neighboring_relation for record in records} or {NeighboringRelation.REPLACE_SPECIAL}
    (relation,) = relations
    # (1 − a)(1 − b) ≥ 1 − (a + b)
    lost = min(1.0, sum(record.tail_charge(group_size=group_size).share for record in records))
    event = events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)
    return Composition(event, spent, relation, lost)
