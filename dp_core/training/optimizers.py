"""The paper's optimisers, with the learning rate left out.

Each is built with a rate of 1. The trainer scales the update by the scheduled rate, which is
traced: trials that differ in nothing but numbers share one compiled step.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike


def make_optimizer(name: str, *, momentum: float) -> optax.GradientTransformation:
    """An optimiser at learning rate 1; ``momentum`` is SGD's and ignored by the others."""
    match name:
        case "sgd":
            return optax.sgd(1.0, momentum=momentum or None)
        case "yogi":
            return optax.yogi(1.0)
        case "adagrad":
            return optax.adagrad(1.0)
        case "adam":
            return optax.adam(1.0)
        case "adamw":
            return optax.adamw(1.0)
    raise ValueError(f"unknown optimizer {name!r}; known: sgd, yogi, adagrad, adam, adamw")


def cosine_decay(learning_rate: ArrayLike, step: ArrayLike, total_steps: ArrayLike) -> jax.Array:
    """The rate at ``step``, from ``learning_rate`` at step 0 down to 0 at ``total_steps``."""
    done = jnp.asarray(step, jnp.float32) / jnp.asarray(total_steps, jnp.float32)
    return 0.5 * jnp.asarray(learning_rate, jnp.float32) * (1 + jnp.cos(jnp.pi * done))
