"""What a sweep found: for each method and budget the settings that validation chose, and their test losses.

Methods are compared seed by seed: a seed gives them the same initial parameters and, at the same batch size, the same
batches, so that what differs between them is what they do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from scipy import stats

from tasks.descriptions import TASKS, TaskName
from tasks.errors import UserError
from tasks.grids import MechanismName
from tasks.trial import RESPONSES, Trial

# How sure a difference between two methods must be, to be more than noise between seeds.
CONFIDENCE = 0.95


class Outcome(NamedTuple):
    """A finished trial with its losses; None where it diverged."""

    trial: Trial
    validation_loss: float | None
    test_loss: float | None


class Arm(NamedTuple):
    """A method that is compared with others: a mechanism, at the values of the pipeline's columns."""

    mechanism: MechanismName
    values: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """
        >>> Arm("dp_sgd", (("batch_size", 8192), ("epochs", 32.0))).label
        'batch 8,192 · 32 epochs'
        """
        words = [_worded(name, value) for name, value in self.values if value is not False]
        # A response tells by itself that it is LabelDP; other settings DP-SGD may have too.
        if not words or (self.mechanism == "label_dp" and "response" not in dict(self.values)):
            words.insert(0, {"non_private": "non-private", "dp_sgd": "DP-SGD", "label_dp": "LabelDP"}[self.mechanism])
        return " · ".join(words)

    def value(self, name: str) -> Any:
        return dict(self.values)[name]


def arm_of(trial: Trial, columns: Sequence[str]) -> Arm:
    """The arm that a trial belongs to; the baseline is one, whatever its settings."""
    if trial.mechanism == "non_private":
        return Arm("non_private")
    values = ((name, getattr(trial, name)) for name in columns)
    return Arm(trial.mechanism, tuple((name, value) for name, value in values if value is not None))


class Result(NamedTuple):
    """A task by an arm at a budget: ``chosen`` are the trials of the chosen settings, one for each seed.

    ``tried`` are all trials that were chosen among.
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
        """The standard deviation over seeds; nothing is known of it from one."""
        return stdev(self.losses) if len(self.losses) > 1 else 0.0

    @property
    def diverged(self) -> bool:
        return not self.losses


class Difference(NamedTuple):
    """How much larger one's test loss is than another's, in the mean over their common seeds.

    ``chance`` is the p-value of a paired t-test: None if there is one seed, from which noise cannot be told.
    """

    mean: float
    seeds: int
    chance: float | None

    @property
    def within_noise(self) -> bool:
        return self.chance is None or self.chance > 1 - CONFIDENCE


def difference(one: Result, other: Result) -> Difference:
    """
    Of test losses: positive where ``other`` is better.
    """
    by_seed = {outcome.trial.seed: outcome.test_loss for outcome in other.chosen}
    deltas = [
        outcome.test_loss - by_seed[outcome.trial.seed]  # type: ignore[operator]
        for outcome in one.chosen
        if outcome.test_loss is not None and by_seed.get(outcome.trial.seed) is not None
    ]
    if not deltas:
        raise UserError(f"no seed of {one.trial.label()} and {other.trial.label()} in common")
    return paired(deltas)


def paired(deltas: Sequence[float]) -> Difference:
    """Whether differences, one for each seed, are more than noise.

    >>> paired([1.0, 1.2, 0.9]).within_noise, paired([1.0, -1.2, 0.9]).within_noise
    (False, True)
    """
    mean = fmean(deltas)
    if len(deltas) == 1:
        return Difference(mean, 1, None)
    spread = stdev(deltas)
    if spread == 0:
        return Difference(mean, len(deltas), 0.0 if mean else 1.0)
    chance = 2 * float(stats.t.sf(abs(mean) / (spread / len(deltas) ** 0.5), len(deltas) - 1))
    return Difference(mean, len(deltas), chance)


def choose(outcomes: Iterable[Outcome], columns: Sequence[str] = (), *, each_alone: bool = False) -> list[Result]:
    """The results of a sweep, by task, then by arm in the order of the plan, then by falling privacy.

    For each task, arm and budget the settings with the lowest validation loss, averaged over seeds, are chosen.
    ``each_alone``: among private trainings the best one is chosen, and nothing is averaged.
    """
    cells: dict[tuple[TaskName, Arm, float | None], dict[Trial, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        trial = outcome.trial
        alone = each_alone and trial.epsilon is not None
        settings = trial if alone else trial.model_copy(update={"seed": 0})
        cells[trial.task, arm_of(trial, columns), trial.epsilon][settings].append(outcome)
    order = {task: number for number, task in enumerate(TASKS)}
    arms = {arm: number for number, arm in enumerate(dict.fromkeys(arm for _, arm, _ in cells))}
    keys = sorted(cells, key=lambda key: (order[key[0]], arms[key[1]], key[2] or 0.0))
    return [
        Result(
            task=task,
            arm=arm,
            epsilon=epsilon,
            chosen=tuple(_best(cells[task, arm, epsilon], may_diverge=bool(columns) and epsilon is not None)),
            tried=tuple(outcome.trial for found in cells[task, arm, epsilon].values() for outcome in found),
        )
        for task, arm, epsilon in keys
    ]


def _best(candidates: Mapping[Trial, Sequence[Outcome]], *, may_diverge: bool) -> Sequence[Outcome]:
    """The settings with the lowest mean validation loss; settings with a diverged seed cannot win.

    Where methods are compared, one that always diverges is a result too.
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
    raise UserError(f"every setting diverged for {settings.label()}: try a smaller learning rate")


def _worded(name: str, value: Any) -> str:
    words = {
        "l2_clip_norm": "C = {:g}",
        "microbatch_size": "m = {}",
        "batch_size": "batch {:,}",
        "epochs": "{:g} epochs",
        "learning_rate": "{:g}",
    }
    if name == "accountant":
        return "PLD" if value == "tightest" else str(value)
    if name == "response":
        return RESPONSES[value]
    if name == "debias":
        return "debiased"
    return words.get(name, "{}").format(value)
