"""Prepared data on disk: .npy arrays for each split, described by ``schema.json`` and listed in a manifest.

Rows are in chronological order. Preparation writes them in ranges; training memory-maps the arrays.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dp_core.models.spec import CategoricalFeature
from tasks.config.dataset import SPLIT_FRACTIONS
from tasks.data.schema import Schema, SourceFacts, SplitFacts, Statistics, VocabularyFacts
from tasks.integrity.manifest import SMALL_BYTES, check_folder
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json
from tasks.runtime.progress import say

if TYPE_CHECKING:
    from dp_core.accounting.mechanism import VocabularyRelease

_TOKENS_AT_ONCE = 100_000
_ROWS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of token ids below ``vocabulary_size``; id 0 is for all tokens outside the vocabulary."""

    name: str
    vocabulary_size: int
    embedding_dimension: int


@dataclass(frozen=True)
class Split:
    """A split with the labels of one task, memory-mapped and read-only.

    Attributes:
        integers: float32 of shape (rows, integer columns), log-transformed; NaN if a value is missing.
        categoricals: int32 token ids of shape (rows, categorical columns).
        labels: float32 of shape (rows,).
        empty: The rows that hold no example, if there are any.
    """

    integers: np.ndarray
    categoricals: np.ndarray
    labels: np.ndarray
    empty: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def rows(self) -> int:
        return len(self.labels)

    def present(self, indices: np.ndarray) -> np.ndarray:
        """Returns a mask of the indices that hold an example."""
        return np.ones(len(indices), bool) if self.empty is None else ~np.isin(indices, self.empty)

    def take(self, indices: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Copies the rows at ``indices`` in that order. An index may occur more than once."""
        indices = np.asarray(indices)
        if not indices.size:
            indices = indices.astype(np.intp)
        return self.integers[indices], self.categoricals[indices], self.labels[indices]


@dataclass(frozen=True)
class Prepared:
    """A prepared folder, checked against its schema.

    ``vocabulary`` has the kind of the vocabulary and its parameters. The accounting of a private one uses them.
    """

    path: Path
    dataset: str
    tasks: dict[str, str]
    integer_columns: tuple[str, ...]
    categorical_columns: tuple[CategoricalColumn, ...]
    vocabulary: VocabularyFacts
    splits: dict[str, SplitFacts]
    split_by: str
    source: SourceFacts
    statistics: Statistics
    ceiling: dict[str, Any] | None
    fingerprint: str

    @property
    def data_card(self) -> Path:
        """The page that the prepare step writes beside the arrays."""
        return self.path / "data_card.html"

    def split(self, name: str, task: str) -> Split:
        """Opens ``train``, ``validation`` or ``test`` with the labels of a task.

        Raises:
            UserError: There is no such split or task, or an array does not have the shape in the schema.
        """
        if name not in self.splits:
            raise UserError(f"there is no split {name!r}; there are: {', '.join(self.splits)}")
        if task not in self.tasks:
            raise UserError(f"dataset {self.dataset!r} has no label for {task!r}; it has: {', '.join(self.tasks)}")
        rows = self.splits[name]["rows"]
        return Split(
            integers=self._array(name, "integers", np.float32, (rows, len(self.integer_columns))),
            categoricals=self._array(name, "categoricals", np.int32, (rows, len(self.categorical_columns))),
            labels=self._array(name, f"label_{task}", np.float32, (rows,)),
        )

    def features(self) -> list[CategoricalFeature]:
        """Returns the embedding tables that a model of this data needs, one for each categorical column."""
        return [CategoricalFeature(c.vocabulary_size, c.embedding_dimension) for c in self.categorical_columns]

    def _array(self, split: str, name: str, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
        path = self.path / split / f"{name}.npy"
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path} cannot be read ({error}); delete {self.path} and prepare again") from None
        if array.shape != shape or array.dtype != dtype:
            raise UserError(
                f"{path} is {array.dtype} {array.shape}, but the schema says {np.dtype(dtype)} {shape}; "
                f"delete {self.path} and prepare again"
            )
        return np.asarray(array)


def open_prepared(path: Path) -> Prepared:
    """Opens a folder that ``tasks.data.preparation.prepare`` made, and checks its files and the shapes of all arrays.

    A process checks a folder once: it is opened again only if a file of it has changed since.

    Raises:
        UserError: The folder is missing, a file is not what was written, or does not fit the schema.
    """
    if not path.is_dir():
        raise UserError(f"there is no prepared data in {path}: prepare the dataset first")
    read = check_folder(path)
    files = [path / "schema.json", *sorted(path.glob("*/*.npy"))]
    prepared = _open(path, tuple((str(file), *_version(file)) for file in files))
    if read is None and path not in _said:
        _said.add(path)
        say(f"{path} has no manifest, because an earlier version prepared it: it is used as it is")
    for split in prepared.splits:
        file = path / split / "categoricals.npy"
        version = file, *_version(file)
        # Preparation checks tokens before it writes the manifest, so a large file that was not changed is right.
        if version not in _tokens_checked and (read is None or version[2] <= SMALL_BYTES or _name(file, path) in read):
            check_tokens(prepared, split)
            _tokens_checked.add(version)
    return prepared


# Folders without a manifest that were said, and files of tokens that were checked, by this process.
_said: set[Path] = set()
_tokens_checked: set[tuple[Path, int, int, int]] = set()


def _name(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix()


def check_tokens(prepared: Prepared, split: str) -> None:
    """Raises ``UserError`` if a token id of a split is negative or beyond its table."""
    sizes = np.array([column.vocabulary_size for column in prepared.categorical_columns])
    ids = prepared.split(split, next(iter(prepared.tasks))).categoricals
    for first in range(0, len(ids) if len(sizes) else 0, _ROWS_AT_ONCE):
        piece = ids[first : first + _ROWS_AT_ONCE]
        wrong = np.flatnonzero((piece.min(axis=0) < 0) | (piece.max(axis=0) >= sizes))
        if len(wrong):
            column = prepared.categorical_columns[wrong[0]]
            raise UserError(
                f"{prepared.path / split / 'categoricals.npy'} is damaged: a token id of {column.name} is not "
                f"between 0 and {column.vocabulary_size - 1:,}. Delete the folder {prepared.path} and run again"
            )


def _version(file: Path) -> tuple[int, int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=64)
def _open(path: Path, files: tuple[tuple[str, int, int, int], ...]) -> Prepared:
    return read_prepared(path)


def read_prepared(path: Path) -> Prepared:
    """Reads the schema of a folder and checks the shapes of its arrays, without the checksums.

    Raises:
        UserError: A file is missing or does not fit the schema.
    """
    try:
        schema: Schema = read_json(path / "schema.json")
        prepared = Prepared(
            path=path,
            dataset=schema["dataset"],
            tasks=dict(schema["tasks"]),
            integer_columns=tuple(schema["integer_columns"]),
            categorical_columns=tuple(CategoricalColumn(**column) for column in schema["categorical_columns"]),
            vocabulary=schema["vocabulary"],
            splits={name: schema["splits"][name] for name in SPLIT_FRACTIONS},
            split_by=schema["split_by"],
            source=schema["source"],
            statistics=schema["statistics"],
            ceiling=schema["ceiling"],
            fingerprint=schema["fingerprint"],
        )
    except FileNotFoundError:
        raise UserError(f"{path} has no schema.json: it is not a folder of prepared data") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path / 'schema.json'}: {error}") from None
    except (KeyError, TypeError) as error:
        raise UserError(f"{path / 'schema.json'} is not a schema of prepared data: {error}") from None
    for name in prepared.splits:
        for task in prepared.tasks:
            prepared.split(name, task)
    return prepared


def vocabulary_release(prepared: Prepared) -> VocabularyRelease | None:
    """Returns the release of a private vocabulary, which is part of every ε on this data; None for other kinds."""
    # Preparation needs no accounting.
    from dp_core.accounting.mechanism import VocabularyRelease

    if prepared.vocabulary["kind"] != "private":
        return None
    facts: dict[str, Any] = {**prepared.vocabulary}
    return VocabularyRelease(*(facts[name] for name in VocabularyRelease._fields))


class Layout(NamedTuple):
    """The files of encoded rows: one folder per split, splits in chronological order.

    Rows are numbered from 0 over all splits.
    """

    folder: Path
    splits: tuple[tuple[str, int], ...]
    integers: int
    categoricals: int
    tasks: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.splits)

    @property
    def arrays(self) -> list[str]:
        """The names of a split's arrays, in a fixed order."""
        return ["integers", "categoricals", *(f"label_{task}" for task in sorted(self.tasks))]

    def shape(self, array: str) -> tuple[int, ...]:
        """Returns the shape of one row."""
        return {"integers": (self.integers,), "categoricals": (self.categoricals,)}.get(array, ())

    def dtype(self, array: str) -> np.dtype[Any]:
        return np.dtype("<i4" if array == "categoricals" else "<f4")

    def allocate(self) -> None:
        """Creates every file with its header and full size, for ``write`` to fill."""
        for name, rows in self.splits:
            (self.folder / name).mkdir(parents=True)
            for array in self.arrays:
                header = {"descr": self.dtype(array).str, "fortran_order": False, "shape": (rows, *self.shape(array))}
                with (self.folder / name / f"{array}.npy").open("wb") as file:
                    np.lib.format.write_array_header_1_0(file, header)
                    file.truncate(file.tell() + rows * self._row_bytes(array))

    def write(self, array: str, first_row: int, rows: np.ndarray) -> None:
        """Writes rows into the allocated files. Disjoint ranges may be written concurrently.

        On a full disk a plain write fails with an error; a write through a memory map would kill the process.
        """
        for name, start, stop, at in self._pieces(first_row, first_row + len(rows)):
            with (self.folder / name / f"{array}.npy").open("r+b") as file:
                _skip_header(file)
                file.seek(start * self._row_bytes(array), 1)
                rows[at : at + stop - start].astype(self.dtype(array), copy=False).tofile(file)

    def read(self, array: str, first_row: int, last_row: int) -> np.ndarray:
        """Reads a range of rows."""
        rows = np.empty((last_row - first_row, *self.shape(array)), self.dtype(array))
        for name, start, stop, at in self._pieces(first_row, last_row):
            with (self.folder / name / f"{array}.npy").open("rb") as file:
                _skip_header(file)
                file.seek(start * self._row_bytes(array), 1)
                shape = stop - start, *self.shape(array)
                rows[at : at + shape[0]] = np.fromfile(file, self.dtype(array), int(np.prod(shape))).reshape(shape)
        return rows

    def ranges(self, size: int) -> list[tuple[str, int, int]]:
        """Returns ranges of at most ``size`` rows within a split, as (split, first row, end)."""
        found, before = [], 0
        for name, rows in self.splits:
            found += [(name, before + i, before + min(i + size, rows)) for i in range(0, rows, size)]
            before += rows
        return found

    def _row_bytes(self, array: str) -> int:
        return 4 * int(np.prod(self.shape(array)))

    def _pieces(self, first_row: int, last_row: int) -> Iterator[tuple[str, int, int, int]]:
        """Yields the pieces of a range by split: its name, start and stop in it, and the offset in the range."""
        before = 0
        for name, rows in self.splits:
            start, stop = max(first_row, before), min(last_row, before + rows)
            if start < stop:
                yield name, start - before, stop - before, start - first_row
            before += rows


def _skip_header(file: Any) -> None:
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)


def fingerprint(meaning: Any, vocabulary: Iterable[pa.Array], digests: list[str]) -> str:
    """Returns a hash that is equal for equal arrays with equal tokens and meaning, however they were made."""
    state = hashlib.blake2b(json.dumps([meaning, digests], sort_keys=True).encode(), digest_size=16)
    for tokens in vocabulary:
        state.update(pc.binary_length(tokens).cast(pa.int64()).to_numpy().astype("<i8").tobytes())
        for chunk in range(0, len(tokens), _TOKENS_AT_ONCE):
            state.update("".join(tokens.slice(chunk, _TOKENS_AT_ONCE).to_pylist()).encode())
    return state.hexdigest()
