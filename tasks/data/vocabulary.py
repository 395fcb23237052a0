"""Vocabularies: which id a token of a categorical column gets.

- ``threshold``: tokens seen at least ``min_count`` times in the training part, by exact counts. Which tokens
  have an id is then outside the privacy guarantee.
- ``private``: tokens whose noisy count is high enough (``dp_core.partition_selection``). Ids and the file that is
  kept follow from the noisy counts alone, so that they are part of the guarantee.
- ``hash``: a bucket for every token, the missing one too. No data is looked at.

Ids start at 1. Under the first two id 0 is every token outside the vocabulary; under ``hash`` there is none.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from dp_core.partition_selection import VOCABULARY_SHARE_OF_DELTA, PartitionSelection
from tasks.descriptions import Dataset
from tasks.progress import say
from tasks.stable_hash import stable_hash

DEFAULT_BUCKETS = 10_000
DEFAULT_EPSILON = 0.1

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


@dataclass(frozen=True)
class Selection:
    """How tokens are chosen by their counts. Every token stands for itself, so counts may come in any portions."""

    description: dict[str, Any]
    private: PartitionSelection | None

    @classmethod
    def of(cls, rule: dict[str, Any], columns: int, examples: int) -> Selection:
        """The selection of a ``threshold`` or ``private`` rule over so many columns and training rows."""
        if rule["kind"] == "threshold":
            return cls(rule, None)
        delta = VOCABULARY_SHARE_OF_DELTA / examples
        private = PartitionSelection.calibrated(epsilon=rule["epsilon"], delta=delta, columns=columns)
        least, deviation = max(private.threshold, rule["min_count"]), private.standard_deviation
        say(f"vocabulary: tokens with a noisy count of {least:,.0f} or more (standard deviation {deviation:,.1f})")
        # Each draw of the noise is a release: ε of several models adds them up, unless they share one.
        return cls({**rule, **private._asdict(), "draw": secrets.token_hex(8)}, private)

    def select(self, table: pa.Table, rng: np.random.Generator | None = None) -> pa.Table:
        """The chosen of some tokens, with the counts that may be told.

        ``rng`` is for tests: without it a private vocabulary's noise comes from the operating system's entropy.
        """
        min_count = self.description["min_count"]
        if self.private is None:
            return table.filter(pc.greater_equal(table["count"], min_count))
        # The exact counts go no further: even their order would tell of single rows.
        selected = self.private.select(table["count"].to_numpy(), rng, at_least=min_count)
        kept = table.filter(pa.array(selected.kept))
        return kept.set_column(kept.column_names.index("count"), "count", pa.array(selected.noisy_counts))


def hashed(rule: dict[str, Any], columns: tuple[str, ...], folder: Path) -> Vocabulary:
    """The vocabulary of a ``hash`` rule. Its file has no rows."""
    _save((), [], folder)
    sizes, encoder = [rule["buckets"] + 1] * len(columns), Buckets(columns, rule["buckets"])
    return Vocabulary(rule, columns, sizes, [], encoder)


def chosen(
    description: dict[str, Any], columns: tuple[str, ...], tables: Sequence[pa.Table], folder: Path
) -> Vocabulary:
    """The vocabulary of each column's chosen tokens, the most frequent first."""
    tables = [_by_count(table) for table in tables]
    return _of_tables(description, columns, tables, folder)


def kept(description: dict[str, Any], columns: tuple[str, ...], file: Path, folder: Path) -> Vocabulary:
    """The vocabulary that an earlier preparation saved, with the ids that it had."""
    saved = pa.parquet.read_table(file)
    tables = [saved.filter(pc.equal(saved["column"], name)).select(["token", "count"]) for name in columns]
    return _of_tables(description, columns, tables, folder)


def _of_tables(
    description: dict[str, Any], columns: tuple[str, ...], tables: Sequence[pa.Table], folder: Path
) -> Vocabulary:
    tables = [table.combine_chunks() for table in tables]
    sizes, tokens = [len(table) + 1 for table in tables], [table["token"].combine_chunks() for table in tables]
    return Vocabulary(description, columns, sizes, tokens, KnownTokens(_save(columns, tables, folder)))


def _by_count(table: pa.Table) -> pa.Table:
    table = table.sort_by([("count", "descending"), ("token", "ascending")])
    return table.set_column(1, "count", pc.round(table["count"]).cast(pa.int64()))


def _save(columns: tuple[str, ...], tables: Sequence[pa.Table], folder: Path) -> Path:
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
