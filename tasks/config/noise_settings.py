"""Checks of settings that change how noise is drawn: correlated noise, and tables that are updated lazily."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dp_core.clipping.factors import clip_factor
from dp_core.training.optimizers import NEEDS_INDEPENDENT_NOISE
from tasks.config.pipeline import PrivateGrid, TrainingGrid
from tasks.config.yaml_lines import Problem


def impossible_bands(grid: PrivateGrid, key: tuple[Any, ...]) -> Iterator[Problem]:
    """Yields settings that correlated noise is not accounted for with, or that would undo it."""
    if grid.bands == (1,):
        return
    for sampler in grid.sampler:
        if sampler != "poisson":
            yield (
                (*key, "bands"),
                f"correlated noise (bands above 1) is accounted for with `sampler: poisson` only, not with {sampler}",
            )
    for optimizer in grid.optimizer:
        if optimizer in NEEDS_INDEPENDENT_NOISE:
            yield (
                (*key, "bands"),
                f"{optimizer} counts on noise that is independent from step to step, which correlated noise (bands "
                "above 1) is not: use another optimiser, or `bands: 1`",
            )


def impossible_lazy_tables(grid: TrainingGrid, key: tuple[Any, ...]) -> Iterator[Problem]:
    """Yields settings that tables cannot be updated lazily with."""
    if set(grid.table_updates) == {"dense"}:
        return
    unfit: dict[str, list[Any]] = {
        "optimizer": [name for name in grid.optimizer if name != "sgd"],
        "averaging": [name for name in grid.averaging if name != "none"],
        "bands": [number for number in getattr(grid, "bands", ()) if number != 1],
        "clipping": [name for name in getattr(grid, "clipping", ()) if clip_factor(name).adaptive],
    }
    for name, values in unfit.items():
        if values:
            yield (
                (*key, "table_updates"),
                f"tables cannot be updated lazily with `{name}: {values[0]}`: it needs `optimizer: sgd`, independent "
                "noise, no averaging and a clip norm that does not adapt; use `table_updates: dense`",
            )
