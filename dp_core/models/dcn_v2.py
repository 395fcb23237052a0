"""DCN-v2: cross layers beside the fully connected ones (Wang et al., 2021)."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from dp_core.clipping.layers import Dense
from dp_core.models.mlp import AdModel


class DCNv2(AdModel):
    """The parallel form of DCN-v2: each cross layer computes x₀ ∘ (W x + b) + x.

    Attributes:
        cross_layers: Number of cross layers.
    """

    cross_layers: int = 3

    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        first = self.inputs(integers, categoricals)
        crossed = first
        for index in range(self.cross_layers):
            crossed = first * Dense(first.shape[-1], name=f"cross_{index}")(crossed) + crossed
        return self.output(jnp.concatenate([crossed, self.hidden(first)], axis=-1))
