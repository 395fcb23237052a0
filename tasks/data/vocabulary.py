"""Vocabularies: which id a token of a categorical column gets.

- ``threshold``: tokens with an exact count of at least ``min_count`` in the training split. The privacy guarantee
  does not cover which tokens have an id.
- ``private``: tokens with a high enough noisy count (``dp_core.partition_selection``). Ids and the saved file depend
  only on noisy counts, so the guarantee covers them.
- ``hash``: every token, also the missing one, gets the id of a hash bucket. No data is used.

Ids start at 1. With ``threshold`` and ``private``, id 0 is for all tokens outside the vocabulary; ``hash`` has no id 0.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from tasks.config.dataset import Dataset
from tasks.data.features import bucket_ids
from tasks.data.schema import CategoricalFacts, VocabularyFacts
from tasks.runtime.progress import say

# Imported where noise is drawn: they load SciPy, which other vocabularies do not need.
if TYPE_CHECKING:
    from dp_core.audit.release_noise import GaussianNoise
    from dp_core.partition_selection import PartitionSelection

DEFAULT_BUCKETS = 10_000
DEFAULT_EPSILON = 0.1
# So many standard deviations above the threshold, a token is selected whatever its noise.
_CERTAIN = 8.0

_FILE_SCHEMA = pa.schema({"column": pa.string(), "id": pa.int32(), "token": pa.string(), "count": pa.int64()})


def vocabulary_rule(dataset: Dataset, min_count: int) -> VocabularyFacts:
    """Returns the kind of a dataset's vocabulary and its parameters: what ids depend on besides the log."""
    if dataset.vocabulary == "hash":
        return {"kind": "hash", "buckets": dataset.vocabulary_buckets or DEFAULT_BUCKETS}
    if dataset.vocabulary == "private":
        return {"kind": "private", "epsilon": dataset.vocabulary_epsilon or DEFAULT_EPSILON, "min_count": min_count}
    return {"kind": "threshold", "min_count": min_count}


@dataclass(frozen=True)
class KnownTokens:
    """Looks ids up in a memory-mapped file of tokens, with a batch for each column."""

    file: Path

    def ids(self, column: int, tokens: pa.Array) -> np.ndarray:
        """Returns the ids of tokens of the categorical column at a position."""
        known = pa.ipc.open_file(pa.memory_map(str(self.file))).get_batch(column)["token"]
        return pc.index_in(tokens, value_set=known).fill_null(-1).to_numpy() + 1


@dataclass(frozen=True)
class Buckets:
    """Hashes every token into a bucket from 1 to ``buckets``."""

    columns: tuple[str, ...]
    buckets: int

    def ids(self, column: int, tokens: pa.Array) -> np.ndarray:
        """Returns the ids of tokens of the categorical column at a position."""
        return bucket_ids(self.columns[column], tokens, self.buckets)


Encoder = KnownTokens | Buckets


@dataclass(frozen=True)
class Vocabulary:
    """A saved vocabulary.

    Attributes:
        description: The kind of the vocabulary and its parameters.
        columns: The categorical columns.
        sizes: For each column its largest id plus one.
        tokens: For each column its tokens in the order of their ids; empty for ``hash``.
        encoder: Maps tokens to ids.
    """

    description: VocabularyFacts
    columns: tuple[str, ...]
    sizes: list[int]
    tokens: list[pa.Array]
    encoder: Encoder

    def column_facts(self) -> list[CategoricalFacts]:
        return [
            {"name": name, "vocabulary_size": size, "embedding_dimension": max(1, int(2 * size**0.25))}
            for name, size in zip(self.columns, self.sizes, strict=True)
        ]

    def meaning(self) -> dict[str, Any]:
        """Returns what the fingerprint covers besides the tokens.

        For ``threshold`` the tokens define all ids. The buckets of ``hash`` and the privacy cost of ``private``
        depend on the parameters too.
        """
        described = {} if self.description["kind"] == "threshold" else {"vocabulary": self.description}
        return {"categorical_columns": self.column_facts(), **described}


class VocabularyNoise(NamedTuple):
    """What was measured of the noise on all counts, and on the published ones that are far above the threshold."""

    drawn: GaussianNoise
    published: GaussianNoise


class SelectedTokens(NamedTuple):
    """The selected tokens with the counts that may be published, and the measured noise if they are private."""

    table: pa.Table
    noise: VocabularyNoise | None


