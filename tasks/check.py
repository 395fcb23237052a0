"""The checking step: refuses a run that cannot work, with every reason at once, before anything else starts.

It imports nothing heavy: it is done within a second or two of the click that starts a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tasks.config.dataset import SPLIT_FRACTIONS, TASK_TITLES, TaskName
from tasks.config.loading import Config, load_config
from tasks.config.selection import FIELDS, Selection, examine
from tasks.logs.files import find_files
from tasks.logs.formats import LOG_FORMATS
from tasks.outages.limits import check_limits
from tasks.runtime.errors import UserError


def check(options: Mapping[str, Any]) -> Selection:
    """Returns what the options of a run select. Raises ``UserError`` with a line for every problem.

    Besides the options themselves, it checks what is known of the data before it is prepared.
    """
    check_limits()
    config = load_config()
    selection, problems = examine(config, options)
    if selection is not None:
        problems = [*problems, *_too_large_batches(config, selection), *_spent_budgets(config, selection)]
    if problems or selection is None:
        raise UserError("\n".join(problems))
    return selection


def _too_large_batches(config: Config, selection: Selection) -> Iterator[str]:
    """Yields the tasks whose batches are larger than the training split of their log can be."""
    most: dict[str, int | None] = {}
    for task, dataset in selection.datasets.items():
        size = max(_batch_sizes(config, selection, task), default=0)
        if dataset not in most:
            most[dataset] = _most_examples(config, selection, dataset, math.ceil(size / SPLIT_FRACTIONS["train"]))
        examples = most[dataset]
        if examples is not None and size > examples:
            yield (
                f"{FIELDS['profile']}: {selection.profile} has batches of {size:,} for {TASK_TITLES[task]}, which is "
                f"more than the {examples:,} training examples of {dataset}. Choose another profile or a larger log"
            )


def _batch_sizes(config: Config, selection: Selection, task: TaskName) -> list[int]:
    grids = config.grids(selection.pipeline, selection.profile)
    if grids.curves is not None:
        return list(grids.curves.batch_sizes) if grids.curves.examples is None else []
    if task not in grids.tasks:
        return []
    grid = grids.tasks[task]
    mechanisms = (grid.non_private, grid.dp_sgd, grid.paper_recipe, grid.label_dp)
    return [size for settings in mechanisms if settings is not None for size in settings.batch_size]


def _most_examples(config: Config, selection: Selection, name: str, enough: int) -> int | None:
    """Returns the largest number of training examples that a log can have; None if it is not known or is enough."""
    dataset = config.dataset(name)
    if dataset.synthetic is not None:
        rows = config.profile(selection.profile).synthetic_rows
        return int(rows * SPLIT_FRACTIONS["train"])
    raw = [selection.raw] if selection.raw else dataset.raw
    if not raw:
        return None
    rows = 0
    try:
        files = find_files(raw)
    except UserError:  # a problem that was reported already
        return None
    for file in files:
        most = LOG_FORMATS[dataset.format].most_rows(file, enough - rows)
        if most is None or rows + most >= enough:
            return None
        rows += most
    return math.ceil(rows * SPLIT_FRACTIONS["train"])


def _spent_budgets(config: Config, selection: Selection) -> Iterator[str]:
    """Yields the budgets that the private vocabulary of a dataset uses up."""
    grids = config.grids(selection.pipeline, selection.profile)
    noisy = [task for task in selection.datasets if task in grids.tasks and grids.tasks[task].dp_sgd is not None]
    for name in dict.fromkeys(selection.datasets[task] for task in noisy):
        spent = config.dataset(name).vocabulary_epsilon
        if spent is not None and spent >= min(selection.epsilons):
            yield (
                f"{FIELDS['epsilons']}: {min(selection.epsilons):g} is not more than the {spent:g} that the vocabulary "
                f"of {name} spends. Choose larger budgets, or lower `datasets.{name}.vocabulary_epsilon`"
            )
