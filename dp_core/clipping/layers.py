"""Layers that can be clipped without a gradient per example, and the rule of each.

A layer does two things besides computing its output. It *sows* its input ``a`` under the name of
its rule, and it passes its output through ``perturb`` under the same name, so that the gradient
with respect to that (zero) perturbation is the layer's output gradient ``δ``. From ``a`` and ``δ``
alone a rule gives the inner product of two examples' parameter gradients, and for any weights
``w`` the weighted sum of the examples' gradients: neither needs a gradient per example
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
# A slot of a multi-valued feature that holds no token.
NO_TOKEN = -1

# Float32 squares of smaller numbers than about 1e-19 vanish. An output gradient that small still
# makes a long gradient if the layer's input is enormous, and the other way round; beyond this square
# of a norm the product is not trusted, and the example counts as having no finite gradient.
_LARGEST_TRUSTED_SQUARE = 1e24


class Dense(nn.Module):
    """``x @ kernel + bias`` for x of shape (examples, inputs)."""

    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        output = x @ self.param("kernel", _initializer("kernel"), (x.shape[-1], self.features))
        if self.use_bias:
            output = output + self.param("bias", _initializer("bias"), (self.features,))
        return _tap(self, "dense" if self.use_bias else "dense_without_bias", x, output)


class Embedding(nn.Module):
    """One row of a table per example, for tokens of shape (examples,)."""

    vocabulary_size: int
    dimension: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        return _tap(self, "embedding", tokens, _table(self)[tokens])


class EmbeddingBag(nn.Module):
    """The sum of several rows of a table per example, for tokens of shape (examples, slots).

    A slot may hold ``NO_TOKEN``, and a token may be in several slots of one example.
    """

    vocabulary_size: int
    dimension: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        table = _table(self)
        rows = jnp.where((tokens >= 0)[..., None], table[jnp.maximum(tokens, 0)], 0.0)
        return _tap(self, "embedding_bag", tokens, jnp.sum(rows, axis=-2))


# The standard deviation of a parameter's first values, by its name.
INITIAL_SCALES: dict[str, Callable[[tuple[int, ...]], float]] = {
    "kernel": lambda shape: (2 / shape[0]) ** 0.5,
    "bias": lambda shape: 0.0,
    # Small: what the tables hold at first is noise to the layers above, and SGD unlearns it slowly.
    "table": lambda shape: 0.02,
}


def initial_parameters(model: nn.Module, rng: np.random.Generator, *inputs: Any) -> Any:
    """A model's first parameters, distributed as ``model.init`` draws them, as numpy arrays.

    Drawn by numpy: compiling a JAX generator for each of thirty shapes takes longer than a quick
    trial trains.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        scale = np.float32(INITIAL_SCALES[path[-1].key](leaf.shape))
        return scale * rng.standard_normal(leaf.shape, dtype=np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


class LayerRule(NamedTuple):
    """What clipping needs to know of a kind of layer.

    inner_product(a, δ, a′, δ′): of the layer's parameter gradients for two single examples.
    add_weighted_gradient(total, a, δ): ``total`` plus the sum of the examples' gradients, for a
    batch whose δ have been weighted already. It adds in place, so that a large batch in pieces
    touches only those rows of a large table that it reads.
    """

    inner_product: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
    add_weighted_gradient: Callable[[Any, jax.Array, jax.Array], Any]


def _dense_inner_product(a: jax.Array, delta: jax.Array, a2: jax.Array, delta2: jax.Array) -> jax.Array:
    # The kernel's gradient is the outer product a δᵀ, the bias's is δ.
    return _trusted(_dot(a, a2) + 1) * _dot(delta, delta2)


def _add_dense_gradient(total: Any, a: jax.Array, delta: jax.Array) -> Any:
    return {"kernel": total["kernel"] + _outer(a, delta), "bias": total["bias"] + jnp.sum(delta, axis=0)}


def _unbiased_inner_product(a: jax.Array, delta: jax.Array, a2: jax.Array, delta2: jax.Array) -> jax.Array:
    return _trusted(_dot(a, a2)) * _trusted(_dot(delta, delta2))


def _add_unbiased_gradient(total: Any, a: jax.Array, delta: jax.Array) -> Any:
    return {"kernel": total["kernel"] + _outer(a, delta)}


def _embedding_inner_product(token: jax.Array, delta: jax.Array, token2: jax.Array, delta2: jax.Array) -> jax.Array:
    # A dense layer on one-hot inputs, whose inner product is 1 for equal tokens.
    return jnp.where(token == token2, _dot(delta, delta2), 0.0)


def _add_embedding_gradient(total: Any, tokens: jax.Array, delta: jax.Array) -> Any:
    return {"table": total["table"].at[tokens].add(delta)}


def _bag_inner_product(tokens: jax.Array, delta: jax.Array, tokens2: jax.Array, delta2: jax.Array) -> jax.Array:
    # A dense layer on counts of tokens: a token that is in both bags, k and l times, makes k·l pairs.
    pairs = (tokens[:, None] == tokens2[None, :]) & (tokens >= 0)[:, None]
    return jnp.sum(pairs.astype(delta.dtype)) * _dot(delta, delta2)


def _add_bag_gradient(total: Any, tokens: jax.Array, delta: jax.Array) -> Any:
    rows = jnp.where((tokens >= 0)[..., None], delta[:, None, :], 0.0)
    return {"table": total["table"].at[jnp.maximum(tokens, 0)].add(rows)}


RULES: dict[str, LayerRule] = {
    "dense": LayerRule(_dense_inner_product, _add_dense_gradient),
    "dense_without_bias": LayerRule(_unbiased_inner_product, _add_unbiased_gradient),
    "embedding": LayerRule(_embedding_inner_product, _add_embedding_gradient),
    "embedding_bag": LayerRule(_bag_inner_product, _add_bag_gradient),
}


# A GPU multiplies float32 with 10 bits of precision by default. Norms, and the sums that they bound,
# must be right to more than that.
def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.vdot(left, right, precision=jax.lax.Precision.HIGHEST)


def _outer(a: jax.Array, delta: jax.Array) -> jax.Array:
    return jnp.matmul(a.T, delta, precision=jax.lax.Precision.HIGHEST)


def _trusted(square: jax.Array) -> jax.Array:
    return jnp.where(jnp.abs(square) <= _LARGEST_TRUSTED_SQUARE, square, jnp.inf)


def _initializer(name: str) -> Callable[..., jax.Array]:
    return lambda key, shape: INITIAL_SCALES[name](shape) * jax.random.normal(key, shape)


def _table(layer: Embedding | EmbeddingBag) -> jax.Array:
    if layer.is_initializing():
        return layer.param("table", _initializer("table"), (layer.vocabulary_size, layer.dimension))
    # The table may have more rows than tokens, to lie evenly on several devices.
    return jnp.asarray(layer.get_variable("params", "table"))


def _tap(layer: nn.Module, rule: str, layer_input: jax.Array, output: jax.Array) -> jax.Array:
    layer.sow(LAYER_INPUTS, rule, layer_input, reduce_fn=_only_call, init_fn=lambda: None)
    return layer.perturb(rule, output, collection=LAYER_OUTPUTS)


def _only_call(earlier: jax.Array | None, layer_input: jax.Array) -> jax.Array:
    if earlier is not None:
        raise ValueError("a layer is called twice in one forward pass: its rule holds for one call only")
    return layer_input
