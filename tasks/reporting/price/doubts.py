"""Doubts about the numbers of a run, and the verdict: the price of privacy, or not yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.reporting.results import Arm

Kind = Literal[
    "edge",
    "not_tuned",
    "diverged_neighbour",
    "splits_disagree",
    "still_improving",
    "overfitted",
    "few_evaluations",
    "beats_baseline",
    "flat",
    "rising",
    "chance",
    "unused_budget",
    "one_seed",
    "small_test_split",
]

# What each kind of doubt says of the numbers, in the words of the verdict.
REASONS: Mapping[Kind, str] = {
    "edge": "the best setting lies at the edge of what was tried",
    "not_tuned": "settings that matter were not tuned",
    "diverged_neighbour": "settings beside the best diverged",
    "splits_disagree": "validation and test prefer different settings",
    "still_improving": "models were still learning when training ended",
    "overfitted": "models were better before training ended",
    "few_evaluations": "too few evaluations show whether training was finished",
    "beats_baseline": "a private model beats the baseline",
    "flat": "the loss hardly falls as ε grows",
    "rising": "the loss rises with ε",
    "chance": "models predict by chance",
    "unused_budget": "the noise is larger than the budget asks for",
    "one_seed": "one seed shows no noise",
    "small_test_split": "the test split is small",
}
CONSEQUENCES: Mapping[Kind, str] = {
    "edge": "not the price of privacy yet: a value beyond it may be better",
    "not_tuned": "not the price of privacy yet: other values may be better",
    "diverged_neighbour": "the best may lie between the two",
    "splits_disagree": "the choice is uncertain, and the number with it",
    "still_improving": "not the price of privacy yet: train longer",
    "overfitted": "not the price of privacy yet: train for fewer epochs, or regularise",
    "few_evaluations": "not known to be the price of privacy: give the profile at least three `evaluations`",
    "beats_baseline": "the baseline is not the best non-private model, so no relative loss of this task holds",
    "flat": "not the price of privacy: something that ε does not change costs most of it",
    "rising": "not the price of privacy: more budget cannot cost more",
    "chance": "not the price of privacy: this model learned nothing at all",
    "unused_budget": "not the price of the budget: it is that of a smaller ε",
    "one_seed": "nothing here shows how much of a number is noise: train at least three seeds",
    "small_test_split": "the ± over seeds leaves this error out",
}
# What follows from a doubt that is no more than a remark.
_REMARKS: Mapping[Kind, str] = {
    "edge": "the paper's recipe may do better than its column says",
    "not_tuned": "the numbers are for this value",
}
PRICE = "The price of privacy within this model class and these searches."


class Doubt(NamedTuple):
    """Something other than privacy that could explain a number.

    Attributes:
        arm: The method; None for the whole task.
        epsilons: The budgets of the cells; none for the whole curve. The baseline is a method without budgets.
        what: What was found, as the end of a sentence.
        serious: Whether the numbers are not the price of privacy while this holds.
    """

    kind: Kind
    task: TaskName | None
    arm: Arm | None
    epsilons: tuple[float, ...]
    what: str
    serious: bool = True

    @property
    def where(self) -> str:
        """The cells that the doubt is about.

        >>> Doubt("edge", "pctr", Arm("dp_sgd"), (1.0, 3.0), "").where
        'pCTR, ε = 1 and 3'
        """
        parts = [TASK_TITLES[self.task]] if self.task is not None else []
        if self.arm is not None and (self.arm.mechanism == "non_private" or self.arm.values or self.arm.recipe):
            parts.append("baseline" if self.arm.mechanism == "non_private" else self.arm.label)
        if self.epsilons:
            numbers = [f"{epsilon:g}" for epsilon in self.epsilons]
            parts.append(f"ε = {' and '.join(filter(None, [', '.join(numbers[:-1]), numbers[-1]]))}")
        return ", ".join(parts)

    @property
    def claim(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what

    @property
    def consequence(self) -> str:
        return CONSEQUENCES[self.kind] if self.serious else _REMARKS.get(self.kind, CONSEQUENCES[self.kind])

    def about(self, task: TaskName, arm: Arm, epsilon: float | None) -> bool:
        """Returns whether the doubt is about this very cell, so that its number is marked."""
        if (self.task, self.arm) != (task, arm):
            return False
        return epsilon in self.epsilons if epsilon is not None else not self.epsilons


class Judgement(NamedTuple):
    """The doubts about a run's numbers; ``claims_price`` is whether its page claims to show the price of privacy."""

    doubts: Sequence[Doubt]
    claims_price: bool

    @property
    def holds(self) -> bool:
        return not any(doubt.serious for doubt in self.doubts)

    @property
    def verdict(self) -> str:
        """One sentence for the top of the page; empty if the page claims nothing of the kind."""
        if not self.claims_price:
            return ""
        if self.holds:
            return PRICE
        return f"Not the price of privacy yet: {'; '.join(self.reasons)}."

    @property
    def reasons(self) -> list[str]:
        """The reasons why it is not the price of privacy yet, each with the tasks that it is about."""
        reasons = []
        for kind, reason in REASONS.items():
            found = [doubt for doubt in self.doubts if doubt.kind == kind and doubt.serious]
            if found:
                tasks = list(dict.fromkeys(TASK_TITLES[doubt.task] for doubt in found if doubt.task is not None))
                reasons.append(f"{reason} ({', '.join(tasks)})" if tasks else reason)
        return reasons

    def counts(self) -> dict[Kind, int]:
        """Returns the number of doubts of each kind that there is."""
        return {kind: n for kind in REASONS if (n := sum(doubt.kind == kind for doubt in self.doubts))}


def together(doubts: Sequence[Doubt]) -> list[tuple[str, Doubt]]:
    """Returns the claims of doubts, those that say the same of several cells in one, each with a doubt of its kind.

    >>> edges = [Doubt("edge", task, Arm("dp_sgd"), (1.0, 3.0), "C is the largest tried") for task in ("pctr", "pcvr")]
    >>> [claim for claim, _ in together(edges)]
    ['pCTR, ε = 1 and 3; pCVR, ε = 1 and 3: C is the largest tried']
    """
    groups: dict[tuple[Kind, str, bool], list[Doubt]] = {}
    for doubt in doubts:
        groups.setdefault((doubt.kind, doubt.what, doubt.serious), []).append(doubt)
    found = []
    for (_, what, _), same in groups.items():
        where = "; ".join(dict.fromkeys(doubt.where for doubt in same if doubt.where))
        found.append((f"{where}: {what}" if where else what, same[0]))
    return found


def merged(doubts: Iterable[Doubt]) -> list[Doubt]:
    """Joins doubts that say the same of several budgets; serious ones first, in the order of ``REASONS``."""
    groups: dict[Doubt, set[float]] = {}
    for doubt in doubts:
        groups.setdefault(doubt._replace(epsilons=()), set()).update(doubt.epsilons)
    joined = [doubt._replace(epsilons=tuple(sorted(epsilons))) for doubt, epsilons in groups.items()]
    order = list(REASONS)
    return sorted(joined, key=lambda doubt: (not doubt.serious, order.index(doubt.kind)))
