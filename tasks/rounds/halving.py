"""``search: halving``: many settings for a short time, the better third of them three times as long, up to all epochs.

Successive halving (Jamieson and Talwalkar 2016) with a factor of 3. A partial training is a training of its own, from
the beginning, with a schedule that ends when it ends: a checkpoint of a longer one would be judged in the middle of its
schedule. The settings that survive are those with the lowest validation losses among the partial trainings of their
cell. The chosen one is the best of the last rung, which has the full number of epochs.

Privacy. The noise multiplier of a partial training is that of the whole one. So a partial training of a ninth of the
steps has a ninth of the steps' cost, and a rung costs about as much as one whole training, however many settings it
has; calibrated to the budget by itself, each partial training would cost the whole budget. All are counted
(``tasks.privacy.choice_cost``). Which settings survive depends on outcomes, but where all settings of a cell share
their batches, noise and epochs, the sequence of mechanisms is known before, as composition requires.

Rates. If the best rate of a short training is another than that of a long one, the first rungs drop the wrong
settings. In our measurements it hardly depends on the number of steps (``dp_core.training.rate_guess``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tasks.rounds.registry import RoundPlanner, register_planner
from tasks.rounds.rungs import HALVING_FACTOR, rungs, snapped

if TYPE_CHECKING:
    from tasks.config.pipeline import Grids, Pipeline
    from tasks.rounds.cells import Asked
    from tasks.rounds.history import History

NAME = "halving"


def most_rounds(pipeline: Pipeline, grids: Grids) -> int:
    return rungs(grids) - 1 if grids.search == NAME else 0


def plan(history: History) -> list[Asked]:
    """Returns the survivors of the last rung, to be trained longer. A cell of one setting has one rung."""
    from tasks.rounds.cells import Asked, changed, data_of, ranked, searched_cells

    every = searched_cells(history.outcomes, history.pipeline.columns)
    asked = []
    for key, outcomes in searched_cells(history.rounds[-1].outcomes, history.pipeline.columns).items():
        if len(every[key]) == 1:
            continue
        for one in ranked(outcomes)[: math.ceil(len(outcomes) / HALVING_FACTOR)]:
            trial = one.trial
            epochs = snapped(trial.epochs * HALVING_FACTOR)
            longer = changed(trial, data_of(history, trial), keeps_noise=True, epochs=epochs)
            asked.append(Asked(longer, like=trial))
    return asked


register_planner(RoundPlanner(NAME, most_rounds, plan))
