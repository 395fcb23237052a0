"""Clipped sums, slow and obvious: the oracle that the tests hold ``clipping.py`` against.

It asks JAX for every example's gradient and knows nothing of layers and their rules.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dp_core.clipping import AUTOMATIC_STABILITY, GradientSum
from dp_core.microbatches import Microbatches
from dp_core.signals import Batch, ExampleLoss


def per_example_gradients(model: nn.Module, params: Any, batch: Batch, example_loss: ExampleLoss) -> Any:
    """A gradient for each example, stacked along the first axis of every parameter."""

    def loss(params: Any, integers: jax.Array, categoricals: jax.Array, label: jax.Array) -> jax.Array:
        logit = model.apply({"params": params}, integers[None], categoricals[None])
        return example_loss(logit, label[None])[0]

    return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0, 0))(params, batch.integers, batch.categoricals, batch.labels)


def global_norms(gradients: Any) -> jax.Array:
    """The L2 norm of each of a stack of gradients, over all parameters."""
    squares = [jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(gradients)]
    return jnp.sqrt(sum(squares))


def add_clipped_gradients(
    total: GradientSum,
    model: nn.Module,
    params: Any,
    batch: Batch,
    example_loss: ExampleLoss,
    *,
    l2_clip_norm: ArrayLike,
    clipping: str = "fixed",
    microbatches: Microbatches | None = None,
) -> GradientSum:
    """The same contract as ``clipping.add_clipped_gradients``, by materialising every gradient."""
    mask = jnp.asarray(batch.mask)
    rows = jnp.arange(mask.shape[0])
    groups, size = (rows, 1) if microbatches is None else (jnp.asarray(batch.groups), microbatches.size)

    def mean(leaf: jax.Array) -> jax.Array:
        # One for each group, at the place of the group's first row; zeros at the places of the others.
        examples = jnp.where(jnp.expand_dims(mask > 0, range(1, leaf.ndim)), leaf, 0.0)
        return jax.ops.segment_sum(examples, groups, num_segments=len(rows)) / size

    means = jax.tree.map(mean, per_example_gradients(model, params, batch, example_loss))
    norms = global_norms(means)
    if clipping == "automatic":
        factors = l2_clip_norm / (norms + AUTOMATIC_STABILITY)
    else:
        factors = jnp.where(norms > l2_clip_norm, l2_clip_norm / norms, 1.0)
    losses = example_loss(model.apply({"params": params}, batch.integers, batch.categoricals), batch.labels)
    clipped = jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, axes=1), means)
    return GradientSum(
        gradients=jax.tree.map(jnp.add, total.gradients, clipped),
        loss=total.loss + jnp.sum(jnp.where(mask > 0, losses, 0.0)),
        too_long=total.too_long + jnp.sum(norms > l2_clip_norm, dtype=jnp.int32),
        not_finite=total.not_finite + jnp.sum((mask > 0) & ~jnp.isfinite(norms)[groups], dtype=jnp.int32),
    )
