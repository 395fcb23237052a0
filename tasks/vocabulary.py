"""Vocabularies: which id a token of a categorical column gets.

- ``threshold``: tokens seen at least ``min_count`` times in the training part, by exact counts. Which tokens
  have an id is then outside the privacy guarantee.
- ``private``: tokens whose noisy count is high enough (``dp_core.partition_selection``). Ids and the file that is
  kept follow from the noisy counts alone, so that they are part of the guarantee.
- ``hash``: a bucket for every token, the missing one too. No data is looked at.

Ids start at 1. Under the first two id 0 is every token outside the vocabulary; under ``hash`` there is none.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from dp_core.partition_selection import VOCABULARY_SHARE_OF_DELTA, PartitionSelection
from tasks.descriptions import Dataset
from tasks.progress import say

DEFAULT_BUCKETS = 10_000
DEFAULT_EPSILON = 0.1

_MERGED_AT_ONCE = 8
_WORD = 8
_ALL_BITS = np.uint64(2**64 - 1)
_FILE_SCHEMA = pa.schema({"column": pa.string(), "id": pa.int32(), "token": pa.string(), "count": pa.int64()})


def vocabulary_rule(dataset: Dataset, min_count: int) -> dict[str, Any]:
    """The kind of a dataset's vocabulary and the numbers that belong to it: what the ids depend on beside the logs."""
    if dataset.vocabulary == "hash":
        return {"kind": "hash", "buckets": dataset.vocabulary_buckets or DEFAULT_BUCKETS}
    if dataset.vocabulary == "private":
        return {"kind": "private", "epsilon": dataset.vocabulary_epsilon or DEFAULT_EPSILON, "min_count": min_count}
    return {"kind": "threshold", "min_count": min_count}


@dataclass(frozen=True)
class KnownTokens:
    """Gives ids to the tokens of a file that blocks map into memory, with a batch for each column."""

    file: Path

    def ids(self, column: int, tokens: pa.Array) -> np.ndarray:
        """The id of each of some tokens of the categorical column at a position."""
        known = pa.ipc.open_file(pa.memory_map(str(self.file))).get_batch(column)["token"]
        return pc.index_in(tokens, value_set=known).fill_null(-1).to_numpy() + 1


@dataclass(frozen=True)
class Buckets:
    """Gives every token the id of its bucket, from 1 to ``buckets``."""

    columns: tuple[str, ...]
    buckets: int

    def ids(self, column: int, tokens: pa.Array) -> np.ndarray:
        """The id of each of some tokens of the categorical column at a position."""
        hashes = stable_hash(self.columns[column], tokens)
        return (hashes % np.uint64(self.buckets)).astype(np.int32) + np.int32(1)


Encoder = KnownTokens | Buckets


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary, made and saved.

    ``sizes`` are one more than each column's largest id, and ``tokens`` each column's tokens with an id of their
    own, in the order of their ids.
    """

    description: dict[str, Any]
    columns: tuple[str, ...]
    sizes: list[int]
    tokens: list[pa.Array]
    encoder: Encoder

    def meaning(self) -> dict[str, Any]:
        """What ids mean beside the tokens: part of the schema and of the fingerprint.

        Of a threshold the tokens say everything. Which token is in which bucket, and what a private vocabulary
        costs, follow from the numbers in its description.
        """
        columns = [
            {"name": name, "vocabulary_size": size, "embedding_dimension": max(1, int(2 * size**0.25))}
            for name, size in zip(self.columns, self.sizes, strict=True)
        ]
        described = {} if self.description["kind"] == "threshold" else {"vocabulary": self.description}
        return {"categorical_columns": columns, **described}


def hashed(rule: dict[str, Any], columns: tuple[str, ...], folder: Path) -> Vocabulary:
    """The vocabulary of a ``hash`` rule. Its file has no rows."""
    _save((), [], folder)
    sizes, encoder = [rule["buckets"] + 1] * len(columns), Buckets(columns, rule["buckets"])
    return Vocabulary(rule, columns, sizes, [], encoder)


def chosen(
    rule: dict[str, Any],
    columns: tuple[str, ...],
    counts: Sequence[pa.Table],
    *,
    examples: int,
    folder: Path,
    rng: np.random.Generator | None = None,
) -> Vocabulary:
    """The vocabulary of a ``threshold`` or ``private`` rule, from the counts of each column's tokens.

    ``examples`` is the number of training rows. ``rng`` is for tests: without it a private vocabulary's noise
    comes from the operating system's entropy.
    """
    if rule["kind"] == "private":
        delta = VOCABULARY_SHARE_OF_DELTA / examples
        selection = PartitionSelection.calibrated(epsilon=rule["epsilon"], delta=delta, columns=len(columns))
        # Each draw of the noise is a release: ε of several models adds them up, unless they share one.
        rule = {**rule, **selection._asdict(), "draw": secrets.token_hex(8)}
        least, deviation = max(selection.threshold, rule["min_count"]), selection.standard_deviation
        say(f"vocabulary: tokens with a noisy count of {least:,.0f} or more (standard deviation {deviation:,.1f})")
        tables = [_private(table, selection, rule["min_count"], rng) for table in counts]
    else:
        tables = [_frequent(table, rule["min_count"]) for table in counts]
    sizes, tokens = [len(table) + 1 for table in tables], [table["token"].combine_chunks() for table in tables]
    return Vocabulary(rule, columns, sizes, tokens, KnownTokens(_save(columns, tables, folder)))


def count_tokens(indices: np.ndarray, tokens: pa.Array) -> pa.Table:
    """The tokens that occur, with their counts, from indices into a block's dictionary of them."""
    counts = np.bincount(indices, minlength=len(tokens))
    seen = np.flatnonzero(counts)
    return pa.table({"token": tokens.take(pa.array(seen)), "count": counts[seen]})


