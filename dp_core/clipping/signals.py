"""Signals: each layer's input and output gradient, from one forward and backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import ArrayLike

from dp_core.clipping.layers import LAYER_INPUTS, LAYER_OUTPUTS, RULES, LayerRule

# (logits, labels) -> one loss per row.
ExampleLoss = Callable[[Any, Any], jax.Array]


class Batch(NamedTuple):
    """Examples padded to a fixed number of rows.

    Attributes:
        integers: Integer features after the log transform, float32 of shape (rows, integer columns). NaN is a
            missing value.
        categoricals: Tokens, int32 of shape (rows, slots of all features).
        labels: float32 of shape (rows,).
        mask: 1 for a sampled example and 0 for padding, float32 of shape (rows,).
        groups: With microbatches, the index of the first row of each row's group, int32 of shape (rows,). The
            rows of a group are adjacent, and a padding row is a group of its own.
    """

    integers: ArrayLike
    categoricals: ArrayLike
    labels: ArrayLike
    mask: ArrayLike
    groups: ArrayLike | None = None


class LayerSignals(NamedTuple):
    """What a layer's clipping rule works on.

    Attributes:
        rule: The layer's clipping rule.
        input: The layer's input, of shape (rows, ...).
        output_gradient: Gradient of each example's loss with respect to the layer's output, (rows, outputs).
    """

    rule: LayerRule
    input: jax.Array
    output_gradient: jax.Array


# Keyed by the layer's path in the parameter tree.
Signals = Mapping[tuple[str, ...], LayerSignals]


def backward(model: nn.Module, params: Any, batch: Batch, example_loss: ExampleLoss) -> tuple[Signals, jax.Array]:
    """Runs one forward and one backward pass.

    Args:
        model: A model built from ``dp_core.clipping.layers``.
        params: The parameters to differentiate at.
        batch: Examples of shape (rows, ...).
        example_loss: ``(logits, labels) -> losses``, one per row.

    Returns:
        The signals of every layer, and the loss of every row.

    Raises:
        ValueError: If a parameter belongs to a layer without a clipping rule. Its gradient would go unclipped.
    """

    # Padding is zeroed, so that garbage in it cannot make anything non-finite.
    sampled = jnp.asarray(batch.mask) > 0
    integers = jnp.where(sampled[:, None], batch.integers, 0.0)
    labels = jnp.where(sampled, batch.labels, 0.0)

    def run(outputs: Any) -> tuple[jax.Array, Any]:
        logits, captured = model.apply(
            {"params": params, LAYER_OUTPUTS: outputs}, integers, batch.categoricals, mutable=[LAYER_INPUTS]
        )
        losses = example_loss(logits, labels)
        # Examples do not interact: the gradient of the summed loss with respect to one example's layer output
        # is the gradient of that example's own loss.
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
                f"parameter {'/'.join(path)} belongs to a layer that has no rule for per-example clipping; "
                f"build it from dp_core.clipping.layers, or add a rule there (rules: {', '.join(RULES)})"
            )
    return signals, losses


def squared_norms(signals: Signals, scales: Any = None) -> jax.Array:
    """Returns the squared L2 norm of each example's gradient, over all parameters; shape (rows,).

    Args:
        signals: The layers' signals.
        scales: A tree like the parameters, which each gradient is multiplied by first; None for no scaling. Nothing
            of the size of a gradient is materialised for an example.
    """
    squares = []
    own: dict[tuple[str, ...], dict[str, jax.Array]] = {}
    for (*path, name), value in flatten_dict(scales or {}).items():
        own.setdefault(tuple(path), {})[name] = value
    for path, (rule, layer_input, delta) in signals.items():
        if scales is None:
            squares.append(jax.vmap(rule.inner_product)(layer_input, delta, layer_input, delta))
        else:
            squares.append(jax.vmap(rule.scaled_square, (0, 0, None))(layer_input, delta, own[path]))
    return sum(squares[1:], start=squares[0])


def add_weighted_gradients(total: Any, signals: Signals, weights: jax.Array) -> Any:
    """Adds the weighted sum of the examples' parameter gradients to a tree.

    Args:
        total: A tree like the parameters.
        signals: The layers' signals.
        weights: One weight per row, of shape (rows,).

    Returns:
        ``total`` plus the sum of weight times gradient over the rows.
    """
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
