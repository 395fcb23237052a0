"""Gaussian noise for sums of clipped gradients, with tails that match the δ of the guarantee.

``jax.random.normal`` makes a float32 normal of 23 random bits. Its support ends at 5.42 standard deviations, with
gaps of 0.16 before the end: an example can make an output possible that is impossible without it, with a
probability far above δ. Here a draw takes 64 bits, and reaches 9.08. What is left of the truncation is charged to δ
(``dp_core.accounting.noise_tails``).
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dp_core.training.generators import generator_of

# Noise for an array of at least this many elements is a draw of its own, so that each device can draw its
# rows. Smaller arrays share one draw: compiling a generator for each of thirty parameters takes longer
# than a quick trial trains.
LARGE_ARRAY = 2**18

# Φ⁻¹(1 − p) as a rational function of r = √(−2 log p), for p from 2⁻⁶⁵ to 1/2. Fitted to scipy's values; its error
# is 5e-8 times max(1, value) at most, less than float32's own.
_NUMERATOR = (-3.1844016177182946, -7.375029453931548, 3.3819602258676498, 3.8773521926782832, 0.44264797673696504)
_DENOMINATOR = (1.0, 5.234416859285354, 3.895222292008802, 0.4424304100505278)


def normal_of_words(first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns the normal draw that two random words stand for.

    The lowest bit of ``first`` is the sign. The other 31 bits and the upper 31 bits of ``second`` are a number m of 62
    bits, and p = (m + 1/2)/2⁶³, between 0 and 1/2, is the probability of a larger value. Small p keep all of their
    leading digits as float32 numbers, so the tail is as fine as the middle down to about p = 2⁻⁴⁰.

    Args:
        first: uint32.
        second: uint32 of the same shape.

    Returns:
        float32. Its size is ``noise_support()`` at m = 0 and falls as m grows, except for rounding in the last digit.
    """
    # Words of 31 bits fit int32, which converts faster than uint32.
    high, low = ((word >> np.uint32(1)).astype(jnp.int32).astype(jnp.float32) for word in (first, second))
    p = high * np.float32(2.0**-32) + (low + np.float32(0.5)) * np.float32(2.0**-63)
    r = jnp.sqrt(np.float32(-2) * jnp.log(p))
    size = jnp.maximum(_polynomial(_NUMERATOR, r) / _polynomial(_DENOMINATOR, r), np.float32(0))
    return jnp.where((first & np.uint32(1)) == np.uint32(1), -size, size)


def _polynomial(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + np.float32(coefficient)
    return value


def standard_normal(key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
    """Returns independent standard normal draws, made by the generator that the key belongs to.

    With a Threefry key, an element is one draw of ``normal_of_words``. With a ChaCha20 key it is the sum of four,
    halved, which is normal again. That withstands attacks on the low-order bits of floating-point noise (Holohan and
    Braghin, 2021, "Secure Random Sampling in Differential Privacy"): for one draw, few values of the noise lead to a
    given output, and they can be found; for four, an attacker would have to search all combinations.

    An element depends on the key, its position along the last axis and its position along all other axes, flattened.

    Args:
        key: A key that is used for nothing else.
        shape: At most 2³² positions before the last axis, and along it.

    Returns:
        float32 of the given shape.
    """
    generator = generator_of(key)
    return _drawn(key, *_block_positions(shape, generator.elements), (shape or (1,))[-1]).reshape(shape)


def normal_of_rows(key: jax.Array, rows: jax.Array, columns: int) -> jax.Array:
    """Returns the given rows of what ``standard_normal`` draws for a table with this many columns.

    Args:
        key: A key that is used for nothing else.
        rows: The numbers of the rows, not negative; of shape (n,). Rows that are equal are equal in the result.
        columns: The number of columns.

    Returns:
        float32 of shape (n, columns).
    """
    blocks = -(-columns // generator_of(key).elements)
    positions = jnp.broadcast_to(rows.astype(jnp.uint32)[:, None], (rows.shape[0], blocks))
    return _drawn(key, positions, jax.lax.broadcasted_iota(jnp.uint32, positions.shape, 1), columns)


def _drawn(key: jax.Array, rows: jax.Array, columns: jax.Array, last: int) -> jax.Array:
    """Returns the elements of the blocks at these positions, of which the last axis keeps ``last``."""
    generator = generator_of(key)
    words = generator.blocks(key, rows, columns)
    draws = [normal_of_words(*pair) for pair in zip(words[::2], words[1::2], strict=True)]
    scale = np.float32(generator.summands**-0.5)
    elements = [
        sum(draws[start + 1 : start + generator.summands], start=draws[start]) * scale
        for start in range(0, len(draws), generator.summands)
    ]
    joined = elements[0] if len(elements) == 1 else jnp.stack(elements, axis=-1).reshape(*rows.shape[:-1], -1)
    return joined[..., :last]


def _block_positions(shape: tuple[int, ...], elements: int) -> tuple[jax.Array, jax.Array]:
    """Returns the positions of the blocks that cover an array, uint32: before the last axis, and along it."""
    *before, last = shape or (1,)
    if max(math.prod(before), last) > 2**32:
        raise ValueError(f"noise for an array of shape {shape} would repeat: it has more than 2³² rows or columns")
    blocks = (*before, -(-last // elements))
    rows = jnp.zeros(blocks, jnp.uint32)
    for axis, size in enumerate(before):
        rows = rows * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, blocks, axis)
    return rows, jax.lax.broadcasted_iota(jnp.uint32, blocks, len(blocks) - 1)


def noise_support() -> float:
    """Returns the largest size of a draw, in standard deviations. A sum of several draws reaches further."""
    nothing = jnp.zeros((), jnp.uint32)
    return float(jax.jit(normal_of_words)(nothing, nothing))


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
    # All at once, so that one program for deriving keys is compiled, not one for each array.
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, np.arange(len(leaves) + 1, dtype=np.uint32))
    small = [index for index, leaf in enumerate(leaves) if leaf.size < LARGE_ARRAY]
    ends = np.cumsum([leaves[index].size for index in small])
    parts = jnp.split(standard_normal(keys[0], (int(ends[-1]),)), ends[:-1]) if small else []
    draws = dict(zip(small, parts, strict=True))
    noised = []
    for index, leaf in enumerate(leaves):
        noise = draws[index].reshape(leaf.shape) if index in draws else standard_normal(keys[index + 1], leaf.shape)
        noised.append(leaf + standard_deviation * noise)
    return jax.tree.unflatten(structure, noised)
