"""The results of a sweep: for each method and budget, the settings that validation chose and their test losses.

Methods are compared seed by seed. A seed fixes the initial parameters and, at a given batch size, the batches, so the
difference between two methods with the same seed is due to the methods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from tasks.config.dataset import TASKS, TaskName
from tasks.config.pipeline import LabelGrid, MechanismName, PrivateGrid, RecipeName
from tasks.reporting.wording import MECHANISM_TITLES, RECIPE_TITLES, phrase
from tasks.runtime.errors import UserError
from tasks.training.trial import Trial

# Confidence level above which a difference between two methods counts as more than seed noise.
CONFIDENCE = 0.95


class Outcome(NamedTuple):
    """A finished trial and its losses. A loss is None if the trial diverged.

    ``recipes`` are those of DP-SGD that the trial belongs to, if the grid compares two.
    """

    trial: Trial
    validation_loss: float | None
    test_loss: float | None
    recipes: tuple[RecipeName, ...] = ()


class Arm(NamedTuple):
    """A method that is compared with others: a mechanism, the values of the pipeline's columns, and the recipe.

    ``recipe`` is None unless the grid compares two recipes of DP-SGD.
    """

    mechanism: MechanismName
    values: tuple[tuple[str, Any], ...] = ()
    recipe: RecipeName | None = None

    @property
    def label(self) -> str:
        """The method's name in tables and legends.

        >>> Arm("dp_sgd", (("batch_size", 8192), ("epochs", 32.0))).label
        'batch 8,192 · 32 epochs'
        """
        settings = dict(self.values)
        words = [phrase(name, value) for name, value in self.values if value is not False]
        # Beside its optimiser a learning rate is a bare number; alone it needs its name.
        if "learning_rate" in settings and "optimizer" not in settings:
            rate = phrase("learning_rate", settings["learning_rate"])
            words[words.index(rate)] = f"learning rate {rate}"
        if self.recipe is not None:
            words.insert(0, RECIPE_TITLES[self.recipe])
        # A response implies LabelDP; every other setting of LabelDP is one of DP-SGD too.
        if not words or (self.mechanism == "label_dp" and "response" not in settings):
            words.insert(0, MECHANISM_TITLES[self.mechanism])
        return " · ".join(words)

    def value(self, name: str) -> Any:
        return dict(self.values)[name]


def arm_of(trial: Trial, columns: Sequence[str], recipe: RecipeName | None = None) -> Arm:
    """Returns the arm of a trial: its mechanism, those columns that are settings of the mechanism, and its recipe.

    The baseline is one arm, whatever its settings.
    """
    if trial.mechanism == "non_private":
        return Arm("non_private")
    settings = (LabelGrid if trial.mechanism == "label_dp" else PrivateGrid).model_fields
    values = ((name, getattr(trial, name)) for name in columns if name in settings)
    return Arm(trial.mechanism, tuple((name, value) for name, value in values if value is not None), recipe)


class Result(NamedTuple):
    """One cell of a sweep: a task, an arm and a budget.

    Attributes:
        epsilon: None for the non-private baseline.
        chosen: The trials of the settings that validation chose, one per seed.
        tried: All trials of the cell.
    """

    task: TaskName
    arm: Arm
    epsilon: float | None
    chosen: tuple[Outcome, ...]
    tried: tuple[Trial, ...]

    @property
    def trial(self) -> Trial:
        """The chosen settings, at the first seed."""
        return self.chosen[0].trial

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(outcome.test_loss for outcome in self.chosen if outcome.test_loss is not None)

    @property
    def loss(self) -> float:
        return fmean(self.losses)

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; 0 if there is only one seed."""
        return stdev(self.losses) if len(self.losses) > 1 else 0.0

    @property
    def diverged(self) -> bool:
        return not self.losses


class Difference(NamedTuple):
    """The difference between two results' test losses over their common seeds.

    Attributes:
        mean: The mean difference.
        seeds: The number of common seeds.
        p_value: Of a two-sided paired t-test; None if there is only one seed.
    """

    mean: float
    seeds: int
    p_value: float | None

    @property
    def within_noise(self) -> bool:
        return self.p_value is None or self.p_value > 1 - CONFIDENCE


def difference(one: Result, other: Result) -> Difference:
    """Returns the difference of the test losses, which is positive if ``other`` is better.

    Raises:
        UserError: The two have no seed in common.
    """
    by_seed = {outcome.trial.seed: outcome.test_loss for outcome in other.chosen}
    deltas = [
        outcome.test_loss - by_seed[outcome.trial.seed]  # type: ignore[operator]
        for outcome in one.chosen
        if outcome.test_loss is not None and by_seed.get(outcome.trial.seed) is not None
    ]
    if not deltas:
        raise UserError(f"{one.trial.label()} and {other.trial.label()} have no seed in common")
    return paired(deltas)


