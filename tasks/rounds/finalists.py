"""What a search in rounds has chosen, and the round that trains it with the other seeds.

The search judges by the first seed alone. The other seeds then train the chosen settings only, so a report's means and
deviations over seeds are of settings that were chosen on one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.rounds.registry import FIRST, RoundPlanner, register_planner

if TYPE_CHECKING:
    from tasks.config.pipeline import Grids, Pipeline
    from tasks.rounds.cells import Asked
    from tasks.rounds.history import History, Round
    from tasks.training.trial import Trial

NAME = "seeds"


def most_rounds(pipeline: Pipeline, grids: Grids) -> int:
    from tasks.config.pipeline import IN_ROUNDS

    return 1 if grids.search in IN_ROUNDS else 0


def finalists(rounds: Sequence[Round], columns: Sequence[str], search: str) -> list[Trial]:
    """Returns the trial of the first seed that a search has chosen in each cell; none unless the search has rounds.

    With ``halving``, it is the best of the last rung that the cell has; otherwise the best of all. Settings that
    diverged with another seed are passed over, if the cell has any other: they have no mean over the seeds.
    """
    from tasks.config.pipeline import IN_ROUNDS
    from tasks.rounds.cells import FIRST_SEED, cells_of, loss_of, ranked

    if search not in IN_ROUNDS:
        return []
    outcomes = [outcome for one in rounds for outcome in one.outcomes]
    diverged = {one.trial.model_copy(update={"seed": FIRST_SEED}) for one in outcomes if loss_of(one) == math.inf}
    searched = [one for one in rounds if one.planner in (FIRST, search)]
    if search == "halving":
        found = {key: cell for one in searched for key, cell in cells_of(one.outcomes, columns).items()}
    else:
        found = cells_of([outcome for one in searched for outcome in one.outcomes], columns)
    orders = [[outcome.trial for outcome in ranked(cell)] for cell in found.values()]
    return list(dict.fromkeys(next((one for one in order if one not in diverged), order[0]) for order in orders))


def plan(history: History) -> list[Asked]:
    """Returns the chosen trials with the other seeds."""
    from tasks.rounds.cells import FIRST_SEED, Asked

    chosen = finalists(history.rounds, history.pipeline.columns, history.grids.search)
    return [
        Asked(trial.model_copy(update={"seed": seed}), like=trial)
        for trial in chosen
        for seed in range(history.selection.seeds)
        if seed != FIRST_SEED
    ]


register_planner(RoundPlanner(NAME, most_rounds, plan))
