"""Gaussian noise on a sum of clipped gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# An array of at least this many elements is drawn by itself, so that it can be drawn where its
# rows are; the smaller ones are cut from one draw, because compiling a generator for each of
# thirty parameters takes longer than a quick trial trains.
LARGE_ARRAY = 2**18


def add_gaussian(key: jax.Array, values: Any, standard_deviation: jax.Array) -> Any:
    """Adds independent noise to every coordinate of a tree of arrays.

    An element's noise depends on the key, on the array's place in the tree and on the element's
    place in the array: not on how arrays lie on devices, nor on rows that were added at their end
    to spread them evenly.
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
