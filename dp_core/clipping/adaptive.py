"""Adaptive clip norm: it follows a private quantile of the gradient norms (Andrew et al., 2021).

Each step releases the number of gradients longer than the clip norm, with Gaussian noise, and moves the
clip norm towards the quantile. One example changes the count by at most 1.
``dp_core.accounting.noise_split`` divides the noise between the count and the gradient sum.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dp_core.training.noise import standard_normal

# Change of log C per step when the share of unclipped gradients is off by 1.
CLIP_LEARNING_RATE = 0.2


def next_clip_norm(
    l2_clip_norm: jax.Array,
    too_long: jax.Array,
    key: jax.Array,
    *,
    count_noise_multiplier: ArrayLike,
    expected_count: ArrayLike,
    quantile: ArrayLike,
) -> jax.Array:
    """Returns the clip norm of the next step (Algorithm 1 of Andrew et al., with a geometric update).

    Args:
        l2_clip_norm: The clip norm of this step, a float32 scalar.
        too_long: Number of examples (or groups) with a gradient norm above it. Private.
        key: A key for the noise on the count, independent of the gradient's noise.
        count_noise_multiplier: Standard deviation of that noise; the count has sensitivity 1.
        expected_count: Expected number of examples (or groups) in the batch. Public.
        quantile: Share of gradients that should stay unclipped, in (0, 1).

    Returns:
        ``C * exp(-CLIP_LEARNING_RATE * (share within C - quantile))``, always positive. It depends on the
        examples through the noisy count only.
    """
    noisy = too_long.astype(jnp.float32) + count_noise_multiplier * standard_normal(key)
    within = 1 - noisy / expected_count
    return l2_clip_norm * jnp.exp(-CLIP_LEARNING_RATE * (within - quantile))
