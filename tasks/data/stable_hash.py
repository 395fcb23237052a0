"""A hash of tokens that is the same on every machine and with every version of every library."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

_WORD = 8
_ALL_BITS = np.uint64(2**64 - 1)


def stable_hash(column: str, tokens: pa.Array) -> np.ndarray:
    """Returns a uint64 for each token, which depends only on the column's name and the token's UTF-8 bytes.

    It is implemented here, so that no library update changes it, and vectorised, because a call per token would cost
    more than counting. It starts from BLAKE2b of the name and the token's length, and mixes in eight bytes at a time,
    little-endian, the last ones padded with zeros. It spreads tokens evenly but is not collision-resistant against
    an adversary.
    """
    if not len(tokens):
        return np.empty(0, np.uint64)
    _, offsets_buffer, text_buffer = tokens.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[tokens.offset : tokens.offset + len(tokens) + 1].astype(np.int64)
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    text = np.zeros(offsets[-1] - offsets[0] + _WORD, np.uint8)
    if len(text) > _WORD:
        text[:-_WORD] = np.frombuffer(text_buffer, np.uint8)[offsets[0] : offsets[-1]]
    words = np.lib.stride_tricks.sliding_window_view(text, _WORD)

    name = np.frombuffer(hashlib.blake2b(column.encode(), digest_size=8).digest(), "<u8")
    state = _mixed(name ^ lengths.astype(np.uint64))
    unread = np.flatnonzero(lengths)
    while len(unread):
        word = words[starts[unread]].view("<u8")[:, 0]
        others = np.uint64(8) * (_WORD - np.minimum(lengths[unread], _WORD)).astype(np.uint64)
        state[unread] = _mixed(state[unread] ^ (word & (_ALL_BITS >> others)))
        starts[unread] += _WORD
        lengths[unread] -= _WORD
        unread = unread[lengths[unread] > 0]
    return state


def combined_hash(hashes: Sequence[np.ndarray]) -> np.ndarray:
    """Combines the hashes of several columns row by row. The order of the columns matters."""
    state = np.zeros(len(hashes[0]), np.uint64)
    for column in hashes:
        state = _mixed(state ^ column)
    return state


def _mixed(state: np.ndarray) -> np.ndarray:
    """One step of SplitMix64: a bijection of 64 bits in which every output bit depends on every input bit."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
