"""What a planner of rounds is given: the run, its data, and the outcomes of its earlier rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tasks.config.loading import Config
from tasks.config.pipeline import Grids, Pipeline
from tasks.config.selection import Selection
from tasks.data.prepared import Prepared
from tasks.reporting.results import Outcome


class Round(NamedTuple):
    """A round that was trained: the name of its planner, and the outcomes of its trials in the order of the plan."""

    planner: str
    outcomes: Sequence[Outcome]


class History(NamedTuple):
    """A run before its next round.

    Attributes:
        prepared: The prepared data by dataset.
        rounds: The earlier rounds, of which the first is the grid's.
    """

    config: Config
    selection: Selection
    prepared: Mapping[str, Prepared]
    rounds: Sequence[Round]

    @property
    def pipeline(self) -> Pipeline:
        return self.config.pipeline(self.selection.pipeline)

    @property
    def grids(self) -> Grids:
        return self.config.grids(self.selection.pipeline, self.selection.profile)

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all rounds."""
        return [outcome for one in self.rounds for outcome in one.outcomes]

    def planned_by(self, name: str) -> list[Round]:
        """Returns the rounds that a planner has planned."""
        return [one for one in self.rounds if one.planner == name]
