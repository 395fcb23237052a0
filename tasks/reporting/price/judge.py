"""Collects the doubts about a run's numbers and gives the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tasks.config.dataset import TaskName
from tasks.reporting.price.budgets import budget_doubts, cell_doubts
from tasks.reporting.price.doubts import Doubt, Judgement, merged
from tasks.reporting.price.learning import Curves, learning_doubts
from tasks.reporting.price.sampling import Labels, sampling_doubts
from tasks.reporting.price.tuning import (
    disagreement_doubts,
    diverged_doubts,
    edge_doubts,
    not_tuned_doubts,
    tried_settings,
)
from tasks.reporting.results import Outcome, Result
from tasks.training.trial import Trial


class Evidence(NamedTuple):
    """What a judgement rests on, besides the results.

    Attributes:
        outcomes: Every finished trial of the run.
        curves: The validation losses of the trials at their evaluations, by key.
        audited: The audited ε by the trial's key.
        labels: The labels of the test split, by task.
        shortened: Trials that a search trained for a part of their epochs, each with the trial of all epochs that it
            stands for.
    """

    outcomes: Sequence[Outcome]
    curves: Curves
    audited: Mapping[str, float | None]
    labels: Mapping[TaskName, Labels]
    shortened: Mapping[Trial, Trial] = MappingProxyType({})


def judge(results: Sequence[Result], evidence: Evidence, *, claims_price: bool) -> Judgement:
    """Returns the doubts about a run's results.

    Args:
        results: The cells, by increasing ε within each method.
        evidence: What the cells were chosen from.
        claims_price: Whether the page claims to show the price of privacy. A page that compares given settings does
            not, and has only those doubts that its comparison depends on.
    """
    doubts = list(_doubts(results, evidence))
    if not claims_price:
        doubts = [doubt for doubt in doubts if doubt.kind in ("edge", "beats_baseline", "one_seed")]
    return Judgement(merged(doubts), claims_price)


def _doubts(results: Sequence[Result], evidence: Evidence) -> Iterator[Doubt]:
    outcomes = {one.trial: one for one in evidence.outcomes}
    tried = [tried_settings(result, outcomes, evidence.shortened) for result in results]
    yield from not_tuned_doubts(results, tried)
    for result, found in zip(results, tried, strict=True):
        if not result.diverged:
            yield from edge_doubts(result, found)
            yield from learning_doubts(result, found, evidence.curves)
            yield from disagreement_doubts(result, found)
        if result.arm.recipe != "paper_recipe":
            yield from diverged_doubts(result, found)
        yield from cell_doubts(result, evidence.audited)
    baselines = {result.task: result for result in results if result.epsilon is None}
    for task, baseline in baselines.items():
        of_task = [result for result in results if result.task == task and result.epsilon is not None]
        for arm in dict.fromkeys(result.arm for result in of_task):
            of_arm = [result for result in of_task if result.arm == arm and not result.diverged]
            # Budgets are compared over their common seeds, so one that has fewer would take them from all others.
            most = max((len(result.chosen) for result in of_arm), default=0)
            of_arm = [result for result in of_arm if len(result.chosen) == most]
            if of_arm and not baseline.diverged:
                yield from budget_doubts(of_arm, baseline)
        if task in evidence.labels:
            yield from sampling_doubts(baseline, evidence.labels[task])
    yield from _one_seed(results)


def _one_seed(results: Sequence[Result]) -> Iterator[Doubt]:
    """Yields the cells with one training: all of them, or those of a random search or beside a seed that diverged."""
    alone = [result for result in results if len(result.chosen) == 1]
    if len(alone) == len(results):
        yield Doubt("one_seed", None, None, (), "there is one seed")
        return
    for result in alone:
        epsilons = () if result.epsilon is None else (result.epsilon,)
        serious = result.arm.recipe != "paper_recipe"
        yield Doubt("one_seed", result.task, result.arm, epsilons, "one seed was trained", serious)
