"""Tables behind a report's exhibit: the chosen settings, all trials with their audits, and the grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dp_core.models.spec import MLPSpec
from tasks.config.pipeline import Grids, LabelGrid, PrivateGrid
from tasks.reporting.document import Cell, Table
from tasks.reporting.exhibits.common import TASK_TITLES, score_text
from tasks.reporting.results import Result
from tasks.reporting.wording import phrase, setting_title, value_text
from tasks.training.finished import FinishedTrial
from tasks.training.trial import Trial

# Settings that the table of chosen settings names only if they are not these values or were chosen among several.
_DEFAULTS: Mapping[str, Any] = {
    "model": MLPSpec().label,
    "response": None,
    **{
        name: grid.model_fields[name].default[0]
        for grid, names in (
            (PrivateGrid, ("momentum", "sampler", "clipping", "clip_quantile", "sensitivity", "accountant")),
            (LabelGrid, ("largest_count", "debias")),
        )
        for name in names
    },
}


def settings_table(results: Sequence[Result], epsilons: Mapping[str, float | None]) -> Table:
    """Returns the chosen settings of each cell and the number of trainings they were chosen from.

    Args:
        results: The cells.
        epsilons: The audited ε by the trial's key; None without privacy.
    """
    rows = []
    for result in results:
        trial, tried = result.trial, len(result.tried)
        rows.append(
            [
                Cell(TASK_TITLES[result.task]),
                Cell(result.arm.label),
                _budget(trial),
                _number(epsilons[trial.key]),
                Cell(score_text(result), None if result.diverged else result.loss),
                Cell(_settings(result)),
                Cell(str(tried), tried),
            ]
        )
    columns = ["task", "method", "ε budget", "ε of the run", "test score", "chosen by validation", "trainings"]
    caption = "“trainings” is the number of trainings that validation chose from: settings times seeds."
    return Table("settings", "Chosen settings", columns, rows, caption)


def trials_table(trials: Iterable[tuple[FinishedTrial, str]]) -> Table:
    """Returns every finished trial with its audit, given with the link to its MLflow run."""
    rows = []
    for finished, link in trials:
        trial, record, audit = finished.trial, finished.record, finished.audit
        rows.append(
            [
                Cell(trial.label(), link=link, note=f"trial {trial.key}"),
                _budget(trial),
                _number(audit["epsilon"]),
                _number(audit.get("epsilon_lower")),
                Cell(audit["verdict"]),
                _number(record["validation_loss"]),
                _number(record["test_loss"], missing="diverged"),
                Cell(f"{record['seconds']:.1f}", record["seconds"]),
            ]
        )
    columns = ["trial", "ε budget", "ε audited", "ε at least", "audit", "validation loss", "test loss", "seconds"]
    caption = (
        "“ε audited” is an upper bound computed from the record of what ran; “ε at least” is a lower bound on what any "
        "accounting of it can give. Each trial links to its run in MLflow, which is up while `make up` runs."
    )
    return Table("trials", _trials_title(len(rows)), columns, rows, caption)


def grid_table(grids: Grids) -> Table:
    """Returns the settings of the grid, with nested keys joined by dots."""
    rows = [[Cell(key), Cell(text)] for key, text in _flat("", grids.model_dump(mode="json"))]
    caption = "As in pipelines.yaml, with the defaults filled in."
    return Table("grid", "Settings of the sweep", ["setting", "values"], rows, caption)


def _trials_title(trials: int) -> str:
    return f"All {trials} trials, audited" if trials > 1 else "The trial, audited"


def _settings(result: Result) -> str:
    """Returns the chosen settings: the main ones, and others that are not the default or that were chosen among."""
    trial = result.trial
    parts = [
        f"{trial.optimizer} {trial.learning_rate:g}",
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
    elif value is not None:
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
