"""Sums of clipped gradients, in one backward pass.

The paper's Section 5 takes two passes: one for the norms, one for the gradient of the reweighted
loss. One is enough. A single backward pass gives each layer's input ``a`` and output gradient
``δ``; the norms follow from those, and so does each weight gradient, with the clip factors folded
in: ``aᵀ(c·δ)``.

What is clipped is the gradient of an example or, with microbatches, the mean gradient of a group.
Sums are added to a total in place, so a batch may come in any number of pieces.
``oracle.py`` holds the slow and obvious version that the tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dp_core.microbatches import Microbatches, group_norms
from dp_core.signals import Batch, ExampleLoss, add_weighted_gradients, backward, squared_norms

# Stands in for the smallest gradients when every gradient is scaled to the clip norm (AUTO-S of
# Bu et al., 2023, whose value this is): without it, rounding errors would be scaled up as well.
AUTOMATIC_STABILITY = 0.01


def _clip(norms: jax.Array, l2_clip_norm: ArrayLike) -> jax.Array:
    return jnp.minimum(1.0, l2_clip_norm / jnp.maximum(norms, jnp.finfo(norms.dtype).tiny))


def _normalise(norms: jax.Array, l2_clip_norm: ArrayLike) -> jax.Array:
    return jnp.asarray(l2_clip_norm) / (norms + AUTOMATIC_STABILITY)


# The factor that a gradient is scaled by, from its norm: each leaves it at most l2_clip_norm long.
# ``adaptive`` differs from ``fixed`` in that the clip norm moves (``adaptive_clipping.py``).
CLIP_FACTORS: dict[str, Callable[[jax.Array, ArrayLike], jax.Array]] = {
    "fixed": _clip,
    "automatic": _normalise,
    "adaptive": _clip,
}


class GradientSum(NamedTuple):
    """What a batch adds up to.

    ``loss`` is the sum of the examples' losses, ``too_long`` the number of examples (or groups)
    whose gradient was longer than the clip norm, and ``not_finite`` the number of rows whose
    gradient has no finite norm: if there are any, ``gradients`` must not be used.
    """

    gradients: Any
    loss: jax.Array
    too_long: jax.Array
    not_finite: jax.Array


def zero_sum(params: Any) -> GradientSum:
    """The sum over no examples."""
    zero, none = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
    return GradientSum(jax.tree.map(jnp.zeros_like, params), zero, none, none)


def add_gradients(
    total: GradientSum, model: nn.Module, params: Any, batch: Batch, example_loss: ExampleLoss
) -> GradientSum:
    """``total`` plus the examples' gradients as they are, for training without privacy."""
    mask = jnp.asarray(batch.mask)
    signals, losses = backward(model, params, batch, example_loss)
    gradients = add_weighted_gradients(total.gradients, signals, mask)
    return total._replace(gradients=gradients, loss=total.loss + jnp.sum(mask * losses))


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
    """``total`` plus the examples' gradients, each scaled to be at most ``l2_clip_norm`` long.

    Adding or removing one example changes the result by at most ``l2_clip_norm`` in L2 norm (to
    float32 rounding), over all parameters together. With ``microbatches`` what is scaled is the sum
    of a group's gradients over the nominal group size, and one example changes the result by at
    most twice the clip norm: it takes one group's vector to another, both within the bound.
    """
    mask = jnp.asarray(batch.mask)
    signals, losses = backward(model, params, batch, example_loss)
    if microbatches is None:
        norms, share, first_of_group = jnp.sqrt(squared_norms(signals)), 1.0, mask > 0
    else:
        groups = jnp.asarray(batch.groups)
        norms = group_norms(signals, groups, microbatches)
        share, first_of_group = 1 / microbatches.size, (mask > 0) & (groups == jnp.arange(groups.shape[0]))
    factors = share * mask * CLIP_FACTORS[clipping](norms, l2_clip_norm)
    return GradientSum(
        gradients=add_weighted_gradients(total.gradients, signals, factors),
        loss=total.loss + jnp.sum(mask * losses),
        too_long=total.too_long + jnp.sum(first_of_group & (norms > l2_clip_norm), dtype=jnp.int32),
        not_finite=total.not_finite + jnp.sum((mask > 0) & ~jnp.isfinite(norms), dtype=jnp.int32),
    )
