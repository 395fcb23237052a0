"""Tables behind a report's exhibit: the chosen settings, all trials with their audits, and what varied."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dp_core.models.spec import MLPSpec
from tasks.config.dataset import TASK_TITLES, TASKS, TaskName
from tasks.config.pipeline import Grids, LabelGrid, PrivateGrid, RecipeName
from tasks.reporting.document import Cell, Table
from tasks.reporting.exhibits.common import score, score_name, score_text
from tasks.reporting.results import Result
from tasks.reporting.wording import MECHANISM_TITLES, RECIPE_TITLES, phrase, setting_title, value_text
from tasks.training.finished import FinishedTrial
from tasks.training.trial import Trial

# Settings that the table of chosen settings names only if they are not these values or were chosen among several.
_DEFAULTS: Mapping[str, Any] = {
    "model": MLPSpec().label,
    "response": None,
    "initial_bias_epsilon": None,
    **{
        name: grid.model_fields[name].default[0]
        for grid, names in (
            (PrivateGrid, ("averaging", "averaging_share", "warmup", "weight_decay", "initial_bias", "table_updates")),
            (PrivateGrid, ("momentum", "sampler", "clipping", "clip_quantile", "sensitivity", "accountant", "bands")),
            (PrivateGrid, ("recalibration", "recalibration_epsilon")),
            (LabelGrid, ("largest_count", "debias")),
        )
        for name in names
    },
}
# Settings of a trial in the order of the tables; those of the mechanism first.
_SETTINGS = (
    *("l2_clip_norm", "microbatch_size", "clipping", "clip_quantile", "sensitivity", "accountant", "sampler", "bands"),
    *("response", "debias", "largest_count"),
    *("optimizer", "learning_rate", "momentum", "batch_size", "epochs", "model"),
    *("averaging", "averaging_share", "warmup", "weight_decay", "initial_bias", "initial_bias_epsilon"),
    *("recalibration", "recalibration_epsilon", "table_updates"),
)
# What the tables of settings also list.
_AROUND = ("epsilon", *_SETTINGS, "seed", "target_delta", "dataset", "evaluations", "canaries", "randomness")


class ListedTrial(NamedTuple):
    """A finished trial in the table of all trials.

    Attributes:
        chosen: Whether validation chose its settings, so that a table or figure shows it.
        mlflow: The target of its run in MLflow.
        statement: The target of its privacy statement.
        recipes: The recipes of DP-SGD that it belongs to, if the grid compares two.
    """

    finished: FinishedTrial
    chosen: bool
    mlflow: str
    statement: str
    recipes: Sequence[RecipeName] = ()


def settings_table(results: Sequence[Result], epsilons: Mapping[str, float | None]) -> Table:
    """Returns the chosen settings of each cell and the number of trainings they were chosen from.

    Args:
        results: The cells.
        epsilons: The audited ε by the trial's key; None without privacy.
    """
    rows, names = [], _score_names(result.task for result in results)
    for result in results:
        trial, tried = result.trial, len(result.tried)
        found = Cell(score_text(result), None if result.diverged else score(result.task, result.loss))
        rows.append(
            [
                Cell(TASK_TITLES[result.task]),
                Cell(result.arm.label),
                _budget(trial),
                _number(epsilons[trial.key]),
                *(found if name == score_name(result.task) else Cell("–") for name in names),
                Cell(_settings(result)),
                Cell(str(tried), tried),
            ]
        )
    scores = [f"test {name}" for name in names]
    columns = ["task", "method", "ε budget", "ε of the run", *scores, "chosen by validation", "trainings"]
    caption = "“trainings” is the number of trainings that validation chose from: settings times seeds."
    return Table("settings", "Chosen settings", columns, rows, caption)


def trials_table(trials: Sequence[ListedTrial]) -> Table:
    """Returns every finished trial with its audit, with a column for each setting that varies among them."""
    names = _score_names(one.finished.trial.task for one in trials)
    varied = [name for name in _SETTINGS if _varies(name, [one.finished.trial for one in trials])]
    rows = []
    for one in trials:
        trial, record, audit = one.finished.trial, one.finished.record, one.finished.audit
        rows.append(
            [
                Cell(TASK_TITLES[trial.task], note=f"{trial.label()}; trial {trial.key}"),
                Cell(_method(one)),
                _budget(trial),
                *(_setting_cell(name, getattr(trial, name)) for name in varied),
                Cell(f"{trial.seed}", trial.seed),
                _choice(one, trials),
                *(_test_cell(name, trial.task, record["test_loss"]) for name in names),
                _number(audit["epsilon"]),
                _number(audit.get("epsilon_lower")),
                Cell(audit["verdict"]),
                Cell("statement", link=one.statement),
                Cell("run", link=one.mlflow),
                _number(record["validation_loss"]),
                Cell(f"{record['seconds']:.1f}", record["seconds"]),
            ]
        )
    columns = [
        *("task", "method", "ε budget"),
        *map(setting_title, varied),
        *("seed", "chosen"),
        *(f"test {name}" for name in names),
        *("ε audited", "ε at least", "audit", "privacy", "MLflow", "validation loss", "seconds"),
    ]
    caption = (
        "“chosen”: validation chose its settings, so the results above are from it. “ε audited” is an upper bound "
        "computed from the record of what ran; “ε at least” is a lower bound on what any accounting of it can give. "
        "Settings without a column are the same for all trials of a task and method."
    )
    if any(one.finished.trial.sampled_like for one in trials):
        caption += (
            " “as at ε = …”: trained on the batches of the chosen training with that budget, to tell what its recipe, "
            "clipping and noise cost."
        )
    title = f"All {len(rows)} trials, audited" if len(rows) > 1 else "The trial, audited"
    return Table("trials", title, columns, rows, caption, [_trial_record(one) for one in trials])


def _method(one: ListedTrial) -> str:
    recipes = " and ".join(RECIPE_TITLES[recipe] for recipe in one.recipes)
    return MECHANISM_TITLES[one.finished.trial.mechanism] + (f", {recipes}" if recipes else "")


def _trial_record(one: ListedTrial) -> dict[str, Any]:
    """Returns a trial's numbers for the CSV file, by the names of ``pipelines.yaml``."""
    trial, record, audit = one.finished.trial, one.finished.record, one.finished.audit
    return {
        "trial": trial.key,
        "name": trial.label(),
        "task": trial.task,
        "mechanism": trial.mechanism,
        "recipes": " ".join(one.recipes),
        "epsilon_budget": trial.epsilon_label,
        **{name: getattr(trial, name) for name in _SETTINGS if name != "model"},
        "model": value_text("model", trial.model),
        "noise_multiplier": trial.noise_multiplier,
        "seed": trial.seed,
        "chosen": one.chosen,
        "validation_loss": record["validation_loss"],
        "test_loss": record["test_loss"],
        "epsilon": audit["epsilon"],
        "epsilon_lower": audit.get("epsilon_lower"),
        "audit": audit["verdict"],
        "seconds": record["seconds"],
    }


