"""Random generators of the noise: Threefry for seeded runs, ChaCha20 for secret ones.

The generator follows from the type of the key, so a step is written once for both:

- A *Threefry* key (``jax.random.key``, 64 bits) makes a run that can be repeated. It is not cryptographic.
- A *ChaCha20* key (``chacha_key``, 256 bits) makes noise that nobody without the key can predict (RFC 8439).

Both are counter-based. A block of words depends on the key and the position of the block in the array, so each
device can draw its own rows, and rows that are appended change no others.

ChaCha20 is written here in JAX. The package jax-chacha-prng (1.4.3) cannot be imported with the JAX in use, needs
NumPy 1, and says that keys which it derives may repeat. Here a derived key is 256 bits of the cipher's output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

CHACHA_KEY_WORDS = 8

# "expand 32-byte k", the constants of RFC 8439.
_CONSTANTS = tuple(int(word) for word in np.frombuffer(b"expand 32-byte k", "<u4"))
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
# The last word of the nonce separates what a key is used for.
_NOISE, _BITS, _FOLD, _SPLIT = 1, 2, 3, 4


class Generator(NamedTuple):
    """How the words of an array's noise are made, and how many of them an element takes.

    Attributes:
        blocks: ``(key, rows, columns) -> words``: for the blocks at these positions (uint32 arrays of one shape), a
            tuple of ``words`` uint32 arrays of that shape.
        words: The number of 32-bit words in a block.
        summands: The number of normal draws that are summed for an element. Each takes two words.
    """

    blocks: Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]
    words: int
    summands: int

    @property
    def elements(self) -> int:
        """The number of neighbouring elements that share a block."""
        return self.words // (2 * self.summands)


def generator_of(key: jax.Array) -> Generator:
    """Returns the generator that a key belongs to.

    Raises:
        ValueError: If the key is for another generator, whose noise nobody has looked at.
    """
    kind = jax.random.key_impl(key)
    if kind not in _GENERATORS:
        raise ValueError(f"noise needs a Threefry or ChaCha20 key, got one of {kind}")
    return _GENERATORS[kind]


def chacha_key(words: np.ndarray) -> jax.Array:
    """Returns the ChaCha20 key of 256 bits.

    Args:
        words: Eight uint32 words, from the operating system's entropy if the noise is to be secret.
    """
    if np.shape(words) != (CHACHA_KEY_WORDS,) or words.dtype != np.uint32:
        raise ValueError(f"a ChaCha20 key has {CHACHA_KEY_WORDS} words of 32 bits, got {words.dtype} {np.shape(words)}")
    return jax.random.wrap_key_data(jnp.asarray(words), impl=_CHACHA)


def chacha_block(key_words: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Returns ChaCha20 blocks (RFC 8439, Section 2.3), for many inputs at once.

    Args:
        key_words: The key, uint32 of shape [8].
        inputs: The last four words of the state: the counter and the nonce. uint32 arrays of one shape.

    Returns:
        The sixteen words of each block, as uint32 arrays of the inputs' shape.
    """
    shape = inputs[0].shape
    constants = (jnp.full(shape, word, jnp.uint32) for word in _CONSTANTS)
    start = (*constants, *(jnp.broadcast_to(word, shape) for word in key_words), *inputs)

    def two_rounds(_: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        words = list(state)
        for places in (*_COLUMNS, *_DIAGONALS):
            changed = _quarter_round(*(words[place] for place in places))
            for place, word in zip(places, changed, strict=True):
                words[place] = word
        return tuple(words)

    mixed = jax.lax.fori_loop(0, 10, two_rounds, start)
    return tuple(one + other for one, other in zip(mixed, start, strict=True))


def _quarter_round(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> tuple[jax.Array, ...]:
    for first, second in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(d ^ a, first)
        c = c + d
        b = _rotated(b ^ c, second)
    return a, b, c, d


def _rotated(word: jax.Array, bits: int) -> jax.Array:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _inputs(purpose: int, first: jax.Array, second: jax.Array | None = None) -> tuple[jax.Array, ...]:
    zero = jnp.zeros_like(first)
    return first, zero if second is None else second, zero, jnp.full_like(first, purpose)


def _chacha_noise(key: jax.Array, rows: jax.Array, columns: jax.Array) -> tuple[jax.Array, ...]:
    return chacha_block(jax.random.key_data(key), _inputs(_NOISE, rows, columns))


def _threefry_noise(key: jax.Array, rows: jax.Array, columns: jax.Array) -> tuple[jax.Array, ...]:
    """Uses both words of a hash. ``jax.random.bits`` would hash once for each word, which takes twice as long."""
    first, second = jax.random.key_data(key)
    return tuple(jax.extend.random.threefry2x32_p.bind(first, second, rows, columns))


def _chacha_bits(key_words: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    if bit_width != 32:
        raise NotImplementedError(f"ChaCha20 keys make 32-bit words, not {bit_width}-bit ones")
    size = math.prod(shape)
    blocks = chacha_block(key_words, _inputs(_BITS, jax.lax.iota(jnp.uint32, -(-size // 16))))
    return jnp.stack(blocks, axis=-1).ravel()[:size].reshape(shape)


def _chacha_fold_in(key_words: jax.Array, data: int) -> jax.Array:
    return jnp.stack(chacha_block(key_words, _inputs(_FOLD, jnp.asarray(data, jnp.uint32)))[:CHACHA_KEY_WORDS])


def _chacha_split(key_words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    numbers = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return jnp.stack(chacha_block(key_words, _inputs(_SPLIT, numbers))[:CHACHA_KEY_WORDS], axis=-1)


def _chacha_seed(seed: jax.Array) -> jax.Array:
    raise TypeError("a ChaCha20 key is made of 256 random bits by chacha_key, not of a seed")


_CHACHA = jax.extend.random.define_prng_impl(
    key_shape=(CHACHA_KEY_WORDS,),
    seed=_chacha_seed,
    split=_chacha_split,
    random_bits=_chacha_bits,
    fold_in=_chacha_fold_in,
    name="chacha20",
    tag="cc20",
)

# Secret noise is the sum of four draws, halved: see ``noise.standard_normal``.
_GENERATORS = {
    "threefry2x32": Generator(_threefry_noise, words=2, summands=1),
    _CHACHA: Generator(_chacha_noise, words=16, summands=4),
}
