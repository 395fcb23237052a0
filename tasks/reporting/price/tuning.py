"""Whether the search was finished: settings at the edge of what was tried, not tuned, beside a divergence.

A setting is at the edge if the chosen value is the smallest or the largest one tried with the same optimiser, model and
other settings that are not numbers. A flat edge is no doubt: along one setting, loss is taken to be convex in the
logarithm of the value, so the next step gains at most what the last one gained. If that is less than ``FLAT`` of the
loss, one more value would not change the relative loss by more. What the last step gained says nothing of how far the
best is if the step was short, so a gain is that of a factor of 2 at least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from tasks.config.dataset import TaskName
from tasks.reporting.price.doubts import Doubt, Kind
from tasks.reporting.results import Outcome, Result
from tasks.reporting.wording import setting_noun, setting_title, value_text
from tasks.training.trial import Trial

# Share of the loss below which a difference does not matter: a quarter of a percentage point of relative loss.
FLAT = 0.0025
# Settings that have an order, each with a bound that cannot be passed, where a value at the edge needs no further one.
ORDERED: Mapping[str, tuple[float, float]] = {
    "learning_rate": (-math.inf, math.inf),
    "l2_clip_norm": (-math.inf, math.inf),
    "epochs": (-math.inf, math.inf),
    "batch_size": (-math.inf, math.inf),
    "bands": (1.0, math.inf),
    "initial_bias_epsilon": (-math.inf, math.inf),
    "momentum": (0.0, math.inf),
    "microbatch_size": (1.0, math.inf),
    "clip_quantile": (-math.inf, math.inf),
    "warmup": (0.0, math.inf),
    "weight_decay": (0.0, math.inf),
    "averaging_share": (-math.inf, 1.0),
}
# Settings of which values are tried by factors, and the smallest step whose gain is taken as it is.
_BY_FACTORS = ("learning_rate", "l2_clip_norm", "epochs", "batch_size", "bands", "initial_bias_epsilon")
_STEP = 2.0
# Settings without which a search is none. The others are part of the model class that the verdict names.
_ESSENTIAL = ("learning_rate", "l2_clip_norm")
# What a relative learning rate is relative to (``learning_rate_per``), or may be: where one of these differs, equal
# rates are different numbers of the grid.
_UNIT_OF_RATE = ("l2_clip_norm", "batch_size", "epochs", "momentum", "microbatch_size")
# Follow from others, or say nothing about how well a setting does.
_NOT_SETTINGS = {"seed", "noise_multiplier", "epsilon", "target_delta"}

# The outcomes of each setting of a cell: a trial at seed 0, with all of its epochs, stands for the setting. Those of
# partial trainings, with fewer epochs, are among them.
Tried = Mapping[Trial, Sequence[Outcome]]


def tried_settings(result: Result, outcomes: Mapping[Trial, Outcome], shortened: Mapping[Trial, Trial]) -> Tried:
    """Returns the outcomes of every setting that a cell's choice was made from.

    Args:
        result: The cell.
        outcomes: The outcomes of the run by trial.
        shortened: Partial trainings, each with the trial of all epochs that it stands for.
    """
    found: dict[Trial, list[Outcome]] = {}
    for trial in result.tried:
        if trial in outcomes:
            setting = shortened.get(trial, trial).model_copy(update={"seed": 0})
            found.setdefault(setting, []).append(outcomes[trial])
    return found


def _whole(setting: Trial, outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Returns the outcomes of a setting that were trained for all of its epochs."""
    return [one for one in outcomes if one.trial.epochs == setting.epochs]


