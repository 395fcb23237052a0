"""What choosing a model among several trainings on the same examples costs in ε."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dp_core.accounting.mechanism import MechanismRecord
from dp_core.labels.record import LabelRecord, composed_epsilon
from tasks.privacy.cached_accounting import epsilon_of, selected_epsilon_of
from tasks.reporting.document import Cell, Table
from tasks.reporting.results import Result
from tasks.runtime.errors import UserError
from tasks.training.finished import FinishedTrial


class ChoiceCost(NamedTuple):
    """ε of a model that was chosen among ``trials`` trainings.

    ``composed`` is ε of all trainings together. ``repeat_and_select`` is the ε by Papernot and Steinke (2022), which
    holds only if the number of trainings was drawn at random (``random``); None if there is no such bound.
    """

    trials: int
    composed: float
    repeat_and_select: float | None
    random: bool

    @property
    def holds(self) -> float:
        """The valid ε of the chosen model, including the choice."""
        return self.repeat_and_select if self.random and self.repeat_and_select is not None else self.composed


def choice_cost(result: Result, mean_trials: float | None = None) -> ChoiceCost:
    """Returns what choosing a cell's settings among all its trainings costs.

    ``mean_trials`` is the mean number of trainings, if the number was drawn at random.
    """
    records = [FinishedTrial.open(trial).mechanism for trial in result.tried]
    labels = [record for record in records if isinstance(record, LabelRecord)]
    if labels:
        return ChoiceCost(len(result.tried), composed_epsilon(labels), None, random=False)
    delta = result.trial.target_delta
    composed = epsilon_of([record for record in records if isinstance(record, MechanismRecord)], delta).epsilon
    mean = mean_trials or len(result.tried)
    if mean == 1:
        return ChoiceCost(1, composed, None, random=False)
    record = FinishedTrial.open(result.trial).mechanism
    assert isinstance(record, MechanismRecord)
    try:
        selected = selected_epsilon_of(record, delta, mean_trials=mean)
    except UserError:  # Truncation over so many trials uses up all of δ.
        selected = math.inf
    selected_or_none = selected if selected < math.inf else None
    return ChoiceCost(len(result.tried), composed, selected_or_none, random=mean_trials is not None)


def choice_table(
    results: Sequence[Result], costs: Mapping[int, ChoiceCost], audited: Mapping[str, float | None]
) -> Table:
    """Returns the table of what each choice costs; ``costs`` is keyed by the index of the result."""
    chosen = "The settings were chosen by validation loss among several trainings on the same examples. "
    if any(cost.random for cost in costs.values()):
        how = chosen + (
            "The number of trainings and the settings of each were drawn at random (`search: random`). So the choice "
            "costs what repeat-and-select says (Papernot and Steinke, 2022; by RDP), provided that this was the only "
            "such search, that only the best model is published, and that the number of trainings is not. Composition "
            "is the ε of all trainings together: at that ε, all of them may be published."
        )
    elif all(cost.trials == 1 for cost in costs.values()):
        how = "Each cell has one training, so its settings were not chosen: the choice costs nothing."
    else:
        how = chosen + (
            "Every setting was tried (`search: all`). So what holds for the chosen model, including the choice, is the "
            "composition of all trainings of the cell: at that ε, all of them may be published. Repeat-and-select is "
            "what the choice would cost if the number of trainings had been drawn at random with the same mean "
            "(`search: random`; Papernot and Steinke, 2022; by RDP). It is not a guarantee of this run."
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
        how + " This is for training examples and for the choice within a cell. Choosing between methods as well costs "
        "the composition of all their trainings. Validation examples were used without noise and have no guarantee."
    )
    return Table("choice", "What choosing the settings costs", columns, rows, caption)
