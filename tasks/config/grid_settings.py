"""The settings of a grid: every combination of its values, each once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from dp_core.clipping.factors import clip_factor
from tasks.config.pipeline import SCALES_WITH_GRADIENT, TrainingGrid

# One value for each key of a mechanism's grid, by the names of a trial's fields.
Settings = dict[str, Any]


def combinations(grid: TrainingGrid, hidden_layers: Sequence[int], together: Sequence[str] = ()) -> Iterator[Settings]:
    """Yields every combination of the grid's values; lists named in ``together`` are zipped, not crossed.

    ``hidden_layers`` are those of models that do not name their own.
    """
    values: dict[str, tuple[Any, ...]] = {name: value if isinstance(value, tuple) else (value,) for name, value in grid}
    values["model"] = tuple(dict.fromkeys(model.with_layers(hidden_layers) for model in grid.model))
    zipped_names = [name for name in together if name in values]
    zipped = list(zip(*(values.pop(name) for name in zipped_names), strict=True)) or [()]
    for crossed, row in itertools.product(itertools.product(*values.values()), zipped):
        yield {**dict(zip(values, crossed, strict=True)), **dict(zip(zipped_names, row, strict=True))}


def distinct_settings(grid: TrainingGrid, hidden_layers: Sequence[int], together: Sequence[str] = ()) -> list[Settings]:
    """Returns the ``combinations`` of a grid, each once, with None for settings that have no effect."""
    found: list[Settings] = []
    for combination in combinations(grid, hidden_layers, together):
        settings = _without_unused(combination)
        if settings not in found:
            found.append(settings)
    return found


def _without_unused(settings: Settings) -> Settings:
    """Returns the settings with None for those that have no effect beside the others."""
    unused: Settings = {}
    if "clip_quantile" in settings and not clip_factor(settings["clipping"]).adaptive:
        unused["clip_quantile"] = None
    if "sensitivity" in settings and settings["microbatch_size"] == 1:
        unused["sensitivity"] = None
    if settings.get("recalibration") == "none" and "recalibration_epsilon" in settings:
        unused["recalibration_epsilon"] = None
    if "largest_count" in settings and settings["response"] == "binary":
        unused["largest_count"] = None
    if "learning_rate_per" in settings and settings["optimizer"] not in SCALES_WITH_GRADIENT:
        unused["learning_rate_per"] = "one"
    if settings["averaging"] == "none":
        # Not None: a trial leaves its default out of its description.
        unused["averaging_share"] = TrainingGrid.model_fields["averaging_share"].default[0]
    if "initial_bias_epsilon" in settings and settings["initial_bias"] == "zero":
        unused["initial_bias_epsilon"] = None
    return {**settings, **unused}
