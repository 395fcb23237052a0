"""Notes that stand below the results of every sweep: what its ε and its spread cover, and what is unequal."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.reporting.results import Result


def fairness_notes(results: Sequence[Result]) -> list[str]:
    """Returns what a reader must know to compare the results fairly."""
    notes = [
        "The ε of a cell is that of the one training whose model is kept, as in the paper. The audit computes it from "
        f"the record of what ran. {_choice(results)}Each trial's privacy statement, which the table of all "
        "trials links, says what its ε covers and what it does not.",
        _noise(results),
        *_unlike_guarantees(results),
    ]
    trainings = {len(result.tried) for result in results if result.epsilon is not None}
    if len(trainings) > 1:
        notes.append(
            f"The methods had different numbers of trainings to choose from ({', '.join(map(str, sorted(trainings)))} "
            "per cell): those with more have an advantage."
        )
    if any(result.trial.sensitivity == "paper" for result in results):
        notes.append(
            "Some noise was scaled as in the paper (`sensitivity: paper`), which is less than what one example in a "
            "microbatch can change. There the budget is the paper's claim, and the audited ε is what holds."
        )
    if any(result.trial.randomness == "seeded" for result in results):
        notes.append("The noise came from fixed seeds: these models are reproductions and must not be released.")
    return notes


def _choice(results: Sequence[Result]) -> str:
    several = any(len(result.tried) > 1 for result in results if result.epsilon is not None)
    return "What choosing among several trainings costs is in a table below. " if several else ""


def _noise(results: Sequence[Result]) -> str:
    if max(len(result.chosen) for result in results) == 1:
        return (
            "There is one seed (initial parameters, batches, noise) and one test split, so nothing here shows how much "
            "of a difference is noise."
        )
    return (
        "Standard deviations are over seeds (initial parameters, batches, noise) on one test split. They leave out the "
        "sampling error of the test split."
    )


def _unlike_guarantees(results: Sequence[Result]) -> list[str]:
    """Returns what sets guarantees apart that have the same ε: what is protected."""
    trials = [trial for result in results if result.epsilon is not None for trial in result.tried]
    notes = []
    if len({trial.mechanism for trial in trials}) > 1:
        notes.append(
            "The same ε is not the same guarantee for both mechanisms: DP-SGD protects whole examples, with δ = 1/N; "
            "LabelDP protects only the labels, with δ = 0, and treats features as public."
        )
    return notes
