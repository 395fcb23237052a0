"""A clip norm that follows a quantile of the gradient norms, privately (Andrew et al., 2021).

At each step the number of gradients longer than the clip norm is released with Gaussian noise, and
the clip norm moves towards the value that a given share of them stays within. One example changes
that number by at most one. The count and the gradient sum are two Gaussian releases on one sample,
which together are exactly one Gaussian release whose noise multiplier z obeys 1/z² = 1/z₁² + 1/z₂².
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

# The count's share of 1/z². The gradient's noise grows by 2.6 % for it.
COUNT_SHARE = 0.05
# By how much the logarithm of the clip norm moves when every gradient is on one side of it.
CLIP_LEARNING_RATE = 0.2


class NoiseMultipliers(NamedTuple):
    """Of the gradient sum and of the count, each relative to its own sensitivity."""

    of_gradient: float
    of_count: float


def split_noise(noise_multiplier: float) -> NoiseMultipliers:
    """Two multipliers that together are worth the given one.

    >>> round(combined_noise_multiplier(*split_noise(1.5)), 9)
    1.5
    """
    return NoiseMultipliers(noise_multiplier / math.sqrt(1 - COUNT_SHARE), noise_multiplier / math.sqrt(COUNT_SHARE))


def combined_noise_multiplier(gradient: float, count: float) -> float:
    """The multiplier of the one Gaussian release that the two together are."""
    if gradient == 0 or count == 0:
        return 0.0
    return 1 / math.sqrt(1 / gradient**2 + 1 / count**2)


def next_clip_norm(
    l2_clip_norm: jax.Array,
    too_long: jax.Array,
    key: jax.Array,
    *,
    count_noise_multiplier: ArrayLike,
    expected_count: ArrayLike,
    quantile: ArrayLike,
) -> jax.Array:
    """The clip norm for the next step, from the noisy share of gradients that were within this one."""
    noisy = too_long.astype(jnp.float32) + count_noise_multiplier * jax.random.normal(key)
    within = 1 - noisy / expected_count
    return l2_clip_norm * jnp.exp(-CLIP_LEARNING_RATE * (within - quantile))
