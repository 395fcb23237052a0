"""Layers that can be clipped without a gradient per example, and the rule of each.

A layer does two things besides computing its output. It *sows* its input ``a`` under the name of
its rule, and it passes its output through ``perturb`` under the same name, so that the gradient
with respect to that (zero) perturbation is the layer's output gradient ``δ``. From ``a`` and ``δ``
alone a rule gives, for every example, the squared norm of the layer's parameter gradient, and for
any weights ``w`` the weighted sum of the examples' gradients: neither needs a gradient per example
(Goodfellow 2015; Section 5 of the paper).

A new kind of layer is one module and one entry of ``RULES``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

LAYER_INPUTS = "layer_inputs"
LAYER_OUTPUTS = "layer_outputs"


class Dense(nn.Module):
    """``x @ kernel + bias`` for x of shape (examples, inputs)."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", _initializer("kernel"), (x.shape[-1], self.features))
        bias = self.param("bias", _initializer("bias"), (self.features,))
        return _tap(self, "dense", x, x @ kernel + bias)


class Embedding(nn.Module):
    """One row of a table per example, for tokens of shape (examples,)."""

    vocabulary_size: int
    dimension: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        shape = (self.vocabulary_size, self.dimension)
        table = self.param("table", _initializer("table"), shape)
        return _tap(self, "embedding", tokens, table[tokens])


# The standard deviation of a parameter's first values, by its name.
INITIAL_SCALES: dict[str, Callable[[tuple[int, ...]], float]] = {
    "kernel": lambda shape: (2 / shape[0]) ** 0.5,
    "bias": lambda shape: 0.0,
    # Small: what the tables hold at first is noise to the layers above, and SGD unlearns it slowly.
    "table": lambda shape: 0.02,
}


def initial_parameters(model: nn.Module, rng: np.random.Generator, *inputs: Any) -> Any:
    """A model's first parameters, distributed as ``model.init`` draws them.

    Drawn by numpy: compiling a JAX generator for each of thirty shapes takes longer than a quick
    trial trains.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        scale = INITIAL_SCALES[path[-1].key](leaf.shape)
        return jnp.asarray(scale * rng.standard_normal(leaf.shape, dtype=np.float32))

    return jax.tree_util.tree_map_with_path(draw, shapes)


class LayerRule(NamedTuple):
    """What clipping needs to know of a kind of layer.

    Both take the layer's own parameters first, then its input and its output gradient, with
    examples along the first axis.
    """

    squared_norms: Callable[[Any, jax.Array, jax.Array], jax.Array]
    weighted_gradient: Callable[[Any, jax.Array, jax.Array, jax.Array], Any]


def _dense_squared_norms(params: Any, a: jax.Array, delta: jax.Array) -> jax.Array:
    # The kernel's gradient is the outer product a δᵀ, the bias's is δ.
    return (jnp.sum(a**2, axis=-1) + 1) * jnp.sum(delta**2, axis=-1)


def _dense_weighted_gradient(params: Any, a: jax.Array, delta: jax.Array, weights: jax.Array) -> Any:
    weighted = weights[:, None] * delta
    return {"kernel": a.T @ weighted, "bias": jnp.sum(weighted, axis=0)}


def _embedding_squared_norms(params: Any, tokens: jax.Array, delta: jax.Array) -> jax.Array:
    # A dense layer on a one-hot input, whose squared norm is 1.
    return jnp.sum(delta**2, axis=-1)


def _embedding_weighted_gradient(params: Any, tokens: jax.Array, delta: jax.Array, weights: jax.Array) -> Any:
    return {"table": jnp.zeros_like(params["table"]).at[tokens].add(weights[:, None] * delta)}


RULES: dict[str, LayerRule] = {
    "dense": LayerRule(_dense_squared_norms, _dense_weighted_gradient),
    "embedding": LayerRule(_embedding_squared_norms, _embedding_weighted_gradient),
}


def _initializer(name: str) -> Callable[..., jax.Array]:
    return lambda key, shape: INITIAL_SCALES[name](shape) * jax.random.normal(key, shape)


def _tap(layer: nn.Module, rule: str, layer_input: jax.Array, output: jax.Array) -> jax.Array:
    layer.sow(LAYER_INPUTS, rule, layer_input, reduce_fn=_only_call, init_fn=lambda: None)
    return layer.perturb(rule, output, collection=LAYER_OUTPUTS)


def _only_call(earlier: jax.Array | None, layer_input: jax.Array) -> jax.Array:
    if earlier is not None:
        raise ValueError("a layer is called twice in one forward pass: its rule holds for one call only")
    return layer_input
