"""Sums of clipped per-example gradients, in one backward pass.

The paper's Section 5 takes two passes: one for the norms, one for the gradient of the reweighted
loss. One is enough. A single backward pass gives each layer's input ``a`` and output gradient
``δ``; the norms follow from those, and so does each weight gradient, with the clip factors folded
in: ``aᵀ(c·δ)``.

``oracle.py`` holds the slow and obvious version that the tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import ArrayLike

from dp_core.layers import LAYER_INPUTS, LAYER_OUTPUTS, RULES

ExampleLoss = Callable[[Any, Any], jax.Array]


class Batch(NamedTuple):
    """Examples of a fixed shape; ``mask`` is 1 for those that were sampled and 0 for padding."""

    integers: ArrayLike
    categoricals: ArrayLike
    labels: ArrayLike
    mask: ArrayLike


class GradientSum(NamedTuple):
    """A sum of (clipped) gradients over a batch, and each example's loss before the update."""

    gradients: Any
    losses: jax.Array


def gradient_sum(model: nn.Module, params: Any, batch: Batch, example_loss: ExampleLoss) -> GradientSum:
    """The sum of the examples' gradients as they are, for training without privacy."""

    def total_loss(params: Any) -> tuple[jax.Array, jax.Array]:
        losses = example_loss(model.apply({"params": params}, batch.integers, batch.categoricals), batch.labels)
        return jnp.sum(batch.mask * losses), losses

    gradients, losses = jax.grad(total_loss, has_aux=True)(params)
    return GradientSum(gradients, losses)


def clipped_gradient_sum(
    model: nn.Module, params: Any, batch: Batch, example_loss: ExampleLoss, *, l2_clip_norm: ArrayLike
) -> GradientSum:
    """The sum of the examples' gradients, each scaled down to norm ``l2_clip_norm`` where it is longer.

    Adding or removing one example changes the result by at most ``l2_clip_norm`` in L2 norm (to
    float32 rounding), over all parameters together.
    """
    signals, losses = _backward(model, params, batch, example_loss)
    squared_norms = sum(
        RULES[layer.rule].squared_norms(layer.params, layer.input, layer.output_gradient) for layer in signals.values()
    )
    norms = jnp.sqrt(squared_norms)
    tiny = jnp.finfo(norms.dtype).tiny
    factors = jnp.asarray(batch.mask) * jnp.minimum(1.0, l2_clip_norm / jnp.maximum(norms, tiny))
    gradients: dict[tuple[str, ...], Any] = {}
    for path, layer in signals.items():
        summed = RULES[layer.rule].weighted_gradient(layer.params, layer.input, layer.output_gradient, factors)
        gradients |= {(*path, name): value for name, value in summed.items()}
    return GradientSum(unflatten_dict(gradients), losses)


class _LayerSignals(NamedTuple):
    rule: str
    params: Any
    input: jax.Array
    output_gradient: jax.Array


def _backward(
    model: nn.Module, params: Any, batch: Batch, example_loss: ExampleLoss
) -> tuple[dict[tuple[str, ...], _LayerSignals], jax.Array]:
    """Every layer's input and, for every example, the gradient of its loss by the layer's output."""

    def run(outputs: Any) -> tuple[jax.Array, Any]:
        logits, captured = model.apply(
            {"params": params, LAYER_OUTPUTS: outputs},
            batch.integers,
            batch.categoricals,
            mutable=[LAYER_INPUTS],
        )
        losses = example_loss(logits, batch.labels)
        # Examples do not interact, so the gradient of the sum by one example's layer output is
        # the gradient of that example's own loss.
        return jnp.sum(losses), (losses, captured[LAYER_INPUTS])

    zeros = _zero_perturbations(model, params, batch)
    output_gradients, (losses, inputs) = jax.grad(run, has_aux=True)(zeros)

    flat_inputs, flat_gradients, flat_params = map(flatten_dict, (inputs, output_gradients, params))
    signals = {}
    for (*path, rule), layer_input in flat_inputs.items():
        layer_params = {key[-1]: value for key, value in flat_params.items() if list(key[:-1]) == path}
        signals[tuple(path)] = _LayerSignals(rule, layer_params, layer_input, flat_gradients[(*path, rule)])
    for path in flat_params:
        if path[:-1] not in signals:
            raise ValueError(
                f"parameter {'/'.join(path)} belongs to a layer that per-example clipping has no rule for; "
                f"build it from dp_core.layers, or add a rule there (rules: {', '.join(RULES)})"
            )
    return signals, losses


def _zero_perturbations(model: nn.Module, params: Any, batch: Batch) -> Any:
    def outputs(params: Any) -> Any:
        _, captured = model.apply(
            {"params": params}, batch.integers, batch.categoricals, mutable=[LAYER_OUTPUTS, LAYER_INPUTS]
        )
        return captured[LAYER_OUTPUTS]

    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(outputs, params))
