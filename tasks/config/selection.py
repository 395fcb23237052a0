"""Resolves the options of a run against ``pipelines.yaml``.

The trigger form, the command line and the Makefile offer the same options. This is the one place that checks them and
fills in the pipeline's own values. Messages name an option by the title of its field in the form.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tasks.config.dataset import TASK_TITLES, TASKS, TaskName
from tasks.config.loading import Config
from tasks.config.pipeline import Grids, Pipeline
from tasks.config.raw_roots import outside_roots, under_servers
from tasks.config.sections import did_you_mean
from tasks.logs.files import find_files
from tasks.runtime.errors import UserError

# The options with the titles of their fields in the form.
FIELDS = {
    "pipeline": "Pipeline",
    "profile": "Profile",
    "tasks": "Prediction tasks",
    "epsilons": "Privacy budgets ε",
    "seeds": "Seeds",
    "dataset": "Dataset",
    "raw": "Raw log",
}
_TEXTS = ("pipeline", "profile", "dataset", "raw")
DEFAULT_PIPELINE, DEFAULT_PROFILE = "relative_loss", "quick"
# The field of the form accepts every text that ``_epsilons`` takes: Airflow refuses others in words of its own.
_NUMBER = r"\+?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
EPSILONS_PATTERN = rf"^(\s*|[\s,]*{_NUMBER}\s*(,[\s,]*{_NUMBER}\s*)*(,[\s,]*)?)$"
MOST_SEEDS = 100
# A longer title hides what follows it in lists of runs.
_MOST_BUDGETS_IN_A_TITLE = 8
# A longer value is cut where a message repeats it.
_LONGEST_SHOWN = 60

_T = TypeVar("_T")


class Selection(NamedTuple):
    """A pipeline and a profile, with the user's choices filled in."""

    pipeline: str
    profile: str
    tasks: tuple[TaskName, ...]
    datasets: dict[TaskName, str]
    epsilons: tuple[float, ...]
    seeds: int
    raw: str | None


class Examined(NamedTuple):
    """Options of a run: every problem with them, and what they select as far as that is known.

    Without problems, ``selection`` is complete. With problems it has the choices that are possible, or it is None if
    the pipeline or the profile is unknown.
    """

    selection: Selection | None
    problems: list[str]


def select(config: Config, options: Mapping[str, Any]) -> Selection:
    """Returns the selection for the options. An option that is missing or None takes the pipeline's own value.

    Raises:
        UserError: Options are unknown, or do not fit the pipeline. One line for each problem.
    """
    selection, problems = examine(config, options)
    if problems or selection is None:
        raise UserError("\n".join(problems))
    return selection


def examine(config: Config, options: Mapping[str, Any]) -> Examined:
    """Checks the options and returns every problem, in the order of the form's fields."""
    unknown = set(options) - set(FIELDS)
    problems = [f"unknown option {', '.join(sorted(unknown))}; known: {', '.join(FIELDS)}"] if unknown else []
    options = _without_other_types(problems, options)
    pipeline_name = options.get("pipeline") or DEFAULT_PIPELINE
    profile_name = options.get("profile") or DEFAULT_PROFILE
    pipeline = _looked_up(problems, "pipeline", lambda: config.pipeline(pipeline_name))
    grids: Grids | None = None
    if pipeline is not None:
        grids = _looked_up(problems, "profile", lambda: config.grids(pipeline_name, profile_name))
    tasks = _tasks(problems, pipeline_name, pipeline, options.get("tasks"))
    epsilons = _epsilons(problems, options.get("epsilons"))
    seeds = _seeds(problems, options.get("seeds"))
    if pipeline is not None:
        problems.extend(
            f"{FIELDS[name]}: the pipeline {pipeline_name} {why}, so leave this empty"
            for name, why in without_effect(pipeline).items()
            if options.get(name) not in (None, "", [])
        )
    datasets = _datasets(problems, config, pipeline, tasks, options.get("dataset"))
    raw = _checked_raw(problems, config, datasets, options.get("raw")) if datasets else None
    if pipeline is None or grids is None:
        return Examined(None, problems)
    return Examined(
        Selection(
            pipeline=pipeline_name,
            profile=profile_name,
            tasks=tuple(datasets),
            datasets=datasets,
            epsilons=tuple(sorted(grids.epsilons if epsilons is None else epsilons)),
            seeds=grids.seeds if seeds is None else seeds,
            raw=raw,
        ),
        problems,
    )


