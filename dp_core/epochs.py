"""How many batches make an epoch, and how many steps a number of epochs.

Apart from the samplers, so that a plan can count steps without loading the accounting.
"""

from __future__ import annotations

import math


def batches_per_epoch(sampler: str, examples: int, batch_size: int) -> float:
    """Returns the number of batches in an epoch: whole numbers for samplers that deal every epoch's examples."""
    if sampler == "shuffle":
        return examples // batch_size
    if sampler == "balls_in_bins":
        return max(1, round(examples / batch_size))
    return examples / batch_size


def steps_for_epochs(*, examples: int, batch_size: int, epochs: float, sampler: str = "poisson") -> int:
    """Returns the number of steps that cover ``epochs`` epochs, at least 1.

    >>> steps_for_epochs(examples=1010, batch_size=64, epochs=2)
    32
    >>> steps_for_epochs(examples=1010, batch_size=64, epochs=2, sampler="shuffle")
    30
    """
    return max(1, math.ceil(epochs * batches_per_epoch(sampler, examples, batch_size)))
