"""A search in rounds as a report sees it: what was tried in which round, what was chosen, and what it may have cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tasks.config.pipeline import IN_ROUNDS, Grids, Pipeline
from tasks.data.prepared import Prepared
from tasks.privacy.choice_cost import InRounds
from tasks.reporting.results import CellKey, Outcome, Result
from tasks.rounds import extending
from tasks.rounds.cells import ranked, searched_cells
from tasks.rounds.finalists import finalists
from tasks.rounds.history import Round
from tasks.rounds.rates import as_written
from tasks.rounds.registry import FIRST
from tasks.rounds.rungs import HALVING_FACTOR, rungs, snapped
from tasks.training.items import Plan, planned_rounds
from tasks.training.trial import Trial


class Tried(NamedTuple):
    """A training of the first seed in a search: the number of its round, its outcome, and whether it was chosen."""

    round: int
    outcome: Outcome
    chosen: bool


class SearchedRounds(NamedTuple):
    """The search of a run; without ``cells`` if its search has no rounds.

    Attributes:
        finalists: The trial of the first seed that was chosen in each cell.
        begun: The trials of the first round.
        cells: What was tried in each cell, in the order of the plan.
    """

    pipeline: Pipeline
    grids: Grids
    seeds: int
    prepared: Mapping[str, Prepared]
    finalists: frozenset[Trial]
    begun: frozenset[Trial]
    cells: Mapping[CellKey, Sequence[Tried]]

    @classmethod
    def of(
        cls,
        plan: Plan,
        pipeline: Pipeline,
        grids: Grids,
        prepared: Mapping[str, Prepared],
        outcomes: Sequence[Outcome],
    ) -> SearchedRounds:
        """Returns the search of a plan; ``outcomes`` are those of its items, in their order."""
        seeds, planners = plan["selection"]["seeds"], planned_rounds(plan)
        if grids.search not in IN_ROUNDS:
            return cls(pipeline, grids, seeds, prepared, frozenset(), frozenset(), {})
        numbers = [item.get("round", 1) for item in plan["items"]]
        rounds = [
            Round(planner, [one for one, at in zip(outcomes, numbers, strict=True) if at == number])
            for number, planner in enumerate(planners, 1)
        ]
        chosen = frozenset(finalists(rounds, pipeline.columns, grids.search))
        cells: dict[CellKey, list[Tried]] = {}
        for number, one in enumerate(rounds, 1):
            if one.planner in (FIRST, grids.search):
                for key, found in searched_cells(one.outcomes, pipeline.columns).items():
                    cells.setdefault(key, []).extend(Tried(number, each, each.trial in chosen) for each in found)
        begun = frozenset(outcome.trial for outcome in rounds[0].outcomes)
        return cls(pipeline, grids, seeds, prepared, chosen, begun, cells)

    def cost_of(self, result: Result) -> InRounds | None:
        """Returns what the cost of choosing a cell's settings depends on; None if the search has no rounds."""
        if not self.cells:
            return None
        tried = [trial for trial in result.tried if trial in self.begun]
        added = 0 if result.arm.recipe == "paper_recipe" else extending.most_trainings(self.grids)
        most = len(tried) + added + self.seeds - 1
        return InRounds(self.grids.search, self.begun, max(most, len(result.tried)))

    def shortened(self) -> dict[Trial, Trial]:
        """Returns the trials that ``search: halving`` trained for a part of their epochs, each with the whole one."""
        if self.grids.search != "halving":
            return {}
        found = {}
        for tried in self.cells.values():
            # A cell of one setting trains it for all of its epochs at once.
            if len(tried) > 1:
                for one in tried:
                    epochs = one.outcome.trial.epochs
                    for _ in range(one.round, rungs(self.grids)):
                        epochs = snapped(epochs * HALVING_FACTOR)
                    if one.round < rungs(self.grids):
                        found[one.outcome.trial] = one.outcome.trial.model_copy(update={"epochs": epochs})
        return found

    def written(self, trial: Trial, name: str) -> float:
        """Returns a setting of a trial as the grid gives it."""
        return float(as_written(trial, name, self.prepared[trial.dataset]))

    def settings(self, key: CellKey) -> list[str]:
        """Returns the ordered settings of which a cell has tried several values."""
        trials = [one.outcome.trial for one in self.cells[key]]
        given = [name for name in extending.ORDERED if getattr(trials[0], name) is not None]
        return [name for name in given if len({self.written(trial, name) for trial in trials}) > 1]

    def at_edge(self, key: CellKey) -> list[str]:
        """Returns the ordered settings whose chosen value is the smallest or the largest tried in a cell."""
        tried = self.cells[key]
        best = ranked(one.outcome for one in tried if one.chosen)[0].trial
        found = []
        for name in self.settings(key):
            values = {self.written(one.outcome.trial, name) for one in tried}
            if self.written(best, name) in (min(values), max(values)):
                found.append(name)
        return found
