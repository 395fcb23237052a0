"""The prepared data on disk: one .npy file for each kind of column and split, described by ``schema.json``.

Rows are in the order of time. Preparation writes a range of them at a time; training maps the arrays into memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.descriptions import SPLIT_FRACTIONS
from tasks.errors import UserError
from tasks.home import read_json

if TYPE_CHECKING:
    from dp_core.mechanism import VocabularyRelease

_TOKENS_AT_ONCE = 100_000


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
    statistics: dict[str, Any]
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
    """A vocabulary that was chosen privately, which every ε on this data covers."""
    # Accounting loads JAX, which preparation does without.
    from dp_core.mechanism import VocabularyRelease

    if prepared.vocabulary["kind"] != "private":
        return None
    return VocabularyRelease(*(prepared.vocabulary[name] for name in VocabularyRelease._fields))


class Layout(NamedTuple):
    """The files of encoded rows: a folder with one folder for each split, in the order of time.

    Preparation counts rows from the first one of the first split on.
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
        """The names of a split's files, in a fixed order."""
        return ["integers", "categoricals", *(f"label_{task}" for task in sorted(self.tasks))]

    def shape(self, array: str) -> tuple[int, ...]:
        """Of one row."""
        return {"integers": (self.integers,), "categoricals": (self.categoricals,)}.get(array, ())

    def dtype(self, array: str) -> np.dtype[Any]:
        return np.dtype("<i4" if array == "categoricals" else "<f4")

    def allocate(self) -> None:
        """Makes every file with its header and its full size, for ``write`` to fill."""
        for name, rows in self.splits:
            (self.folder / name).mkdir(parents=True)
            for array in self.arrays:
                header = {"descr": self.dtype(array).str, "fortran_order": False, "shape": (rows, *self.shape(array))}
                with (self.folder / name / f"{array}.npy").open("wb") as file:
                    np.lib.format.write_array_header_1_0(file, header)
                    file.truncate(file.tell() + rows * self._row_bytes(array))

    def write(self, array: str, first_row: int, rows: np.ndarray) -> None:
        """Writes rows into the allocated files; ranges that do not overlap may be written at the same time.

        A plain write, because on a full disk it fails, where a write through a memory map ends the process.
        """
        for name, start, stop, at in self._pieces(first_row, first_row + len(rows)):
            with (self.folder / name / f"{array}.npy").open("r+b") as file:
                _skip_header(file)
                file.seek(start * self._row_bytes(array), 1)
                rows[at : at + stop - start].astype(self.dtype(array), copy=False).tofile(file)

    def read(self, array: str, first_row: int, last_row: int) -> np.ndarray:
        """A copy of a range of rows."""
        rows = np.empty((last_row - first_row, *self.shape(array)), self.dtype(array))
        for name, start, stop, at in self._pieces(first_row, last_row):
            with (self.folder / name / f"{array}.npy").open("rb") as file:
                _skip_header(file)
                file.seek(start * self._row_bytes(array), 1)
                shape = stop - start, *self.shape(array)
                rows[at : at + shape[0]] = np.fromfile(file, self.dtype(array), int(np.prod(shape))).reshape(shape)
        return rows

    def ranges(self, size: int) -> list[tuple[str, int, int]]:
        """Ranges of at most so many rows, none of which is in two splits: the split, the first row and the last."""
        found, before = [], 0
        for name, rows in self.splits:
            found += [(name, before + i, before + min(i + size, rows)) for i in range(0, rows, size)]
            before += rows
        return found

    def _row_bytes(self, array: str) -> int:
        return 4 * int(np.prod(self.shape(array)))

    def _pieces(self, first_row: int, last_row: int) -> Iterator[tuple[str, int, int, int]]:
        """What of a range is in which split: its name, the rows there, and where the piece begins in the range."""
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
    """Equal for equal arrays with equal tokens and equal meaning, however they were made."""
    state = hashlib.blake2b(json.dumps([meaning, digests], sort_keys=True).encode(), digest_size=16)
    for tokens in vocabulary:
        state.update(pc.binary_length(tokens).cast(pa.int64()).to_numpy().astype("<i8").tobytes())
        for chunk in range(0, len(tokens), _TOKENS_AT_ONCE):
            state.update("".join(tokens.slice(chunk, _TOKENS_AT_ONCE).to_pylist()).encode())
    return state.hexdigest()
