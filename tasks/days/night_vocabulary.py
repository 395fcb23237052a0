"""The vocabulary that nights keep, for datasets with ``keep_vocabulary``.

A night never uses a vocabulary that has seen its newest day: that would tell the model about the day that judges it. So
it uses the newest vocabulary that was made from days before its own, and makes one from its window if there is none.
A back-fill of earlier nights thus makes a vocabulary of its own. A private vocabulary that was made from far fewer rows
than the window has would use up most of the models' δ; then a new one is made too.

Every vocabulary is a Parquet file with a JSON file that says what it was made from.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from tasks.config.dataset import Dataset
from tasks.data.schema import Schema, VocabularyFacts, VocabularyOrigin
from tasks.runtime.home import home, read_json, short_hash, whole_file, write_json


class _Saved(TypedDict):
    fitted_on: str
    description: VocabularyFacts
    origin: VocabularyOrigin


class NightVocabulary:
    """The vocabulary that a night reuses, if there is one (see ``tasks.data.kept_vocabulary.VocabularyKeeper``)."""

    def __init__(
        self,
        name: str,
        dataset: Dataset,
        rule: VocabularyFacts,
        *,
        day: str,
        window: Sequence[tuple[str, str]],
        examples: int,
        refit: bool,
    ) -> None:
        """Looks for a kept vocabulary.

        Args:
            name: The name of the dataset.
            dataset: Its description.
            rule: The kind of the vocabulary and its parameters.
            day: The newest day of the night.
            window: The days of the window with the digests of their contents.
            examples: The number of rows in the window.
            refit: Whether to make a new vocabulary.
        """
        described = dataset.model_dump(mode="json", include={"categorical_columns", "missing", "keep_rows"})
        self._folder = home() / "data" / name / "vocabularies" / f"nights_{short_hash([described, rule])}"
        self._days = [earlier for earlier, _ in window]
        self._saved: _Saved | None = None
        self.fitted_on: str | None = None
        self._keeps = dataset.keep_vocabulary
        if not self._keeps:
            return
        self.fitted_on = self._own = short_hash(list(window))
        found = None if refit else self._newest_before(day, examples)
        if found is not None:
            self._saved, self.fitted_on = found, found["fitted_on"]

    def _newest_before(self, day: str, examples: int) -> _Saved | None:
        found: list[_Saved] = [read_json(path, alone=True) for path in sorted(self._folder.glob("*.json"))]
        usable = [saved for saved in found if max(_days(saved)) < day and _has_delta(saved, examples)]
        return max(usable, key=lambda saved: (max(_days(saved)), saved["fitted_on"]), default=None)

    @property
    def days(self) -> list[str]:
        """The days that the vocabulary was or will be made from."""
        return self._days if self._saved is None else _days(self._saved)

    @property
    def is_reused(self) -> bool:
        """Whether the vocabulary was made for another window."""
        return self._saved is not None and self.fitted_on != self._own

    @property
    def file(self) -> Path | None:
        return None if self._saved is None else self._folder / f"{self.fitted_on}.parquet"

    @property
    def description(self) -> VocabularyFacts:
        assert self._saved is not None
        return self._saved["description"]

    @property
    def origin(self) -> VocabularyOrigin | None:
        return self._saved["origin"] if self._saved is not None and self.is_reused else None

    def check(self, examples: int) -> None:
        """Accepts the vocabulary: one that does not fit was not chosen."""

    def save(self, folder: Path) -> None:
        """Saves the vocabulary of a prepared folder for later nights to reuse."""
        if not self._keeps or self._saved is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        schema: Schema = read_json(folder / "schema.json")
        with whole_file(self._folder / f"{self.fitted_on}.parquet") as copy:
            shutil.copyfile(folder / "vocabulary.parquet", copy)
        origin: VocabularyOrigin = {
            "fingerprint": schema["fingerprint"],
            "source": schema["source"],
            "train": schema["splits"]["train"],
            "days": self._days,
        }
        saved = {"fitted_on": self.fitted_on, "description": schema["vocabulary"], "origin": origin}
        write_json(self._folder / f"{self.fitted_on}.json", saved)


def _days(saved: _Saved) -> list[str]:
    return saved["origin"]["days"]


def _has_delta(saved: _Saved, examples: int) -> bool:
    """Whether a private vocabulary's δ is at most half of 1/N."""
    return saved["description"]["kind"] != "private" or 2 * saved["description"]["delta"] * examples <= 1