@dataclass(frozen=True)
class TokenSelection:
    """Selects tokens by their counts. Tokens are selected independently, so counts may come in any portions."""

    description: VocabularyFacts
    private: PartitionSelection | None

    @classmethod
    def of(cls, rule: VocabularyFacts, columns: int, examples: int) -> TokenSelection:
        """Returns the selection of a ``threshold`` or ``private`` rule for a number of training examples."""
        if rule["kind"] == "threshold":
            return cls(rule, None)
        from dp_core.partition_selection import VOCABULARY_SHARE_OF_DELTA, PartitionSelection

        delta = VOCABULARY_SHARE_OF_DELTA / examples
        private = PartitionSelection.calibrated(epsilon=rule["epsilon"], delta=delta, columns=columns)
        least, deviation = max(private.threshold, rule["min_count"]), private.standard_deviation
        say(f"vocabulary: tokens with a noisy count of {least:,.0f} or more (standard deviation {deviation:,.1f})")
        # Each draw of the noise is a release of its own: ε of several models adds up draws unless they share one.
        facts: VocabularyFacts = {
            **rule,
            "noise_multiplier": private.noise_multiplier,
            "delta": private.delta,
            "columns": private.columns,
            "threshold": private.threshold,
            "draw": secrets.token_hex(8),
        }
        return cls(facts, private)

    def select(self, table: pa.Table, rng: np.random.Generator | None = None) -> SelectedTokens:
        """Returns the selected tokens with the counts that may be published.

        ``rng`` is for tests. Without it, the noise of a private vocabulary comes from the operating system's entropy.
        """
        min_count = self.description["min_count"]
        if self.private is None:
            return SelectedTokens(table.filter(pc.greater_equal(table["count"], min_count)), None)
        from dp_core.audit.release_noise import GaussianNoise

        # The exact counts go no further: even their order would leak single rows.
        selected = self.private.select(table["count"].to_numpy(), rng, at_least=min_count)
        kept = table.filter(pa.array(selected.kept))
        published = kept.set_column(kept.column_names.index("count"), "count", pa.array(selected.noisy_counts))
        # Being selected says something about a token's noise, unless its count is far above the threshold.
        certain = max(self.private.threshold, min_count) + _CERTAIN * self.private.standard_deviation
        exact = kept["count"].to_numpy()
        noise = (published["count"].to_numpy() - exact)[exact >= certain]
        measured = GaussianNoise.measured(noise, self.private.standard_deviation)
        return SelectedTokens(published, VocabularyNoise(selected.noise, measured))

    def described(self, noise: Sequence[VocabularyNoise | None]) -> VocabularyFacts:
        """Returns the description with what was measured of the noise, in all portions and in one more draw."""
        if self.private is None:
            return self.description
        from dp_core.audit.release_noise import PROBED_DRAWS, GaussianNoise

        another = self.private.select(np.full(PROBED_DRAWS, 1)).noise
        drawn = [portion.drawn for portion in noise if portion is not None]
        measured = {
            "drawn": GaussianNoise.together(drawn),
            "published": GaussianNoise.together(portion.published for portion in noise if portion is not None),
            # With the others, to find noise that is the same in every draw.
            "probed": dataclasses.replace(another, repeats=GaussianNoise.together([*drawn, another]).repeats),
        }
        return {**self.description, "noise": {name: part.to_json() for name, part in measured.items()}}


def hash_vocabulary(rule: VocabularyFacts, columns: tuple[str, ...], folder: Path) -> Vocabulary:
    """Saves the vocabulary of a ``hash`` rule, a file without rows."""
    _save((), [], folder)
    sizes, encoder = [rule["buckets"] + 1] * len(columns), Buckets(columns, rule["buckets"])
    return Vocabulary(rule, columns, sizes, [], encoder)


def counted_vocabulary(
    description: VocabularyFacts, columns: tuple[str, ...], tables: Sequence[pa.Table], folder: Path
) -> Vocabulary:
    """Saves the vocabulary of selected tokens; the most frequent token of a column gets id 1."""
    tables = [_by_count(table) for table in tables]
    return _of_tables(description, columns, tables, folder)


def reused_vocabulary(description: VocabularyFacts, columns: tuple[str, ...], file: Path, folder: Path) -> Vocabulary:
    """Saves a copy of an earlier preparation's vocabulary, with the same ids."""
    saved = pa.parquet.read_table(file)
    tables = [saved.filter(pc.equal(saved["column"], name)).select(["token", "count"]) for name in columns]
    return _of_tables(description, columns, tables, folder)


def _of_tables(
    description: VocabularyFacts, columns: tuple[str, ...], tables: Sequence[pa.Table], folder: Path
) -> Vocabulary:
    tables = [table.combine_chunks() for table in tables]
    sizes, tokens = [len(table) + 1 for table in tables], [table["token"].combine_chunks() for table in tables]
    return Vocabulary(description, columns, sizes, tokens, KnownTokens(_save(columns, tables, folder)))


def _by_count(table: pa.Table) -> pa.Table:
    table = table.sort_by([("count", "descending"), ("token", "ascending")])
    return table.set_column(1, "count", pc.round(table["count"]).cast(pa.int64()))


def _save(columns: tuple[str, ...], tables: Sequence[pa.Table], folder: Path) -> Path:
    """Writes ``vocabulary.parquet`` and an Arrow copy for blocks to memory-map; returns the path of the copy."""
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
