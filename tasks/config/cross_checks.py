"""What is well-formed in ``pipelines.yaml`` but cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_args

from tasks.descriptions import SPLIT_FRACTIONS
from tasks.grids import ColumnName, ExhibitName, Grids, MechanismName, Pipeline
from tasks.located_yaml import Problem
from tasks.sections import did_you_mean

if TYPE_CHECKING:
    from tasks.config import Config


def contradictions(config: Config) -> Iterator[Problem]:
    """Each with the key that it is about."""
    for name, pipeline in config.pipelines.items():
        for task, dataset in pipeline.datasets.items():
            key = ("pipelines", name, "datasets", task)
            if dataset not in config.datasets:
                hint = did_you_mean(dataset, config.datasets)
                yield key, f"no dataset is called {dataset!r}{hint}; there are: {', '.join(config.datasets)}"
            elif task not in config.datasets[dataset].labels:
                has = ", ".join(config.datasets[dataset].labels)
                yield key, f"dataset {dataset!r} has no label for {task}; it has: {has}"
        for profile, grids in pipeline.grids.items():
            grid_key = ("pipelines", name, "grids", profile)
            if profile not in config.profiles:
                hint = did_you_mean(profile, config.profiles)
                yield grid_key, f"no profile is called {profile!r}{hint}; there are: {', '.join(config.profiles)}"
                continue
            yield from _contradictory_grids(pipeline, grids, grid_key)
            yield from _unfit_exhibit(pipeline, grids, grid_key)
            yield from _too_large_batches(config, pipeline, profile, grid_key)


# What an exhibit is made of: the columns that it must have, if it is of trainings.
_OF_COLUMNS: dict[ExhibitName, tuple[ColumnName, ...]] = {
    "relative_loss": (),
    "clip_norm": ("l2_clip_norm",),
    "large_batch": ("batch_size", "epochs"),
    "optimizers": ("optimizer", "learning_rate"),
    "microbatch": ("l2_clip_norm", "microbatch_size"),
    "accountants": ("accountant",),
    "label_dp": ("response", "debias"),
}
_OF_SEVERAL_TASKS = ("relative_loss", "label_dp")


def _unfit_exhibit(pipeline: Pipeline, grids: Grids, key: tuple[Any, ...]) -> Iterator[Problem]:
    """What an exhibit cannot show."""
    needs = {"noise_and_batch": "curves", "throughput": "speed"}.get(pipeline.exhibit, "tasks")
    if not getattr(grids, needs):
        if any(getattr(grids, name) for name in ("tasks", "curves", "speed")):
            yield key, f"exhibit {pipeline.exhibit} is made of {needs}, which are missing"
        return
    of = (*key[:2], "exhibit")
    if pipeline.exhibit in _OF_COLUMNS and tuple(pipeline.columns) != _OF_COLUMNS[pipeline.exhibit]:
        wanted = ", ".join(_OF_COLUMNS[pipeline.exhibit])
        yield (*key[:2], "columns"), f"exhibit {pipeline.exhibit} is of columns: [{wanted}]"
    if pipeline.exhibit not in _OF_SEVERAL_TASKS and len(pipeline.datasets) > 1:
        yield of, f"{pipeline.exhibit} shows one task, and the pipeline has {len(pipeline.datasets)}"
    for task, grid in grids.tasks.items():
        if pipeline.exhibit != "label_dp" and grid.label_dp is not None and grid.dp_sgd is not None:
            yield (
                (*key, "tasks", task),
                f"exhibit {pipeline.exhibit} shows one way to be private: dp_sgd or label_dp",
            )


def _contradictory_grids(pipeline: Pipeline, grids: Grids, key: tuple[Any, ...]) -> Iterator[Problem]:
    given = [name for name in ("tasks", "curves", "speed") if getattr(grids, name)]
    if len(given) != 1:
        yield key, f"give one of tasks (to train), curves (of noise) and speed (to measure), got {given or 'none'}"
        return
    if grids.speed is None and not grids.epsilons:
        yield (*key, "epsilons"), "missing"
    if not grids.trains:
        return
    for task in pipeline.datasets:
        if task not in grids.tasks:
            yield (*key, "tasks"), f"no grid for {task}, which the pipeline has a dataset for"
    if pipeline.columns and grids.search == "random":
        yield (*key, "search"), "a table with columns needs every setting: use `search: all`, or no columns"
    for task, grid in grids.tasks.items():
        task_key = (*key, "tasks", task)
        private = [mechanism for mechanism in (grid.dp_sgd, grid.label_dp) if mechanism is not None]
        if not private:
            yield task_key, "nothing private to train: give dp_sgd, label_dp or both"
        if grid.label_dp is not None:
            fitting = {"k_ary", "bins"} if task == "pconvs" else {"binary"}
            for response in set(grid.label_dp.response) - fitting:
                yield (
                    (*task_key, "label_dp", "response"),
                    f"{response!r} is not for the labels of {task}; allowed: {', '.join(sorted(fitting))}",
                )
            if grids.search == "random":
                yield (*key, "search"), "what `search: random` costs is not known for label_dp: use `search: all`"
        for column in pipeline.columns:
            if private and not any(hasattr(mechanism, column) for mechanism in private):
                yield (*key[:2], "columns"), f"{column} is no setting of what {task} trains under {key[-1]}"
        for mechanism in (grid.non_private, *private):
            lengths = {name: len(getattr(mechanism, name)) for name in pipeline.together if hasattr(mechanism, name)}
            if len(set(lengths.values())) > 1:
                yield (*key[:2], "together"), f"lists to go through in step must be equally long, got {lengths}"


def _too_large_batches(config: Config, pipeline: Pipeline, profile: str, key: tuple[Any, ...]) -> Iterator[Problem]:
    examples = int(config.profiles[profile].synthetic_rows * SPLIT_FRACTIONS["train"])
    for task, grid in pipeline.grids[profile].tasks.items():
        dataset = config.datasets.get(pipeline.datasets.get(task, ""))
        if dataset is None or dataset.synthetic is None:
            continue
        for mechanism in get_args(MechanismName):
            settings = getattr(grid, mechanism)
            for size in settings.batch_size if settings is not None else ():
                if size > examples:
                    yield (
                        (*key, "tasks", task, mechanism, "batch_size"),
                        f"a batch of {size:,} is larger than the {examples:,} training examples "
                        f"that profile {profile!r} makes (80 % of synthetic_rows)",
                    )
