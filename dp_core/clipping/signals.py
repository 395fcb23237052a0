"""One forward and backward pass, and what every layer saw of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import ArrayLike

from dp_core.layers import LAYER_INPUTS, LAYER_OUTPUTS, RULES, LayerRule

ExampleLoss = Callable[[Any, Any], jax.Array]


class Batch(NamedTuple):
    """Examples of a fixed shape; ``mask`` is 1 for those that were sampled and 0 for padding.

    With microbatches ``groups`` holds, for each row, the number of its group's first row: the rows
    of a group stand together. A row of padding is a group of its own.
    """

    integers: ArrayLike
    categoricals: ArrayLike
    labels: ArrayLike
    mask: ArrayLike
    groups: ArrayLike | None = None


class LayerSignals(NamedTuple):
    """A layer's rule, its input and, for every example, its output gradient."""

    rule: LayerRule
    input: jax.Array
    output_gradient: jax.Array


# By the layer's path in the tree of parameters.
Signals = Mapping[tuple[str, ...], LayerSignals]


def backward(model: nn.Module, params: Any, batch: Batch, example_loss: ExampleLoss) -> tuple[Signals, jax.Array]:
    """Every layer's signals, and every example's loss."""

    # Padding is blank, whatever was in it: nothing that is not finite comes from there.
    sampled = jnp.asarray(batch.mask) > 0
    integers = jnp.where(sampled[:, None], batch.integers, 0.0)
    labels = jnp.where(sampled, batch.labels, 0.0)

    def run(outputs: Any) -> tuple[jax.Array, Any]:
        logits, captured = model.apply(
            {"params": params, LAYER_OUTPUTS: outputs}, integers, batch.categoricals, mutable=[LAYER_INPUTS]
        )
        losses = example_loss(logits, labels)
        # Examples do not interact, so the gradient of the sum by one example's layer output is
        # the gradient of that example's own loss.
        return jnp.sum(losses), (losses, captured[LAYER_INPUTS])

    zeros = _zero_perturbations(model, params, batch)
    output_gradients, (losses, inputs) = jax.grad(run, has_aux=True)(zeros)

    flat_gradients = flatten_dict(output_gradients)
    signals = {
        tuple(path): LayerSignals(RULES[rule], layer_input, flat_gradients[(*path, rule)])
        for (*path, rule), layer_input in flatten_dict(inputs).items()
    }
    for path in flatten_dict(params):
        if path[:-1] not in signals:
            raise ValueError(
                f"parameter {'/'.join(path)} belongs to a layer that per-example clipping has no rule for; "
                f"build it from dp_core.layers, or add a rule there (rules: {', '.join(RULES)})"
            )
    return signals, losses


def squared_norms(signals: Signals) -> jax.Array:
    """The squared norm of each example's gradient, over all parameters."""
    squares = []
    for rule, layer_input, delta in signals.values():
        squares.append(jax.vmap(rule.inner_product)(layer_input, delta, layer_input, delta))
    return sum(squares[1:], start=squares[0])


def add_weighted_gradients(total: Any, signals: Signals, weights: jax.Array) -> Any:
    """``total`` plus the examples' parameter gradients, each times its weight."""
    flat, result = flatten_dict(total), dict[tuple[str, ...], jax.Array]()
    for path, layer in signals.items():
        own = {name[-1]: value for name, value in flat.items() if name[:-1] == path}
        added = layer.rule.add_weighted_gradient(own, layer.input, weights[:, None] * layer.output_gradient)
        result |= {(*path, name): value for name, value in added.items()}
    return unflatten_dict(result)


def _zero_perturbations(model: nn.Module, params: Any, batch: Batch) -> Any:
    def outputs(params: Any) -> Any:
        _, captured = model.apply(
            {"params": params}, batch.integers, batch.categoricals, mutable=[LAYER_OUTPUTS, LAYER_INPUTS]
        )
        return captured[LAYER_OUTPUTS]

    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(outputs, params))