def edge_doubts(result: Result, tried: Tried) -> Iterator[Doubt]:
    """Yields the settings whose chosen value is the smallest or largest one tried, and not on a plateau."""
    chosen = result.trial.model_copy(update={"seed": 0})
    alike = [trial for trial in tried if _words(trial) == _words(chosen)]
    for name, (least, most) in ORDERED.items():
        line = [trial for trial in alike if _same_but(trial, chosen, name)]
        # A search that does not cross its lists has no such line, and relative rates have none along their unit.
        crossed = chosen.learning_rate_per == "one" or name not in _UNIT_OF_RATE
        compared = line if len(line) > 1 and crossed else alike
        values = sorted({value for trial in compared if (value := getattr(trial, name, None)) is not None})
        value = getattr(chosen, name, None)
        if len(values) < 2 or name in dict(result.arm.values) or value in (least, most):
            continue
        # ``bands: auto`` follows from the other settings: without a line it was not searched for.
        if name == "bands" and len(line) < 2:
            continue
        if value not in (values[0], values[-1]):
            continue
        inner = values[1] if value == values[0] else values[-2]
        gain = _gain(tried, chosen, name, inner, compared) * _steps_in_a_factor(name, value, inner)
        if gain >= FLAT * abs(_mean(_whole(chosen, tried[chosen]))):
            which = "smallest" if value == values[0] else "largest"
            noun = setting_noun(name).removeprefix("the ")
            what = f"the best {noun} is the {which} tried ({value_text(name, value)})"
            # The paper's recipe is what the paper says, and no claim to be the best.
            yield _doubt("edge", result, what, serious=result.arm.recipe != "paper_recipe")


def not_tuned_doubts(results: Sequence[Result], tried: Sequence[Tried]) -> Iterator[Doubt]:
    """Yields, once for each method, the settings that had one value at every budget."""
    values: dict[tuple[TaskName, str], dict[str, set[Any]]] = {}
    for result, found in zip(results, tried, strict=True):
        if result.arm.recipe == "paper_recipe" or result.arm.mechanism == "label_dp":
            continue
        method = "baseline" if result.epsilon is None else "DP-SGD"
        of_method = values.setdefault((result.task, method), {})
        for name in ("learning_rate", "l2_clip_norm", "epochs", "batch_size"):
            if name not in dict(result.arm.values):
                # A rate means something else with another optimiser.
                alike = [one for one in found if name != "learning_rate" or one.optimizer == result.trial.optimizer]
                of_method.setdefault(name, set()).update(_tried_values(alike, name))
    for serious in (True, False):
        names: dict[tuple[str, ...], list[tuple[TaskName, str]]] = {}
        for key, of_method in values.items():
            single = [name for name, found in of_method.items() if len(found) == 1]
            if fitting := tuple(name for name in single if (name in _ESSENTIAL) == serious):
                names.setdefault(fitting, []).append(key)
        for settings, keys in names.items():
            methods = " and ".join(dict.fromkeys(method for _, method in keys))
            listed = " and ".join(setting_title(name) for name in settings)
            what = f"not tuned: one value of {listed} was tried ({methods})"
            tasks: list[TaskName] = list(dict.fromkeys(task for task, _ in keys))
            everywhere = len(tasks) == len({task for task, _ in values})
            for task in [None] if everywhere else tasks:
                yield Doubt("not_tuned", task, None, (), what, serious)


def _tried_values(trials: Iterable[Trial], name: str) -> set[Any]:
    """Returns the values of a setting that were tried; of relative rates, those with the same unit if they are several.

    A rate that is relative to the clip norm or to the noise differs between clip norms and budgets, though the grid
    gives one number.
    """
    trials = list(trials)
    if name != "learning_rate" or all(trial.learning_rate_per == "one" for trial in trials):
        return {getattr(trial, name) for trial in trials} - {None}
    by_unit: dict[Any, set[Any]] = {}
    for trial in trials:
        unit = tuple(getattr(trial, one) for one in (*_UNIT_OF_RATE, "noise_multiplier", "model", "optimizer"))
        by_unit.setdefault(unit, set()).add(trial.learning_rate)
    several = [rates for rates in by_unit.values() if len(rates) > 1]
    return set.union(*several) if several else {1.0}


def diverged_doubts(result: Result, tried: Tried) -> Iterator[Doubt]:
    """Yields the settings next to the chosen one, along one setting, whose training diverged."""
    chosen = result.trial.model_copy(update={"seed": 0})
    for name in ("learning_rate", "l2_clip_norm"):
        value = getattr(chosen, name)
        along = {getattr(trial, name): trial for trial in tried if _same_but(trial, chosen, name)}
        above = sorted(other for other in along if other is not None and value is not None and other > value)
        if above and any(one.test_loss is None for one in tried[along[above[0]]]):
            title = setting_title(name)
            what = f"the next larger {title} ({value_text(name, above[0])}) diverged; chosen: {value_text(name, value)}"
            yield _doubt("diverged_neighbour", result, what, serious=False)


