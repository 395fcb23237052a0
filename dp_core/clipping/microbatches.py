"""Norms of the mean gradients of groups, without a gradient of any example or group.

The squared norm of a sum of gradients is the sum of all their inner products, and a layer's rule
gives those from what the layer saw. Each example belongs to a group that was drawn for it alone
(``sampling.py``), so groups differ in size; the mean is the sum over the *nominal* size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from scipy import stats

from dp_core.signals import LayerSignals, Signals, squared_norms

# The share of groups that come out larger than is admitted, and whose last members are left out. All
# pairs in a window of the largest size are computed, so a larger one costs more than those are worth.
_OVERFLOW_PROBABILITY = 1e-3

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
    Microbatches(size=4, largest=12)
    """
    if size < 1:
        raise ValueError(f"microbatch_size must be at least 1, got {size}")
    if size == 1:
        return None
    # Group sizes are binomial, with tails below the Poisson's of the same mean.
    largest = int(stats.poisson.isf(_OVERFLOW_PROBABILITY, size))
    return Microbatches(size, 4 * -(-largest // 4))


def group_norms(signals: Signals, groups: jax.Array, microbatches: Microbatches) -> jax.Array:
    """For each row, the norm of its group's summed gradient over the nominal group size.

    In 64 bits: gradients of a group that almost cancel leave a sum much shorter than they are, whose
    norm in 32 bits would be mostly rounding error, and the group could add more than the clip norm.
    """
    rows = groups.shape[0]

    def over_group(values: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(values, groups, num_segments=rows, indices_are_sorted=True)

    with jax.enable_x64(True):
        exact = {path: _in_64_bits(layer) for path, layer in signals.items()}
        lengths = jnp.sqrt(squared_norms(exact))
        # A negative sum is nothing but rounding; maximum() keeps a NaN.
        squares = jnp.maximum(over_group(_pairs(exact, groups, microbatches.largest)), 0.0)
        norms = jnp.sqrt(squares) + _ROUNDING * over_group(lengths)
        return (norms[groups] / microbatches.size).astype(jnp.float32)


def _in_64_bits(layer: LayerSignals) -> LayerSignals:
    tokens = jnp.issubdtype(layer.input.dtype, jnp.integer)
    layer_input = layer.input if tokens else layer.input.astype(jnp.float64)
    return LayerSignals(layer.rule, layer_input, layer.output_gradient.astype(jnp.float64))


def _pairs(signals: Signals, groups: jax.Array, tile: int) -> jax.Array:
    """For each row, its inner products with the rows of its group, such that a group's rows add up to all pairs.

    Rows are cut into tiles at least as long as a group, so a group lies in one tile or in two
    neighbours. Each row is paired with the rows of its own tile and of the next; pairs across the
    border count twice for the row before it.
    """
    rows = groups.shape[0]
    tiles = -(-rows // tile)

    def tiled(x: jax.Array, fill: int = 0) -> jax.Array:
        padding = [(0, tiles * tile - rows)] + [(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, padding, constant_values=fill).reshape(tiles, tile, *x.shape[1:])

    def with_next(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, jnp.roll(x, -1, axis=0)], axis=1)

    def gram(layer: LayerSignals) -> jax.Array:
        left = tiled(layer.input), tiled(layer.output_gradient)
        with_all = jax.vmap(layer.rule.inner_product, (None, None, 0, 0))
        in_tile = jax.vmap(with_all, (0, 0, None, None))
        return jax.vmap(in_tile)(*left, *map(with_next, left))

    grams = [gram(layer) for layer in signals.values()]
    names = tiled(groups, -1)
    # The last tile's neighbour is the first, with which it shares no group.
    names_with_next = with_next(names).at[-1, tile:].set(-2)
    same = names[:, :, None] == names_with_next[:, None, :]
    times = jnp.where(jnp.arange(2 * tile) < tile, 1.0, 2.0)
    return jnp.sum(jnp.where(same, times * sum(grams[1:], start=grams[0]), 0.0), axis=2).reshape(-1)[:rows]
