"""Questions about accounting that need no data: how private given noise is, how much noise a budget needs.

Answers are JSON-able, and remembered: asked again, they come without loading an accountant.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tasks.budget import epsilon_of, noise_multiplier_for, remembered
from tasks.errors import UserError


class Training(NamedTuple):
    """Noisy sums over batches of N examples, for so many ``steps`` or else ``epochs``."""

    examples: int
    batch_size: int
    sampler: str = "poisson"
    steps: int | None = None
    epochs: float | None = None
    delta: float | None = None

    def checked(self) -> Training:
        """With its δ, if it is possible."""
        if self.batch_size > self.examples:
            raise UserError(f"a batch of {self.batch_size:,} is larger than the {self.examples:,} examples")
        delta = self.delta or 1 / self.examples
        if delta >= 1:
            raise UserError(f"delta must be below 1, got {delta:g}")
        return self._replace(delta=delta)


def epsilon_answer(training: Training, *, noise_multiplier: float, group_size: int = 1) -> dict[str, Any]:
    """ε of a training with given noise, as an upper bound and, where there is one, a lower one."""
    asked = training.checked()
    if group_size > asked.examples:
        raise UserError(f"a group of {group_size:,} is larger than the {asked.examples:,} examples")

    def work_out() -> dict[str, Any]:
        record, delta = _record(asked, noise_multiplier), float(asked.delta or 0)
        bound = epsilon_of(record, delta, group_size=group_size)
        lower = record.epsilon_lower(delta) if group_size == 1 else None
        return {**_described(record, delta), **_bound(bound), "epsilon_lower": lower, "group_size": group_size} | (
            _as_others_claim(record, delta) if group_size == 1 else {}
        )

    return remembered(["epsilon of", *asked, noise_multiplier, group_size], work_out)


def calibration_answer(training: Training, *, epsilon: float) -> dict[str, Any]:
    """The noise multiplier that a budget needs, and what it is then worth."""
    asked = training.checked()

    def work_out() -> dict[str, Any]:
        delta = float(asked.delta or 0)
        noise_multiplier = noise_multiplier_for(
            epsilon=epsilon,
            delta=delta,
            examples=asked.examples,
            batch_size=asked.batch_size,
            steps=_steps(asked),
            sampler=asked.sampler,
        )
        record = _record(asked, noise_multiplier)
        return {**_described(record, delta), **_bound(epsilon_of(record, delta)), "target_epsilon": epsilon}

    return remembered(["calibration of", *asked, epsilon], work_out)


def _steps(asked: Training) -> int:
    from dp_core.sampling import steps_for_epochs

    if asked.steps is not None:
        return asked.steps
    return steps_for_epochs(
        examples=asked.examples, batch_size=asked.batch_size, epochs=asked.epochs or 1.0, sampler=asked.sampler
    )


def _record(asked: Training, noise_multiplier: float) -> Any:
    """Of a training whose batches have room for everyone, so that none is ever cut."""
    from dp_core.mechanism import MechanismRecord

    return MechanismRecord(
        sampler=asked.sampler,
        examples=asked.examples,
        expected_batch_size=asked.batch_size,
        max_batch_size=asked.examples,
        steps=_steps(asked),
        noise_multiplier=noise_multiplier,
        l2_clip_norm=1.0,
    )


def _described(record: Any, delta: float) -> dict[str, Any]:
    return {
        "delta": delta,
        "noise_multiplier": record.noise_multiplier,
        "sampler": record.sampler,
        "sampling_probability": record.stated_sampler.sampling_probability,
        "steps": record.steps,
        "neighboring_relation": record.neighboring_relation.name.lower(),
    }


def _bound(bound: Any) -> dict[str, Any]:
    numbers = {name: None if value == math.inf else value for name, value in bound._asdict().items()}
    return {**numbers, "accountant": bound.accountant}


def _as_others_claim(record: Any, delta: float) -> dict[str, Any]:
    from dp_core.accounting import epsilon_bound

    event = record.stated_sampler.as_others_claim(noise_multiplier=record.noise_multiplier, steps=record.steps)
    return {} if event is None else {"poisson_epsilon_not_valid_here": epsilon_bound(event, delta).epsilon}