def disagreement_doubts(result: Result, tried: Tried) -> Iterator[Doubt]:
    """Yields that the test split prefers another setting, by more than two standard errors and four times ``FLAT``.

    The test split does not choose: this says only how uncertain the choice is.
    """
    chosen = result.trial.model_copy(update={"seed": 0})
    losses = {}
    for trial, found in tried.items():
        tested = [one.test_loss for one in _whole(trial, found)]
        if tested and None not in tested:
            losses[trial] = [loss for loss in tested if loss is not None]
    if result.diverged or chosen not in losses or len(losses) < 2:
        return
    best = min(losses, key=lambda trial: fmean(losses[trial]))
    gain = fmean(losses[chosen]) - fmean(losses[best])
    seeds = min(len(losses[chosen]), len(losses[best]))
    if seeds < 2 or gain < 4 * FLAT * abs(fmean(losses[chosen])):
        return
    error = math.sqrt((stdev(losses[chosen]) ** 2 + stdev(losses[best]) ** 2) / seeds)
    if gain > 2 * error:
        what = f"on the test split another setting has a loss lower by {gain:.4f} ({best.label().rsplit(' · ', 1)[0]})"
        yield _doubt("splits_disagree", result, what, serious=False)


def longer_was_tried(result: Result, tried: Tried) -> bool:
    """Returns whether a training of more epochs, and of more steps, than the chosen one was tried."""
    return any(_is_longer(trial, result.trial) for trial in tried)


def shorter_was_tried(result: Result, tried: Tried) -> bool:
    """Returns whether a training of fewer epochs, and of fewer steps, than the chosen one was tried."""
    return any(_is_longer(result.trial, trial) for trial in tried)


def _is_longer(one: Trial, other: Trial) -> bool:
    # More epochs of larger batches may be no more steps.
    return one.epochs > other.epochs and one.epochs / one.batch_size > other.epochs / other.batch_size


def _steps_in_a_factor(name: str, value: float, inner: float) -> float:
    """Returns how many steps like that from ``inner`` to ``value`` make a factor of ``_STEP``; 1 for longer ones.

    >>> _steps_in_a_factor("learning_rate", 0.3, 0.1), round(_steps_in_a_factor("l2_clip_norm", 1.0, 2**0.25), 9)
    (1.0, 4.0)
    """
    if name not in _BY_FACTORS:
        return 1.0
    return max(1.0, math.log(_STEP) / abs(math.log(value / inner)))


def _gain(tried: Tried, chosen: Trial, name: str, inner: float, compared: Sequence[Trial]) -> float:
    """Returns how much validation loss fell on the last step to the edge, from the best setting with ``inner``.

    Over common seeds and the largest common share of the epochs: a search may train what it does not choose with the
    first seed alone, or for a part of the epochs.
    """
    gains = []
    for trial in compared:
        if getattr(trial, name) == inner:
            found = [{_share(each, one): one for one in tried[each]} for each in (trial, chosen)]
            common = found[0].keys() & found[1].keys()
            longest = max((share for share, _ in common), default=None)
            losses = [_mean([one for at, one in each.items() if at in common and at[0] == longest]) for each in found]
            gains.append(losses[0] - losses[1] if common else math.inf)
    return min(gains, default=math.inf)


def _share(setting: Trial, outcome: Outcome) -> tuple[float, int]:
    """Returns the share of a setting's epochs that a training had, and its seed."""
    return round(outcome.trial.epochs / setting.epochs, 9), outcome.trial.seed


def _mean(outcomes: Sequence[Outcome]) -> float:
    losses = [one.validation_loss for one in outcomes if one.validation_loss is not None and one.test_loss is not None]
    return fmean(losses) if losses and len(losses) == len(outcomes) else math.inf


def _words(trial: Trial) -> dict[str, Any]:
    """Returns the settings that have no order. A learning rate means something else with another optimiser."""
    return {name: value for name, value in trial if name not in ORDERED and name not in _NOT_SETTINGS}


def _same_but(trial: Trial, other: Trial, name: str) -> bool:
    ignored = {*_NOT_SETTINGS, name}
    return all(getattr(trial, field) == value for field, value in other if field not in ignored)


def _doubt(kind: Kind, result: Result, what: str, *, serious: bool = True) -> Doubt:
    epsilons = () if result.epsilon is None else (result.epsilon,)
    return Doubt(kind, result.task, result.arm, epsilons, what, serious)
