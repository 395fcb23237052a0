"""The hash of a row is a good one: no two words share a value, and every bit depends on every bit."""

from __future__ import annotations

import jax
import numpy as np

from dp_core.training.witness import _mixed


def test_no_two_words_have_the_same_hash() -> None:
    """The hash is a permutation. With an even multiplier, more than 100 of these words would collide."""
    words = np.unique(np.random.default_rng(1).integers(0, 2**32, 2**20, dtype=np.uint32))
    assert len(np.unique(jax.jit(_mixed)(words))) == len(words)


def test_each_bit_of_a_word_changes_each_bit_of_its_hash_half_of_the_time() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32)
    flips = np.uint32(1) << np.arange(32, dtype=np.uint32)
    mixed = jax.jit(_mixed)
    changed = np.asarray(mixed(words[:, None] ^ flips)) ^ np.asarray(mixed(words))[:, None]
    shares = np.mean((changed[..., None] >> np.arange(32, dtype=np.uint32)) & 1, axis=0)
    # Five standard errors, and the hash's own bias of about 1 %.
    assert np.max(np.abs(shares - 0.5)) < 0.06
