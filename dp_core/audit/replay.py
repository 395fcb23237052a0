"""Replay: shows that a dispatch of the training was the program that the probe measured, on the stated numbers.

The state before and after some dispatches of the training is kept. After the training the same compiled program is
run again from the kept state, with the batches of that dispatch and with the noise key and numbers that the record is
made of: one step at a time, so that a step cannot depend on its place in the dispatch. The states must agree. A
training loop that hands the program another key or other numbers than it records, or changes the state in between, is
found here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dp_core.training.placement import Placement
from dp_core.training.step import Hyperparameters, Steps, Trainer, TrainState

# Largest difference of a replayed state, relative to how far its arrays moved. On one device they agree to the bit;
# across devices sums may be added in another order.
TOLERANCE = 1e-3


class Recording(NamedTuple):
    """A dispatch of the training.

    Attributes:
        first: The number of its first step.
        steps: Its batches.
        before: The state before it, as NumPy arrays.
        after: The state after it, as NumPy arrays.
    """

    first: int
    steps: Steps
    before: TrainState
    after: TrainState


class Replay(NamedTuple):
    """A replayed dispatch.

    Attributes:
        first: The number of its first step.
        difference: Largest difference from the recorded state, relative to how far the array moved.
    """

    first: int
    difference: float

    def defects(self) -> list[str]:
        if self.difference <= TOLERANCE:
            return []
        return [
            f"the training's steps from {self.first:,} on are not what the program does with the stated noise key and "
            f"numbers: the state differs by {self.difference:.3g} of how far it moved"
        ]


def own_copy(placement: Placement, state: TrainState) -> TrainState:
    """Returns a copy of a state on the host, which does not change when the state's buffers are donated."""
    return jax.tree.map(np.array, placement.whole(state))


def replay(
    recording: Recording, trainer: Trainer, placement: Placement, noise_key: jax.Array, hyper: Hyperparameters
) -> Replay:
    """Runs a recorded dispatch again."""
    state = placement.put(recording.before)
    for number in range(int(np.asarray(recording.steps.active))):
        state, _ = trainer.run(state, _alone(recording.steps, number), noise_key, hyper)
    differences = jax.tree.map(_difference, recording.before, recording.after, own_copy(placement, state))
    return Replay(recording.first, max(jax.tree.leaves(differences)))


def _alone(steps: Steps, number: int) -> Steps:
    """Returns one of the steps as the first and only active one of a dispatch of the same shape."""
    batches, pieces = jax.tree.map(
        lambda leaf: jnp.roll(leaf, -number, axis=0), (steps.batches, jnp.asarray(steps.pieces))
    )
    return Steps(batches, pieces, jnp.minimum(jnp.asarray(steps.active), 1))


def _difference(before: Any, after: Any, again: Any) -> float:
    moved = max(float(np.max(np.abs(np.asarray(again, np.float64) - before), initial=0.0)), 1e-30)
    difference = float(np.max(np.abs(np.asarray(again, np.float64) - after), initial=0.0))
    return difference / moved if np.isfinite(difference) and np.isfinite(moved) else float("inf")
