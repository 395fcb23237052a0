"""The planning step: lists the trials of a pipeline run, each with its noise, and opens the run in MLflow.

It plans the first round. If the pipeline has more, ``tasks.next_round`` plans them.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tasks.config.loading import load_config
from tasks.config.pipeline import RecipeName
from tasks.config.selection import select
from tasks.data.prepared import open_prepared
from tasks.outages.unlogged import logged
from tasks.rounds.registry import FIRST
from tasks.runtime.home import home, point_latest_at, write_json
from tasks.runtime.progress import counted, say
from tasks.runtime.tracking import start_pipeline_run
from tasks.training.enumeration import enumerate_trials, expected_trainings, paper_recipe_trials, with_recipes
from tasks.training.finished import is_trained
from tasks.training.groups import in_groups
from tasks.training.items import (
    ParentRun,
    Plan,
    PlannedRun,
    PlannedSelection,
    PlannedTrial,
    PreparedDataset,
    nowhere,
)
from tasks.training.sweep_names import varying_settings
from tasks.training.trial import Trial


def plan(options: Mapping[str, Any], prepared: Sequence[PreparedDataset]) -> PlannedRun:
    """Plans a run: writes ``plan.json`` into a new folder and opens the run in MLflow.

    Args:
      options: The user's choices, as ``tasks.config.selection.select`` takes them.
      prepared: The prepared datasets.

    Returns:
      The run's folder, and the trials that are not trained yet in groups that share a compiled program. The report
      finds the other trials by their keys.
    """
    config = load_config()
    selection = select(config, options)
    paths = {item["dataset"]: item["path"] for item in prepared}
    opened = {name: open_prepared(Path(path)) for name, path in paths.items()}
    grids = config.grids(selection.pipeline, selection.profile)
    planned_tasks = [
        (config, selection, task, opened[selection.datasets[task]])
        for task in (selection.tasks if grids.trains else ())
    ]
    ours = [trial for arguments in planned_tasks for trial in enumerate_trials(*arguments)]
    recipes = with_recipes(ours, [trial for arguments in planned_tasks for trial in paper_recipe_trials(*arguments)])
    trials = list(recipes)
    missing = {trial for trial in trials if not is_trained(trial)}
    if trials:
        say(f"planned {counted(len(trials), 'trial')}, {len(trials) - len(missing)} of them already trained")

    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    folder = home() / "runs" / selection.pipeline / f"{now}-{selection.profile}-{secrets.token_hex(2)}"
    cards = {item["dataset"]: Path(item["data_card"]) for item in prepared}
    parent = logged(
        folder,
        lambda: start_pipeline_run(config, selection, folder.name, opened, cards, trials),
        nowhere(selection.pipeline, varying_settings(trials)),
    )
    items = planned_items(str(folder), parent, paths, recipes, of=len(trials))
    planned: Plan = {
        "selection": cast(PlannedSelection, selection._asdict()),
        "options": dict(options),
        "parent": parent,
        "prepared": paths,
        "items": items,
        "mean_trials": expected_trainings(config, selection) if grids.trains else None,
        "rounds": [FIRST],
    }
    write_json(folder / "plan.json", planned)
    point_latest_at(folder)
    left = [item for item, trial in zip(items, trials, strict=True) if trial in missing]
    return {"run": str(folder), "groups": in_groups(left)}


def planned_items(
    run: str,
    parent: ParentRun,
    prepared: Mapping[str, str],
    trials: Mapping[Trial, Sequence[RecipeName]],
    *,
    of: int,
    first: int = 1,
    round_: int = 1,
) -> list[PlannedTrial]:
    """Returns the trials of a round, each with its recipes, as items of a plan, numbered from ``first`` of ``of``."""
    return [
        {
            "run": run,
            "parent": parent,
            "number": number,
            "of": of,
            "name": trial.label(),
            "trial": trial.model_dump(mode="json"),
            "prepared": prepared[trial.dataset],
            "recipes": list(recipes),
            "round": round_,
        }
        for number, (trial, recipes) in enumerate(trials.items(), first)
    ]
