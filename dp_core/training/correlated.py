"""Correlated noise: z̃ = C⁻¹z for a banded Toeplitz matrix C, by a ring of the last b − 1 noises.

With c₀, …, c_{b−1} the first column of C, C·z̃ = z says row by row

    z̃_t = (z_t − c₁·z̃_{t−1} − … − c_{b−1}·z̃_{t−b+1}) / c₀,

and noises before the first step are 0. The ring keeps the last b − 1 of them, in standard deviations of the noise z,
for the arrays that it *covers*: all dense layers, and tables of fewer than ``noise.LARGE_ARRAY`` elements. Larger
tables have independent noise, as their histories would not fit into memory. Why both together are private, and what ε
they have, is in ``dp_core.accounting.banded_noise``.

The ring is part of the update state: a checkpoint holds it, and whoever reads it can subtract noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from dp_core.training.noise import LARGE_ARRAY, add_gaussian
from dp_core.training.updates import UpdateRule, UpdateScale


class CorrelatedState(NamedTuple):
    """The state of a rule with correlated noise.

    Attributes:
        drawn: Number of noises so far, int32.
        ring: The last noises of the covered coordinates, in the order of the tree's leaves; float32 of shape
            (b − 1, coordinates). Noise number n is in row n mod (b − 1).
        rest: The state of the rule that noisy sums are handed to.
    """

    drawn: jax.Array
    ring: jax.Array
    rest: Any


def is_covered(name: str, size: int) -> bool:
    """Returns whether an array has correlated noise, by the name of the parameter and its number of elements."""
    return name != "table" or size < LARGE_ARRAY


def covered_leaves(params: Any) -> list[bool]:
    """Returns for each leaf of the parameters whether its noise is correlated."""
    # ``flatten_dict`` keeps the order of insertion, and JAX sorts by keys.
    paths = sorted(flatten_dict(params).items())
    return [is_covered(path[-1], math.prod(leaf.shape)) for path, leaf in paths]


def with_correlated_noise(rule: UpdateRule, coefficients: Sequence[float]) -> UpdateRule:
    """Returns the rule with noise C⁻¹z in place of its own independent noise z.

    Args:
        rule: Any rule without rows that wait for their noise.
        coefficients: The first column of C, at least two numbers.

    Returns:
        A rule that adds the noise and then calls ``rule`` without noise.
    """
    kept = len(coefficients) - 1
    first, later = np.float32(coefficients[0]), np.asarray(coefficients[1:], np.float32)

    def init(params: Any) -> CorrelatedState:
        leaves = jax.tree.leaves(params)
        coordinates = sum(leaf.size for leaf, covered in zip(leaves, covered_leaves(params), strict=True) if covered)
        return CorrelatedState(jnp.zeros((), jnp.int32), jnp.zeros((kept, coordinates), jnp.float32), rule.init(params))

    def catch_up(state: CorrelatedState, params: Any, batches: Any, noise_key: Any) -> tuple[CorrelatedState, Any]:
        rest, params = rule.catch_up(state.rest, params, batches, noise_key)
        return state._replace(rest=rest), params

    def apply(state: CorrelatedState, params: Any, gradient_sum: Any, scale: UpdateScale) -> tuple[Any, Any]:
        if scale.standard_deviation is not None:
            leaves, structure = jax.tree.flatten(gradient_sum)
            nothing = jax.tree.map(jnp.zeros_like, gradient_sum)
            draws = jax.tree.leaves(add_gaussian(scale.noise_key, nothing, jnp.float32(1.0)))
            covered = [index for index, one in enumerate(covered_leaves(gradient_sum)) if one]
            fresh = jnp.concatenate([draws[index].ravel() for index in covered])
            # The noise in row r is ((drawn − 1 − r) mod kept) + 1 steps old.
            ages = jnp.mod(state.drawn - 1 - jnp.arange(kept, dtype=jnp.int32), kept)
            past = jnp.matmul(jnp.asarray(later)[ages], state.ring, precision=jax.lax.Precision.HIGHEST)
            noise = (fresh - past) / first
            ends = np.cumsum([draws[index].size for index in covered])[:-1]
            for index, part in zip(covered, jnp.split(noise, ends), strict=True):
                draws[index] = part.reshape(draws[index].shape)
            noised = [leaf + scale.standard_deviation * draw for leaf, draw in zip(leaves, draws, strict=True)]
            gradient_sum = jax.tree.unflatten(structure, noised)
            ring = state.ring.at[jnp.mod(state.drawn, kept)].set(noise)
            state = state._replace(drawn=state.drawn + 1, ring=ring)
        rest, params = rule.apply(state.rest, params, gradient_sum, scale._replace(standard_deviation=None))
        return state._replace(rest=rest), params

    return UpdateRule(
        init=init, catch_up=catch_up, apply=apply, settle=lambda state, params: rule.settle(state.rest, params)
    )
