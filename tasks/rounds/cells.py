"""Cells of a search: the outcomes of one task, method and budget, and which of them is the best so far.

A search judges by the validation loss of the first seed, and never looks at the test split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tasks.data.prepared import Prepared
from tasks.reporting.results import CellKey, Outcome, by_cell
from tasks.rounds.history import History
from tasks.rounds.rates import as_written, with_rate
from tasks.training.enumeration import recalibrated
from tasks.training.trial import Trial

FIRST_SEED = 0


class Asked(NamedTuple):
    """A trial that a planner asks for, and one of the run's trials in whose place in the results it stands."""

    trial: Trial
    like: Trial


def cells_of(outcomes: Iterable[Outcome], columns: Sequence[str]) -> dict[CellKey, list[Outcome]]:
    """Returns the outcomes of the first seed by their cells, in the order of the plan."""
    return by_cell((outcome for outcome in outcomes if outcome.trial.seed == FIRST_SEED), columns)


def searched_cells(outcomes: Iterable[Outcome], columns: Sequence[str]) -> dict[CellKey, list[Outcome]]:
    """Returns the cells that a search adds trainings to: all but those of the paper's recipe."""
    return {key: found for key, found in cells_of(outcomes, columns).items() if key[1].recipe != "paper_recipe"}


def ranked(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Returns the outcomes from the best to the worst. Those that diverged come last, smaller rates before larger."""
    return sorted(outcomes, key=lambda one: (loss_of(one), one.trial.learning_rate if loss_of(one) == math.inf else 0))


def changed(trial: Trial, prepared: Prepared, *, keeps_noise: bool = False, **changes: Any) -> Trial:
    """Returns a trial with other settings: the noise for its budget, and the rate, follow from them as in a plan.

    Args:
        trial: The trial.
        prepared: Its data.
        keeps_noise: Whether the noise multiplier stays as it is, whatever the number of steps.
        changes: Settings by their names, with the values that a grid would give.
    """
    written = {"learning_rate": as_written(trial, "learning_rate", prepared), **changes}
    found = trial.model_copy(update=written)
    if found.mechanism == "dp_sgd" and not keeps_noise:
        found = recalibrated(found, prepared)
    return with_rate(found, prepared)


def data_of(history: History, trial: Trial) -> Prepared:
    return history.prepared[trial.dataset]


def loss_of(outcome: Outcome) -> float:
    """Returns the validation loss; infinity if the run diverged."""
    # Whether a test loss exists says whether the run diverged; its value is not used.
    finite = outcome.validation_loss is not None and outcome.test_loss is not None
    return outcome.validation_loss if finite and outcome.validation_loss is not None else math.inf
