"""What a night costs: three ways to have a new model every night, and what each tells about one day's data.

- *Sliding window*: each night trains a fresh model on W days. A day is in W models, and all of them are released.
- *Fresh, day by day*: each night trains a fresh model on the newest day alone. A day is in one model.
- *One model continued*: each night trains on the newest day alone, and starts from the model of the night before. A
  day's data is read in one night. Later models are computed from that released model and from other days, which
  reveals nothing more about it (post-processing). The model has learnt from all days.

Without the numbers of a training, a night is one Gaussian release with the night's ε: W of them with noise multiplier
σ are one with σ/√W. DP-SGD with many steps behaves nearly like that.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from tasks.ledger.composition import Part, epsilon
from tasks.ledger.release import canonical, dp_sgd, gaussian
from tasks.privacy.cached_accounting import noise_multiplier_for
from tasks.runtime.errors import UserError

DEFAULT_DELTA = 1e-6


class DailyTraining(NamedTuple):
    """DP-SGD of a night, for a number of examples a day."""

    examples_a_day: int
    batch_size: int
    epochs: float


class Scheme(NamedTuple):
    """A way to have a model every night.

    Attributes:
        name: The scheme.
        trains_on: What a night's training reads.
        releases_of_a_day: In how many nights a day's data is read.
        noise_multiplier: The noise with which one night has its ε.
        day_epsilon: The ε of a day's data after all nights that read it.
        most_epsilon: The largest ε of a night that keeps a day within the total; None without a total.
        most_noise_multiplier: The noise of that.
    """

    name: str
    trains_on: str
    releases_of_a_day: int
    noise_multiplier: float
    day_epsilon: float
    most_epsilon: float | None = None
    most_noise_multiplier: float | None = None


class Question(NamedTuple):
    """What is asked: the window, the ε of a night, the δ of all guarantees, and the total of a day's data."""

    window: int
    epsilon: float
    delta: float | None = None
    total: float | None = None
    training: DailyTraining | None = None

    @property
    def at_delta(self) -> float:
        """δ: given, or 1/N of the window, or one in a million."""
        if self.delta is not None:
            return self.delta
        return DEFAULT_DELTA if self.training is None else 1 / (self.window * self.training.examples_a_day)


def nightly_cost(asked: Question) -> list[Scheme]:
    """Returns what each scheme costs. Raises ``UserError`` if a scheme is impossible."""
    if not 0 < asked.at_delta < 1:
        raise UserError(f"delta must be between 0 and 1, got {asked.at_delta:g}")
    sizes = asked.training
    if sizes is not None and sizes.batch_size > sizes.examples_a_day:
        raise UserError(
            f"a batch of {sizes.batch_size:,} is larger than the {sizes.examples_a_day:,} examples of a day, which two "
            "of the three schemes train on"
        )
    days = asked.window
    window = "the newest day" if days == 1 else f"the last {days} days"
    return [
        _scheme(asked, "sliding window", f"a fresh model on {window}", days, days),
        _scheme(asked, "fresh, day by day", "a fresh model on the newest day", 1, 1),
        _scheme(asked, "one model continued", "last night's model, on the newest day", 1, 1),
    ]


def _scheme(asked: Question, name: str, trains_on: str, days: int, nights: int) -> Scheme:
    noise_multiplier = _noise_multiplier(asked, asked.epsilon, days, 1)
    found = Scheme(name, trains_on, nights, noise_multiplier, _epsilon(asked, noise_multiplier, days, nights))
    if asked.total is None:
        return found
    most = _noise_multiplier(asked, asked.total, days, nights)
    return found._replace(most_epsilon=_epsilon(asked, most, days, 1), most_noise_multiplier=most)


def _noise_multiplier(asked: Question, budget: float, days: int, nights: int) -> float:
    """Returns the noise with which so many nights on so many days together have a budget."""
    if asked.training is None:
        from dp_core.partition_selection import selection_noise_multiplier

        return selection_noise_multiplier(epsilon=budget, delta=asked.at_delta) * math.sqrt(nights)
    # Equal trainings together are one that is as many times as long.
    return noise_multiplier_for(
        epsilon=budget,
        delta=asked.at_delta,
        examples=asked.training.examples_a_day * days,
        batch_size=asked.training.batch_size,
        steps=_steps(asked.training, days) * nights,
    )


def _epsilon(asked: Question, noise_multiplier: float, days: int, nights: int) -> float:
    """Returns ε of so many nights together, each with the noise."""
    mechanism = (
        gaussian(noise_multiplier) if asked.training is None else _dp_sgd(asked.training, noise_multiplier, days)
    )
    return epsilon(Counter({Part(canonical(mechanism)): nights}), asked.at_delta)


def _dp_sgd(training: DailyTraining, noise_multiplier: float, days: int) -> dict[str, Any]:
    from dp_core.accounting.mechanism import MechanismRecord

    examples = training.examples_a_day * days
    # With a slot for every example, no batch is truncated.
    record = MechanismRecord(
        sampler="poisson",
        examples=examples,
        expected_batch_size=training.batch_size,
        max_batch_size=examples,
        steps=_steps(training, days),
        noise_multiplier=noise_multiplier,
        l2_clip_norm=1.0,
    )
    return dp_sgd(record)


def _steps(training: DailyTraining, days: int) -> int:
    from dp_core.epochs import steps_for_epochs

    return steps_for_epochs(
        examples=training.examples_a_day * days, batch_size=training.batch_size, epochs=training.epochs
    )