def settings_that_varied(trials: Sequence[Trial]) -> list[Table]:
    """Returns two tables: settings with several values among the trials of a task and method, and those with one."""
    by_method: dict[tuple[TaskName, str], list[Trial]] = {}
    for trial in trials:
        by_method.setdefault((trial.task, MECHANISM_TITLES[trial.mechanism]), []).append(trial)
    varied, fixed = list[list[Cell]](), list[list[Cell]]()
    for name in _AROUND:
        groups: dict[tuple[str, ...], list[tuple[TaskName, str]]] = {}
        for method, found in by_method.items():
            if of_method := _values(name, found):
                groups.setdefault(tuple(of_method), []).append(method)
        for values, methods in groups.items():
            row = [Cell(setting_title(name)), Cell(", ".join(values)), Cell(_where(methods, list(by_method)))]
            (varied if len(values) > 1 else fixed).append(row)
    caption = "Every value was trained. Where a result shows one of several, validation loss chose it for each ε."
    tables = (
        [Table("varied", "Settings that varied", ["setting", "values", "where"], varied, caption)] if varied else []
    )
    return [*tables, Table("fixed", "Settings that did not vary", ["setting", "value", "where"], fixed)]


def measured_settings(grids: Grids) -> Table:
    """Returns the settings of a measurement, with nested keys joined by dots."""
    found = grids.model_dump(mode="json", include={"epsilons", "curves", "speed"})
    rows = [[Cell(key), Cell(text)] for key, text in _flat("", found)]
    caption = "As in pipelines.yaml, with the defaults filled in."
    return Table("fixed", "Settings of the measurement", ["setting", "values"], rows, caption)


def _score_names(tasks: Iterable[TaskName]) -> list[str]:
    """Returns the names of the scores of tasks, each once: scores of different kinds share no column."""
    found = set(tasks)
    return list(dict.fromkeys(score_name(task) for task in TASKS if task in found))


def _test_cell(name: str, task: TaskName, loss: float | None) -> Cell:
    if name != score_name(task):
        return Cell("–")
    return Cell("diverged") if loss is None else _number(score(task, loss))


def _setting_cell(name: str, value: Any) -> Cell:
    if value is None:
        return Cell("–")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(value_text(name, value), float(value) if number else None)


