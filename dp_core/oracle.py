"""Per-example clipping, slow and obvious: the oracle that the tests hold ``clipping.py`` against."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dp_core.clipping import Batch, ExampleLoss, GradientSum


def per_example_gradients(model: nn.Module, params: Any, batch: Batch, example_loss: ExampleLoss) -> Any:
    """A gradient for each example, stacked along the first axis of every parameter."""

    def loss(params: Any, integers: jax.Array, categoricals: jax.Array, label: jax.Array) -> jax.Array:
        logit = model.apply({"params": params}, integers[None], categoricals[None])
        return example_loss(logit, label[None])[0]

    return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0, 0))(params, batch.integers, batch.categoricals, batch.labels)


def global_norms(gradients: Any) -> jax.Array:
    """The L2 norm of each example's gradient, over all parameters."""
    squares = [jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(gradients)]
    return jnp.sqrt(sum(squares))


def clipped_gradient_sum(
    model: nn.Module, params: Any, batch: Batch, example_loss: ExampleLoss, *, l2_clip_norm: ArrayLike
) -> GradientSum:
    """The same contract as ``clipping.clipped_gradient_sum``, by materialising every gradient."""
    gradients = per_example_gradients(model, params, batch, example_loss)
    norms = global_norms(gradients)
    factors = batch.mask * jnp.where(norms > l2_clip_norm, l2_clip_norm / jnp.maximum(norms, 1e-30), 1.0)
    summed = jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, axes=1), gradients)
    losses = example_loss(model.apply({"params": params}, batch.integers, batch.categoricals), batch.labels)
    return GradientSum(summed, losses)
