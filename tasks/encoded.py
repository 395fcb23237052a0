"""The prepared data on disk: one .npy file for each kind of column and split, described by ``schema.json``.

Preparation writes the arrays a range of rows at a time; training maps them into memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.descriptions import SPLIT_FRACTIONS
from tasks.errors import UserError
from tasks.home import read_json

if TYPE_CHECKING:
    from dp_core.mechanism import VocabularyRelease


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of token ids below ``vocabulary_size``; id 0 is every token without an id of its own."""

    name: str
    vocabulary_size: int
    embedding_dimension: int


@dataclass(frozen=True)
class Split:
    """The rows of one part of the data for one task, mapped into memory and read-only.

    ``integers`` are log-transformed, float32, NaN where the value is missing; ``categoricals`` are int32
    token ids; ``labels`` are float32. The rows that are listed in ``empty`` hold no example.
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
        """Which of the rows hold an example."""
        return np.ones(len(indices), bool) if self.empty is None else ~np.isin(indices, self.empty)

    def take(self, indices: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Copies of the rows at ``indices``, in that order; an index may occur more than once."""
        indices = np.asarray(indices)
        if not indices.size:
            indices = indices.astype(np.intp)
        return self.integers[indices], self.categoricals[indices], self.labels[indices]


@dataclass(frozen=True)
class Prepared:
    """A prepared folder, checked against its schema.

    ``vocabulary`` has the vocabulary's ``kind`` and numbers; those of a private one are what its part of ε
    is computed from.
    """

    path: Path
    dataset: str
    tasks: dict[str, str]
    integer_columns: tuple[str, ...]
    categorical_columns: tuple[CategoricalColumn, ...]
    vocabulary: dict[str, Any]
    splits: dict[str, dict[str, Any]]
    split_by: str
    source: dict[str, Any]
    ceiling: Any
    fingerprint: str

    def split(self, name: str, task: str) -> Split:
        """The rows of ``train``, ``validation`` or ``test`` with the labels of a task."""
        if name not in self.splits:
            raise UserError(f"no split is called {name!r}; there are: {', '.join(self.splits)}")
        if task not in self.tasks:
            raise UserError(f"dataset {self.dataset!r} has no label for {task!r}; it has: {', '.join(self.tasks)}")
        rows = self.splits[name]["rows"]
        return Split(
            integers=self._array(name, "integers", np.float32, (rows, len(self.integer_columns))),
            categoricals=self._array(name, "categoricals", np.int32, (rows, len(self.categorical_columns))),
            labels=self._array(name, f"label_{task}", np.float32, (rows,)),
        )

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
    """Opens a folder that ``tasks.prepare.prepare`` made; every array has the shape the schema says."""
    if not path.is_dir():
        raise UserError(f"there is no prepared data in {path}: prepare the dataset first")
    try:
        schema = read_json(path / "schema.json")
        prepared = Prepared(
            path=path,
            dataset=schema["dataset"],
            tasks=dict(schema["tasks"]),
            integer_columns=tuple(schema["integer_columns"]),
            categorical_columns=tuple(CategoricalColumn(**column) for column in schema["categorical_columns"]),
            vocabulary=dict(schema["vocabulary"]),
            splits={name: schema["splits"][name] for name in SPLIT_FRACTIONS},
            split_by=schema["split_by"],
            source=schema["source"],
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
    """A vocabulary that was chosen privately, which every ε on this data covers."""
    # Accounting loads JAX, which preparation does without.
    from dp_core.mechanism import VocabularyRelease

    if prepared.vocabulary["kind"] != "private":
        return None
    return VocabularyRelease(*(prepared.vocabulary[name] for name in VocabularyRelease._fields))


def array_files(folder: Path, tasks: Iterable[str]) -> list[Path]:
    """The files of a split's folder, in a fixed order."""
    labels = [f"label_{task}.npy" for task in sorted(tasks)]
    return [folder / name for name in ["integers.npy", "categoricals.npy", *labels]]


def allocate(folder: Path, rows: int, integers: int, categoricals: int, tasks: Iterable[str]) -> None:
    """Makes a split's folder with every file's header and full size, for ``write_rows`` to fill."""
    folder.mkdir()
    for path in array_files(folder, tasks):
        columns = {"integers": (integers,), "categoricals": (categoricals,)}.get(path.stem, ())
        descr = "<i4" if path.stem == "categoricals" else "<f4"
        header = {"descr": descr, "fortran_order": False, "shape": (rows, *columns)}
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + 4 * rows * int(np.prod(columns)))


def write_rows(path: Path, first_row: int, rows: np.ndarray) -> None:
    """Writes rows into an allocated file; ranges that do not overlap may be written at the same time.

    A plain write, because on a full disk it fails, where a write through a memory map ends the process.
    """
    with path.open("r+b") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.seek(first_row * rows.nbytes // len(rows), 1)
        rows.tofile(file)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def fingerprint(meaning: Any, vocabulary: Iterable[list[str]], digests: list[str]) -> str:
    """Equal for equal arrays with equal tokens and equal meaning, however they were made."""
    state = hashlib.blake2b(json.dumps([meaning, digests], sort_keys=True).encode(), digest_size=16)
    for column in vocabulary:
        tokens = [token.encode() for token in column]
        state.update(np.array([len(token) for token in tokens], "<i8").tobytes())
        state.update(b"".join(tokens))
    return state.hexdigest()
