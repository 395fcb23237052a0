"""The paper's network: embeddings and log-transformed integers into fully connected layers."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from dp_core.layers import Dense, Embedding


class AdModel(nn.Module):
    """Predicts one logit (or log intensity) per example.

    ``embeddings`` holds (vocabulary size, dimension) for each categorical column. An integer
    feature that is missing arrives as NaN and becomes a zero and an indicator of its own, so that
    a missing value differs from a zero.
    """

    embeddings: tuple[tuple[int, int], ...]
    hidden_layers: tuple[int, ...]

    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        missing = jnp.isnan(integers)
        parts = [jnp.where(missing, 0.0, integers), missing.astype(integers.dtype)]
        for column, (vocabulary_size, dimension) in enumerate(self.embeddings):
            table = Embedding(vocabulary_size, dimension, name=f"embedding_{column}")
            parts.append(table(categoricals[:, column]))
        x = jnp.concatenate(parts, axis=-1)
        for index, width in enumerate(self.hidden_layers):
            x = nn.relu(Dense(width, name=f"hidden_{index}")(x))
        return Dense(1, name="output")(x)[:, 0]
