"""Vocabularies that stay while a log grows, so that a token's id, and its row of a model's table, stay the same.

With ``keep_vocabulary`` the first preparation of a dataset makes a vocabulary, and later ones, of more days, take it
over, until one is asked to refit it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.descriptions import Dataset
from tasks.errors import UserError
from tasks.home import home, read_json, short_hash, whole_file, write_json
from tasks.raw_files import RawFile


class KeptVocabulary:
    """The vocabulary that a preparation takes over, if there is one.

    ``fitted_on`` names the files that it is made from, for the key of a preparation; None if nothing is to be kept.
    """

    def __init__(
        self, name: str, dataset: Dataset, rule: dict[str, Any], files: Sequence[RawFile], *, refit: bool
    ) -> None:
        self._folder = home() / "data" / name / "vocabularies"
        described = dataset.model_dump(mode="json", include={"categorical_columns", "missing", "keep_rows"})
        self._pointer = self._folder / f"{short_hash([described, rule])}.json"
        self._keeps = dataset.keep_vocabulary
        self._saved: dict[str, Any] | None = None
        self.fitted_on: str | None = None
        if not self._keeps:
            return
        self._at_hand = short_hash([(str(file.path), file.size, file.modified) for file in files])
        self.fitted_on = self._at_hand
        if self._pointer.exists() and not refit:
            self._saved = read_json(self._pointer)
            self.fitted_on = self._saved["fitted_on"]

    @property
    def file(self) -> Path | None:
        """The saved vocabulary."""
        return None if self._saved is None else self._folder / f"{self.fitted_on}.parquet"

    @property
    def description(self) -> dict[str, Any]:
        assert self._saved is not None
        return self._saved["description"]

    @property
    def origin(self) -> dict[str, Any] | None:
        """The data that the vocabulary is from, if it is not the data at hand."""
        return None if self._saved is None or self.fitted_on == self._at_hand else self._saved["origin"]

    def check(self, examples: int) -> None:
        """Refuses a private vocabulary from far fewer rows: its δ would take most of the δ of the models."""
        if self._saved is None or self.description["kind"] != "private":
            return
        delta = self.description["delta"]
        if 2 * delta * examples > 1:
            raise UserError(
                f"the private vocabulary that is kept was made at δ = {delta:.2g}, which is more than half of the "
                f"δ = 1/{examples:,} of models of this data: make a new one with --refit"
            )

    def save(self, folder: Path) -> None:
        """Makes the vocabulary of a prepared folder the one that later preparations take over."""
        if not self._keeps or self._saved is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with whole_file(self._folder / f"{self.fitted_on}.parquet") as copy:
            shutil.copyfile(folder / "vocabulary.parquet", copy)
        schema = read_json(folder / "schema.json")
        origin = {name: schema[name] for name in ("fingerprint", "source")} | {"train": schema["splits"]["train"]}
        write_json(self._pointer, {"fitted_on": self.fitted_on, "description": schema["vocabulary"], "origin": origin})
