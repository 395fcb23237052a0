"""Witness: the rows that a compiled step computed with, counted on the device.

Every step reports its number, how many rows it summed, and a checksum of their contents. The host knows which
examples were sampled, computes the same checksum from the data, and compares (``dp_core.audit.step_log``). A batch
that was used twice, a row that was dropped, repeated or mixed up, and a step that was run but not counted show at
the step where they happen. The checksum costs a few integer operations per value.

The checksum of a batch is a sum over its units, the clipping units of the step: examples or, with microbatches,
groups. It does not depend on the order of the rows, nor on how they are cut into physical batches. A wrong batch has
the right checksum with probability 2⁻³².

Two more checksums are reported of every dispatch. One is of what it was given besides batches: the method, the noise
key and the numbers of the run. The other is of the whole state before and after it. So the host sees that every step
had the stated key and numbers, and that nothing but the compiled program changed the state.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dp_core.clipping.signals import Batch

# Odd constants of a 32-bit integer hash with low bias ("lowbias32"), and the golden ratio.
MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
COLUMN_STRIDE = 0x9E3779B9
# Rows of an array that are in the checksum of a state.
_MOST_ROWS = 4096
# Every NaN is a missing value, whatever its bits.
MISSING = 0x7FC00000


class Seen(NamedTuple):
    """What a step computed with.

    Attributes:
        rows: Number of rows with a weight other than 0, int32.
        checksum: Sum of the units' hashes modulo 2³², uint32.
    """

    rows: jax.Array
    checksum: jax.Array


class StepReport(NamedTuple):
    """What a step tells the host. Not private.

    Attributes:
        loss: Mean loss of the batch before the update, float32; NaN if the step was refused.
        number: The state's step counter before the step, int32.
        rows: ``Seen.rows``.
        checksum: ``Seen.checksum``.
    """

    loss: jax.Array
    number: jax.Array
    rows: jax.Array
    checksum: jax.Array


class DispatchReport(NamedTuple):
    """What a dispatch tells the host. Not private.

    Attributes:
        loss, number, rows, checksum: As in ``StepReport``, arrays with one entry per step.
        given: ``checksum_of_given`` of the dispatch.
        before: ``checksum_of_state`` before it.
        after: ``checksum_of_state`` after it.
    """

    loss: jax.Array
    number: jax.Array
    rows: jax.Array
    checksum: jax.Array
    given: jax.Array
    before: jax.Array
    after: jax.Array


def checksum_of_given(method: Any, noise_key: jax.Array, hyper: Any) -> jax.Array:
    """Returns a checksum of the method, the noise key and the hyperparameters; uint32.

    Args:
        method: The method, whose ``repr`` is hashed when the program is traced.
        noise_key: The run's key.
        hyper: The run's numbers, a tuple of scalars.
    """
    name = int.from_bytes(hashlib.blake2b(repr(method).encode(), digest_size=4).digest(), "little")
    numbers = _bits(jnp.stack([jnp.asarray(value, jnp.float32) for value in hyper]))
    words = jnp.concatenate([jnp.full((1,), name, jnp.uint32), jax.random.key_data(noise_key).ravel(), numbers])
    return _checksum(words)


def checksum_of_state(state: Any) -> jax.Array:
    """Returns a checksum of all arrays of a state; uint32. The order of summation does not matter to it.

    Of a table with many rows every k-th is read, so that a large model does not spend its time on checksums.
    """
    total = jnp.zeros((), jnp.uint32)
    for number, leaf in enumerate(jax.tree.leaves(state), start=1):
        leaf = leaf[:: -(-leaf.shape[0] // _MOST_ROWS)] if leaf.ndim else leaf
        words = _bits(leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf.astype(jnp.uint32)
        total = total + _mixed(_checksum(words) + jnp.uint32(number * COLUMN_STRIDE % 2**32))
    return total


def state_checksum(state: Any) -> int:
    """Returns the checksum of a state, as the compiled program reports it of its own."""
    return int(_compiled_checksum()(state))


@functools.cache
def _compiled_checksum() -> Any:
    return jax.jit(checksum_of_state, compiler_options=quick_compilation())


def quick_compilation() -> dict[str, Any] | None:
    """Returns options for programs that run a few times: on a CPU they compile in a fifth of the time."""
    if jax.default_backend() != "cpu":
        return None
    return {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def _checksum(words: jax.Array) -> jax.Array:
    """Returns the sum of the hashes of each word and its position."""
    places = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        places = places * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    return jnp.sum(_mixed(words ^ (places * jnp.uint32(COLUMN_STRIDE))), dtype=jnp.uint32)


def nothing_seen() -> Seen:
    """Returns the witness of no rows."""
    return Seen(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.uint32))


def also_seen(seen: Seen, batch: Batch) -> Seen:
    """Adds the rows of a physical batch to a witness.

    Args:
        seen: The witness so far.
        batch: The very arrays that the gradients are computed from, of shape (rows, ...).
    """
    used = jnp.asarray(batch.mask) != 0
    hashes = jnp.where(used, _row_hashes(batch), jnp.uint32(0))
    if batch.groups is None:
        units = jnp.where(used, _mixed(hashes), jnp.uint32(0))
    else:
        rows = used.shape[0]
        groups = jnp.asarray(batch.groups)
        totals = jax.ops.segment_sum(hashes, groups, num_segments=rows)
        has_rows = jax.ops.segment_max(used.astype(jnp.int32), groups, num_segments=rows) > 0
        units = jnp.where(has_rows, _mixed(totals), jnp.uint32(0))
    return Seen(
        seen.rows + jnp.sum(used, dtype=jnp.int32),
        seen.checksum + jnp.sum(units, dtype=jnp.uint32),
    )


def _row_hashes(batch: Batch) -> jax.Array:
    """Returns a hash of each row's features, label and weight; uint32 of shape (rows,)."""
    words = jnp.concatenate(
        [
            _bits(batch.integers),
            jnp.asarray(batch.categoricals).astype(jnp.uint32),
            _bits(batch.labels)[:, None],
            _bits(batch.mask)[:, None],
        ],
        axis=1,
    )
    columns = jnp.arange(1, words.shape[1] + 1, dtype=jnp.uint32) * jnp.uint32(COLUMN_STRIDE)
    return _mixed(jnp.sum(_mixed(words ^ columns), axis=1, dtype=jnp.uint32))


def _bits(values: jax.typing.ArrayLike) -> jax.Array:
    values = jnp.asarray(values, jnp.float32)
    return jnp.where(jnp.isnan(values), jnp.uint32(MISSING), jax.lax.bitcast_convert_type(values, jnp.uint32))


def _mixed(words: jax.Array) -> jax.Array:
    first, second = (jnp.uint32(multiplier) for multiplier in MULTIPLIERS)
    words = (words ^ (words >> jnp.uint32(16))) * first
    words = (words ^ (words >> jnp.uint32(15))) * second
    return words ^ (words >> jnp.uint32(16))
