"""The paper's network: embeddings and log-transformed integers into fully connected layers.

It is also the base of the other networks, which add their own layers to its parts. An integer feature that is missing
arrives as NaN and becomes a zero with an indicator beside it, so the network can tell a missing value from a zero.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from dp_core.clipping.layers import Dense, Embedding, EmbeddingBag
from dp_core.models.spec import CategoricalFeature


class AdModel(nn.Module):
    """The paper's multilayer perceptron, and the base class of every network that the trainer accepts.

    All parameters must belong to the layers of ``dp_core.clipping.layers``, because only those can be clipped.

    Attributes:
        features: The categorical features, one embedding table each.
        hidden_layers: Widths of the fully connected layers.
    """

    features: tuple[CategoricalFeature, ...]
    hidden_layers: tuple[int, ...]

    @property
    def vocabulary_sizes(self) -> dict[str, int]:
        """Vocabulary size of each embedding table, by the name of its layer."""
        return {f"embedding_{column}": feature.vocabulary_size for column, feature in enumerate(self.features)}

    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        """Predicts one logit (or log intensity) per example.

        Args:
            integers: (examples, integer columns), NaN where missing.
            categoricals: (examples, slots) token ids.

        Returns:
            (examples,) predictions.
        """
        return self.output(self.hidden(self.inputs(integers, categoricals)))

    def inputs(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        """Concatenates the integers, their indicators and the embeddings: the first layer's representation."""
        return jnp.concatenate([with_indicators(integers), *self.embedded(categoricals)], axis=-1)

    def embedded(self, categoricals: jax.Array) -> list[jax.Array]:
        """Returns one vector per example for each feature: a row of its table, or the mean over the tokens of a set."""
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
        """Applies the fully connected layers with ReLU."""
        for index, width in enumerate(self.hidden_layers):
            x = nn.relu(Dense(width, name=f"hidden_{index}")(x))
        return x

    def output(self, x: jax.Array) -> jax.Array:
        """Applies the last layer, which has one output."""
        return Dense(1, name="output")(x)[:, 0]


def with_indicators(integers: jax.Array) -> jax.Array:
    """Replaces NaN by zero and appends an indicator of NaN for each column."""
    missing = jnp.isnan(integers)
    return jnp.concatenate([jnp.where(missing, 0.0, integers), missing.astype(integers.dtype)], axis=-1)