def merged(counts: list[Any]) -> Any:
    """Of Dask tasks, each a list of tables with one for each column, the task that adds them up.

    A tree of merges, so that no step holds the counts of more than a few blocks.
    """
    groups = [counts[i : i + _MERGED_AT_ONCE] for i in range(0, len(counts), _MERGED_AT_ONCE)]
    merges = [dask.delayed(_merge)(group) for group in groups]
    return merges[0] if len(merges) == 1 else merged(merges)


def _merge(counts: list[list[pa.Table]]) -> list[pa.Table]:
    sums = []
    for tables in zip(*counts, strict=True):
        grouped = pa.concat_tables(tables).group_by("token", use_threads=False)
        sums.append(grouped.aggregate([("count", "sum")]).rename_columns(["token", "count"]))
    return sums


def _frequent(table: pa.Table, min_count: int) -> pa.Table:
    """The tokens with an id, in the order of their ids."""
    return _by_count(table.filter(pc.greater_equal(table["count"], min_count)))


def _private(
    table: pa.Table, selection: PartitionSelection, min_count: int, rng: np.random.Generator | None
) -> pa.Table:
    """The same by noisy counts. The exact ones go no further: even their order would tell of single rows."""
    selected = selection.select(table["count"].to_numpy(), rng, at_least=min_count)
    kept = pa.table({"token": table["token"].filter(pa.array(selected.kept)), "count": selected.noisy_counts})
    kept = _by_count(kept)
    return kept.set_column(1, "count", pc.round(kept["count"]).cast(pa.int64()))


def _by_count(table: pa.Table) -> pa.Table:
    return table.sort_by([("count", "descending"), ("token", "ascending")]).combine_chunks()


def _save(columns: tuple[str, ...], tables: list[pa.Table], folder: Path) -> Path:
    """Writes the file that stays, and a copy for blocks to map into memory, which it returns."""
    mapped = folder / "scratch" / "vocabulary.arrow"
    with (
        pa.parquet.ParquetWriter(folder / "vocabulary.parquet", _FILE_SCHEMA) as parquet,
        pa.ipc.new_file(str(mapped), _FILE_SCHEMA) as arrow,
    ):
        for name, table in zip(columns, tables, strict=True):
            names, ids = pa.repeat(name, len(table)), pa.array(np.arange(1, len(table) + 1, dtype=np.int32))
            arrays = [names, ids, *(column.combine_chunks() for column in table.columns)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=_FILE_SCHEMA)
            parquet.write_batch(batch)
            arrow.write_batch(batch)
    return mapped


def stable_hash(column: str, tokens: pa.Array) -> np.ndarray:
    """64 bits for each token, from nothing but the column's name and the token's bytes in UTF-8.

    Written out here, so that no library's next version changes it, and for whole arrays, because a call for each
    token would cost more than counting does. It starts from BLAKE2b of the name and the token's length, and mixes
    in eight bytes at a time, little-endian, the last ones filled up with zeros. It spreads tokens evenly, but does
    not resist someone who makes up tokens that collide.
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


def _mixed(state: np.ndarray) -> np.ndarray:
    """One step of SplitMix64: a one-to-one map of 64 bits, in which each bit of the result depends on all of them."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
