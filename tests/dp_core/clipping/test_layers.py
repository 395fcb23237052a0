"""Each layer's clipping rule agrees with ``jax.grad``, one example at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dp_core.clipping.layers import NO_TOKEN, RULES, Dense, Embedding, EmbeddingBag, LayerRule, initial_parameters

pytestmark = pytest.mark.usefixtures("strict_types")

EXAMPLES, WIDTH = 5, 3
BAGS = np.array([[0, 0, 0, 1], [1, 0, NO_TOKEN, NO_TOKEN], [NO_TOKEN] * 4, [2, 2, 0, NO_TOKEN], [1, 2, 3, 4]], np.int32)
LAYERS: dict[str, tuple[nn.Module, np.ndarray]] = {
    "dense": (Dense(WIDTH), np.random.default_rng(0).normal(size=(EXAMPLES, 4)).astype(np.float32)),
    "dense_without_bias": (
        Dense(WIDTH, use_bias=False),
        np.random.default_rng(1).normal(size=(EXAMPLES, 4)).astype(np.float32),
    ),
    "embedding": (Embedding(6, WIDTH), np.array([0, 1, 0, 5, 1], np.int32)),
    "embedding_bag": (EmbeddingBag(6, WIDTH), BAGS),
}


def gradients_of(layer: nn.Module, inputs: np.ndarray, deltas: np.ndarray) -> tuple[Any, np.ndarray]:
    """Per-example gradients of ⟨output, δ⟩, as a stacked tree and as flat rows."""
    params = initial_parameters(layer, np.random.default_rng(2), inputs)

    def of_one(one_input: jax.Array, delta: jax.Array) -> Any:
        return jax.grad(lambda params: jnp.vdot(layer.apply({"params": params}, one_input[None])[0], delta))(params)

    stacked = jax.jit(jax.vmap(of_one))(inputs, deltas)
    return stacked, np.concatenate([leaf.reshape(EXAMPLES, -1) for leaf in jax.tree.leaves(stacked)], axis=1)


def test_every_rule_is_tested() -> None:
    assert LAYERS.keys() == RULES.keys()


@pytest.mark.parametrize("name", LAYERS)
def test_a_rule_gives_inner_products_and_weighted_sums(name: str) -> None:
    (layer, inputs), rule = LAYERS[name], RULES[name]
    deltas = np.random.default_rng(3).normal(size=(EXAMPLES, WIDTH)).astype(np.float32)
    stacked, flat = gradients_of(layer, inputs, deltas)
    pairwise = jax.jit(jax.vmap(jax.vmap(rule.inner_product, (None, None, 0, 0)), (0, 0, None, None)))
    np.testing.assert_allclose(pairwise(inputs, deltas, inputs, deltas), flat @ flat.T, rtol=1e-5, atol=1e-6)

    weights = np.float32([0.5, 0.0, 2.0, 1.0, 0.25])
    total = jax.tree.map(lambda leaf: np.ones(leaf.shape[1:], np.float32), stacked)
    added = jax.jit(rule.add_weighted_gradient)(total, inputs, weights[:, None] * deltas)
    expected = jax.tree.map(lambda leaf: 1 + np.tensordot(weights, leaf, axes=1), stacked)
    jax.tree.map(lambda left, right: np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6), added, expected)


def squares(rule: LayerRule) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return jax.jit(jax.vmap(lambda a, delta: rule.inner_product(a, delta, a, delta)))


@pytest.mark.parametrize("name", ["dense", "dense_without_bias"])
def test_a_long_gradient_is_never_taken_for_a_short_one(name: str) -> None:
    """If the square of an input or output gradient leaves the float32 range, the norm is reported as non-finite."""
    magnitudes = 10.0 ** np.arange(-30, 31)
    a, delta = (grid.reshape(-1, 1).astype(np.float32) for grid in np.meshgrid(magnitudes, magnitudes))
    bias = name == "dense"
    true = np.abs(delta.astype(np.float64)) * np.sqrt(a.astype(np.float64) ** 2 + bias)
    computed = np.sqrt(np.asarray(squares(RULES[name])(a, delta), np.float64))
    # True norms below 1e-6 may be underestimated: no clip norm is that small.
    safe = ~np.isfinite(computed) | (computed >= true[:, 0] * (1 - 1e-5)) | (true[:, 0] <= 1e-6)
    assert np.all(safe), [(float(x), float(d)) for x, d in zip(a[~safe, 0], delta[~safe, 0], strict=True)][:5]


def test_a_bag_is_the_sum_of_its_rows() -> None:
    layer, tokens = LAYERS["embedding_bag"]
    table = np.random.default_rng(4).normal(size=(6, WIDTH)).astype(np.float32)
    actual = layer.apply({"params": {"table": table}}, tokens)
    expected = [table[[token for token in bag if token != NO_TOKEN]].sum(axis=0) for bag in tokens]
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["embedding", "embedding_bag"])
def test_a_table_may_have_more_rows_than_tokens(name: str) -> None:
    """Tables sharded over several devices are padded."""
    layer, tokens = LAYERS[name]
    table = np.random.default_rng(4).normal(size=(6, WIDTH)).astype(np.float32)
    longer = np.concatenate([table, np.full((2, WIDTH), np.nan, np.float32)])
    outputs = [layer.apply({"params": {"table": rows}}, tokens) for rows in (table, longer)]
    np.testing.assert_array_equal(*outputs)


def test_initial_parameters_are_distributed_as_flax_draws_them() -> None:
    """Deviations of 6,000 draws or more agree to 5 %: five standard errors. The seeds are fixed."""
    for layer, inputs in ((Dense(200), np.zeros((1, 30), np.float32)), (Embedding(300, 20), np.zeros(1, np.int32))):
        ours = initial_parameters(layer, np.random.default_rng(0), inputs)
        theirs = jax.jit(layer.init)(jax.random.key(0), inputs)["params"]
        assert jax.tree.map(jnp.shape, ours) == jax.tree.map(jnp.shape, theirs)
        for mine, flax in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert mine.dtype == flax.dtype == np.float32
            np.testing.assert_allclose(np.std(mine), np.std(flax), rtol=0.05)
            assert abs(np.mean(mine)) <= 5 * np.std(mine) / mine.size**0.5
