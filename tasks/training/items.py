"""The items that the steps of a pipeline hand on: prepare → plan → train → audit → report.

Items are plain dicts of JSON values, because Airflow passes them between tasks as XComs. This module imports
nothing heavy, so a DAG file may import it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from tasks.config.dataset import TaskName
from tasks.config.selection import Selection
from tasks.rounds.registry import FIRST
from tasks.runtime.errors import UserError
from tasks.runtime.home import as_fields, read_json

if TYPE_CHECKING:
    from tasks.config.pipeline import RecipeName


class PreparedDataset(TypedDict):
    """A prepared dataset: its name, the folder and fingerprint of its arrays, and its data card."""

    dataset: str
    path: str
    fingerprint: str
    data_card: str


class ParentRun(TypedDict):
    """The MLflow run of a pipeline run, which the runs of its trials are nested in.

    ``varies`` has the settings that tell its trials apart. The ids are empty while MLflow has not got the run.
    """

    mlflow_run: str
    experiment: str
    pipeline: str
    varies: list[str]


def nowhere(pipeline: str, varies: list[str]) -> ParentRun:
    """Returns the parent run of a pipeline run that MLflow has not got."""
    return {"mlflow_run": "", "experiment": "", "pipeline": pipeline, "varies": varies}


class PlannedTrial(TypedDict):
    """A trial of a plan.

    Attributes:
      run: The planned run's folder.
      parent: The planned run in MLflow.
      number: The trial's number in the plan, from 1.
      of: The number of trials in the plan.
      name: The trial's label, for people.
      trial: ``Trial.model_dump(mode="json")``.
      prepared: The folder of the prepared data.
      recipes: The recipes of DP-SGD that the trial belongs to, if the grid compares two.
      round: The round that trains it, from 1. Plans of earlier versions have one round.
    """

    run: str
    parent: ParentRun
    number: int
    of: int
    name: str
    trial: dict[str, Any]
    prepared: str
    recipes: NotRequired[list[RecipeName]]
    round: NotRequired[int]


class TrialGroup(TypedDict):
    """Planned trials that share one compiled program. One task of the DAG trains them."""

    name: str
    items: list[PlannedTrial]


class PlannedRun(TypedDict):
    """What the planning step returns: the run's folder, and the trials that are not trained yet."""

    run: str
    groups: list[TrialGroup]


class PlannedSelection(TypedDict):
    """``tasks.config.selection.Selection`` as JSON."""

    pipeline: str
    profile: str
    tasks: list[TaskName]
    datasets: dict[TaskName, str]
    epsilons: list[float]
    seeds: int
    raw: str | None


class Plan(TypedDict):
    """The contents of a run's ``plan.json``.

    Attributes:
      selection: What the run is about, complete.
      options: What the user asked for.
      parent: The run in MLflow.
      prepared: The folder of the prepared data of each dataset.
      items: All trials, whether trained yet or not.
      mean_trials: For each task the expected number of trainings in a cell, if that number was drawn at random.
      rounds: The planner of each round that is planned (``tasks.rounds``). Plans of earlier versions have none.
    """

    selection: PlannedSelection
    options: dict[str, Any]
    parent: ParentRun
    prepared: dict[str, str]
    items: list[PlannedTrial]
    mean_trials: dict[TaskName, int] | None
    rounds: NotRequired[list[str]]


def read_plan(run: str | Path) -> Plan:
    """Reads the plan in a run's folder. Raises ``UserError`` if there is none, or if it is damaged."""
    path = Path(run) / "plan.json"
    if not path.exists():
        # A run's folder is runs/PIPELINE/RUN.
        pipeline = path.parent.parent.name
        raise UserError(f"no plan at {path}: make one with `python -m tasks plan --pipeline {pipeline}`")
    return as_fields(path, read_json(path))


def planned_rounds(plan: Plan) -> list[str]:
    """Returns the planner of each round of a plan; the first one is the grid."""
    return plan.get("rounds", [FIRST])


def planned_selection(plan: Plan) -> Selection:
    """Returns what a plan is about."""
    chosen = plan["selection"]
    return Selection(
        pipeline=chosen["pipeline"],
        profile=chosen["profile"],
        tasks=tuple(chosen["tasks"]),
        datasets=dict(chosen["datasets"]),
        epsilons=tuple(chosen["epsilons"]),
        seeds=chosen["seeds"],
        raw=chosen["raw"],
    )


class TrainedTrial(TypedDict):
    """A finished trial: its key and label, its run in MLflow (empty if that has none), and the planned run's folder."""

    trial: str
    name: str
    mlflow_run: str
    run: str


class AuditedTrial(TrainedTrial):
    """A finished trial that did not fail its audit, with the audited ε (None without privacy, or if it diverged)."""

    epsilon: float | None
