"""The step between two rounds of a run: plans what the outcomes so far call for, and adds it to the run's plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.config.loading import Config, load_config
from tasks.config.pipeline import RecipeName
from tasks.data.prepared import open_prepared
from tasks.outages.unlogged import logged
from tasks.plan import planned_items
from tasks.reporting.results import Outcome
from tasks.rounds.cells import Asked
from tasks.rounds.finalists import NAME as SEEDS
from tasks.rounds.halving import NAME as HALVING
from tasks.rounds.history import History, Round
from tasks.rounds.registry import planners_of
from tasks.runtime.errors import UserError
from tasks.runtime.home import write_json
from tasks.runtime.progress import counted, say
from tasks.runtime.tracking import add_trials
from tasks.training.finished import FinishedTrial, is_trained
from tasks.training.groups import in_groups
from tasks.training.items import Plan, PlannedTrial, TrialGroup, planned_rounds, planned_selection, read_plan
from tasks.training.trial import Trial


def next_round(run_folder: str, number: int | None = None) -> list[TrialGroup] | None:
    """Plans a round of a run, given that the earlier ones are trained, and adds its trials to ``plan.json``.

    A round that is planned already stays as it is: a retried step returns what the first attempt planned.

    Args:
      run_folder: The planned run.
      number: The round's number; the first one, which ``plan`` plans, is 1. Default: the next one.

    Returns:
      The round's trials that are not trained yet, in groups that share a compiled program. None if no planner has
      anything more to train, so that there is no such round.
    """
    config, plan = load_config(), read_plan(run_folder)
    rounds = planned_rounds(plan)
    number = number or len(rounds) + 1
    if number > len(rounds):
        if number > len(rounds) + 1:
            return None
        planner, asked = _asked_next(config, plan)
        if not asked:
            return None
        plan = _with_round(plan, run_folder, planner, asked)
        write_json(Path(run_folder) / "plan.json", plan)
    items = [item for item in plan["items"] if item.get("round", 1) == number]
    left = [item for item in items if not is_trained(Trial.model_validate(item["trial"]))]
    by = planned_rounds(plan)[number - 1]
    say(
        f"round {number} ({by}): planned {counted(len(items), 'trial')}, "
        f"{len(items) - len(left)} of them already trained"
    )
    return in_groups(left)


def _asked_next(config: Config, plan: Plan) -> tuple[str, list[Asked]]:
    """Returns the trials of the next round and the name of the planner that asks for them; none if all are done."""
    history = history_of(config, plan)
    known = {outcome.trial: outcome for outcome in history.outcomes}
    planners = planners_of(history.pipeline, history.grids)
    names = [planner.name for planner in planners]
    last = history.rounds[-1].planner
    # Earlier planners were done when the last round was planned.
    for planner in planners[names.index(last) if last in names else 0 :]:
        most = planner.most_rounds(history.pipeline, history.grids)
        if len(history.planned_by(planner.name)) >= most:
            continue
        asked = {one.trial: one for one in planner.plan(history) if _is_missing(one, planner.name, known)}
        if asked:
            return planner.name, list(asked.values())
    return "", []


def _is_missing(asked: Asked, planner: str, known: Mapping[Trial, Outcome]) -> bool:
    """Returns whether a round must have a trial that a planner asks for.

    It must if the run has not trained it. It must also if the run has trained it for something else: for the paper's
    recipe, where our search asks for the same setting, or as a part of a longer training, where a rung asks for a
    whole one of as many epochs. Such a trial moves into the new round and is not trained again.
    """
    if asked.trial not in known or planner == HALVING:
        return True
    return not set(_recipes(asked, known[asked.like].recipes, planner)) <= set(known[asked.trial].recipes)


def history_of(config: Config, plan: Plan) -> History:
    """Returns a run's rounds with their outcomes. Raises ``UserError`` if a trial of the plan is not trained yet."""
    return History(
        config=config,
        selection=planned_selection(plan),
        prepared={name: open_prepared(Path(path)) for name, path in plan["prepared"].items()},
        rounds=[
            Round(planner, [_outcome(item) for item in plan["items"] if item.get("round", 1) == number])
            for number, planner in enumerate(planned_rounds(plan), 1)
        ],
    )


def _outcome(item: PlannedTrial) -> Outcome:
    trial = Trial.model_validate(item["trial"])
    if not is_trained(trial):
        raise UserError(
            f"trial {item['number']} ({item['name']}) is not trained yet, and the next round depends on it: "
            f"run `python -m tasks train --pipeline {item['parent']['pipeline']}` first"
        )
    record = FinishedTrial.open(trial).record
    return Outcome(trial, record["validation_loss"], record["test_loss"], tuple(item.get("recipes", ())))


def _recipes(asked: Asked, like: Sequence[RecipeName], planner: str) -> list[RecipeName]:
    """Returns the recipes of DP-SGD that a later trial belongs to: those of the one in whose place it stands.

    A search adds trainings to our recipe only. The other seeds of what was chosen belong to either.
    """
    if asked.trial.mechanism != "dp_sgd":
        return []
    return [recipe for recipe in like if recipe != "paper_recipe" or planner == SEEDS]


def _with_round(plan: Plan, run_folder: str, planner: str, asked: Sequence[Asked]) -> Plan:
    """Returns the plan with another round. Names in MLflow then tell its trials apart too."""
    rounds = [*planned_rounds(plan), planner]
    known = {Trial.model_validate(item["trial"]): item for item in plan["items"]}
    untrained = [one for one in asked if one.trial not in known]
    every = [*known, *(one.trial for one in untrained)]
    parent = logged(run_folder, lambda: add_trials(plan["parent"], every), plan["parent"])
    recipes = {one.trial: _recipes(one, known[one.like].get("recipes", []), planner) for one in asked}
    new = planned_items(
        run_folder,
        parent,
        plan["prepared"],
        {one.trial: recipes[one.trial] for one in untrained},
        first=len(plan["items"]) + 1,
        of=len(every),
        round_=len(rounds),
    )
    # What else the plan says of a trial, such as what it is compared with, holds of one that stands in its place.
    later: list[PlannedTrial] = [{**known[one.like], **item} for one, item in zip(untrained, new, strict=True)]
    earlier: list[PlannedTrial] = []
    for trial, item in known.items():
        moved: PlannedTrial = {**item, "parent": parent, "of": len(every)}
        if trial in recipes:
            moved["round"] = len(rounds)
            moved["recipes"] = list(dict.fromkeys([*recipes[trial], *item.get("recipes", [])]))
        earlier.append(moved)
    return {**plan, "parent": parent, "items": [*earlier, *later], "rounds": rounds}
