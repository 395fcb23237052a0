"""Networks for ad prediction: the paper's, and two of the field's that cross features explicitly.

Each takes integers and tokens and predicts one logit (or log intensity) per example. An integer
feature that is missing arrives as NaN and becomes a zero and an indicator of its own, so that a
missing value differs from a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from dp_core.layers import Dense, Embedding, EmbeddingBag

ModelName = Literal["mlp", "dcn_v2", "dlrm"]


class CategoricalFeature(NamedTuple):
    """A feature with an embedding table. It takes ``slots`` columns: one, or several for a set of
    tokens, of which some may be ``layers.NO_TOKEN``."""

    vocabulary_size: int
    dimension: int
    slots: int = 1


class AdModel(nn.Module):
    """The paper's network: embeddings and log-transformed integers into fully connected layers."""

    features: tuple[CategoricalFeature, ...]
    hidden_layers: tuple[int, ...]

    @property
    def vocabulary_sizes(self) -> dict[str, int]:
        """By the name of the layer that holds the table."""
        return {f"embedding_{column}": feature.vocabulary_size for column, feature in enumerate(self.features)}

    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        return self.output(self.hidden(self.inputs(integers, categoricals)))

    def inputs(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        return jnp.concatenate([with_indicators(integers), *self.embedded(categoricals)], axis=-1)

    def embedded(self, categoricals: jax.Array) -> list[jax.Array]:
        """One vector per example for each feature: a row of its table, or the mean of several."""
        vectors, column = [], 0
        for name, feature in zip(self.vocabulary_sizes, self.features, strict=True):
            size, dimension, slots = feature
            if slots == 1:
                vectors.append(Embedding(size, dimension, name=name)(categoricals[:, column]))
            else:
                tokens = categoricals[:, column : column + slots]
                present = jnp.sum(tokens >= 0, axis=1, keepdims=True)
                summed = EmbeddingBag(size, dimension, name=name)(tokens)
                vectors.append(summed / jnp.maximum(present, 1).astype(summed.dtype))
            column += slots
        return vectors

    def hidden(self, x: jax.Array) -> jax.Array:
        for index, width in enumerate(self.hidden_layers):
            x = nn.relu(Dense(width, name=f"hidden_{index}")(x))
        return x

    def output(self, x: jax.Array) -> jax.Array:
        return Dense(1, name="output")(x)[:, 0]


class DCNv2(AdModel):
    """Cross layers beside the fully connected ones (Wang et al., 2021): x₀ ∘ (W x + b) + x."""

    cross_layers: int = 3

    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        first = self.inputs(integers, categoricals)
        crossed = first
        for index in range(self.cross_layers):
            crossed = first * Dense(first.shape[-1], name=f"cross_{index}")(crossed) + crossed
        return self.output(jnp.concatenate([crossed, self.hidden(first)], axis=-1))


class DLRM(AdModel):
    """Dot products of all pairs of features (Naumov et al., 2019).

    Tables keep the widths that they have in the other models; a projection without bias brings
    each to the common width.
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


def with_indicators(integers: jax.Array) -> jax.Array:
    """The integers with zeros for missing ones, and beside them which are missing."""
    missing = jnp.isnan(integers)
    return jnp.concatenate([jnp.where(missing, 0.0, integers), missing.astype(integers.dtype)], axis=-1)


def make_model(
    name: ModelName,
    features: Sequence[CategoricalFeature],
    *,
    hidden_layers: Sequence[int],
    cross_layers: int = 3,
    interaction_dimension: int = 16,
) -> AdModel:
    """A model by its name in ``pipelines.yaml``."""
    tables, widths = tuple(features), tuple(hidden_layers)
    match name:
        case "mlp":
            return AdModel(tables, widths)
        case "dcn_v2":
            return DCNv2(tables, widths, cross_layers=cross_layers)
        case "dlrm":
            return DLRM(tables, widths, interaction_dimension=interaction_dimension)
    raise ValueError(f"unknown model {name!r}; known: mlp, dcn_v2, dlrm")