def without_effect(pipeline: Pipeline) -> dict[str, str]:
    """Returns the options that a pipeline has no use for, with the reason as the end of a sentence."""
    grids = pipeline.grids.values()
    found = {} if any(one.epsilons for one in grids) else {"epsilons": "has no budgets"}
    return found if any(one.trains for one in grids) else found | {"seeds": "trains nothing"}


def run_title(selection: Selection) -> str:
    """Returns a run's name for people.

    >>> run_title(Selection("relative_loss", "quick", ("pctr", "pcvr"), {}, (0.5, 1.0, 10.0), 2, None))
    'quick · pCTR, pCVR · ε 0.5, 1, 10'
    """
    parts = [selection.profile, titles(selection.tasks)]
    budgets = [f"{epsilon:g}" for epsilon in selection.epsilons]
    if len(budgets) > _MOST_BUDGETS_IN_A_TITLE:
        parts.append(f"{len(budgets)} budgets ε {budgets[0]} to {budgets[-1]}")
    elif budgets:
        parts.append(f"ε {', '.join(budgets)}")
    if selection.raw is not None:
        parts.append(next(iter(selection.datasets.values())))
    return " · ".join(parts)


def titles(tasks: Iterable[TaskName]) -> str:
    """Returns the tasks in text for people.

    >>> titles(["pctr", "pconvs"])
    'pCTR, pConvs'
    """
    return ", ".join(TASK_TITLES[task] for task in tasks)


def as_list(value: Any) -> list[Any]:
    """Returns the items of a list, or of a text that separates them by commas.

    >>> as_list("pctr, pcvr"), as_list([1, 10]), as_list(",")
    (['pctr', 'pcvr'], [1, 10], [])
    """
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return list(value) if isinstance(value, list | tuple) else [value]


