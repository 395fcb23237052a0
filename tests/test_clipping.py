"""Ghost-clipped sums against the oracle that materialises every gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_core import oracle
from dp_core.clipping import Batch, ExampleLoss, GradientSum, clipped_gradient_sum, gradient_sum
from dp_core.layers import Dense
from dp_core.losses import binary_cross_entropy, poisson_log_loss
from tests.models import make_batch, make_model, make_parameters

pytestmark = pytest.mark.usefixtures("strict_types")

LOSSES = {"binary": binary_cross_entropy, "poisson": poisson_log_loss}


def compiled(function: Callable[..., GradientSum], model: nn.Module, loss: ExampleLoss) -> Callable[..., GradientSum]:
    return jax.jit(lambda params, batch, norm: function(model, params, batch, loss, l2_clip_norm=norm))


def assert_close_by_layer(actual: Any, expected: Any, relative: float = 1e-5) -> None:
    """Every parameter's gradient agrees to ``relative`` of that parameter's own gradient norm."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for (path, left), right in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        difference, scale = np.linalg.norm(left - right), np.linalg.norm(right)
        assert difference <= relative * scale + 1e-12, f"{jax.tree_util.keystr(path)}: {difference / scale}"


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("l2_clip_norm", [0.01, 1.0, 30.0, float("inf")])
def test_clipped_sum_equals_the_oracle(loss: str, l2_clip_norm: float) -> None:
    model = make_model()
    batch = make_batch(model, 48, counts=loss == "poisson")
    params = make_parameters(model, batch)
    ghost = compiled(clipped_gradient_sum, model, LOSSES[loss])(params, batch, l2_clip_norm)
    expected = compiled(oracle.clipped_gradient_sum, model, LOSSES[loss])(params, batch, l2_clip_norm)
    assert_close_by_layer(ghost.gradients, expected.gradients)
    # exp(f) and y·f nearly cancel for some examples: what is left has their rounding error.
    np.testing.assert_allclose(ghost.losses, expected.losses, rtol=1e-6, atol=1e-6)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    vocabularies=st.lists(st.integers(1, 50), max_size=4),
    hidden_layers=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    rows=st.integers(1, 20),
    integers=st.integers(1, 5),
    l2_clip_norm=st.floats(0.01, 10),
    loss=st.sampled_from(sorted(LOSSES)),
    seed=st.integers(0, 2**16),
)
def test_clipped_sum_equals_the_oracle_for_any_shape(
    vocabularies: list[int],
    hidden_layers: list[int],
    rows: int,
    integers: int,
    l2_clip_norm: float,
    loss: str,
    seed: int,
) -> None:
    model = make_model(vocabularies, hidden_layers)
    batch = make_batch(model, rows, integers=integers, seed=seed, counts=loss == "poisson")
    params = make_parameters(model, batch, seed)
    ghost = compiled(clipped_gradient_sum, model, LOSSES[loss])(params, batch, l2_clip_norm)
    expected = compiled(oracle.clipped_gradient_sum, model, LOSSES[loss])(params, batch, l2_clip_norm)
    assert_close_by_layer(ghost.gradients, expected.gradients)


def test_one_example_moves_the_sum_by_at_most_the_clip_norm() -> None:
    """The sensitivity that the noise is scaled to, with huge and with repeated inputs."""
    model = make_model()
    batch = make_batch(model, 24)
    params = make_parameters(model, batch)
    huge = Batch(np.asarray(batch.integers) * np.float32(1e4), *batch[1:])
    repeated = Batch(*(np.repeat(part[:1], 24, axis=0) for part in batch[:3]), np.ones(24, np.float32))
    clipped = compiled(clipped_gradient_sum, model, binary_cross_entropy)
    for examples in (batch, huge, repeated):
        with_all = clipped(params, examples, 0.7).gradients
        for example in range(0, 21, 5):
            mask = np.asarray(examples.mask).copy()
            mask[example] = 0
            without = clipped(params, examples._replace(mask=mask), 0.7).gradients
            moved = jax.tree.map(jnp.subtract, with_all, without)
            assert optax.tree.norm(moved) <= 0.7 * (1 + 1e-4)


def test_padding_adds_nothing() -> None:
    model = make_model()
    batch = make_batch(model, 32)
    params = make_parameters(model, batch)
    kept = int(np.sum(batch.mask))
    short = Batch(*(part[:kept] for part in batch))
    clipped = compiled(clipped_gradient_sum, model, binary_cross_entropy)
    padded, alone = clipped(params, batch, 1.0), clipped(params, short, 1.0)
    assert_close_by_layer(padded.gradients, alone.gradients, 1e-6)


def test_without_a_bound_the_sum_is_the_plain_gradient() -> None:
    model = make_model()
    batch = make_batch(model, 32)
    params = make_parameters(model, batch)
    ghost = compiled(clipped_gradient_sum, model, binary_cross_entropy)(params, batch, float("inf"))
    plain = jax.jit(lambda params, batch: gradient_sum(model, params, batch, binary_cross_entropy))(params, batch)
    assert_close_by_layer(ghost.gradients, plain.gradients)


class _WithForeignLayer(nn.Module):
    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        return Dense(1)(nn.LayerNorm(name="foreign")(jnp.nan_to_num(integers)))[:, 0]


def test_a_layer_without_a_rule_is_named() -> None:
    batch = make_batch(make_model(), 8)
    model = _WithForeignLayer()
    params = model.init(jax.random.key(0), batch.integers, batch.categoricals)["params"]
    with pytest.raises(ValueError, match=r"foreign/.* no rule"):
        clipped_gradient_sum(model, params, batch, binary_cross_entropy, l2_clip_norm=1.0)


class _CalledTwice(nn.Module):
    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        layer = Dense(integers.shape[1])
        return jnp.sum(layer(layer(jnp.nan_to_num(integers))), axis=-1)


def test_a_layer_that_is_called_twice_is_refused() -> None:
    """Its norm is not the sum over calls: a wrong rule would be a wrong guarantee."""
    batch = make_batch(make_model(), 8)
    model = _CalledTwice()
    params = {"Dense_0": {"kernel": jnp.eye(4), "bias": jnp.zeros(4)}}
    with pytest.raises(ValueError, match="called twice"):
        clipped_gradient_sum(model, params, batch, binary_cross_entropy, l2_clip_norm=1.0)
