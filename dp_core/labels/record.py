"""A description of how a run's labels were randomised, what that is worth, and whether it can be true.

Randomising writes the record; the audit judges it. ε comes from the probability with which labels
were kept, not from the one that was asked for. The guarantee is for replacing one label, the rest of
its example being public, with δ = 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import dp_event
from scipy import stats

from dp_core.randomized_response import response_epsilon

KINDS = ("binary", "k_ary", "bins")

FALSE_ALARM_RATE = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelRecord:
    """One draw of responses to all labels, as it was run, and how a training used it.

    ``values`` are what the responses stood for, ``starts`` the first count of each bin. ``histogram_epsilon`` was
    spent on the histogram that the bins were fitted to; it is 0 if there was none. ``draw`` tells one draw of all
    responses from another: trainings on the same responses release them once.
    """

    kind: str
    examples: int
    values: tuple[float, ...]
    starts: tuple[int, ...]
    keep_probability: float
    histogram_epsilon: float
    debiased: bool
    draw: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no accounting for labels of kind {self.kind!r}; known: {', '.join(KINDS)}")
        if len(self.values) != len(self.starts) or len(self.values) < 2:
            raise ValueError(
                f"there must be as many values as bins, and 2 or more, got {len(self.values)} and {len(self.starts)}"
            )
        if not 0 <= self.keep_probability <= 1:
            raise ValueError(f"keep_probability must be from 0 to 1, got {self.keep_probability}")
        if not self.histogram_epsilon >= 0:
            raise ValueError(f"histogram_epsilon must not be negative, got {self.histogram_epsilon}")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LabelRecord:
        return cls(**{**value, "values": tuple(value["values"]), "starts": tuple(value["starts"])})

    @property
    def response_epsilon(self) -> float:
        """ln(p/q) of the responses that were drawn: infinite if all labels were kept."""
        return response_epsilon(self.keep_probability, len(self.values))

    @property
    def epsilon(self) -> float:
        """ε of the responses and the histogram together, with δ = 0.

        ``RandomizedResponse`` rounds p so that ``response_epsilon`` is never above the ε that it was asked
        for. Only splitting a budget and adding up its parts can be a last digit off, so
        ``record.epsilon <= budget * (1 + 1e-12)`` is the check that a correct run passes.
        """
        return self.response_epsilon + self.histogram_epsilon


def composed_epsilon(records: Iterable[LabelRecord]) -> float:
    """ε of everything that trainings on the same labels release, with δ = 0: the sum over distinct draws.

    Each draw's histogram counts, though several draws may have used the same one: an upper bound then.
    """
    draws: dict[str, LabelRecord] = {}
    for record in records:
        first = draws.setdefault(record.draw, record)
        if _released(first) != _released(record):
            raise ValueError(f"two records are both of draw {record.draw!r}, and differ in what was drawn")
    return math.fsum(record.epsilon for record in draws.values())


def _released(record: LabelRecord) -> tuple[object, ...]:
    """What belongs to the draw; what the responses then stood for is the training's choice."""
    return record.kind, record.examples, record.starts, record.keep_probability, record.histogram_epsilon


def event(record: LabelRecord) -> dp_accounting.DpEvent:
    """The same in dp_accounting's terms, for replacing one label (``REPLACE_ONE``).

    For comparison only. ``PLDAccountant`` has no discrete Laplace noise under that relation, and it takes a
    self-composed randomised response for a single one, so ``composed_epsilon`` adds up by itself.
    """
    k = len(record.values)
    # Theirs is the probability of drawing anew among all values, the true one included: k·q.
    response = dp_accounting.RandomizedResponseDpEvent(k * (1 - record.keep_probability) / (k - 1), k)
    if record.histogram_epsilon == 0:
        return response
    # One label that is replaced moves the histogram by 2 in L1.
    return dp_accounting.ComposedDpEvent([response, dp_event.DiscreteLaplaceDpEvent(record.histogram_epsilon / 2, 2)])


def response_defects(record: LabelRecord, transitions: np.ndarray) -> list[str]:
    """Why these responses cannot be the ones that the record states, if they cannot.

    ``transitions[i, j]`` is how many labels with true value i got response j. Looked at are how many were kept,
    of all and of each true value, and how often each wrong response was given to each true value. All tests are
    exact and binomial, and share the false alarm rate (Bonferroni): correct responses are
    called wrong at most once in a million runs. Of each kind of defect the worst is told.
    """
    found = np.asarray(transitions)
    k = len(record.values)
    if found.shape != (k, k):
        return [f"transitions between {k} values must be a table of {k} by {k}, not of shape {found.shape}"]
    defects = []
    if found.sum() != record.examples:
        defects.append(f"there are {found.sum():,} responses to {record.examples:,} labels")

    p = record.keep_probability
    labels, kept = found.sum(axis=1), np.diag(found)
    wrong = labels - kept
    level = FALSE_ALARM_RATE / (1 + k + k * (k - 1))

    if _two_sided(kept.sum(), found.sum(), p) < level:
        defects.append(
            f"{kept.sum():,} of {found.sum():,} labels were kept, where probability {p:.6g} gives "
            f"{_interval(found.sum(), p)}"
        )
    chances = _two_sided(kept, labels, np.full(k, p))
    if chances.min() < level:
        i = int(chances.argmin())
        defects.append(
            f"of {labels[i]:,} labels in the bin from {record.starts[i]}, {kept[i]:,} were kept, where probability "
            f"{p:.6g} gives {_interval(labels[i], p)}"
        )
    # Given how many responses to a true value are wrong, each is one of the k − 1 others, evenly.
    even = 1 / (k - 1)
    others = _two_sided(found, np.broadcast_to(wrong[:, None], (k, k)), np.full((k, k), even))
    np.fill_diagonal(others, 1.0)
    if others.min() < level:
        i, j = divmod(int(others.argmin()), k)
        defects.append(
            f"of {wrong[i]:,} wrong responses to labels in the bin from {record.starts[i]}, {found[i, j]:,} are the "
            f"bin from {record.starts[j]}, where an even choice gives {_interval(wrong[i], even)}"
        )
    return defects


def _two_sided(successes: np.ndarray, trials: np.ndarray, probability: float | np.ndarray) -> np.ndarray:
    """A bound on the probability of a number as far out on either side as this one, for each."""
    below = stats.binom.cdf(successes, trials, probability)
    above = stats.binom.sf(np.asarray(successes) - 1, trials, probability)
    return 2 * np.minimum(below, above)


def _interval(trials: int, probability: float) -> str:
    return f"{trials * probability:,.0f} ± {math.sqrt(trials * probability * (1 - probability)):,.0f}"
