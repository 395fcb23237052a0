"""Starts: the state of the optimiser that a run of the probe begins with.

Most optimisers begin as a training does. One that scales gradients before they are clipped has scales of 1 there, at
which a program that forgets to scale would not show. So its runs begin with scales that differ by coordinate, and one
update before they are refreshed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dp_core.training.averaging import Averaged
from dp_core.training.optimizers import OptimizerOracle
from dp_core.training.placement import Placement
from dp_core.training.step import TrainState

# The scales that runs start with.
_SCALES = (0.2, 1.0)


def first_moments(optimizer: OptimizerOracle, coordinates: int) -> np.ndarray:
    """Returns the moments that runs start with, of shape (moments, coordinates)."""
    moments = np.tile(np.array(optimizer.initial).reshape(-1, 1), (1, coordinates))
    if optimizer.scales is not None:
        drawn = np.random.default_rng(coordinates).uniform(*_SCALES, coordinates)
        moments[optimizer.scales] = drawn.astype(np.float32)
    return moments


def first_scales(optimizer: OptimizerOracle, coordinates: int) -> np.ndarray:
    """Returns what gradients are multiplied by before they are clipped, in the first step of a run."""
    if optimizer.scales is None:
        return np.ones(coordinates)
    return first_moments(optimizer, coordinates)[optimizer.scales]


def first_updates(optimizer: OptimizerOracle) -> int:
    """Returns the number of updates that the optimiser has seen when a run starts."""
    return 0 if optimizer.scales is None else optimizer.refreshed_every - 1


def of_optimizer(update_state: Any) -> Any:
    """Returns the optimiser's part of an update rule's state."""
    return update_state.inner if isinstance(update_state, Averaged) else update_state


def with_moments(placement: Placement, state: TrainState, updates: int, moments: Sequence[Any]) -> TrainState:
    """Returns a program's state with other moments, trees like the parameters, and another count of updates."""
    whole = placement.whole(state)
    trees = [jax.tree.map(np.float32, moment) for moment in moments]
    own = type(of_optimizer(whole.update_state))(np.asarray(updates, np.int32), *trees)
    if isinstance(whole.update_state, Averaged):
        own = whole.update_state._replace(inner=own)
    placed: TrainState = placement.put(whole._replace(update_state=own))
    return placed
