"""The distinct rows of a table that a batch reads."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def distinct_rows(tokens: jax.Array, used: jax.Array, vocabulary_size: int) -> tuple[jax.Array, jax.Array]:
    """Returns the distinct rows that tokens read, and which of them each token reads.

    Args:
        tokens: Row numbers of any shape; a negative one reads nothing.
        used: Whether a token counts, of a shape that broadcasts to that of the tokens. Padding does not.
        vocabulary_size: The number of rows of the table.

    Returns:
        The rows in ascending order, as many numbers as tokens; behind the distinct rows come different numbers from
        ``vocabulary_size`` on. And for each token its place among them: a negative token as it is, and 0 for one that
        does not count.
    """
    flat = jnp.where((tokens >= 0) & used, tokens, vocabulary_size).ravel()
    size = flat.shape[0]
    positions = jnp.arange(size, dtype=jnp.int32)
    ordered, order = jax.lax.sort_key_val(flat, positions)
    first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    number = jnp.cumsum(first, dtype=jnp.int32) - 1
    rows = (
        (vocabulary_size + positions)
        .at[number]
        .set(jnp.where(ordered < vocabulary_size, ordered, vocabulary_size + number))
    )
    places = jnp.zeros(size, jnp.int32).at[order].set(jnp.where(ordered < vocabulary_size, number, 0))
    return rows, jnp.where(tokens < 0, tokens, places.reshape(tokens.shape))
