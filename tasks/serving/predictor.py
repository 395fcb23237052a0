"""A released model that predicts: what training does to a row, from the files inside the model alone.

The files are in one folder: ``model.json`` (task, columns, network, guarantee), ``parameters.npz``,
``description.json`` (of the log), ``vocabulary.parquet`` (the tokens of each column in the order of their ids; none for
a hash) and ``privacy_statement.md``. It is also part of released models, where neither this checkout nor JAX is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from dp_core.models.digest import parameters_digest
from dp_core.models.plain import predict_logits
from tasks.data.features import bucket_ids, log_transform
from tasks.serving.frames import feature_table

# Raised when an earlier version of this code could not read the files.
FORMAT = 1
MODEL, PARAMETERS, DESCRIPTION = "model.json", "parameters.npz", "description.json"
VOCABULARY, STATEMENT = "vocabulary.parquet", "privacy_statement.md"


class DamagedModel(ValueError):
    """Files that are not those of a released model, or not as they were released."""


@dataclass(frozen=True)
class KnownIds:
    """The ids of a column's known tokens, from 1; every other token has id 0."""

    index: pd.Index

    @classmethod
    def of(cls, tokens: pa.Array) -> KnownIds:
        index = pd.Index(tokens.to_numpy(zero_copy_only=False), dtype=object)
        index.get_indexer(index[:1])  # builds the hash table now, before several threads use it
        return cls(index)

    def ids(self, tokens: pa.Array) -> np.ndarray:
        return self.index.get_indexer(tokens.to_numpy(zero_copy_only=False)).astype(np.int32) + np.int32(1)


@dataclass(frozen=True)
class HashedIds:
    """The ids of a column's tokens in a hash vocabulary."""

    column: str
    buckets: int

    def ids(self, tokens: pa.Array) -> np.ndarray:
        return bucket_ids(self.column, tokens, self.buckets)


@dataclass(frozen=True)
class Predictor:
    """A model in memory.

    Attributes:
        facts: The contents of ``model.json``.
        parameters: The released parameters by name.
        encoders: Maps tokens to ids, one for each categorical column.
    """

    facts: Mapping[str, Any]
    parameters: Mapping[str, np.ndarray]
    encoders: tuple[KnownIds | HashedIds, ...]

    @classmethod
    def load(cls, folder: Path) -> Predictor:
        """Loads a model. Raises ``DamagedModel`` if its files are missing, or not as they were released."""
        try:
            facts = json.loads((folder / MODEL).read_text(encoding="utf-8"))
            if facts["format"] > FORMAT:
                raise DamagedModel(f"{folder} was written by a newer version: format {facts['format']}, not {FORMAT}")
            with np.load(folder / PARAMETERS, allow_pickle=False) as file:
                parameters = dict(file)
            encoders = _encoders(folder, facts)
            if parameters_digest(parameters) != facts["parameters_digest"]:
                raise DamagedModel(f"{folder / PARAMETERS} is not what was released: its digest is another one")
        except DamagedModel:
            raise
        except Exception as error:  # NumPy, Arrow and JSON each raise their own
            raise DamagedModel(f"{folder} has no complete released model: {error}") from None
        return cls(facts, parameters, encoders)

    @property
    def task(self) -> str:
        return self.facts["task"]

    def logits(self, table: pa.Table) -> np.ndarray:
        """Returns a float32 logit (or log intensity) for each row of a table with the types of ``feature_table``."""
        numbers = [log_transform(table[name].to_numpy()) for name in self.facts["integer_columns"]]
        tokens = [table[name].combine_chunks() for name in self.facts["categorical_columns"]]
        columns = [(column.indices.to_numpy(), column.dictionary) for column in tokens]
        return self.logits_of_columns(numbers, columns, len(table))

    def logits_of_columns(
        self, integers: Sequence[np.ndarray], tokens: Sequence[tuple[np.ndarray, pa.Array]], rows: int
    ) -> np.ndarray:
        """Returns a float32 logit for each row.

        Args:
            integers: Log-transformed columns, NaN where missing.
            tokens: For each categorical column the rows' indices into its dictionary, and the dictionary.
            rows: The number of rows.
        """
        pairs = zip(self.encoders, tokens, strict=True)
        ids = [encoder.ids(dictionary)[indices] for encoder, (indices, dictionary) in pairs]
        return predict_logits(
            self.facts["network"],
            self.parameters,
            _stacked(integers, rows, np.float32),
            _stacked(ids, rows, np.int32),
        )

    def predictions(self, logits: np.ndarray) -> np.ndarray:
        """Returns probabilities for pctr and pcvr, expected counts for pconvs, as float64."""
        f = logits.astype(np.float64)
        with np.errstate(over="ignore"):
            return np.exp(f) if self.task == "pconvs" else 1 / (1 + np.exp(-f))

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns the predictions for raw rows, in a column named for the task, with the index of the rows.

        Raises ``InvalidRows`` if a row cannot be read.
        """
        table = feature_table(
            frame, self.facts["integer_columns"], self.facts["categorical_columns"], self.facts["missing"]
        )
        return pd.DataFrame({self.task: self.predictions(self.logits(table))}, index=frame.index)


def _encoders(folder: Path, facts: Mapping[str, Any]) -> tuple[KnownIds | HashedIds, ...]:
    names, vocabulary = facts["categorical_columns"], facts["vocabulary"]
    if vocabulary["kind"] == "hash":
        return tuple(HashedIds(name, vocabulary["buckets"]) for name in names)
    if not names:
        return ()
    saved = pyarrow.parquet.read_table(folder / VOCABULARY)
    columns = saved["column"].combine_chunks()
    tokens = saved["token"].combine_chunks()
    return tuple(KnownIds.of(tokens.filter(pa.compute.equal(columns, name))) for name in names)


def _stacked(columns: Sequence[np.ndarray], rows: int, dtype: type) -> np.ndarray:
    array: np.ndarray = np.empty((rows, len(columns)), dtype)
    for position, column in enumerate(columns):
        array[:, position] = column
    return array
