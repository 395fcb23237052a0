"""How much each setting of a sweep matters: the score by each of its values, and the difference between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from tasks.config.dataset import TaskName
from tasks.reporting.document import Cell, Finding, Table
from tasks.reporting.exhibits.common import (
    Sweep,
    best_of,
    judged,
    noise_text,
    score,
    score_cell,
    score_name,
    score_text,
    validation_loss,
    worse_by,
)
from tasks.reporting.results import Arm, Result
from tasks.reporting.wording import MECHANISM_TITLES, phrase, setting_noun, setting_title, value_text

# Values that are adjectives.
_CONDITIONS = (phrase("debias", True), phrase("debias", False))


class Factor(NamedTuple):
    """Something that sets the methods of a sweep apart: a column, columns that are zipped, or the mechanism.

    Attributes:
        columns: The settings; none stands for the mechanism.
    """

    columns: tuple[str, ...]

    @property
    def title(self) -> str:
        return " and ".join(map(setting_title, self.columns)) or "mechanism"

    @property
    def noun(self) -> str:
        """The factor as the subject of a sentence."""
        return " and ".join(map(setting_noun, self.columns)) or "the mechanism"

    def level(self, arm: Arm) -> str | None:
        """Returns the arm's value as text; None if the arm's mechanism has no such setting."""
        if not self.columns:
            return MECHANISM_TITLES[arm.mechanism]
        values = dict(arm.values)
        if not all(column in values for column in self.columns):
            return None
        return " and ".join(_level_text(column, values[column]) for column in self.columns)


class Effect(NamedTuple):
    """The result by each value of a factor at one budget, the other settings being chosen by validation."""

    factor: Factor
    best: Mapping[str, Result]

    @property
    def finite(self) -> dict[str, Result]:
        return {level: result for level, result in self.best.items() if not result.diverged}

    @property
    def diverged(self) -> list[str]:
        return [level for level, result in self.best.items() if result.diverged]

    @property
    def ends(self) -> tuple[str, str]:
        """The values that validation prefers most and least, among those that do not diverge."""
        order = sorted(self.finite, key=lambda level: validation_loss(self.finite[level]))
        return order[0], order[-1]

    @property
    def difference(self) -> float | None:
        """The mean test loss at the value that validation prefers least, minus that at the one it prefers most.

        None if fewer than two values have a loss. Negative if the test split disagrees with validation.
        """
        if len(self.finite) < 2:
            return None
        most, least = (self.finite[level] for level in self.ends)
        return least.loss - most.loss

    @property
    def size(self) -> tuple[int, float]:
        """What factors are ranked by: whether only some of the values diverge, then the difference."""
        return int(bool(self.diverged and self.finite)), self.difference or 0.0


def factors_of(sweep: Sweep, task: TaskName) -> list[Factor]:
    """Returns the factors with more than one value, in the order of the pipeline's columns."""
    arms, together = sweep.arms(task), set(sweep.pipeline.together)
    zipped = tuple(column for column in sweep.pipeline.columns if column in together)
    found = [Factor(())]
    for column in sweep.pipeline.columns:
        factor = Factor(zipped if column in together else (column,))
        if factor not in found:
            found.append(factor)
    return [factor for factor in found if len(_levels(factor, arms)) > 1]


def effects_at(sweep: Sweep, task: TaskName, epsilon: float) -> list[Effect]:
    """Returns the effect of each factor at a budget, the largest first."""
    results = sweep.at(task, epsilon)
    effects = []
    for factor in factors_of(sweep, task):
        by_level = {level: [r for r in results if factor.level(r.arm) == level] for level in _levels(factor, results)}
        effects.append(Effect(factor, {level: best_of(found) for level, found in by_level.items()}))
    return sorted(effects, key=lambda effect: effect.size, reverse=True)


