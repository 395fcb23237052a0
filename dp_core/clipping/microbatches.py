"""Microbatches: norms of the mean gradients of groups, without materialising any gradient.

The squared norm of a sum of gradients is the sum of all pairwise inner products, which the layers' rules
compute from their signals. Each example draws its group independently (``dp_core.sampling``), so group
sizes vary. The "mean" gradient is the sum divided by the *nominal* size, a public number.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from scipy import stats

from dp_core.clipping.signals import LayerSignals, Signals, squared_norms

# Share of groups that exceed the largest size; their last members are dropped. All pairs in a window of the
# largest size are computed, so a larger window would cost more than the dropped examples are worth.
_OVERFLOW_PROBABILITY = 1e-3

# Upper bound on the float64 rounding error of a group's norm, relative to the sum of its members' norms.
# It is added to the norm, so that rounding never makes a group look shorter than it is.
_ROUNDING = 1e-7


class Microbatches(NamedTuple):
    """Sizes of the groups of a microbatched run.

    Attributes:
        size: Nominal size, the expected number of examples in a group.
        largest: Maximum size; members beyond it are dropped. Also the tile size of the Gram matrices.
    """

    size: int
    largest: int


def make_microbatches(size: int) -> Microbatches | None:
    """Returns the group sizes for a nominal size, or None for size 1, where each example is clipped by itself.

    >>> make_microbatches(4)
    Microbatches(size=4, largest=12)

    Raises:
        ValueError: If the size is below 1.
    """
    if size < 1:
        raise ValueError(f"microbatch_size must be at least 1, got {size}")
    if size == 1:
        return None
    # Group sizes are binomial; the Poisson distribution of the same mean has heavier tails.
    largest = int(stats.poisson.isf(_OVERFLOW_PROBABILITY, size))
    return Microbatches(size, 4 * -(-largest // 4))


def group_norms(signals: Signals, groups: jax.Array, microbatches: Microbatches) -> jax.Array:
    """Returns, for each row, the norm of its group's summed gradient divided by the nominal size.

    Computed in float64. If the gradients of a group nearly cancel, the float32 norm of their sum would be
    mostly rounding error, and the group could contribute more than the clip norm.

    Args:
        signals: The layers' signals for all rows.
        groups: For each row, the index of its group's first row; sorted, int32 of shape (rows,).
        microbatches: The group sizes. No group may have more than ``largest`` rows.

    Returns:
        Norms of shape (rows,), float32, equal within a group. They are upper bounds up to float32 rounding.
    """
    rows = groups.shape[0]

    def over_group(values: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(values, groups, num_segments=rows, indices_are_sorted=True)

    with jax.enable_x64(True):
        exact = {path: _in_64_bits(layer) for path, layer in signals.items()}
        lengths = jnp.sqrt(squared_norms(exact))
        # A negative sum can only be rounding error. maximum() propagates NaN.
        squares = jnp.maximum(over_group(_pairs(exact, groups, microbatches.largest)), 0.0)
        norms = jnp.sqrt(squares) + _ROUNDING * over_group(lengths)
        return (norms[groups] / microbatches.size).astype(jnp.float32)


def _in_64_bits(layer: LayerSignals) -> LayerSignals:
    tokens = jnp.issubdtype(layer.input.dtype, jnp.integer)
    layer_input = layer.input if tokens else layer.input.astype(jnp.float64)
    return LayerSignals(layer.rule, layer_input, layer.output_gradient.astype(jnp.float64))


def _pairs(signals: Signals, groups: jax.Array, tile: int) -> jax.Array:
    """Returns a number for each row that adds up to the sum of all inner products over the rows of a group.

    Rows are cut into tiles at least as long as a group, so a group spans at most two neighbouring tiles. Each
    row is paired with the rows of its own tile and of the next. Pairs across the border count twice, once
    for each order.
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
    # roll() makes the first tile the neighbour of the last; they share no group.
    names_with_next = with_next(names).at[-1, tile:].set(-2)
    same = names[:, :, None] == names_with_next[:, None, :]
    times = jnp.where(jnp.arange(2 * tile) < tile, 1.0, 2.0)
    return jnp.sum(jnp.where(same, times * sum(grams[1:], start=grams[0]), 0.0), axis=2).reshape(-1)[:rows]
