"""The planning step: from a selection to a list of trials, each with its noise."""

from __future__ import annotations

import datetime
import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dp_core.sampling import steps_for_epochs
from tasks.budget import noise_multiplier_for
from tasks.config import Config, Profile, load_config
from tasks.datasets import write_card
from tasks.descriptions import TaskName
from tasks.encoded import Prepared, open_prepared, vocabulary_release
from tasks.errors import UserError
from tasks.grids import ModelName, TrainingGrid
from tasks.groups import in_groups
from tasks.home import home, point_latest_at, read_json, short_hash, write_json
from tasks.progress import say
from tasks.selection import Selection, select
from tasks.tracking import start_pipeline_run
from tasks.trained import is_trained
from tasks.trial import Trial


def plan(options: Mapping[str, Any], prepared: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Lists the trials of a pipeline run and opens its MLflow run.

    Returns the planned run's folder and the trials that are not trained yet, in groups that share a compiled
    program, each as an item with all that the training step needs to know. The report finds the others by their keys.
    """
    config = load_config()
    selection = select(config, options)
    paths = {item["dataset"]: item["path"] for item in prepared}
    opened = {name: open_prepared(Path(path)) for name, path in paths.items()}
    grids = config.grids(selection.pipeline, selection.profile)
    trials = [
        trial
        for task in (selection.tasks if grids.trains else ())
        for trial in _trials(config, selection, task, opened[selection.datasets[task]])
    ]
    missing = {trial for trial in trials if not is_trained(trial)}
    if trials:
        say(f"planned {len(trials)} trials, {len(trials) - len(missing)} of them already trained")

    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    folder = home() / "runs" / selection.pipeline / f"{now}-{selection.profile}-{secrets.token_hex(2)}"
    cards = {name: write_card(config, data) for name, data in opened.items()}
    parent = start_pipeline_run(config, selection, folder.name, opened, cards)
    items = [
        {
            "run": str(folder),
            "parent": parent,
            "number": number,
            "of": len(trials),
            "name": trial.label(),
            "trial": trial.model_dump(mode="json"),
            "prepared": paths[trial.dataset],
        }
        for number, trial in enumerate(trials, 1)
    ]
    planned = {
        "selection": selection._asdict(),
        "options": dict(options),
        "parent": parent,
        "prepared": paths,
        "items": items,
        "mean_trials": _mean_trials(config, selection) if grids.trains else None,
    }
    write_json(folder / "plan.json", planned)
    point_latest_at(folder)
    left = [item for item, trial in zip(items, trials, strict=True) if trial in missing]
    return {"run": str(folder), "groups": in_groups(left)}


def read_plan(run: str | Path) -> dict[str, Any]:
    path = Path(run) / "plan.json"
    if not path.exists():
        raise UserError(f"no plan at {path}: make one with `python -m tasks plan`")
    return read_json(path)


def _trials(config: Config, selection: Selection, task: TaskName, prepared: Prepared) -> Iterator[Trial]:
    pipeline, profile = config.pipelines[selection.pipeline], config.profiles[selection.profile]
    grid = config.grids(selection.pipeline, selection.profile).tasks[task]
    examples = prepared.splits["train"]["rows"]
    shared: dict[str, Any] = {
        "task": task,
        "dataset": prepared.dataset,
        "data_fingerprint": prepared.fingerprint,
        "hidden_layers": profile.hidden_layers,
        "evaluations": profile.evaluations,
        "randomness": pipeline.randomness,
    }
    together = pipeline.together
    seeds = range(selection.seeds)
    for numbers, seed in itertools.product(_combinations(grid.non_private, together), seeds):
        _check_batch(prepared, selection, task, "non_private", numbers["batch_size"], examples)
        yield Trial(
            **_NOT_DP_SGD,
            **_NOT_LABEL_DP,
            **shared,
            **numbers,
            **_model_numbers(profile, numbers["model"]),
            mechanism="non_private",
            seed=seed,
            epsilon=None,
            target_delta=1 / examples,
        )
    for epsilon in selection.epsilons:
        if grid.dp_sgd is not None:
            yield from _dp_sgd_trials(config, selection, task, prepared, epsilon, shared)
        if grid.label_dp is not None:
            for numbers, seed in itertools.product(_combinations(grid.label_dp, together), seeds):
                _check_batch(prepared, selection, task, "label_dp", numbers["batch_size"], examples)
                if numbers["response"] == "binary":
                    numbers = {**numbers, "largest_count": None}
                yield Trial(
                    **_NOT_DP_SGD,
                    **shared,
                    **numbers,
                    **_model_numbers(profile, numbers["model"]),
                    mechanism="label_dp",
                    seed=seed,
                    epsilon=epsilon,
                    target_delta=0.0,
                )


# What batches are made by where it does not matter to privacy, and what does not apply.
_NOT_DP_SGD: dict[str, Any] = {
    "sampler": "poisson",
    "canaries": 0,
    "accountant": None,
    "noise_multiplier": None,
    "l2_clip_norm": None,
    "clipping": None,
    "clip_quantile": None,
    "microbatch_size": 1,
    "sensitivity": None,
}
_NOT_LABEL_DP: dict[str, Any] = {"response": None, "debias": None, "largest_count": None}


def _dp_sgd_trials(
    config: Config, selection: Selection, task: TaskName, prepared: Prepared, epsilon: float, shared: Mapping[str, Any]
) -> Iterator[Trial]:
    pipeline, profile = config.pipelines[selection.pipeline], config.profiles[selection.profile]
    examples = prepared.splits["train"]["rows"]
    # Each canary has a place in the training data, taken or empty: only whether it is taken is secret.
    places = examples + pipeline.canaries
    vocabulary = vocabulary_release(prepared)
    if vocabulary is not None and prepared.vocabulary["epsilon"] >= epsilon:
        raise UserError(
            f"datasets.{prepared.dataset}.vocabulary_epsilon: the vocabulary's {prepared.vocabulary['epsilon']:g} "
            f"leaves nothing for training of a budget of {epsilon:g}: lower it, or train with larger budgets"
        )
    for numbers, seed in _tried(config, selection, task, epsilon):
        _check_batch(prepared, selection, task, "dp_sgd", numbers["batch_size"], examples)
        length = {"batch_size": numbers["batch_size"], "sampler": numbers["sampler"], "examples": places}
        yield Trial(
            **_NOT_LABEL_DP,
            **shared,
            **numbers,
            **_model_numbers(profile, numbers["model"]),
            mechanism="dp_sgd",
            seed=seed,
            epsilon=epsilon,
            target_delta=1 / places,
            canaries=pipeline.canaries,
            noise_multiplier=noise_multiplier_for(
                epsilon=epsilon,
                delta=1 / places,
                steps=steps_for_epochs(**length, epochs=numbers["epochs"]),
                vocabulary=vocabulary,
                accountant=numbers["accountant"],
                **length,
            ),
        )


def _tried(
    config: Config, selection: Selection, task: TaskName, epsilon: float
) -> Iterator[tuple[dict[str, Any], int]]:
    """The private settings and seeds of a cell of the table: all of them, or as many as are drawn."""
    grids = config.grids(selection.pipeline, selection.profile)
    settings = _dp_sgd_settings(config, selection, task)
    every = list(itertools.product(settings, range(selection.seeds)))
    if grids.search == "all":
        yield from every
        return
    key = f"pipelines.{selection.pipeline}.grids.{selection.profile}"
    for name in ("batch_size", "epochs", "sampler", "clipping", "microbatch_size"):
        if len({numbers[name] for numbers in settings}) > 1:
            raise UserError(
                f"{key}.tasks.{task}.dp_sgd.{name}: with `search: random` every training must be the same mechanism, "
                f"so that one of them is as private as another: give one {name}"
            )
    if settings[0]["sampler"] == "balls_in_bins":
        raise UserError(
            f"{key}.tasks.{task}.dp_sgd.sampler: what `search: random` costs is known by RDP, which has no bound for "
            "balls_in_bins: use poisson, or `search: all`"
        )
    if len(every) == 1:
        raise UserError(f"{key}.search: there is one setting with one seed for {task}, and nothing to draw from")
    secret = config.pipelines[selection.pipeline].randomness == "secret"
    rng = np.random.default_rng(None if secret else int(short_hash([task, epsilon, len(every)]), 16))
    for seed in range(int(rng.geometric(1 / len(every)))):
        yield settings[rng.integers(len(settings))], seed


def _combinations(grid: TrainingGrid, together: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Every way to take one value from each list of the grid; lists that go ``together`` are gone through in step."""
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in grid}
    in_step = [name for name in together if name in values]
    paired = list(zip(*(values.pop(name) for name in in_step), strict=True)) or [()]
    for chosen, pair in itertools.product(itertools.product(*values.values()), paired):
        yield {**dict(zip(values, chosen, strict=True)), **dict(zip(in_step, pair, strict=True))}