def effects_table(sweep: Sweep, task: TaskName, *, title: str, name: str) -> Table:
    """Returns a row for each value of each factor and one for their difference, with a column for each budget.

    The factor with the largest size, averaged over the budgets, comes first.
    """
    by_epsilon = {
        epsilon: {effect.factor: effect for effect in effects_at(sweep, task, epsilon)} for epsilon in sweep.epsilons
    }
    sizes = {}
    for factor in factors_of(sweep, task):
        found = [effects[factor].size for effects in by_epsilon.values()]
        sizes[factor] = tuple(map(fmean, zip(*found, strict=True)))
    rows, records = [], []
    for factor in sorted(sizes, key=lambda factor: sizes[factor], reverse=True):
        effects = {epsilon: by_factor[factor] for epsilon, by_factor in by_epsilon.items()}
        levels = dict.fromkeys(level for effect in effects.values() for level in effect.best)
        rows += [
            [Cell(factor.title), Cell(level), *(_level_cell(effect, level) for effect in effects.values())]
            for level in levels
        ]
        rows.append(
            [Cell(factor.title), Cell("difference"), *(_difference_cell(effect) for effect in effects.values())]
        )
        records += [
            _record(effect, level, epsilon)
            for epsilon, effect in effects.items()
            for level in levels
            if level in effect.best
        ]
    columns = ["setting", "value", *(f"ε = {epsilon:g}" for epsilon in sweep.epsilons)]
    caption = (
        f"Each row is the test {score_name(task)} with one value of one setting; validation loss chooses all other "
        "settings. The difference is the mean test loss at the value that validation prefers least, minus that at the "
        "one it prefers most; it is negative where the test split disagrees with validation. Values that diverge are "
        "left out of it. Settings are in the order of this difference, averaged over the budgets; those that diverge "
        f"at some values come first. Bold: the best value by validation{noise_text(sweep.at(task, sweep.epsilons[0]))}"
    )
    return Table(name, title, columns, rows, caption, records)


def effect_finding(sweep: Sweep, task: TaskName, epsilon: float, *, prefix: str = "") -> Finding | None:
    """Returns whether the setting with the largest difference at a budget matters by more than seed noise.

    The claim is about two of its values, picked by validation loss and compared on the test split. That no other
    setting makes a larger difference is evidence: it is not tested. None if no setting has several values.
    """
    effects = [effect for effect in effects_at(sweep, task, epsilon) if effect.finite and len(effect.best) > 1]
    if not effects:
        return None
    largest, finite = effects[0], effects[0].finite
    verb = "matter" if len(largest.factor.columns) > 1 else "matters"
    claim = f"{prefix}At ε = {epsilon:g}, {largest.factor.noun} {verb}"
    best, worst = largest.ends
    text = f"{score_name(task)} {score_text(finite[best])} {_with(best)}"
    if worst != best:
        text += f", {score_text(finite[worst])} {_with(worst)}"
    text += f"; training diverges {_with(', '.join(largest.diverged))}" if largest.diverged else ""
    if len(effects) > 1 and effects[1].difference is not None:
        text += f"; next is {effects[1].factor.noun} with a difference of {effects[1].difference:.4f}"
    if worst == best:
        several = len(finite[best].chosen) > 1
        claim += f": training diverges {_with(', '.join(largest.diverged))}, but not {_with(best)}"
        return Finding(claim, "shown" if several else "within noise", text)
    return judged(f"{claim}: {best} is better than {worst}", worse_by(finite[worst], finite[best]), text)


def _level_text(column: str, value: Any) -> str:
    """Returns a value for tables and sentences, in which “yes” and “no” would need a question."""
    return phrase(column, value) if isinstance(value, bool) else value_text(column, value)


def _with(level: str) -> str:
    return f"when {level}" if level in _CONDITIONS else f"with {level}"


def _levels(factor: Factor, arms: Sequence[Arm] | Sequence[Result]) -> list[str]:
    levels = (factor.level(arm.arm if isinstance(arm, Result) else arm) for arm in arms)
    return list(dict.fromkeys(level for level in levels if level is not None))


def _level_cell(effect: Effect, level: str) -> Cell:
    if level not in effect.best:
        return Cell("–")
    return score_cell(effect.best[level], best_of(list(effect.best.values())))


def _difference_cell(effect: Effect) -> Cell:
    if effect.difference is None:
        return Cell("–")
    note = f"without the values that diverged: {', '.join(effect.diverged)}" if effect.diverged else ""
    return Cell(f"{effect.difference:.4f}", effect.difference, note)


def _record(effect: Effect, level: str, epsilon: float) -> dict[str, Any]:
    result = effect.best[level]
    return {
        "task": result.task,
        "setting": effect.factor.title,
        "value": level,
        "epsilon": f"{epsilon:g}",
        "method": result.arm.label,
        "score": None if result.diverged else score(result.task, result.loss),
        "difference": effect.difference,
    }
