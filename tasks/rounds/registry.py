"""The registry of planners of rounds, and the number of rounds that a pipeline's DAG has.

To add a planner, put a module into this package that calls ``register_planner``, and name the module in ``_OURS`` and
the planner in ``_ORDER``. Airflow imports these modules when it parses the DAGs, so they import what is heavy inside
functions.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.config.pipeline import Grids, Pipeline
    from tasks.rounds.cells import Asked
    from tasks.rounds.history import History

# The planner of a run's first round, in plans.
FIRST = "grid"

# The order in which a run asks its planners; those of plug-ins come last.
_ORDER = ("extend", "halving", "seeds", "decomposition")
_OURS = ("tasks.rounds.extending", "tasks.rounds.halving", "tasks.rounds.finalists", "tasks.rounds.decomposition")


@dataclass(frozen=True)
class RoundPlanner:
    """What plans some of the later rounds of a run.

    Attributes:
        name: Its name in plans.
        most_rounds: The largest number of rounds that it may plan for a grid; 0 if it has nothing to do with it. The
            DAG has tasks for so many.
        plan: Returns the trials of the next round, or none if the planner is done. Trials that the run has already are
            left out by the caller.
    """

    name: str
    most_rounds: Callable[[Pipeline, Grids], int]
    plan: Callable[[History], Sequence[Asked]]


PLANNERS: dict[str, RoundPlanner] = {}


def register_planner(planner: RoundPlanner) -> None:
    """Makes a planner available. Raises ``ValueError`` if another one has its name."""
    if PLANNERS.setdefault(planner.name, planner) != planner:
        raise ValueError(f"a planner of rounds named {planner.name!r} is already registered")


def planners_of(pipeline: Pipeline, grids: Grids) -> list[RoundPlanner]:
    """Returns the planners that have something to do with a grid, in the order in which they are asked."""
    _register_ours()
    found = [planner for planner in PLANNERS.values() if planner.most_rounds(pipeline, grids) > 0]
    return sorted(found, key=lambda one: _ORDER.index(one.name) if one.name in _ORDER else len(_ORDER))


def most_rounds(pipeline: Pipeline, grids: Grids) -> int:
    """Returns the largest number of rounds that a run of a grid may have: the first one, and those of the planners."""
    return 1 + sum(planner.most_rounds(pipeline, grids) for planner in planners_of(pipeline, grids))


@functools.cache
def _register_ours() -> None:
    for module in _OURS:
        importlib.import_module(module)
