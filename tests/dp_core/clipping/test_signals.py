"""Signals are found wherever a layer stands in the model."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from dp_core.clipping.layers import Dense
from dp_core.clipping.one_pass import add_clipped_gradients, zero_sum
from dp_core.training.losses import binary_cross_entropy
from tests.support.gradients import assert_close_by_layer
from tests.support.models import make_batch, make_model

pytestmark = pytest.mark.usefixtures("strict_types")


class _Tower(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return Dense(1, name="inner")(x)


class _WithTowers(nn.Module):
    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        x = jnp.nan_to_num(integers)
        return (_Tower(name="left")(x) + _Tower(name="right")(2 * x))[:, 0]


def test_layers_may_be_nested() -> None:
    model, batch = _WithTowers(), make_batch(make_model(), 8)
    params = model.init(jax.random.key(0), batch.integers, batch.categoricals)["params"]

    def loss(params: Any) -> jax.Array:
        logits = model.apply({"params": params}, batch.integers, batch.categoricals)
        return jnp.sum(batch.mask * binary_cross_entropy(logits, batch.labels))

    found = add_clipped_gradients(
        zero_sum(params), model, params, batch, binary_cross_entropy, l2_clip_norm=float("inf")
    )
    assert_close_by_layer(found.gradients, jax.grad(loss)(params))
