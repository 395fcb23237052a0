"""What choosing a model among several trainings on the same examples does to ε."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dp_core.label_record import LabelRecord, composed_epsilon
from dp_core.mechanism import MechanismRecord
from tasks.budget import epsilon_of, selected_epsilon_of
from tasks.document import Cell, Table
from tasks.errors import UserError
from tasks.releases import read_mechanism
from tasks.results import Result


class ChoiceCost(NamedTuple):
    """What choosing among ``trials`` costs: ε of all of them together, and by repeat-and-select, which
    holds only if their number was drawn at random."""

    trials: int
    composed: float
    repeat_and_select: float | None
    random: bool

    @property
    def holds(self) -> float:
        """ε of the kept model and of the fact that it was chosen."""
        return self.repeat_and_select if self.random and self.repeat_and_select is not None else self.composed


def choice_cost(result: Result, mean_trials: float | None = None) -> ChoiceCost:
    """What choosing a cell's settings among all its trainings does to ε.

    ``mean_trials`` is the mean of their number where that was drawn at random.
    """
    records = [record for _, record in (read_mechanism(trial.key) for trial in result.tried) if record is not None]
    labels = [record for record in records if isinstance(record, LabelRecord)]
    if labels:
        return ChoiceCost(len(result.tried), composed_epsilon(labels), None, random=False)
    delta = result.trial.target_delta
    composed = epsilon_of([record for record in records if isinstance(record, MechanismRecord)], delta).epsilon
    mean = mean_trials or len(result.tried)
    if mean == 1:
        return ChoiceCost(1, composed, None, random=False)
    _, record = read_mechanism(result.trial.key)
    assert isinstance(record, MechanismRecord)
    try:
        selected = selected_epsilon_of(record, delta, mean_trials=mean)
    except UserError:  # so many trials that nothing is left of δ
        selected = math.inf
    selected_or_none = selected if selected < math.inf else None
    return ChoiceCost(len(result.tried), composed, selected_or_none, random=mean_trials is not None)


def choice_table(
    results: Sequence[Result], costs: Mapping[int, ChoiceCost], audited: Mapping[str, float | None]
) -> Table:
    """A row for each private result, ``costs`` being by its number."""
    if any(cost.random for cost in costs.values()):
        how = (
            "The number of trainings was drawn at random, and the settings of each (`search: random`), so the choice "
            "costs what repeat-and-select says (Papernot and Steinke, 2022; by RDP), if this was the only such "
            "search, the best model alone is published, and the number of trainings is not. Composition is what "
            "all of them cost together: all may be published for that."
        )
    else:
        how = (
            "Every setting was tried (`search: all`), so what holds for the kept model, and for the fact that it was "
            "chosen, is the composition of all the trainings of the cell: all may be published for that. "
            "Repeat-and-select is what the choice would cost had the number of trainings been drawn at random with the "
            "same mean (`search: random`; Papernot and Steinke, 2022; by RDP). It is no guarantee of this run."
        )
    rows = []
    for number, cost in costs.items():
        result = results[number]
        epsilons = [audited[result.trial.key], cost.composed, cost.repeat_and_select, cost.holds]
        shown = [Cell("–") if epsilon is None else Cell(f"{epsilon:.3f}", epsilon) for epsilon in epsilons]
        rows.append(
            [
                Cell(result.task),
                Cell(result.arm.label),
                Cell(result.trial.epsilon_label, result.epsilon),
                shown[0],
                Cell(str(cost.trials), cost.trials),
                *shown[1:3],
                shown[3]._replace(strong=True),
            ]
        )
    columns = [
        "task",
        "method",
        "ε budget",
        "ε of the run",
        "trainings",
        "composition",
        "repeat-and-select",
        "ε with the choice",
    ]
    caption = (
        "The settings were chosen by validation loss among several trainings on the same examples. " + how + " This is "
        "for training examples, and for the choice within a cell; to choose between methods as well costs the "
        "composition of all of their trainings. Validation examples chose without noise, and have no guarantee."
    )
    return Table("choice", "What choosing the settings costs", columns, rows, caption)
