"""Ghost clipping in one backward pass: the sums of clipped gradients that training uses.

Section 5 of the paper runs two passes, one for the norms and one for the gradient of the reweighted loss.
One is enough. A single backward pass yields each layer's input ``a`` and output gradient ``δ``. The norms
follow from these, and so does each weight gradient with the clip factors ``c`` folded in: ``aᵀ(c·δ)``.

The unit of clipping is an example or, with microbatches, a group. Sums are added to a running total, so a
batch may come in any number of pieces. ``oracle.py`` is the slow version that tests compare with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dp_core.clipping.factors import clip_factor
from dp_core.clipping.microbatches import Microbatches, group_norms
from dp_core.clipping.signals import Batch, ExampleLoss, add_weighted_gradients, backward, squared_norms


class GradientSum(NamedTuple):
    """A running sum over the examples of a batch.

    Attributes:
        gradients: Sum of the (clipped) gradients, a tree like the parameters. Must not be used if
            ``not_finite`` is positive.
        loss: Sum of the examples' losses, a float32 scalar. Not private.
        too_long: Number of examples (or groups) with a gradient norm above the clip norm, int32. Not private.
        not_finite: Number of sampled rows without a finite gradient norm, int32.
    """

    gradients: Any
    loss: jax.Array
    too_long: jax.Array
    not_finite: jax.Array


def zero_sum(params: Any) -> GradientSum:
    """Returns the sum over no examples."""
    zero, none = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
    return GradientSum(jax.tree.map(jnp.zeros_like, params), zero, none, none)


def add_gradients(
    total: GradientSum, model: nn.Module, params: Any, batch: Batch, example_loss: ExampleLoss
) -> GradientSum:
    """Adds the unclipped gradients of a batch to a running sum, for non-private training.

    Args:
        total: The sum so far.
        model: A model built from ``dp_core.clipping.layers``.
        params: The parameters to differentiate at.
        batch: Examples of shape (rows, ...). Rows with mask 0 add nothing.
        example_loss: ``(logits, labels) -> losses``, one per row.

    Returns:
        The new sum. ``too_long`` and ``not_finite`` are not counted.
    """
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
    scales: Any = None,
) -> GradientSum:
    """Adds the clipped gradients of a batch to a running sum.

    Each example's gradient, over all parameters together, is scaled to an L2 norm of at most
    ``l2_clip_norm``. With ``microbatches``, the sum of a group's gradients divided by the nominal size is
    scaled instead.

    Sensitivity: adding or removing one example moves the sum by at most ``l2_clip_norm`` in L2 norm, to
    float32 rounding. With microbatches it moves the sum by at most twice that: the example changes one
    group's vector into another, each within the bound. With ``scales`` this holds for the sum times the scales,
    which is what noise must be added to: one example adds c·(s ⊙ g) to that, of norm at most C.

    Args:
        total: The sum so far.
        model: A model built from ``dp_core.clipping.layers``.
        params: The parameters to differentiate at.
        batch: Examples of shape (rows, ...). Rows with mask 0 add nothing. With microbatches, ``groups`` is
            set and no group crosses into another batch.
        example_loss: ``(logits, labels) -> losses``, one per row.
        l2_clip_norm: The clip norm C, positive; may be infinite.
        clipping: A key of ``factors.CLIP_FACTORS``.
        microbatches: The group sizes, or None to clip each example by itself.
        scales: A tree like the parameters, or None. The clip factors are then those of the scaled gradients. The sum
            is of the gradients themselves: multiplying it by the scales once is the sum of scaled gradients.

    Returns:
        The new sum. If its ``not_finite`` is positive, the bound does not hold and the gradients must not be
        used.

    Raises:
        ValueError: If a parameter belongs to a layer without a clipping rule, a layer is called twice, or scales are
            given with microbatches.
    """
    if scales is not None and microbatches is not None:
        raise ValueError("gradients are scaled one by one: scales need a microbatch size of 1")
    mask = jnp.asarray(batch.mask)
    signals, losses = backward(model, params, batch, example_loss)
    if microbatches is None:
        norms, share, first_of_group = jnp.sqrt(squared_norms(signals, scales)), 1.0, mask > 0
    else:
        groups = jnp.asarray(batch.groups)
        norms = group_norms(signals, groups, microbatches)
        share, first_of_group = 1 / microbatches.size, (mask > 0) & (groups == jnp.arange(groups.shape[0]))
    factors = share * mask * clip_factor(clipping).traced(norms, l2_clip_norm)
    return GradientSum(
        gradients=add_weighted_gradients(total.gradients, signals, factors),
        loss=total.loss + jnp.sum(mask * losses),
        too_long=total.too_long + jnp.sum(first_of_group & (norms > l2_clip_norm), dtype=jnp.int32),
        not_finite=total.not_finite + jnp.sum((mask > 0) & ~jnp.isfinite(norms), dtype=jnp.int32),
    )
