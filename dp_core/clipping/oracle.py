"""The oracle: clipped sums by materialising every per-example gradient.

Slow and obvious. It gets the gradients from ``vmap`` of ``grad`` and uses no clipping rule of a layer.
Tests compare ``one_pass.py`` with it; nothing trains with it.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dp_core.clipping.factors import clip_factor
from dp_core.clipping.microbatches import Microbatches
from dp_core.clipping.one_pass import GradientSum
from dp_core.clipping.signals import Batch, ExampleLoss


def per_example_gradients(model: nn.Module, params: Any, batch: Batch, example_loss: ExampleLoss) -> Any:
    """Returns the gradient of each example's loss.

    Args:
        model: Any Flax model of ``(integers, categoricals) -> logits``.
        params: The parameters to differentiate at.
        batch: Examples of shape (rows, ...); the mask is ignored.
        example_loss: ``(logits, labels) -> losses``, one per row.

    Returns:
        A tree like ``params`` with a leading axis of length rows on every leaf.
    """

    def loss(params: Any, integers: jax.Array, categoricals: jax.Array, label: jax.Array) -> jax.Array:
        logit = model.apply({"params": params}, integers[None], categoricals[None])
        return example_loss(logit, label[None])[0]

    return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0, 0))(params, batch.integers, batch.categoricals, batch.labels)


def global_norms(gradients: Any) -> jax.Array:
    """Returns the L2 norm over all parameters of each gradient in a stack; shape (rows,)."""
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
    scales: Any = None,
) -> GradientSum:
    """Adds the clipped gradients of a batch to a running sum; same contract as ``one_pass.add_clipped_gradients``.

    The factors come from the registered oracle of ``clipping``, not from the function that trains.
    """
    mask = jnp.asarray(batch.mask)
    rows = jnp.arange(mask.shape[0])
    groups, size = (rows, 1) if microbatches is None else (jnp.asarray(batch.groups), microbatches.size)

    def mean(leaf: jax.Array) -> jax.Array:
        # The group's mean stands at its first row; the other rows are zero.
        examples = jnp.where(jnp.expand_dims(mask > 0, range(1, leaf.ndim)), leaf, 0.0)
        return jax.ops.segment_sum(examples, groups, num_segments=len(rows)) / size

    means = jax.tree.map(mean, per_example_gradients(model, params, batch, example_loss))
    norms = global_norms(means if scales is None else jax.tree.map(jnp.multiply, means, scales))
    factors = clip_factor(clipping).oracle(norms, l2_clip_norm)
    losses = example_loss(model.apply({"params": params}, batch.integers, batch.categoricals), batch.labels)
    clipped = jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, axes=1), means)
    return GradientSum(
        gradients=jax.tree.map(jnp.add, total.gradients, clipped),
        loss=total.loss + jnp.sum(jnp.where(mask > 0, losses, 0.0)),
        too_long=total.too_long + jnp.sum(norms > l2_clip_norm, dtype=jnp.int32),
        not_finite=total.not_finite + jnp.sum((mask > 0) & ~jnp.isfinite(norms)[groups], dtype=jnp.int32),
    )
