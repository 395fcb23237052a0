"""Keeps a vocabulary while a log grows, so that a token keeps its id and its row of the embedding table.

With ``keep_vocabulary`` the first preparation of a dataset makes a vocabulary, and later ones reuse it until one is
asked to refit it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypedDict

from tasks.config.dataset import Dataset
from tasks.data.schema import Schema, VocabularyFacts, VocabularyOrigin
from tasks.logs.files import RawFile
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json, short_hash, whole_file, write_json


class _Saved(TypedDict):
    """The file that points to the kept vocabulary of a dataset."""

    fitted_on: str
    description: VocabularyFacts
    origin: VocabularyOrigin


class VocabularyKeeper(Protocol):
    """Knows which vocabulary a preparation reuses, and keeps a new one for later."""

    # The cache key of the kept vocabulary; None if the dataset does not keep one.
    fitted_on: str | None

    @property
    def file(self) -> Path | None: ...

    @property
    def description(self) -> VocabularyFacts: ...

    @property
    def origin(self) -> VocabularyOrigin | None: ...

    def check(self, examples: int) -> None: ...

    def save(self, folder: Path) -> None: ...


class KeptVocabulary:
    """The vocabulary that a preparation reuses, if there is one.

    ``fitted_on`` is a hash of the files that it was made from, part of a preparation's cache key; None if the dataset
    does not keep its vocabulary.
    """

    def __init__(
        self, name: str, dataset: Dataset, rule: VocabularyFacts, files: Sequence[RawFile], *, refit: bool
    ) -> None:
        self._folder = home() / "data" / name / "vocabularies"
        described = dataset.model_dump(mode="json", include={"categorical_columns", "missing", "keep_rows"})
        self._pointer = self._folder / f"{short_hash([described, rule])}.json"
        self._keeps = dataset.keep_vocabulary
        self._saved: _Saved | None = None
        self.fitted_on: str | None = None
        if not self._keeps:
            return
        self._these_files = short_hash([file.identity for file in files])
        self.fitted_on = self._these_files
        if self._pointer.exists() and not refit:
            self._saved = read_json(self._pointer, alone=True)
            self.fitted_on = self._saved["fitted_on"]

    @property
    def file(self) -> Path | None:
        """The saved vocabulary, None if a new one is to be made."""
        return None if self._saved is None else self._folder / f"{self.fitted_on}.parquet"

    @property
    def description(self) -> VocabularyFacts:
        """The kind and parameters of the saved vocabulary."""
        assert self._saved is not None
        return self._saved["description"]

    @property
    def origin(self) -> VocabularyOrigin | None:
        """The data that the vocabulary was made from, None if that is the data being prepared."""
        return None if self._saved is None or self.fitted_on == self._these_files else self._saved["origin"]

    def check(self, examples: int) -> None:
        """Refuses a private vocabulary made from far fewer rows: its δ would use up most of the models' δ."""
        if self._saved is None or self.description["kind"] != "private":
            return
        delta = self.description["delta"]
        if 2 * delta * examples > 1:
            raise UserError(
                f"the kept private vocabulary was made with δ = {delta:.2g}, more than half of the δ = 1/{examples:,} "
                "of models trained on this data: make a new one with --refit"
            )

    def save(self, folder: Path) -> None:
        """Saves the vocabulary of a prepared folder for later preparations to reuse."""
        if not self._keeps or self._saved is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with whole_file(self._folder / f"{self.fitted_on}.parquet") as copy:
            shutil.copyfile(folder / "vocabulary.parquet", copy)
        schema: Schema = read_json(folder / "schema.json")
        origin: VocabularyOrigin = {
            "fingerprint": schema["fingerprint"],
            "source": schema["source"],
            "train": schema["splits"]["train"],
        }
        write_json(self._pointer, {"fitted_on": self.fitted_on, "description": schema["vocabulary"], "origin": origin})
