"""Gaussian noise on a sum of clipped gradients.

A mechanism is an (init, add) pair with a state of its own. Dense noise needs no state; a mechanism
that defers the noise of rarely read rows keeps there what is still to be drawn, and ``settle``
draws all of it before anything is released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class NoiseMechanism(NamedTuple):
    """How noise of a given standard deviation gets onto a gradient sum.

    init(params) -> state
    add(state, key, gradient_sum, standard_deviation) -> (state, noised_sum)
    settle(state, params) -> params, with nothing pending: what may be evaluated or released
    """

    init: Callable[[Any], Any]
    add: Callable[[Any, jax.Array, Any, jax.Array], tuple[Any, Any]]
    settle: Callable[[Any, Any], Any]


def dense_gaussian() -> NoiseMechanism:
    """Independent noise on every coordinate, at every step."""

    def add(state: Any, key: jax.Array, gradient_sum: Any, standard_deviation: jax.Array) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten(gradient_sum)
        ends = np.cumsum([leaf.size for leaf in leaves])
        # One draw, cut up for the parameters: compiling a generator for each costs seconds.
        parts = jnp.split(jax.random.normal(key, (int(ends[-1]),)), ends[:-1])
        noised = [
            leaf + standard_deviation * part.reshape(leaf.shape) for leaf, part in zip(leaves, parts, strict=True)
        ]
        return state, jax.tree.unflatten(structure, noised)

    return NoiseMechanism(init=lambda params: (), add=add, settle=lambda state, params: params)
