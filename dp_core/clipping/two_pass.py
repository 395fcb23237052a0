"""The paper's own form of ghost clipping, in two passes (Section 5): what ``clipping.py`` is measured against.

The first pass gives every example's gradient norm, the second differentiates the loss reweighted by
the clip factors. The result is the same as that of one pass; nothing trains with it.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dp_core.clipping import CLIP_FACTORS, GradientSum
from dp_core.signals import Batch, ExampleLoss, backward, squared_norms


def add_clipped_gradients(
    total: GradientSum,
    model: nn.Module,
    params: Any,
    batch: Batch,
    example_loss: ExampleLoss,
    *,
    l2_clip_norm: ArrayLike,
) -> GradientSum:
    """The same contract as ``clipping.add_clipped_gradients`` with fixed clipping of single examples."""
    mask = jnp.asarray(batch.mask)
    signals, _ = backward(model, params, batch, example_loss)
    norms = jnp.sqrt(squared_norms(signals))
    factors = mask * CLIP_FACTORS["fixed"](norms, l2_clip_norm)

    # The factors were computed outside of this function, so they are constants to its gradient: the
    # gradient of the sum is the sum of the clipped gradients.
    def reweighted_loss(params: Any) -> tuple[jax.Array, jax.Array]:
        losses = example_loss(model.apply({"params": params}, batch.integers, batch.categoricals), batch.labels)
        return jnp.sum(factors * losses), losses

    gradients, losses = jax.grad(reweighted_loss, has_aux=True)(params)
    return GradientSum(
        gradients=jax.tree.map(jnp.add, total.gradients, gradients),
        loss=total.loss + jnp.sum(mask * losses),
        too_long=total.too_long + jnp.sum((mask > 0) & (norms > l2_clip_norm), dtype=jnp.int32),
        not_finite=total.not_finite + jnp.sum((mask > 0) & ~jnp.isfinite(norms), dtype=jnp.int32),
    )