def _mean_trials(config: Config, selection: Selection) -> dict[TaskName, int] | None:
    """For each task how many trainings a cell draws in the mean, where their number is drawn."""
    grids = config.grids(selection.pipeline, selection.profile)
    if grids.search == "all":
        return None
    return {task: selection.seeds * len(_dp_sgd_settings(config, selection, task)) for task in selection.tasks}


def _dp_sgd_settings(config: Config, selection: Selection, task: TaskName) -> list[dict[str, Any]]:
    """Every way to take one value from each list, with None for what then does not apply."""
    grid = config.grids(selection.pipeline, selection.profile).tasks[task].dp_sgd
    assert grid is not None
    seen: list[dict[str, Any]] = []
    for numbers in _combinations(grid, config.pipelines[selection.pipeline].together):
        if numbers["clipping"] != "adaptive":
            numbers["clip_quantile"] = None
        if numbers["microbatch_size"] == 1:
            numbers["sensitivity"] = None
        if numbers not in seen:
            seen.append(numbers)
    return seen


def _model_numbers(profile: Profile, model: ModelName) -> dict[str, Any]:
    return {
        "cross_layers": profile.cross_layers if model == "dcn_v2" else None,
        "interaction_dimension": profile.interaction_dimension if model == "dlrm" else None,
    }


def _check_batch(
    prepared: Prepared, selection: Selection, task: str, mechanism: str, batch_size: int, examples: int
) -> None:
    if batch_size > examples:
        raise UserError(
            f"pipelines.{selection.pipeline}.grids.{selection.profile}.tasks.{task}.{mechanism}.batch_size: a batch "
            f"of {batch_size:,} is larger than the {examples:,} training examples of {prepared.dataset!r}"
        )
