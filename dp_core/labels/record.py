"""The label record: how a run's labels were randomised, the ε that follows, and a test of whether it is true.

Randomising writes the record, and the audit computes ε from it: from the probability with which labels were kept,
not from the ε that was requested. The guarantee is for replacing one label, where the rest of the example is
public, with δ = 0.
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

from dp_core.labels.randomized_response import response_epsilon

KINDS = ("binary", "k_ary", "bins")

# The probability that correct responses are reported as defective.
FALSE_ALARM_RATE = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelRecord:
    """One draw of responses to all labels, and how a training used it.

    Attributes:
        kind: "binary", "k_ary" or "bins".
        examples: The number of labels.
        values: The labels that the responses stood for in training.
        starts: The first count of each bin.
        keep_probability: The probability with which a label was kept.
        histogram_epsilon: The ε spent on the histogram that the bins were fitted to; 0 if there was none.
        debiased: Whether training used unbiased labels.
        draw: Identifies the draw. Trainings on the same responses release them once.
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
                f"there must be one value per bin and at least 2 bins, got {len(self.values)} values and "
                f"{len(self.starts)} bins"
            )
        if not 0 <= self.keep_probability <= 1:
            raise ValueError(f"keep_probability must be from 0 to 1, got {self.keep_probability}")
        if not self.histogram_epsilon >= 0:
            raise ValueError(f"histogram_epsilon must not be negative, got {self.histogram_epsilon}")

    def to_json(self) -> dict[str, Any]:
        """Returns the record as a JSON-able dictionary."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LabelRecord:
        """Reads what ``to_json`` returned."""
        return cls(**{**value, "values": tuple(value["values"]), "starts": tuple(value["starts"])})

    @property
    def response_epsilon(self) -> float:
        """ε of the responses, ln(p/q); infinite if all labels were kept."""
        return response_epsilon(self.keep_probability, len(self.values))

    @property
    def epsilon(self) -> float:
        """ε of the responses and the histogram together, with δ = 0.

        ``RandomizedResponse`` rounds p so that ``response_epsilon`` is never above the requested ε. Only splitting a
        budget and adding its parts again can be off in the last digit, so a correct run satisfies ``record.epsilon <=
        budget * (1 + 1e-12)``.
        """
        return self.response_epsilon + self.histogram_epsilon


def composed_epsilon(records: Iterable[LabelRecord]) -> float:
    """Returns ε of everything that trainings on the same labels release, with δ = 0.

    It is the sum over distinct draws (basic composition). Every draw's histogram is counted. That is an upper bound if
    several draws used the same one.

    Args:
        records: The records of the trainings. Those with the same ``draw`` are counted once.

    Returns:
        The total ε.

    Raises:
        ValueError: If two records of the same draw differ in what was drawn.
    """
    draws: dict[str, LabelRecord] = {}
    for record in records:
        first = draws.setdefault(record.draw, record)
        if _released(first) != _released(record):
            raise ValueError(f"two records have the draw {record.draw!r} but differ in what was drawn")
    return math.fsum(record.epsilon for record in draws.values())


def _released(record: LabelRecord) -> tuple[object, ...]:
    """Returns what belongs to the draw. The values that the responses stand for are the training's choice."""
    return record.kind, record.examples, record.starts, record.keep_probability, record.histogram_epsilon


def event(record: LabelRecord) -> dp_accounting.DpEvent:
    """Returns the record as a dp_accounting event, under replacing one label (``REPLACE_ONE``).

    For comparison only. dp_accounting's ``PLDAccountant`` has no discrete Laplace noise under that relation, and takes
    a self-composed randomised response for a single one. So ``composed_epsilon`` adds up ε itself.
    """
    k = len(record.values)
    # dp_accounting's parameter is the probability of redrawing among all values, including the true one: k·q.
    response = dp_accounting.RandomizedResponseDpEvent(k * (1 - record.keep_probability) / (k - 1), k)
    if record.histogram_epsilon == 0:
        return response
    # Replacing one label moves the histogram by 2 in L1.
    return dp_accounting.ComposedDpEvent([response, dp_event.DiscreteLaplaceDpEvent(record.histogram_epsilon / 2, 2)])


def response_defects(record: LabelRecord, transitions: np.ndarray) -> list[str]:
    """Tests whether the responses of a run can have come from the mechanism that the record states.

    Tests the number of kept labels, in total and per true value, and the number of each wrong response to each true
    value. All tests are exact binomial tests and share the false-alarm rate (Bonferroni): correct responses are
    reported with probability at most ``FALSE_ALARM_RATE``.

    Args:
        record: The stated mechanism with k values.
        transitions: ``transitions[i, j]`` is the number of labels with true value i and response j. Shape [k, k].

    Returns:
        A description of the worst defect of each kind; empty if there is none.
    """
    found = np.asarray(transitions)
    k = len(record.values)
    if found.shape != (k, k):
        return [f"transitions between {k} values must have shape ({k}, {k}), got {found.shape}"]
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
    # Given the number of wrong responses to a true value, each is uniform among the k − 1 other values.
    even = 1 / (k - 1)
    others = _two_sided(found, np.broadcast_to(wrong[:, None], (k, k)), np.full((k, k), even))
    np.fill_diagonal(others, 1.0)
    if others.min() < level:
        i, j = divmod(int(others.argmin()), k)
        defects.append(
            f"of {wrong[i]:,} wrong responses to labels in the bin from {record.starts[i]}, {found[i, j]:,} are the "
            f"bin from {record.starts[j]}, where a uniform choice gives {_interval(wrong[i], even)}"
        )
    return defects


def _two_sided(successes: np.ndarray, trials: np.ndarray, probability: float | np.ndarray) -> np.ndarray:
    """Returns two-sided p-values of binomial counts (an upper bound: twice the smaller tail)."""
    below = stats.binom.cdf(successes, trials, probability)
    above = stats.binom.sf(np.asarray(successes) - 1, trials, probability)
    return 2 * np.minimum(below, above)


def _interval(trials: int, probability: float) -> str:
    return f"{trials * probability:,.0f} ± {math.sqrt(trials * probability * (1 - probability)):,.0f}"
