"""Questions about accounting that need no data: ε for given noise, and noise for a given budget.

Answers are JSON-able and cached: asked again, they are returned without loading an accountant.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict

from tasks.privacy.cached_accounting import epsilon_of, noise_multiplier_for, remembered
from tasks.runtime.errors import UserError

if TYPE_CHECKING:
    from dp_core.accounting.mechanism import MechanismRecord


class Training(NamedTuple):
    """A planned DP-SGD training: noisy sums over batches of N examples.

    Give ``steps`` or else ``epochs``, 1 by default. ``delta`` is 1/N by default.
    """

    examples: int
    batch_size: int
    sampler: str = "poisson"
    steps: int | None = None
    epochs: float | None = None
    delta: float | None = None
    bands: int = 1

    def checked(self) -> Training:
        """Returns the training with its δ filled in. Raises ``UserError`` if it is impossible."""
        if self.batch_size > self.examples:
            raise UserError(f"a batch of {self.batch_size:,} is larger than the {self.examples:,} examples")
        if self.bands > 1 and self.sampler != "poisson":
            raise UserError(f"correlated noise is accounted for with poisson batches, not with {self.sampler}")
        if self.bands > self.examples // self.batch_size:
            raise UserError(
                f"noise cannot be correlated over {self.bands:,} steps: an epoch has "
                f"{self.examples // self.batch_size:,} batches"
            )
        delta = self.delta or 1 / self.examples
        if delta >= 1:
            raise UserError(f"delta must be below 1, got {delta:g}")
        return self._replace(delta=delta)


class AccountingAnswer(TypedDict):
    """A training and the upper bound on its ε. Infinite numbers are None."""

    delta: float
    noise_multiplier: float
    sampler: str
    bands: int
    sampling_probability: float
    steps: int
    neighboring_relation: str
    epsilon: float | None
    pld_epsilon: float | None
    rdp_epsilon: float | None
    interval: float | None
    further_change: float
    converged: bool
    accountant: str


class EpsilonAnswer(AccountingAnswer):
    """The answer for given noise.

    ``poisson_epsilon_not_valid_here`` is what is commonly claimed for shuffled batches.
    """

    epsilon_lower: float | None
    group_size: int
    poisson_epsilon_not_valid_here: NotRequired[float]


class CalibrationAnswer(AccountingAnswer):
    """The answer for a given budget."""

    target_epsilon: float


def epsilon_answer(training: Training, *, noise_multiplier: float, group_size: int = 1) -> EpsilonAnswer:
    """Returns the upper bound on ε of a training with given noise, and a lower bound if one is known."""
    asked = training.checked()
    if group_size > asked.examples:
        raise UserError(f"a group of {group_size:,} is larger than the {asked.examples:,} examples")

    return remembered(
        _epsilon_answer, training=asked._asdict(), noise_multiplier=noise_multiplier, group_size=group_size
    )


def _epsilon_answer(*, training: dict[str, Any], noise_multiplier: float, group_size: int) -> EpsilonAnswer:
    asked = Training(**training)
    record, delta = _record(asked, noise_multiplier), float(asked.delta or 0)
    answer: EpsilonAnswer = {
        **_accounting(record, delta, group_size=group_size),
        "epsilon_lower": record.epsilon_lower(delta) if group_size == 1 else None,
        "group_size": group_size,
    }
    claimed = _commonly_claimed(record, delta) if group_size == 1 else None
    if claimed is not None:
        answer["poisson_epsilon_not_valid_here"] = claimed
    return answer


def calibration_answer(training: Training, *, epsilon: float) -> CalibrationAnswer:
    """Returns the noise multiplier that a budget needs, and the ε that it gives."""
    return remembered(_calibration_answer, training=training.checked()._asdict(), epsilon=epsilon)


def _calibration_answer(*, training: dict[str, Any], epsilon: float) -> CalibrationAnswer:
    asked = Training(**training)
    delta = float(asked.delta or 0)
    noise_multiplier = noise_multiplier_for(
        epsilon=epsilon,
        delta=delta,
        examples=asked.examples,
        batch_size=asked.batch_size,
        steps=_steps(asked),
        sampler=asked.sampler,
        bands=asked.bands,
    )
    return {**_accounting(_record(asked, noise_multiplier), delta), "target_epsilon": epsilon}


def _steps(asked: Training) -> int:
    from dp_core.epochs import steps_for_epochs

    if asked.steps is not None:
        return asked.steps
    return steps_for_epochs(
        examples=asked.examples, batch_size=asked.batch_size, epochs=asked.epochs or 1.0, sampler=asked.sampler
    )


def _record(asked: Training, noise_multiplier: float) -> MechanismRecord:
    """Returns the record of a training with a slot for every example, so that no batch is truncated."""
    from dp_core.accounting.mechanism import MechanismRecord

    return MechanismRecord(
        sampler=asked.sampler,
        examples=asked.examples,
        expected_batch_size=asked.batch_size,
        max_batch_size=asked.examples,
        steps=_steps(asked),
        noise_multiplier=noise_multiplier,
        l2_clip_norm=1.0,
        bands=asked.bands,
    )


def _accounting(record: MechanismRecord, delta: float, *, group_size: int = 1) -> AccountingAnswer:
    bound = epsilon_of(record, delta, group_size=group_size)
    return {
        "delta": delta,
        "noise_multiplier": record.noise_multiplier,
        "sampler": record.sampler,
        "bands": record.bands,
        "sampling_probability": record.stated_sampler.sampling_probability,
        "steps": record.steps,
        "neighboring_relation": record.neighboring_relation.name.lower(),
        "epsilon": _finite(bound.epsilon),
        "pld_epsilon": _finite(bound.pld_epsilon),
        "rdp_epsilon": _finite(bound.rdp_epsilon),
        "interval": _finite(bound.interval),
        "further_change": bound.further_change,
        "converged": bound.converged,
        "accountant": bound.accountant,
    }


def _finite(value: float) -> float | None:
    return None if value == math.inf else value


def _commonly_claimed(record: MechanismRecord, delta: float) -> float | None:
    from dp_core.accounting.epsilon import epsilon_bound

    event = record.stated_sampler.commonly_claimed_event(noise_multiplier=record.noise_multiplier, steps=record.steps)
    return None if event is None else epsilon_bound(event, delta).epsilon
