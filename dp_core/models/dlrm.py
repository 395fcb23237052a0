"""DLRM: dot products of all pairs of feature vectors (Naumov et al., 2019)."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from dp_core.clipping.layers import Dense
from dp_core.models.mlp import AdModel, with_indicators


class DLRM(AdModel):
    """Feeds the dot products of all pairs of feature vectors into the fully connected layers.

    Tables keep the widths that they have in the other models; a projection without bias brings each vector to the
    common width.

    Attributes:
        interaction_dimension: The common width.
    """

    interaction_dimension: int = 16

    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        numbers = nn.relu(Dense(self.interaction_dimension, name="bottom")(with_indicators(integers)))
        vectors = [numbers]
        for index, vector in enumerate(self.embedded(categoricals)):
            project = Dense(self.interaction_dimension, use_bias=False, name=f"projection_{index}")
            vectors.append(project(vector))
        stacked = jnp.stack(vectors, axis=1)
        products = stacked @ jnp.swapaxes(stacked, 1, 2)
        left, right = jnp.tril_indices(len(vectors), -1)
        return self.output(self.hidden(jnp.concatenate([numbers, products[:, left, right]], axis=-1)))
