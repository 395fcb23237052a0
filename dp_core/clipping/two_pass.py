"""Ghost clipping in two passes, as in Section 5 of the paper; the speed measurements compare with it.

The first pass computes every example's gradient norm, the second differentiates the loss reweighted by the
clip factors. The result equals that of ``one_pass.py``. Nothing trains with it.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dp_core.clipping.factors import clip_factor
from dp_core.clipping.one_pass import GradientSum
from dp_core.clipping.signals import Batch, ExampleLoss, backward, squared_norms


def add_clipped_gradients(
    total: GradientSum,
    model: nn.Module,
    params: Any,
    batch: Batch,
    example_loss: ExampleLoss,
    *,
    l2_clip_norm: ArrayLike,
) -> GradientSum:
    """Adds the clipped gradients of a batch to a running sum.

    Same contract as ``one_pass.add_clipped_gradients`` with ``clipping="fixed"`` and no microbatches.
    """
    mask = jnp.asarray(batch.mask)
    signals, _ = backward(model, params, batch, example_loss)
    norms = jnp.sqrt(squared_norms(signals))
    factors = mask * clip_factor("fixed").traced(norms, l2_clip_norm)

    # The factors are constants here, so the gradient of the reweighted sum is the sum of clipped gradients.
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
