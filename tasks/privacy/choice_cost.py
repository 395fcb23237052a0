"""What choosing a model among several trainings on the same examples costs in ε."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dp_core.accounting.mechanism import MechanismRecord
from dp_core.labels.record import LabelRecord, composed_epsilon
from tasks.config.dataset import TASK_TITLES
from tasks.config.pipeline import SearchName
from tasks.privacy.cached_accounting import epsilon_of, same_mechanism, selected_epsilon_of
from tasks.privacy.guarantees import Kind, no_guarantee
from tasks.reporting.document import Cell, Table
from tasks.reporting.results import Result
from tasks.runtime.errors import UserError
from tasks.training.finished import FinishedTrial
from tasks.training.trial import Trial


class InRounds(NamedTuple):
    """A search whose later trainings depend on the outcomes of earlier ones.

    Attributes:
        search: Its name in ``pipelines.yaml``.
        begun: The trials of the first round.
        most: The largest number of trainings that the cell might have had, whatever the outcomes.
    """

    search: SearchName
    begun: frozenset[Trial]
    most: int


class ChoiceCost(NamedTuple):
    """ε of a model that was chosen among ``trials`` trainings.

    ``composed`` is ε of all trainings together. ``repeat_and_select`` is the ε by Papernot and Steinke (2022), which
    holds only if the number of trainings was drawn at random (``random``) and nobody can know it; None if there is no
    such bound. ``without`` has the reasons why trainings have no guarantee (``tasks.privacy.guarantees``), and
    ``adaptive`` if outcomes decided how private the later trainings were. ``counted`` is the number of trainings that
    are composed, if that is more than there were.
    """

    trials: int
    composed: float
    repeat_and_select: float | None
    random: bool
    without: frozenset[Kind] = frozenset()
    search: SearchName = "all"
    counted: int | None = None

    @property
    def only_seeded(self) -> bool:
        """Whether all that is missing is that the trainings were secret."""
        return self.without == {"seeded"}

    @property
    def priced(self) -> float:
        """ε of the chosen model, including the choice, if every training has a guarantee."""
        # With seeds, the number of trainings is a public hash: repeat-and-select does not apply.
        drawn = self.random and "seeded" not in self.without
        return self.repeat_and_select if drawn and self.repeat_and_select is not None else self.composed

    @property
    def holds(self) -> float | None:
        """The valid ε of the chosen model, including the choice; None if there is no guarantee."""
        return None if self.without else self.priced


def choice_cost(result: Result, mean_trials: float | None = None, in_rounds: InRounds | None = None) -> ChoiceCost:
    """Returns what choosing a cell's settings among all its trainings costs, partial ones included.

    ``mean_trials`` is the mean number of trainings, if the number was drawn at random. Raises ``UserError`` if it was
    and the trainings were not equally private, so that repeat-and-select has no answer.
    """
    opened = [FinishedTrial.open(trial) for trial in result.tried]
    without = frozenset(reason.kind for one in opened if (reason := no_guarantee(one)) is not None)
    records = [one.mechanism for one in opened]
    labels = [record for record in records if isinstance(record, LabelRecord)]
    if labels:
        return ChoiceCost(len(opened), composed_epsilon(labels), None, random=False, without=without)
    delta = result.trial.target_delta
    private = [record for record in records if isinstance(record, MechanismRecord)]
    composed = epsilon_of(private, delta).epsilon
    if in_rounds is not None:
        return _cost_in_rounds(result, private, in_rounds, without)
    mean = mean_trials or len(opened)
    if mean == 1:
        return ChoiceCost(1, composed, None, random=False, without=without)
    selected = _selected(private, delta, mean, must=mean_trials is not None)
    return ChoiceCost(len(opened), composed, selected, random=mean_trials is not None, without=without)


def _cost_in_rounds(
    result: Result, records: Sequence[MechanismRecord], search: InRounds, without: frozenset[Kind]
) -> ChoiceCost:
    """Returns the cost of a search in rounds.

    Composition takes the sequence of mechanisms as given before the first outcome. With ``halving`` it is, if all
    settings of the first round have the same mechanism: each rung has a number of trainings, and of steps, that is
    known before. With ``extend`` the number of trainings depends on outcomes. If all have the same mechanism, stopping
    early tells no more than the largest number would, so that number is composed. Otherwise outcomes decided which
    mechanisms ran, and the composition of those that ran is not a bound: ``adaptive``.
    """
    begun = [record for trial, record in zip(result.tried, records, strict=True) if trial in search.begun]
    known_before = same_mechanism(begun if search.search == "halving" else records)
    counted = len(records)
    if known_before and search.search == "extend":
        counted = max(counted, search.most)
    composed = epsilon_of([*records, *[records[0]] * (counted - len(records))], result.trial.target_delta).epsilon
    adaptive: frozenset[Kind] = frozenset() if known_before else frozenset({"by outcomes"})
    return ChoiceCost(len(records), composed, None, False, without | adaptive, search.search, counted)


def _selected(records: Sequence[MechanismRecord], delta: float, mean_trials: float, *, must: bool) -> float | None:
    """Returns ε by repeat-and-select; None if there is none.

    Mechanisms that differ have none. If one ``must`` apply, that raises ``UserError``.
    """
    if not same_mechanism(records):
        return selected_epsilon_of(records, delta, mean_trials=mean_trials) if must else None
    try:
        selected = selected_epsilon_of(records, delta, mean_trials=mean_trials)
    except UserError:  # Truncation over so many trials uses up all of δ.
        return None
    return selected if selected < math.inf else None


def choice_table(
    results: Sequence[Result], costs: Mapping[int, ChoiceCost], audited: Mapping[str, float | None]
) -> Table:
    """Returns the table of what each choice costs; ``costs`` is keyed by the index of the result."""
    seeded = any(cost.only_seeded for cost in costs.values())
    rows = []
    for number, cost in costs.items():
        result = results[number]
        last = cost.priced if cost.holds is not None or cost.only_seeded else None
        epsilons = [audited[result.trial.key], cost.composed, cost.repeat_and_select]
        shown = [Cell("–") if epsilon is None else Cell(f"{epsilon:.3f}", epsilon) for epsilon in epsilons]
        rows.append(
            [
                Cell(TASK_TITLES[result.task]),
                Cell(result.arm.label),
                Cell(result.trial.epsilon_label, result.epsilon),
                shown[0],
                Cell(str(cost.trials), cost.trials),
                *shown[1:],
                Cell("none") if last is None else Cell(f"{last:.3f}", last, strong=cost.holds is not None),
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
        "ε with the choice, if secret" if seeded else "ε with the choice",
    ]
    caption = (
        f"{_how(costs.values(), seeded=seeded)} This is for training examples and for the choice within a cell. "
        "Choosing between methods as well costs the composition of all their trainings. Validation examples were used "
        "without noise and have no guarantee."
    )
    return Table("choice", "What choosing the settings costs", columns, rows, caption)


def _how(costs: Iterable[ChoiceCost], *, seeded: bool) -> str:
    """Returns what the numbers mean, and which of them hold."""
    costs = list(costs)
    said = []
    if seeded:
        said.append(
            "The trainings were seeded (`randomness: seeded`): whoever knows the seeds can subtract their noise, so "
            "nothing here is a guarantee, and none of the models may be published. The numbers say what would hold if "
            "the same trainings had been run with `randomness: secret`, each with its own secret draw."
        )
    publish = "" if seeded else ": at that ε, all of them may be published"
    if any(cost.random for cost in costs):
        said.append(f"{_CHOSEN} The number of trainings and the settings of each were drawn at random.")
        if seeded:
            said.append(
                "But with seeds the number of trainings is a hash that anyone can compute. Repeat-and-select needs a "
                "number that nobody knows, so it does not hold here; the last column is the composition."
            )
        else:
            said.append(
                "So the choice costs what repeat-and-select says (`search: random`; Papernot and Steinke, 2022; by "
                "RDP), provided that this was the only such search, that only the best model is published, and that "
                f"the number of trainings is not. Composition is the ε of all trainings together{publish}."
            )
    elif any(cost.search != "all" for cost in costs):
        said += _how_in_rounds(costs, would_hold="would hold" if seeded else "holds", publish=publish)
    elif all(cost.trials == 1 for cost in costs):
        said.append("Each cell has one training, so its settings were not chosen: the choice costs nothing.")
    else:
        said.append(
            f"{_CHOSEN} Every setting was tried (`search: all`). So what {'would hold' if seeded else 'holds'} for the "
            f"chosen model, including the choice, is the composition of all trainings of the cell{publish}. "
            "Repeat-and-select is what the choice would cost if the number of trainings had been drawn at random with "
            "the same mean (`search: random`; Papernot and Steinke, 2022; by RDP). It is not a guarantee of this run."
        )
    others = sorted({kind for cost in costs for kind in cost.without if kind not in ("seeded", "by outcomes")})
    if others:
        said.append(
            f"“none”: a training of the cell has no guarantee ({', '.join(others)}), so its choice has none. "
            "Composition counts a training that diverged as all of its planned steps."
        )
    return " ".join(said)


def _how_in_rounds(costs: Sequence[ChoiceCost], *, would_hold: str, publish: str) -> list[str]:
    """Returns what the numbers of a search in rounds mean."""
    search = next(cost.search for cost in costs if cost.search != "all")
    said = [
        f"{_CHOSEN} Trainings came in rounds (`search: {search}`), and each counts"
        f"{', short ones with the steps that they had' if search == 'halving' else ''}. What {would_hold} for the "
        f"chosen model, including the choice, is the composition of all trainings of the cell{publish}."
    ]
    most = {cost.counted for cost in costs if cost.counted is not None and cost.counted > cost.trials}
    if most:
        said.append(
            "How many trainings there were depends on their outcomes, so the composition counts the largest number "
            f"that there might have been ({', '.join(map(str, sorted(most)))})."
        )
    if any("by outcomes" in cost.without for cost in costs):
        said.append(
            "“none”: the settings of the cell differ in noise, batches or epochs, and outcomes decided which of them "
            "were trained further. Composition is then of the trainings that ran, which is not a bound: theorems of "
            "composition need their order and privacy beforehand. Give one batch size and one number of epochs for one "
            "that holds."
        )
    return said


_CHOSEN = "The settings were chosen by validation loss among several trainings on the same examples."
