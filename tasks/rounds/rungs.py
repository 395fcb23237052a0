"""The rungs of successive halving: how many there are, and by how much longer a setting is trained on the next."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.config.pipeline import Grids

# From one rung to the next, one of so many settings survives, and is trained for so many times as many epochs.
HALVING_FACTOR = 3
MOST_RUNGS = 3


def rungs(grids: Grids) -> int:
    """Returns the number of rungs, the last of which has the full number of epochs: enough to end with few settings."""
    from tasks.config.pipeline import TrainingGrid

    methods = [method for task in grids.tasks.values() for _, method in task if isinstance(method, TrainingGrid)]
    sizes = [math.prod(len(values) for _, values in method if isinstance(values, tuple)) for method in methods]
    begun = min(max(sizes, default=1), grids.trainings or math.inf)
    return max(number for number in range(1, MOST_RUNGS + 1) if begun >= HALVING_FACTOR ** (number - 1))


def snapped(value: float) -> float:
    """Returns the number of few digits that a number is but for rounding; the number itself if there is none.

    So a number that is divided and multiplied again is the same number, and a trial has the same key.

    >>> 0.3 / 9 * 3 * 3 == 0.3, snapped(snapped(snapped(0.3 / 9) * 3) * 3) == 0.3
    (False, True)
    """
    short = float(f"{value:.9g}")
    return short if math.isclose(short, value, rel_tol=1e-12) else value