def paired(deltas: Sequence[float]) -> Difference:
    """Returns the paired t-test of differences, one per seed.

    >>> paired([1.0, 1.2, 0.9]).within_noise, paired([1.0, -1.2, 0.9]).within_noise
    (False, True)
    """
    mean = fmean(deltas)
    if len(deltas) == 1:
        return Difference(mean, 1, None)
    spread = stdev(deltas)
    if spread == 0:
        return Difference(mean, len(deltas), 0.0 if mean else 1.0)
    from scipy import stats  # here, because loading the configuration imports this module and SciPy is slow to import

    p_value = 2 * float(stats.t.sf(abs(mean) / (spread / len(deltas) ** 0.5), len(deltas) - 1))
    return Difference(mean, len(deltas), p_value)


# What makes a cell: a task, an arm and a budget.
CellKey = tuple[TaskName, Arm, float | None]


def by_cell(outcomes: Iterable[Outcome], columns: Sequence[str] = ()) -> dict[CellKey, list[Outcome]]:
    """Returns the outcomes by their cells, in the order of the plan."""
    cells: dict[CellKey, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        for recipe in outcome.recipes or (None,):
            cells[outcome.trial.task, arm_of(outcome.trial, columns, recipe), outcome.trial.epsilon].append(outcome)
    return dict(cells)


def choose(
    outcomes: Iterable[Outcome],
    columns: Sequence[str] = (),
    *,
    each_alone: bool = False,
    may_diverge: bool = False,
    among: Collection[Trial] = (),
) -> list[Result]:
    """Chooses, for each task, arm and budget, the settings with the lowest validation loss averaged over seeds.

    Args:
        outcomes: The finished trials, in the order of the plan.
        columns: The settings that set methods apart; validation chooses the others.
        each_alone: Chooses one private training instead of settings, and averages nothing (``search: random``).
        may_diverge: Whether a private method may diverge at all of its settings. The result then has no losses.
        among: Trials of the first seed whose settings may be chosen, which a search in rounds has ended with. Other
            settings count as tried only. Default: all.

    Returns:
        The results by task, then by arm in the order of the plan, then by increasing ε with the baseline first.

    Raises:
        UserError: All settings of a method diverged, and that is not a result.
    """
    cells: dict[CellKey, dict[Trial, list[Outcome]]] = {}
    for key, found in by_cell(outcomes, columns).items():
        cells[key] = defaultdict(list)
        for outcome in found:
            alone = each_alone and outcome.trial.epsilon is not None
            settings = outcome.trial if alone else outcome.trial.model_copy(update={"seed": 0})
            cells[key][settings].append(outcome)
    order = {task: number for number, task in enumerate(TASKS)}
    arms = {arm: number for number, arm in enumerate(dict.fromkeys(arm for _, arm, _ in cells))}
    keys = sorted(cells, key=lambda key: (order[key[0]], arms[key[1]], key[2] or 0.0))
    return [
        Result(
            task=task,
            arm=arm,
            epsilon=epsilon,
            chosen=tuple(
                _best(_among(cells[task, arm, epsilon], among), may_diverge=may_diverge and epsilon is not None)
            ),
            tried=tuple(outcome.trial for found in cells[task, arm, epsilon].values() for outcome in found),
        )
        for task, arm, epsilon in keys
    ]


def _among(
    candidates: Mapping[Trial, Sequence[Outcome]], allowed: Collection[Trial]
) -> Mapping[Trial, Sequence[Outcome]]:
    found = {settings: outcomes for settings, outcomes in candidates.items() if settings in allowed}
    return found or candidates


def _best(candidates: Mapping[Trial, Sequence[Outcome]], *, may_diverge: bool) -> Sequence[Outcome]:
    """Returns the outcomes of the settings with the lowest mean validation loss.

    Settings with a diverged seed cannot win. If there are no others, the outcomes have no test losses.
    """
    finite = {
        settings: fmean(outcome.validation_loss for outcome in outcomes)  # type: ignore[misc]
        for settings, outcomes in candidates.items()
        if all(outcome.validation_loss is not None and outcome.test_loss is not None for outcome in outcomes)
    }
    if finite:
        return candidates[min(finite, key=finite.__getitem__)]
    settings, outcomes = next(iter(candidates.items()))
    if may_diverge:
        return [outcome._replace(test_loss=None) for outcome in outcomes]
    seeds = ", or one of their seeds did" if any(outcome.test_loss is not None for outcome in outcomes) else ""
    raise UserError(f"all settings diverged for {settings.label()}{seeds}: try a smaller learning rate")
