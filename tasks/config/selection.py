"""Resolves the options of a run against ``pipelines.yaml``.

The trigger form, the command line and the Makefile offer the same options. This is the one place that checks them and
fills in the pipeline's own values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tasks.config.dataset import TASKS, TaskName
from tasks.config.loading import Config
from tasks.logs.files import find_files
from tasks.runtime.errors import UserError

_OPTIONS = ("pipeline", "profile", "dataset", "raw", "tasks", "epsilons", "seeds")


class Selection(NamedTuple):
    """A pipeline and a profile, with the user's choices filled in."""

    pipeline: str
    profile: str
    tasks: tuple[TaskName, ...]
    datasets: dict[TaskName, str]
    epsilons: tuple[float, ...]
    seeds: int
    raw: str | None


def select(config: Config, options: Mapping[str, Any]) -> Selection:
    """Returns the selection for the options. An option that is missing or None takes the pipeline's own value.

    Raises:
        UserError: An option is unknown, or does not fit the pipeline.
    """
    unknown = set(options) - set(_OPTIONS)
    if unknown:
        raise UserError(f"unknown option {', '.join(sorted(unknown))}; known: {', '.join(_OPTIONS)}")
    for name in ("tasks", "epsilons"):
        if not isinstance(options.get(name) or [], list | tuple):
            raise UserError(f"{name} must be a list, got {options[name]!r}")
    pipeline_name = options.get("pipeline") or "relative_loss"
    profile_name = options.get("profile") or "quick"
    pipeline = config.pipeline(pipeline_name)
    grids = config.grids(pipeline_name, profile_name)

    tasks = tuple(dict.fromkeys(options.get("tasks") or ())) or tuple(pipeline.datasets)
    for task in tasks:
        if task not in TASKS:
            raise UserError(f"unknown task {task!r}; known: {', '.join(TASKS)}")
        if task not in pipeline.datasets:
            raise UserError(f"pipeline {pipeline_name!r} has no task {task}; it has: {', '.join(pipeline.datasets)}")
    datasets = {task: options.get("dataset") or pipeline.datasets[task] for task in tasks}
    for task, name in datasets.items():
        labels = config.dataset(name).labels
        if task not in labels:
            raise UserError(
                f"dataset {name!r} has no label for {task}; it has: {', '.join(labels)}. "
                f"Choose tasks to match, for example TASKS={','.join(labels)}"
            )

    epsilons = tuple(options.get("epsilons") or grids.epsilons)
    for epsilon in epsilons:
        if not (_is_number(epsilon) and 0 < epsilon < math.inf):
            raise UserError(f"epsilon must be a positive number, got {epsilon!r}; the baseline (ε = inf) always runs")
    seeds: Any = grids.seeds if options.get("seeds") is None else options["seeds"]
    if not (_is_number(seeds) and seeds >= 1 and seeds % 1 == 0):
        raise UserError(f"seeds must be a positive whole number, the number of seeds to average over, got {seeds!r}")
    return Selection(
        pipeline=pipeline_name,
        profile=profile_name,
        tasks=tasks,
        datasets=datasets,
        epsilons=tuple(sorted({float(epsilon) for epsilon in epsilons})),
        seeds=int(seeds),
        raw=_checked_raw(config, datasets, options.get("raw")),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked_raw(config: Config, datasets: Mapping[TaskName, str], raw: str | None) -> str | None:
    names = list(dict.fromkeys(datasets.values()))
    if raw is not None:
        if len(names) > 1:
            raise UserError(
                f"RAW is for one dataset, but the tasks read {' and '.join(names)}: choose one with DATASET"
            )
        if config.dataset(names[0]).synthetic is not None:
            raise UserError(
                f"dataset {names[0]!r} is synthetic and generates its own log: with RAW, also choose the DATASET "
                f"that describes your files, one of: {', '.join(_real_datasets(config))}"
            )
        try:
            find_files([raw])
        except UserError as error:
            raise UserError(f"RAW: {error}") from None
        # Absolute, since Airflow runs tasks in another folder. A pattern stays a pattern until the log is read.
        return str(Path(raw).expanduser().absolute())
    for name in names:
        dataset = config.dataset(name)
        if dataset.synthetic is None and dataset.raw is None:
            raise UserError(f"dataset {name!r} has no raw log: give RAW=path, or set `datasets.{name}.raw` in the YAML")
        if dataset.raw is not None:
            try:
                find_files(dataset.raw)
            except UserError as error:
                raise UserError(f"datasets.{name}.raw: {error}") from None
    return None


def _real_datasets(config: Config) -> list[str]:
    return [name for name, dataset in config.datasets.items() if dataset.synthetic is None]
