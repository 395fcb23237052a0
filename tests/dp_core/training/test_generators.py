"""ChaCha20 is the cipher of RFC 8439, its keys have 256 bits, and derived keys do not repeat."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dp_core.training.generators import CHACHA_KEY_WORDS, chacha_block, chacha_key

pytestmark = pytest.mark.usefixtures("strict_types")

KEY = chacha_key(np.arange(8, dtype=np.uint32))
# RFC 8439, Section 2.3.2.
RFC_BLOCK = """
    e4e7f110 15593bd1 1fdd0f50 c47120a3 c7f4d1c7 0368c033 9aaa2204 4e6cd4c3
    466482d2 09aa9f07 05d7c214 a2028bd9 d19c12b5 b94e16de e883d0cb 4e3c50a2
"""


def test_a_block_is_that_of_the_standard() -> None:
    words = jnp.asarray(np.frombuffer(bytes(range(32)), "<u4").astype(np.uint32))
    nonce = np.frombuffer(bytes.fromhex("000000090000004a00000000"), "<u4")
    inputs = tuple(jnp.asarray([word], jnp.uint32) for word in (1, *nonce.tolist()))
    block = [int(word[0]) for word in jax.jit(chacha_block)(words, inputs)]
    assert block == [int(word, 16) for word in RFC_BLOCK.split()]


def test_a_key_has_256_bits() -> None:
    assert jax.random.key_data(KEY).nbytes * 8 == 256
    for words in (np.arange(2, dtype=np.uint32), np.arange(8, dtype=np.int64)):
        with pytest.raises(ValueError, match="8 words of 32 bits"):
            chacha_key(words)
    with pytest.raises(TypeError, match="256 random bits"):
        jax.random.key(0, impl=jax.random.key_impl(KEY))


def test_derived_keys_differ_from_each_other_and_from_their_origin() -> None:
    folded = jax.vmap(jax.random.fold_in, (None, 0))(KEY, np.arange(70_000, dtype=np.uint32))
    data = np.concatenate([jax.random.key_data(keys) for keys in (folded, jax.random.split(KEY, 1000), KEY[None])])
    assert data.shape[1] == CHACHA_KEY_WORDS
    # Not only the keys: no word is shared more often than by chance (expected 0.6 pairs of 71,001 random words).
    assert all(len(np.unique(column)) > len(data) - 10 for column in data.T)


def test_bits_are_uniform_and_depend_on_the_key() -> None:
    bits = np.asarray(jax.random.bits(KEY, (1000, 33)))
    ones = np.unpackbits(bits.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / (bits.size * 32) ** 0.5
    assert len(np.unique(bits)) > bits.size - 5
    assert not np.any(bits == np.asarray(jax.random.bits(jax.random.fold_in(KEY, 0), (1000, 33))))


def test_more_bits_begin_with_the_same() -> None:
    """Words follow each other block by block, as in the standard's key stream."""
    few, many = (np.asarray(jax.random.bits(KEY, (size,))) for size in (16, 40))
    np.testing.assert_array_equal(many[:16], few)


def test_one_bit_of_the_key_changes_half_of_the_output() -> None:
    other = np.arange(8, dtype=np.uint32)
    other[7] ^= np.uint32(2**31)
    bits = [np.asarray(jax.random.bits(key, (4096,))) for key in (KEY, chacha_key(other))]
    changed = np.unpackbits((bits[0] ^ bits[1]).view(np.uint8)).mean()
    assert abs(changed - 0.5) < 5 * 0.5 / (4096 * 32) ** 0.5