def _without_other_types(problems: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options without those that must be text and are not, which only a program can send."""
    wrong = [name for name in _TEXTS if options.get(name) is not None and not isinstance(options[name], str)]
    problems.extend(f"{FIELDS[name]}: {_shown(options[name])} is not a text" for name in wrong)
    return {name: value for name, value in options.items() if name not in wrong}


def _looked_up(problems: list[str], field: str, look_up: Callable[[], _T]) -> _T | None:
    try:
        return look_up()
    except UserError as error:
        problems.append(f"{FIELDS[field]}: {error}")
        return None


def _tasks(problems: list[str], name: str, pipeline: Pipeline | None, given: Any) -> list[TaskName]:
    field, own = FIELDS["tasks"], list(pipeline.datasets) if pipeline is not None else []
    # A text that is empty is a field that was left empty. An empty list is a choice of nothing.
    if given is None or (isinstance(given, str) and not given.strip()):
        return own
    # Also as it is written for people: pCTR.
    chosen = [str(task).lower() for task in as_list(given)]
    if not chosen:
        problems.append(f"{field}: choose at least one of {titles(own or TASKS)}")
    _refuse_duplicates(problems, field, chosen)
    for task in dict.fromkeys(chosen):
        if task not in TASKS:
            problems.append(f"{field}: there is no task {task!r}{did_you_mean(task, TASKS)}; known: {', '.join(TASKS)}")
        elif pipeline is not None and task not in own:
            problems.append(f"{field}: the pipeline {name} has no {TASK_TITLES[task]}; it has {titles(own)}")
    possible = {str(task): task for task in own or TASKS}
    return [possible[task] for task in dict.fromkeys(chosen) if task in possible]


def _epsilons(problems: list[str], given: Any) -> tuple[float, ...] | None:
    """Returns the chosen budgets, or None if none was chosen or not all are possible."""
    chosen = [] if given is None else as_list(given)
    if isinstance(given, str) and given.strip() and not chosen:
        chosen = [given]
    budgets = [_as_budget(value) for value in chosen]
    for value, budget in zip(chosen, budgets, strict=True):
        if budget is None:
            problems.append(
                f"{FIELDS['epsilons']}: {_shown(value)} is not a positive number; give numbers such as 1 or 0.5,1,10. "
                "The baseline without privacy (ε = inf) always runs"
            )
    possible = [budget for budget in budgets if budget is not None]
    _refuse_duplicates(problems, FIELDS["epsilons"], [f"{budget:g}" for budget in possible])
    return tuple(dict.fromkeys(possible)) if possible and len(possible) == len(chosen) else None


def _as_budget(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = math.nan if "_" in value else float(value)  # Python reads 1_0 as 10
        except ValueError:
            return None
    return float(value) if _is_number(value) and 0 < value <= sys.float_info.max else None


def _seeds(problems: list[str], given: Any) -> int | None:
    if given is None:
        return None
    if not (_is_number(given) and given >= 1 and given % 1 == 0):
        problems.append(
            f"{FIELDS['seeds']}: {_shown(given)} is not a positive whole number, the number of seeds to average over"
        )
        return None
    if given > MOST_SEEDS:
        problems.append(f"{FIELDS['seeds']}: {_shown(given)} is too many; at most {MOST_SEEDS}")
        return None
    return int(given)


def _datasets(
    problems: list[str], config: Config, pipeline: Pipeline | None, tasks: Sequence[TaskName], given: str | None
) -> dict[TaskName, str]:
    """Returns the dataset of each task that it has a label for."""
    field, possible = FIELDS["dataset"], {}
    if given and _looked_up(problems, "dataset", lambda: config.dataset(given)) is None:
        return {}
    for task in tasks:
        name = given or (pipeline.datasets[task] if pipeline is not None else None)
        if name is None:
            continue
        labels = config.dataset(name).labels
        if task in labels:
            possible[task] = name
        else:
            problems.append(
                f"{field}: {name} has no label for {TASK_TITLES[task]}; it has {titles(labels)}. "
                f"Choose {FIELDS['tasks']} to match"
            )
    return possible


def _checked_raw(
    problems: list[str], config: Config, datasets: Mapping[TaskName, str], given: str | None
) -> str | None:
    field, names = FIELDS["raw"], list(dict.fromkeys(datasets.values()))
    if not given:
        for name in names:
            _check_described_files(problems, config, name)
        return None
    if len(names) > 1:
        problems.append(
            f"{field}: it is for one {FIELDS['dataset']}, but the tasks read {' and '.join(names)}: choose one"
        )
        return None
    if config.dataset(names[0]).synthetic is not None:
        problems.append(
            f"{field}: {names[0]} is synthetic and generates its own log. Choose the {FIELDS['dataset']} that "
            f"describes your files, one of: {', '.join(_real_datasets(config))}"
        )
        return None
    if under_servers():
        refused = _looked_up(problems, "raw", lambda: (outside_roots(config, given),))
        if refused is None:
            return None
        if refused[0] is not None:
            problems.append(f"{field}: {refused[0]}")
            return None
    if _looked_up(problems, "raw", lambda: find_files([given])) is None:
        return None
    # Absolute, since Airflow runs tasks in another folder. A pattern stays a pattern until the log is read.
    return str(Path(given).expanduser().absolute())


def _check_described_files(problems: list[str], config: Config, name: str) -> None:
    dataset = config.dataset(name)
    if dataset.raw is not None:
        try:
            find_files(dataset.raw)
        except UserError as error:
            problems.append(f"{FIELDS['dataset']}: datasets.{name}.raw in pipelines.yaml: {error}")
    elif dataset.synthetic is None:
        problems.append(
            f"{FIELDS['raw']}: {name} has no raw log. Give its file, folder or pattern, or set `datasets.{name}.raw` "
            "in pipelines.yaml"
        )


def _refuse_duplicates(problems: list[str], field: str, values: Sequence[Any]) -> None:
    for value in dict.fromkeys(value for value in values if values.count(value) > 1):
        problems.append(f"{field}: {value} is listed twice")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    try:
        text = repr(value) if isinstance(value, str) else f"{value}"
    except ValueError:  # Python writes no whole number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _real_datasets(config: Config) -> list[str]:
    return [name for name, dataset in config.datasets.items() if dataset.synthetic is None]
