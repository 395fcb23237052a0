"""Whether the loss behaves over ε as the price of privacy must: above the baseline's, and falling.

The losses of one method at k budgets with n common seeds are taken as a block design: loss = budget + seed + noise. The
residuals estimate the noise with (k − 1)(n − 1) degrees of freedom, so few seeds are enough for a test if there are
several budgets. Differences between budgets are tested with Student's t.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from tasks.reporting.price.doubts import Doubt
from tasks.reporting.price.tuning import FLAT
from tasks.reporting.results import Result

# Chance of a false alarm for one curve that falls, over all its steps.
LEVEL = 0.01
# A curve is flat if the loss falls by less than this share of what is left at the largest budget.
_LEAST_FALL = 0.2
# Budgets that differ by less than this factor are too close to ask for a fall.
_FAR_APART = 5.0
# The relative loss at the largest budget above which a flat curve matters, and by which a private model must be better
# than the baseline where one seed leaves no noise to test with.
_MATTERS = 0.01
# An AUC loss above this is that of chance.
_CHANCE = 0.495
# An audited ε below this share of the budget leaves budget unused.
_USED = 0.9


class Blocks(NamedTuple):
    """Mean losses by budget over the common seeds, with the standard error of a difference of two of them."""

    means: Mapping[float | None, float]
    error: float
    freedom: int


def blocks_of(results: Sequence[Result]) -> Blocks | None:
    """Returns the block design of one method's results, with the baseline as a budget of its own; None if empty.

    Without a common seed, as after a random search, the means are over own seeds, and there is no noise to test with.
    """
    losses = [{one.trial.seed: one.test_loss for one in result.chosen} for result in results]
    seeds = sorted(set.intersection(*map(set, losses))) if losses else []
    if losses and not seeds and not any(result.diverged for result in results):
        return Blocks({result.epsilon: result.loss for result in results}, 0.0, 0)
    rows = [[found[seed] for seed in seeds] for found in losses]
    if not seeds or any(loss is None for row in rows for loss in row):
        return None
    table = [[float(loss) for loss in row if loss is not None] for row in rows]
    means, by_seed = [fmean(row) for row in table], [fmean(column) for column in zip(*table, strict=True)]
    whole, freedom = fmean(means), (len(table) - 1) * (len(seeds) - 1)
    squares = sum(
        (table[i][j] - means[i] - by_seed[j] + whole) ** 2 for i in range(len(table)) for j in range(len(seeds))
    )
    error = math.sqrt(2 * squares / freedom / len(seeds)) if freedom > 0 else 0.0
    return Blocks({result.epsilon: mean for result, mean in zip(results, means, strict=True)}, error, freedom)


def budget_doubts(results: Sequence[Result], baseline: Result) -> Iterator[Doubt]:
    """Yields doubts about one method's results over ε, given in increasing order of ε."""
    blocks = blocks_of([baseline, *results])
    if blocks is None or baseline.loss == 0:
        return
    task, arm, scale = results[0].task, results[0].arm, abs(baseline.loss)
    for result in results:
        below = (blocks.means[None] - blocks.means[result.epsilon]) / scale
        if below > FLAT and _exceeds(below * scale, blocks, 0.05, unless=below > _MATTERS):
            what = f"the private model's loss is below the baseline's by {100 * below:.1f} %"
            yield Doubt("beats_baseline", task, arm, (result.epsilon or 0.0,), what)
    if arm.recipe == "paper_recipe":
        return
    rises = list(itertools.pairwise(result.epsilon for result in results))
    for lower, higher in rises:
        rise = blocks.means[higher] - blocks.means[lower]
        if rise > FLAT * scale and _exceeds(rise, blocks, LEVEL / len(rises)):
            what = f"the loss rises by {100 * rise / scale:.1f} points from ε = {lower:g} to {higher:g}"
            yield Doubt("rising", task, arm, (), what)
    low, high = results[0].epsilon or 0.0, results[-1].epsilon or 0.0
    if len(results) > 1 and high >= _FAR_APART * low:
        left, fall = blocks.means[high] - blocks.means[None], blocks.means[low] - blocks.means[high]
        real = fall > 0 and _exceeds(fall, blocks, 0.05)
        if left > _MATTERS * scale and (not real or fall < _LEAST_FALL * left):
            what = (
                f"from ε = {low:g} to {high:g} the relative loss goes from {100 * (fall + left) / scale:.1f} % to "
                f"{100 * left / scale:.1f} % only"
            )
            yield Doubt("flat", task, arm, (), what)
        elif plateau := _plateau([result.epsilon or 0.0 for result in results], blocks, scale):
            first, last = plateau
            above = [100 * (blocks.means[at] - blocks.means[None]) / scale for at in (first, last, high)]
            what = (
                f"from ε = {first:g} to {last:g} the relative loss goes from {above[0]:.1f} % to {above[1]:.1f} % "
                f"only, though it falls to {above[2]:.1f} % at ε = {high:g}"
            )
            yield Doubt("flat", task, arm, (), what)


def _plateau(epsilons: Sequence[float], blocks: Blocks, scale: float) -> tuple[float, float] | None:
    """Returns the budgets between which a curve is flat that falls beyond them; None if there are none.

    The price of privacy falls most where budgets are smallest. So a loss that is the same at budgets far apart, and
    falls by a lot at larger ones still, was not that of privacy.
    """
    for low, high in itertools.combinations(epsilons, 2):
        later = blocks.means[high] - blocks.means[epsilons[-1]]
        if high >= _FAR_APART * low and later > _MATTERS * scale and _exceeds(later, blocks, 0.05):
            fall = blocks.means[low] - blocks.means[high]
            if fall < _LEAST_FALL * later:
                return low, high
    return None


def cell_doubts(result: Result, audited: Mapping[str, float | None]) -> Iterator[Doubt]:
    """Yields doubts about one private cell: a model of chance, a budget that the noise does not use."""
    if result.epsilon is None or result.arm.recipe == "paper_recipe":
        return
    where = (result.task, result.arm, (result.epsilon,))
    if result.task != "pconvs" and not result.diverged and result.loss > _CHANCE:
        yield Doubt("chance", *where, f"the AUC is {1 - result.loss:.3f}, that of chance")
    epsilon = audited.get(result.trial.key)
    if epsilon is not None and epsilon < _USED * result.epsilon:
        yield Doubt("unused_budget", *where, f"the audited ε is {epsilon:.2f}, far below the budget")


def _exceeds(difference: float, blocks: Blocks, level: float, *, unless: bool = False) -> bool:
    """Returns whether a difference of means is positive by a one-sided t-test.

    Without noise to test with, any positive difference counts; ``unless`` overrules the test.
    """
    if unless or blocks.error == 0:
        return difference > 0
    from scipy import stats  # here, because loading the configuration imports this module and SciPy is slow to import

    return difference / blocks.error > float(stats.t.ppf(1 - level, blocks.freedom))
