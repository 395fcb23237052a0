"""Norms of the mean gradients of groups, without a gradient of any example or group.

The squared norm of a sum of gradients is the sum of all their inner products, and a layer's rule
gives those from what the layer saw. Each example belongs to a group that was drawn for it alone
(``sampling.py``), so groups differ in size; the mean is the sum over the *nominal* size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from scipy import stats

from dp_core.signals import LayerSignals, Signals, squared_norms

# A group is larger than this admits once in so many groups; its last members are then left out.
_OVERFLOW_PROBABILITY = 1e-7

# By how much of its members' summed lengths a group's norm is taken longer than computed: what
# rounding can amount to in 64 bits.
_ROUNDING = 1e-7


class Microbatches(NamedTuple):
    """Groups of ``size`` examples on average and at most ``largest``, which is also the tile of the Gram matrices."""

    size: int
    largest: int


def make_microbatches(size: int) -> Microbatches | None:
    """Groups of a nominal size; None for a size of 1, where every example is clipped by itself.

    >>> make_microbatches(4)
    Microbatches(size=4, largest=24)
    """
    if size < 1:
        raise ValueError(f"microbatch_size must be at least 1, got {size}")
    if size == 1:
        return None
    # Group sizes are binomial, with tails below the Poisson's of the same mean.
    largest = int(stats.poisson.isf(_OVERFLOW_PROBABILITY, size))
    return Microbatches(size, 8 * -(-largest // 8))


def group_norms(signals: Signals, groups: jax.Array, microbatches: Microbatches) -> jax.Array:
    """For each row, the norm of its group's summed gradient over the nominal group size.

    In 64 bits: gradients of a group that almost cancel leave a sum much shorter than they are, whose
    norm in 32 bits would be mostly rounding error, and the group could add more than the clip norm.
    """
    rows = groups.shape[0]
    with jax.enable_x64(True):
        exact = {path: _in_64_bits(layer) for path, layer in signals.items()}
        pairs = [_pairs(layer, groups, microbatches.largest) for layer in exact.values()]
        lengths = jnp.sqrt(squared_norms(exact))

        def over_group(values: jax.Array) -> jax.Array:
            return jax.ops.segment_sum(values, groups, num_segments=rows, indices_are_sorted=True)

        # A negative sum is nothing but rounding; maximum() keeps a NaN.
        norms = jnp.sqrt(jnp.maximum(over_group(sum(pairs[1:], start=pairs[0])), 0.0)) + _ROUNDING * over_group(lengths)
        return (norms[groups] / microbatches.size).astype(jnp.float32)


def _in_64_bits(layer: LayerSignals) -> LayerSignals:
    tokens = jnp.issubdtype(layer.input.dtype, jnp.integer)
    layer_input = layer.input if tokens else layer.input.astype(jnp.float64)
    return LayerSignals(layer.rule, layer_input, layer.output_gradient.astype(jnp.float64))


def _pairs(layer: LayerSignals, groups: jax.Array, tile: int) -> jax.Array:
    """For each row, its inner products with the rows of its group, such that a group's rows add up to all pairs.

    Rows are cut into tiles at least as long as a group, so a row's group lies in its own tile and
    one neighbour. Pairs across a border count twice for the row before it.
    """
    rows = groups.shape[0]
    tiles = -(-rows // tile)
    pad = tiles * tile - rows

    def tiled(x: jax.Array, fill: Any = 0) -> jax.Array:
        padded = jnp.pad(x, [(0, pad)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)
        return padded.reshape(tiles, tile, *x.shape[1:])

    here = jax.tree.map(tiled, (layer.input, layer.output_gradient))
    names = tiled(groups, -1)
    # The last tile's neighbour is the first, which shares no group with it unless it is the same.
    beyond = jax.tree.map(lambda x: jnp.roll(x, -1, axis=0), here)
    beyond_names = jnp.roll(names, -1, axis=0).at[-1].set(-2)

    gram = jax.vmap(_gram(layer))
    within = _where_equal(names, names, gram(*here, *here))
    across = _where_equal(names, beyond_names, gram(*here, *beyond))
    return (jnp.sum(within, axis=2) + 2 * jnp.sum(across, axis=2)).reshape(-1)[:rows]


def _gram(layer: LayerSignals) -> Any:
    across = jax.vmap(layer.rule.inner_product, (None, None, 0, 0))
    return jax.vmap(across, (0, 0, None, None))


def _where_equal(left: jax.Array, right: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(left[:, :, None] == right[:, None, :], values, 0.0)
