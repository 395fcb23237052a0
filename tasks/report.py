"""The reporting step: choose by validation loss, report test loss, against the non-private baseline."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from tasks.audit import audit
from tasks.budget import epsilon_of, selected_epsilon_of
from tasks.config import load_config
from tasks.descriptions import TASKS, TaskName
from tasks.errors import UserError
from tasks.home import home, point_latest_at, read_json, whole_directory, write_text
from tasks.plan import read_plan
from tasks.progress import say
from tasks.releases import read_mechanism
from tasks.tables import ChoiceCost, Row, as_csv, as_markdown
from tasks.tracking import log_report
from tasks.trained import find_trained
from tasks.trial import Trial


class Outcome(NamedTuple):
    """A finished trial with its losses; None where it diverged."""

    trial: Trial
    validation_loss: float | None
    test_loss: float | None


def report(run_folder: str, new: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Makes the relative-loss table of a planned run.

    ``new`` are the results of the trials that this run trained and audited. The plan's other trials
    were trained by earlier runs: they are found, logged to this one and audited again.
    """
    run = Path(run_folder)
    planned = read_plan(run)
    known = {item["trial"]: item for item in new}
    keys = [Trial.model_validate(item["trial"]).key for item in planned["items"]]
    audited = [
        known[key] if key in known else audit(find_trained(item))
        for key, item in zip(keys, planned["items"], strict=True)
    ]
    outcomes = [_outcome(item["trial"]) for item in audited]
    drawn = planned["mean_trials"] or {}
    rows = relative_loss_rows(outcomes, each_alone=bool(drawn))
    selection = planned["selection"]
    paper = load_config().pipeline(selection["pipeline"]).paper
    epsilons = {item["trial"]: item["epsilon"] for item in audited}
    costs = {row: choice_cost(row.chosen, outcomes, drawn.get(row.task)) for row in rows if row.epsilon is not None}

    final = home() / "reports" / selection["pipeline"] / run.name
    with whole_directory(final) as folder:
        write_text(folder / "table.csv", as_csv(rows))
        write_text(folder / "table.md", as_markdown(rows, paper, epsilons, costs, planned))
    point_latest_at(final)
    metrics = {f"relative_loss_percent.{row.task}.{row.epsilon_label}": row.relative_percent_mean for row in rows}
    for row, cost in costs.items():
        metrics[f"epsilon_with_choice.{row.task}.{row.epsilon_label}"] = cost.holds
    log_report(planned["parent"]["mlflow_run"], metrics, [final / "table.csv", final / "table.md"])
    say(f"audited {len(audited)} trials: each within its budget")
    say(f"report: {final / 'table.md'}")
    return {"table": str(final / "table.csv"), "markdown": str(final / "table.md")}


def relative_loss_rows(outcomes: Sequence[Outcome], *, each_alone: bool = False) -> list[Row]:
    """The table's rows, by task and then by falling privacy, the baseline first.

    For each task and budget the settings with the lowest validation loss, averaged over seeds,
    are chosen; their test losses are reported. Relative to the mean test loss of the baseline.
    ``each_alone``: among private trainings the best one is chosen, and nothing is averaged.
    """
    cells: dict[tuple[TaskName, float | None], dict[Trial, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        alone = each_alone and outcome.trial.epsilon is not None
        settings = outcome.trial if alone else outcome.trial.model_copy(update={"seed": 0})
        cells[outcome.trial.task, outcome.trial.epsilon][settings].append(outcome)
    rows = []
    for task in [task for task in TASKS if (task, None) in cells]:
        baseline = _best(cells[task, None])
        baseline_loss = fmean(_losses(baseline))
        budgets = sorted(epsilon for other, epsilon in cells if other == task and epsilon is not None)
        for epsilon in [None, *budgets]:
            chosen = _best(cells[task, epsilon])
            losses = _losses(chosen)
            spread = stdev(losses) if len(losses) > 1 else 0.0
            rows.append(
                Row(
                    task=task,
                    epsilon=epsilon,
                    loss_mean=fmean(losses),
                    loss_std=spread,
                    relative_percent_mean=100 * (fmean(losses) - baseline_loss) / baseline_loss,
                    relative_percent_std=100 * spread / baseline_loss,
                    seeds=len(losses),
                    chosen=chosen[0].trial,
                )
            )
    return rows


def choice_cost(chosen: Trial, outcomes: Sequence[Outcome], mean_trials: float | None = None) -> ChoiceCost:
    """What choosing a cell's settings among all its trainings does to ε.

    ``mean_trials`` is the mean of their number where that was drawn at random.
    """
    tried = [o.trial for o in outcomes if (o.trial.task, o.trial.epsilon) == (chosen.task, chosen.epsilon)]
    records = [record for _, record in map(read_mechanism, (trial.key for trial in tried)) if record is not None]
    composed = epsilon_of(records, chosen.target_delta).epsilon
    mean = mean_trials or len(tried)
    if mean == 1:
        return ChoiceCost(1, composed, None, random=False)
    _, record = read_mechanism(chosen.key)
    assert record is not None
    selected = selected_epsilon_of(record, chosen.target_delta, mean_trials=mean)
    selected_or_none = selected if selected < math.inf else None
    return ChoiceCost(len(tried), composed, selected_or_none, random=mean_trials is not None)


def _outcome(key: str) -> Outcome:
    record = read_json(home() / "trials" / key / "record.json")
    return Outcome(Trial.model_validate(record["trial"]), record["validation_loss"], record["test_loss"])


def _best(candidates: Mapping[Trial, Sequence[Outcome]]) -> Sequence[Outcome]:
    """The settings with the lowest mean validation loss; settings with a diverged seed cannot win."""
    finite = {
        settings: fmean(outcome.validation_loss for outcome in outcomes)  # type: ignore[misc]
        for settings, outcomes in candidates.items()
        if all(outcome.validation_loss is not None and outcome.test_loss is not None for outcome in outcomes)
    }
    if not finite:
        label = next(iter(candidates)).label()
        raise UserError(f"every setting diverged for {label}: try a smaller learning rate")
    return candidates[min(finite, key=finite.__getitem__)]


def _losses(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome.test_loss for outcome in outcomes if outcome.test_loss is not None]