def _choice(one: ListedTrial, trials: Sequence[ListedTrial]) -> Cell:
    """Returns whether validation chose a trial's settings, or which trial it takes apart."""
    twin = one.finished.trial.sampled_like
    budget = next((other.finished.trial.epsilon for other in trials if other.finished.trial.key == twin), None)
    if twin is not None and budget is not None:
        return Cell(f"as at ε = {budget:g}", 2)
    return Cell("✓ chosen", 0) if one.chosen else Cell("no", 1)


def _varies(name: str, trials: Sequence[Trial]) -> bool:
    """Returns whether a setting has several values among the trials of one method."""
    by_method: dict[tuple[str, str], set[Any]] = {}
    for trial in trials:
        by_method.setdefault((trial.task, trial.mechanism), set()).add(getattr(trial, name))
    # The clip norm is what readers look for first, also where it is the same for all trials of a task.
    values = {getattr(trial, name) for trial in trials} - {None}
    return any(len(found) > 1 for found in by_method.values()) or (name == "l2_clip_norm" and bool(values))


def _values(name: str, trials: Sequence[Trial]) -> list[str]:
    """Returns the texts of a setting's values, in the order of the plan; numbers by size."""
    values = list(dict.fromkeys(getattr(trial, name) for trial in trials))
    values = [value for value in values if value is not None]
    if all(isinstance(value, int | float) for value in values):
        values.sort()
    return list(dict.fromkeys(value_text(name, value) for value in values))


def _where(methods: Sequence[tuple[TaskName, str]], known: Sequence[tuple[TaskName, str]]) -> str:
    """Returns which tasks and methods a setting's values are of."""
    if set(methods) == set(known):
        return "all"
    parts = []
    for mechanism in dict.fromkeys(name for _, name in methods):
        tasks = [task for task, name in methods if name == mechanism]
        every = len(tasks) == sum(name == mechanism for _, name in known)
        names = " and ".join(TASK_TITLES[task] for task in tasks)
        parts.append(mechanism if every else f"{mechanism} of {names}")
    return ", ".join(parts)


def _settings(result: Result) -> str:
    """Returns the chosen settings: the main ones, and others that are not the default or that were chosen among."""
    trial = result.trial
    parts = [
        f"{trial.optimizer} {_rate(trial)}",
        f"batch {trial.batch_size:,}",
        phrase("epochs", trial.epochs),
    ]
    if trial.l2_clip_norm is not None:
        parts += [f"C = {trial.l2_clip_norm:g}", f"σ = {trial.noise_multiplier:.3g}"]
    parts += [f"m = {trial.microbatch_size}"] if trial.microbatch_size > 1 else []
    # The column of the method names the settings that set methods apart.
    named = dict(result.arm.values)
    for name, default in _DEFAULTS.items():
        value = getattr(trial, name)
        varies = len({getattr(one, name) for one in result.tried}) > 1
        if value is None or name in named or (name == "sampler" and trial.mechanism != "dp_sgd"):
            continue
        if name == "model" and not varies:
            # The layers are the profile's unless the grid gives them.
            parts += [trial.model.label] if trial.model.label != default else []
        elif varies or value != default:
            parts.append(_chosen(name, value))
    return ", ".join(parts)


def _rate(trial: Trial) -> str:
    """Returns the rate, and what the grid counts it in if it is relative."""
    if trial.learning_rate_per == "clip_norm" and trial.l2_clip_norm is not None:
        return f"{trial.learning_rate:.4g} (= {trial.learning_rate * trial.l2_clip_norm:.4g} / C)"
    return (
        f"{trial.learning_rate:.4g} (by the guess)"
        if trial.learning_rate_per == "guess"
        else f"{trial.learning_rate:g}"
    )


def _chosen(name: str, value: Any) -> str:
    if name == "accountant":
        return f"accountant {value}"
    if name == "sampler":
        return f"{setting_title(name)} {value_text(name, value)}"
    return phrase(name, value)


def _budget(trial: Trial) -> Cell:
    return Cell("∞", math.inf) if trial.epsilon is None else Cell(trial.epsilon_label, trial.epsilon)


def _number(value: float | None, *, missing: str = "–") -> Cell:
    return Cell(missing) if value is None else Cell(f"{value:.4f}", value)


def _flat(key: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}" if key else name, inner)
    elif value not in (None, []):
        yield key, ", ".join(map(_item, value)) if isinstance(value, list) else str(value)


def _item(value: Any) -> str:
    """Returns an item of a list. A model is a mapping: its name, and its own numbers behind it.

    >>> _item(0.1), _item({"name": "dcn_v2", "hidden_layers": None, "cross_layers": 3})
    ('0.1', 'dcn_v2 (cross_layers 3)')
    """
    if not isinstance(value, dict):
        return str(value)
    numbers = ", ".join(f"{name} {number}" for name, number in value.items() if name != "name" and number is not None)
    return f"{value['name']} ({numbers})" if numbers else str(value["name"])
