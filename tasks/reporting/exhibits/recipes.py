"""Two recipes of DP-SGD side by side: ours and the paper's, on the same data and against the same baseline.

Both are compared seed by seed. With the losses of seed s, let a be our recipe's loss above the baseline's and b the
paper recipe's. The ratio of the relative losses is r = mean(a)/mean(b). Its interval is that of the mean of
(a − r·b)/mean(b) by Student's t, which is the first-order expansion of the ratio; the baseline's own noise is in it,
because a and b have the baseline's loss of the same seed. The interval of the difference is that of the mean of a − b,
in which the baseline cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.reporting.document import Cell, Finding, Verdict
from tasks.reporting.exhibits.common import Sweep
from tasks.reporting.results import CONFIDENCE, Arm, Result

OURS, THEIRS = Arm("dp_sgd", recipe="ours"), Arm("dp_sgd", recipe="paper_recipe")


class Estimate(NamedTuple):
    """A mean over seeds with its confidence interval, which is None if there is only one seed."""

    mean: float
    interval: tuple[float, float] | None

    @property
    def excludes_zero(self) -> bool:
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


class ComparedRecipes(NamedTuple):
    """Both recipes at one budget of one task, over their common seeds.

    Attributes:
        ratio: Of the relative losses, ours over the paper recipe's; None unless the paper's recipe loses anything.
        difference: Of the relative losses in percentage points; negative if ours loses less.
    """

    task: TaskName
    epsilon: float
    ratio: Estimate | None
    difference: Estimate
    seeds: int


def has_recipes(sweep: Sweep) -> bool:
    """Returns whether any task of a sweep has a recipe of the paper beside ours."""
    return any(result.arm.recipe is not None for result in sweep.results)


def compared_recipes(sweep: Sweep) -> list[ComparedRecipes]:
    """Returns the comparison at each task and budget at which both recipes have a common seed with the baseline."""
    found = []
    for task in sweep.tasks:
        for epsilon in sweep.epsilons:
            ours, theirs = sweep.get(task, OURS, epsilon), sweep.get(task, THEIRS, epsilon)
            if ours is not None and theirs is not None:
                compared = _compare(task, epsilon, ours, theirs, sweep.baseline(task))
                found += [compared] if compared is not None else []
    return found


def _compare(task: TaskName, epsilon: float, ours: Result, theirs: Result, baseline: Result) -> ComparedRecipes | None:
    one, other, without = (_by_seed(result) for result in (ours, theirs, baseline))
    seeds = sorted(one.keys() & other.keys() & without.keys())
    if not seeds or baseline.loss == 0:
        return None
    above = [(one[seed] - without[seed], other[seed] - without[seed]) for seed in seeds]
    percent = 100 / abs(baseline.loss)
    difference = estimate([percent * (a - b) for a, b in above])
    mean_of_theirs, ratio = fmean(b for _, b in above), None
    if mean_of_theirs > 0:
        mean = fmean(a for a, _ in above) / mean_of_theirs
        around = estimate([mean + (a - mean * b) / mean_of_theirs for a, b in above])
        ratio = Estimate(mean, around.interval)
    return ComparedRecipes(task, epsilon, ratio, difference, len(seeds))


def estimate(values: Sequence[float]) -> Estimate:
    """Returns the mean of values, one per seed, with the interval of Student's t at the ``CONFIDENCE`` level.

    >>> found = estimate([1.0, 2.0, 3.0])
    >>> found.mean, [round(end, 2) for end in found.interval]
    (2.0, [-0.48, 4.48])
    """
    mean = fmean(values)
    if len(values) == 1:
        return Estimate(mean, None)
    from scipy import stats  # here, because loading the configuration imports this module and SciPy is slow to import

    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, (mean - half, mean + half))


def _by_seed(result: Result) -> dict[int, float]:
    return {one.trial.seed: one.test_loss for one in result.chosen if one.test_loss is not None}


def ratio_cell(compared: ComparedRecipes | None) -> Cell:
    """Returns our recipe's relative loss as a share of the paper recipe's, with its interval."""
    if compared is None or compared.ratio is None:
        return Cell("–")
    mean, interval = compared.ratio
    text = "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"
    difference = f"{compared.difference.mean:+.2f} percentage points{_points(compared.difference)}"
    return Cell(f"{mean:.2f}{text}", mean, f"difference {difference}", strong=_less(compared))


def _points(difference: Estimate) -> str:
    if difference.interval is None:
        return ""
    return f" ({difference.interval[0]:+.2f} to {difference.interval[1]:+.2f})"


def _less(compared: ComparedRecipes) -> bool:
    """Returns whether our recipe loses less, by more than noise."""
    return compared.difference.excludes_zero and compared.difference.mean < 0


def recipe_findings(sweep: Sweep) -> list[Finding]:
    """Returns for each task whether our recipe loses less than the paper's, at every budget."""
    found = []
    compared = compared_recipes(sweep)
    for task in sweep.tasks:
        if at := [one for one in compared if one.task == task]:
            where = "at every ε" if len(at) > 1 else f"at ε = {at[0].epsilon:g}"
            claim = f"{TASK_TITLES[task]}: our recipe loses less than the paper's {where}"
            found.append(Finding(claim, _verdict(at), _evidence(at)))
    return found


def _verdict(compared: Sequence[ComparedRecipes]) -> Verdict:
    # A claim about every ε holds at the level of the single tests: each of them must reject.
    if all(map(_less, compared)):
        return "shown"
    worse = any(one.difference.excludes_zero and one.difference.mean > 0 for one in compared)
    return "not shown" if worse else "within noise"


def _evidence(compared: Sequence[ComparedRecipes]) -> str:
    parts = []
    for one in compared:
        if one.ratio is None:
            parts.append(
                f"at ε = {one.epsilon:g} the paper's recipe loses nothing, ours {one.difference.mean:+.2f} points"
            )
            continue
        half = "" if one.ratio.interval is None else f" ± {one.ratio.interval[1] - one.ratio.mean:.2f}"
        parts.append(f"{one.ratio.mean:.2f}{half} at {'' if parts else 'ε = '}{one.epsilon:g}")
    seeds = min(one.seeds for one in compared)
    level = f"± is the {100 * CONFIDENCE:g} % interval over {seeds} seeds" if seeds > 1 else "one seed shows no noise"
    return f"of what the paper's recipe loses, ours loses {', '.join(parts)} ({level})"
