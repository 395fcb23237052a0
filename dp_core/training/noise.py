"""Gaussian noise for sums of clipped gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Noise for an array of at least this many elements is a draw of its own, so that each device can draw its
# rows. Smaller arrays share one draw: compiling a generator for each of thirty parameters takes longer
# than a quick trial trains.
LARGE_ARRAY = 2**18


def add_gaussian(key: jax.Array, values: Any, standard_deviation: jax.Array) -> Any:
    """Adds independent Gaussian noise to every coordinate of a tree of arrays.

    The noise of an element depends on the key, the array's position in the tree and the element's position in
    the array. It does not depend on the devices that the arrays live on, nor on rows that were appended to
    divide a table evenly.

    Args:
        key: A PRNG key that is used for nothing else.
        values: A tree of float32 arrays.
        standard_deviation: Of the noise on each coordinate, a float32 scalar.

    Returns:
        A tree like ``values``.
    """
    leaves, structure = jax.tree.flatten(values)
    small = [index for index, leaf in enumerate(leaves) if leaf.size < LARGE_ARRAY]
    ends = np.cumsum([leaves[index].size for index in small])
    parts = jnp.split(jax.random.normal(jax.random.fold_in(key, 0), (int(ends[-1]),)), ends[:-1]) if small else []
    draws = dict(zip(small, parts, strict=True))
    noised = []
    for index, leaf in enumerate(leaves):
        if index in draws:
            noise = draws[index].reshape(leaf.shape)
        else:
            noise = jax.random.normal(jax.random.fold_in(key, index + 1), leaf.shape)
        noised.append(leaf + standard_deviation * noise)
    return jax.tree.unflatten(structure, noised)
