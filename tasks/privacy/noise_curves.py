"""The curves of the paper's Figure 2: how much noise each batch size needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dp_core.epochs import steps_for_epochs
from tasks.privacy.cached_accounting import noise_multiplier_for
from tasks.runtime.errors import UserError


class NoiseAtBatchSize(NamedTuple):
    """One point of the curve.

    ``standard_deviation`` is that of the noise in the mean gradient, in clip norms: σ over the batch size.
    """

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
    """Returns the noise that each batch size needs for ε, at fixed ``epochs`` (Figure 2a) or fixed ``steps`` (2b).

    ``delta`` is 1/N by default. Raises ``UserError`` unless exactly one of ``epochs`` and ``steps`` is given.
    """
    if (epochs is None) == (steps is None):
        raise UserError("give exactly one of epochs and steps: it stays fixed as the batch size grows")
    points = []
    for batch_size in batch_sizes:
        taken = steps or steps_for_epochs(examples=examples, batch_size=batch_size, epochs=epochs or 1.0)
        noise_multiplier = noise_multiplier_for(
            epsilon=epsilon, delta=delta or 1 / examples, examples=examples, batch_size=batch_size, steps=taken
        )
        points.append(NoiseAtBatchSize(batch_size, taken, noise_multiplier, noise_multiplier / batch_size))
    return points
