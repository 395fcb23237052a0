"""Limits of a plan: how many steps a training may have, and how many trainings a grid.

They are far above what any machine trains, and low enough that a slip, such as a thousand times the epochs, is found
before minutes of planning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tasks.config.dataset import SPLIT_FRACTIONS
from tasks.config.yaml_lines import Problem

if TYPE_CHECKING:
    from tasks.config.loading import Config
    from tasks.config.pipeline import Grids, Pipeline, TrainingGrid

MOST_STEPS = 100_000_000
# Also the most copies of a task that Airflow makes (``tasks.runtime.airflow_home``).
MOST_TRAININGS = 10_000


def beyond_limits(config: Config) -> Iterator[Problem]:
    """Yields the grids with too many steps or trainings, as far as that is known before the data is."""
    for name, pipeline in config.pipelines.items():
        for profile, grids in pipeline.grids.items():
            key = ("pipelines", name, "grids", profile)
            synthetic = config.profiles[profile].synthetic_rows if profile in config.profiles else 0
            for task, grid in grids.tasks.items():
                dataset = config.datasets.get(pipeline.datasets.get(task, ""))
                is_synthetic = dataset is not None and dataset.synthetic is not None
                examples = int(synthetic * SPLIT_FRACTIONS["train"]) if is_synthetic else None
                for mechanism, settings in grid:
                    if settings is not None:
                        method = (*key, "tasks", task, mechanism)
                        yield from _too_many_steps(settings, examples, method)
                        yield from _too_many_trainings(pipeline, grids, mechanism, settings, method)
            yield from _too_long_curves(grids, (*key, "curves"))
    for name, night in config.nightly.items():
        found = config.datasets.get(night.dataset)
        days = found.synthetic.days if found is not None and found.synthetic is not None else None
        rows = None if days is None else days.rows * night.window_days
        yield from _too_many_steps(night.dp_sgd, rows, ("nightly", name, "dp_sgd"))


def step_problem(*, epochs: float, batch_size: int, examples: int | None) -> str | None:
    """Returns what is wrong with a number of epochs; None if its steps are within the limit.

    Without a number of examples, there are at least as many as a batch has, so that an epoch has a step or more.

    >>> step_problem(epochs=5, batch_size=1024, examples=120_000) is None
    True
    """
    known = max(examples or 0, batch_size)
    steps = epochs * known / batch_size
    if steps <= MOST_STEPS:
        return None
    of, are = (f"{examples:,} examples", "are about") if examples else ("any log", "are at least")
    return (
        f"{epochs:,g} epochs of {of} in batches of {batch_size:,} {are} {steps:.3g} "
        f"steps; at most {MOST_STEPS:,} are trained: give at most {MOST_STEPS * batch_size / known:,.0f} epochs"
    )


def _too_many_steps(grid: TrainingGrid, examples: int | None, key: tuple[Any, ...]) -> Iterator[Problem]:
    problem = step_problem(epochs=max(grid.epochs), batch_size=min(grid.batch_size), examples=examples)
    if problem is not None:
        yield (*key, "epochs"), problem


def _too_many_trainings(
    pipeline: Pipeline, grids: Grids, mechanism: str, grid: TrainingGrid, key: tuple[Any, ...]
) -> Iterator[Problem]:
    lengths = {name: len(values) for name, values in grid}
    zipped = max((lengths.pop(name) for name in pipeline.together if name in lengths), default=1)
    settings = zipped * math.prod(lengths.values())
    budgets = 1 if mechanism == "non_private" else max(1, len(grids.epsilons))
    trainings = settings * budgets * grids.seeds
    if trainings > MOST_TRAININGS:
        yield (
            key,
            f"{settings:,} settings (every combination of the lists), {budgets:,} budgets and {grids.seeds:,} seeds "
            f"are {trainings:,} trainings; at most {MOST_TRAININGS:,} are planned: shorten the lists",
        )


def _too_long_curves(grids: Grids, key: tuple[Any, ...]) -> Iterator[Problem]:
    curves = grids.curves
    if curves is None:
        return
    smallest = min(*curves.batch_sizes, curves.baseline_batch_size)
    problem = step_problem(epochs=curves.epochs, batch_size=smallest, examples=curves.examples)
    if problem is not None:
        yield (*key, "epochs"), problem
    if curves.steps > MOST_STEPS:
        yield (*key, "steps"), f"{curves.steps:,} steps; at most {MOST_STEPS:,} are planned"
