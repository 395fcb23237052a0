"""The curves behind the paper's Figure 2, point by point: what the accountant says, remembered on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dp_core.sampling import steps_for_epochs
from tasks.budget import noise_multiplier_for
from tasks.errors import UserError


class NoiseAtBatchSize(NamedTuple):
    """``standard_deviation`` is of the noise in the mean gradient, in clip norms: σ over the batch size."""

    batch_size: int
    steps: int
    noise_multiplier: float
    standard_deviation: float


def noise_by_batch_size(
    *,
    examples: int,
    epsilon: float,
    batch_sizes: Sequence[int],
    epochs: float | None = None,
    steps: int | None = None,
    delta: float | None = None,
) -> list[NoiseAtBatchSize]:
    """Figure 2: at fixed ``epochs`` (a) or fixed ``steps`` (b), how much noise each batch size needs for ε."""
    if (epochs is None) == (steps is None):
        raise UserError("give either epochs, which stay fixed as the batch grows, or steps")
    points = []
    for batch_size in batch_sizes:
        taken = steps or steps_for_epochs(examples=examples, batch_size=batch_size, epochs=epochs or 1.0)
        noise_multiplier = noise_multiplier_for(
            epsilon=epsilon, delta=delta or 1 / examples, examples=examples, batch_size=batch_size, steps=taken
        )
        points.append(NoiseAtBatchSize(batch_size, taken, noise_multiplier, noise_multiplier / batch_size))
    return points
