"""``search: extend``: where the best value of a setting is the first or the last of those tried, tries the next one.

A setting is extended if the grid gives it two or more values that the page does not compare. A value is inside if the
values next to it, the next smaller and the next larger one by the factor of the list, were trained with the other
settings of the best and are worse. A comparison at other settings does not count: what is too large a rate for one clip
norm need not be for another. A neighbour that is missing is trained. Each cell, the baseline's as each budget's of the
private methods, gets the same number of further trainings at most.

What it costs: every training counts, and how many there are depends on their outcomes. So the cost of choosing is that
of the largest number that there might have been (``tasks.privacy.choice_cost``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tasks.rounds.registry import RoundPlanner, register_planner

if TYPE_CHECKING:
    from tasks.config.pipeline import Grids, Pipeline
    from tasks.data.prepared import Prepared
    from tasks.reporting.results import Outcome
    from tasks.rounds.cells import Asked
    from tasks.rounds.history import History
    from tasks.training.trial import Trial

NAME = "extend"
# Settings that have an order, and whose next value by a factor makes sense.
ORDERED = ("learning_rate", "l2_clip_norm", "epochs", "batch_size")
# Further trainings of a cell if the grid does not limit them, and rounds of them. A round moves each setting by one
# value, so five rounds by a factor of 3 reach 243 times as far.
TRAININGS, MOST_ROUNDS = 8, 5


def most_trainings(grids: Grids) -> int:
    """Returns the number of trainings that the search may add to a cell."""
    return grids.trainings or TRAININGS


def most_rounds(pipeline: Pipeline, grids: Grids) -> int:
    return min(most_trainings(grids), MOST_ROUNDS) if grids.search == NAME else 0


def plan(history: History) -> list[Asked]:
    """Returns what is missing to know that the best of every cell is inside."""
    from tasks.rounds.cells import searched_cells

    begun = searched_cells(history.rounds[0].outcomes, history.pipeline.columns)
    asked = []
    for key, outcomes in searched_cells(history.outcomes, history.pipeline.columns).items():
        left = most_trainings(history.grids) - (len(outcomes) - len(begun[key]))
        asked += list(_next_values(history, begun[key], outcomes))[: max(left, 0)]
    return asked


def _next_values(history: History, begun: Sequence[Outcome], outcomes: Sequence[Outcome]) -> Iterator[Asked]:
    """Yields the trials of one cell, given the outcomes of the grid's settings and all of its outcomes."""
    from tasks.rounds.cells import Asked, changed, data_of, ranked
    from tasks.rounds.rates import as_written

    best, tried = ranked(outcomes)[0].trial, {one.trial for one in outcomes}
    prepared = data_of(history, best)
    columns = {*history.pipeline.columns, *history.pipeline.together}
    for name in [name for name in ORDERED if name not in columns and getattr(best, name) is not None]:
        values = sorted({as_written(one.trial, name, prepared) for one in outcomes})
        if len({as_written(one.trial, name, prepared) for one in begun}) < 2:
            continue
        for neighbour in _neighbours(values, as_written(best, name, prepared)):
            value = round(neighbour) if name == "batch_size" else neighbour
            if not _is_possible(best.model_copy(update={name: value}), prepared):
                continue
            changes: dict[str, Any] = {name: value}
            asked = Asked(changed(best, prepared, **changes), like=best)
            # One that the cell has tried is worse than the best.
            if asked.trial not in tried:
                yield asked


def _is_possible(trial: Trial, prepared: Prepared) -> bool:
    """Returns whether the data has enough examples for a trial's batches, and for noise correlated over its bands."""
    from dp_core.epochs import steps_for_epochs
    from tasks.config.limits import step_problem

    rows = prepared.splits["train"]["rows"]
    if not 1 <= trial.batch_size <= rows or not trial.epochs > 0:
        return False
    batches = {"batch_size": trial.batch_size, "examples": rows}
    if step_problem(epochs=trial.epochs, **batches) is not None:
        return False
    steps = steps_for_epochs(epochs=trial.epochs, sampler=trial.sampler, **batches)
    return trial.bands <= min(steps, rows // trial.batch_size)


def _neighbours(values: Sequence[float], best: float) -> list[float]:
    """Returns the values next to the best one in a sorted list, beyond its ends by the factor of the last two.

    >>> _neighbours([0.1, 0.3, 1.0], 0.3), _neighbours([4, 8, 16], 16), _neighbours([0.1, 0.2], 0.1)
    ([0.1, 1.0], [8, 32.0], [0.05, 0.2])
    """
    from tasks.rounds.rungs import snapped

    at = values.index(best)
    smaller = values[at - 1] if at else snapped(values[0] * values[0] / values[1])
    larger = values[at + 1] if at + 1 < len(values) else snapped(values[-1] * values[-1] / values[-2])
    return [smaller, larger]


register_planner(RoundPlanner(NAME, most_rounds, plan))
