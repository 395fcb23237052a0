"""Layers with ghost clipping: the Flax modules and the clipping rule of each.

Besides computing its output, a layer *sows* its input ``a`` under the name of its rule and passes its
output through ``perturb`` under the same name. The gradient with respect to that zero perturbation is
the output gradient ``δ``. From ``a`` and ``δ`` alone a rule computes inner products of per-example
parameter gradients, and weighted sums of them, without materialising any (Goodfellow, 2015; Section 5 of
the paper).

A new kind of layer is one Flax module and one entry of ``RULES``.
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
# The value of an empty slot of a multi-valued feature.
NO_TOKEN = -1

# Squares of numbers below about 1e-19 underflow in float32. Such an output gradient can still make a long
# parameter gradient if the layer's input is enormous, and vice versa. A squared norm above this bound is
# therefore treated as infinite, and the example as having no finite gradient.
_LARGEST_TRUSTED_SQUARE = 1e24


class Dense(nn.Module):
    """A fully connected layer: ``x @ kernel + bias``.

    Takes x of shape (examples, inputs) and returns (examples, features). It may be called once per forward
    pass.

    Attributes:
        features: Number of outputs.
        use_bias: Whether there is a bias.
    """

    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        output = x @ self.param("kernel", _initializer("kernel"), (x.shape[-1], self.features))
        if self.use_bias:
            output = output + self.param("bias", _initializer("bias"), (self.features,))
        return _tap(self, "dense" if self.use_bias else "dense_without_bias", x, output)


class Embedding(nn.Module):
    """A table lookup, one row per example.

    Takes tokens of shape (examples,), integers in [0, vocabulary_size), and returns (examples, dimension). It
    may be called once per forward pass.
    """

    vocabulary_size: int
    dimension: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        return _tap(self, "embedding", tokens, _table(self)[tokens])


class EmbeddingBag(nn.Module):
    """A table lookup that sums several rows per example.

    Takes tokens of shape (examples, slots) and returns (examples, dimension). An empty slot holds
    ``NO_TOKEN`` and adds nothing; a repeated token adds its row once per slot. It may be called once per
    forward pass.
    """

    vocabulary_size: int
    dimension: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        table = _table(self)
        rows = jnp.where((tokens >= 0)[..., None], table[jnp.maximum(tokens, 0)], 0.0)
        return _tap(self, "embedding_bag", tokens, jnp.sum(rows, axis=-2))


# Standard deviation of a parameter's initial values, by the parameter's name.
INITIAL_SCALES: dict[str, Callable[[tuple[int, ...]], float]] = {
    "kernel": lambda shape: (2 / shape[0]) ** 0.5,
    "bias": lambda shape: 0.0,
    # Small, because initial table values are noise to the layers above, and SGD is slow to unlearn them.
    "table": lambda shape: 0.02,
}


def initial_parameters(model: nn.Module, rng: np.random.Generator, *inputs: Any) -> Any:
    """Returns a model's initial parameters as NumPy float32 arrays, distributed as ``model.init`` draws them.

    NumPy draws them because compiling a JAX generator for each of thirty shapes takes longer than a quick
    trial trains.

    Args:
        model: A model built from the layers of this module.
        rng: The source of randomness; consumed in the order of the parameter tree.
        inputs: Arguments of ``model``. Only shapes and dtypes matter, so one row is enough.

    Returns:
        The tree that ``model.init(...)["params"]`` would be.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        scale = np.float32(INITIAL_SCALES[path[-1].key](leaf.shape))
        return scale * rng.standard_normal(leaf.shape, dtype=np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


class LayerRule(NamedTuple):
    """What clipping needs from a kind of layer.

    Attributes:
        inner_product: ``(a, δ, a′, δ′) -> scalar``, the inner product of the layer's parameter gradients of
            two single examples. With both the same, it is the squared gradient norm.
        add_weighted_gradient: ``(total, a, δ) -> total``, adds the gradients of a batch of examples to
            ``total``, the tree of the layer's parameters. The weights are already multiplied into δ. It
            updates in place, so a piece of a batch touches only the table rows that it reads.
        scaled_square: ``(a, δ, scales) -> scalar``, the squared norm of one example's parameter gradient with each
            coordinate multiplied by its scale. ``scales`` is a tree like the layer's parameters.
    """

    inner_product: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
    add_weighted_gradient: Callable[[Any, jax.Array, jax.Array], Any]
    scaled_square: Callable[[jax.Array, jax.Array, Any], jax.Array]


def _dense_inner_product(a: jax.Array, delta: jax.Array, a2: jax.Array, delta2: jax.Array) -> jax.Array:
    # The kernel's gradient is the outer product a δᵀ, the bias's is δ.
    return _trusted(_dot(a, a2) + 1) * _dot(delta, delta2)


def _add_dense_gradient(total: Any, a: jax.Array, delta: jax.Array) -> Any:
    return {"kernel": total["kernel"] + _outer(a, delta), "bias": total["bias"] + jnp.sum(delta, axis=0)}


def _dense_scaled_square(a: jax.Array, delta: jax.Array, scales: Any) -> jax.Array:
    # Σ_ij (s_ij a_i δ_j)² is a bilinear form of the squares.
    return _unbiased_scaled_square(a, delta, scales) + jnp.sum((scales["bias"] * delta) ** 2)


def _unbiased_scaled_square(a: jax.Array, delta: jax.Array, scales: Any) -> jax.Array:
    both = _trusted(_dot(a, a)) + _trusted(_dot(delta, delta))
    square = jnp.vdot(
        jnp.matmul(a**2, scales["kernel"] ** 2, precision=jax.lax.Precision.HIGHEST),
        delta**2,
        precision=jax.lax.Precision.HIGHEST,
    )
    return jnp.where(jnp.isfinite(both), square, jnp.inf)


def _unbiased_inner_product(a: jax.Array, delta: jax.Array, a2: jax.Array, delta2: jax.Array) -> jax.Array:
    return _trusted(_dot(a, a2)) * _trusted(_dot(delta, delta2))


def _add_unbiased_gradient(total: Any, a: jax.Array, delta: jax.Array) -> Any:
    return {"kernel": total["kernel"] + _outer(a, delta)}


def _embedding_inner_product(token: jax.Array, delta: jax.Array, token2: jax.Array, delta2: jax.Array) -> jax.Array:
    # A dense layer on one-hot inputs: their inner product is 1 for equal tokens, else 0.
    return jnp.where(token == token2, _dot(delta, delta2), 0.0)


def _add_embedding_gradient(total: Any, tokens: jax.Array, delta: jax.Array) -> Any:
    return {"table": total["table"].at[tokens].add(delta)}


def _embedding_scaled_square(token: jax.Array, delta: jax.Array, scales: Any) -> jax.Array:
    return jnp.sum((scales["table"][token] * delta) ** 2)


def _bag_scaled_square(tokens: jax.Array, delta: jax.Array, scales: Any) -> jax.Array:
    # A token that is k times in the bag adds k² of its scaled square: k from each of its k slots.
    times = jnp.sum((tokens[:, None] == tokens[None, :]) & (tokens >= 0)[:, None], axis=1).astype(delta.dtype)
    squares = jnp.sum((scales["table"][jnp.maximum(tokens, 0)] * delta) ** 2, axis=-1)
    return jnp.sum(jnp.where(times > 0, times * squares, 0.0))


def _bag_inner_product(tokens: jax.Array, delta: jax.Array, tokens2: jax.Array, delta2: jax.Array) -> jax.Array:
    # A dense layer on token counts: a token that is k times in one bag and l times in the other adds k·l.
    pairs = (tokens[:, None] == tokens2[None, :]) & (tokens >= 0)[:, None]
    return jnp.sum(pairs.astype(delta.dtype)) * _dot(delta, delta2)


def _add_bag_gradient(total: Any, tokens: jax.Array, delta: jax.Array) -> Any:
    rows = jnp.where((tokens >= 0)[..., None], delta[:, None, :], 0.0)
    return {"table": total["table"].at[jnp.maximum(tokens, 0)].add(rows)}


RULES: dict[str, LayerRule] = {
    "dense": LayerRule(_dense_inner_product, _add_dense_gradient, _dense_scaled_square),
    "dense_without_bias": LayerRule(_unbiased_inner_product, _add_unbiased_gradient, _unbiased_scaled_square),
    "embedding": LayerRule(_embedding_inner_product, _add_embedding_gradient, _embedding_scaled_square),
    "embedding_bag": LayerRule(_bag_inner_product, _add_bag_gradient, _bag_scaled_square),
}


# By default a GPU multiplies float32 with a 10-bit mantissa (TF32), too coarse for norms and for the sums
# that they bound.
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
    # The placement may have padded the table, so that its rows divide evenly among devices.
    return jnp.asarray(layer.get_variable("params", "table"))


def _tap(layer: nn.Module, rule: str, layer_input: jax.Array, output: jax.Array) -> jax.Array:
    layer.sow(LAYER_INPUTS, rule, layer_input, reduce_fn=_only_call, init_fn=lambda: None)
    return layer.perturb(rule, output, collection=LAYER_OUTPUTS)


def _only_call(earlier: jax.Array | None, layer_input: jax.Array) -> jax.Array:
    if earlier is not None:
        raise ValueError("a layer is called twice in one forward pass, but its clipping rule holds for one call only")
    return layer_input
