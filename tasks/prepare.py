"""Raw logs to encoded arrays: chronological split, log transform, vocabulary, encoding.

The raw file is parsed once, block by block, into Arrow files in a scratch folder; then the training part
of every block is counted into the vocabulary, if that is made from counts; then every block writes its
encoded rows into its own range of the arrays. Blocks run in parallel under Dask, and memory holds the
blocks in flight, the vocabulary and, if there is a time column, the times. The result does not depend on
how the file was cut into blocks; a private vocabulary's noise is drawn anew each time.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.system
import numpy as np
import pyarrow as pa
from dask.callbacks import Callback

from tasks.descriptions import SPLIT_FRACTIONS, Dataset, Label
from tasks.encoded import allocate, array_files, digest, fingerprint, write_rows
from tasks.errors import UserError
from tasks.home import home, read_json, short_hash, whole_directory, write_json
from tasks.progress import Ticker, format_seconds, say
from tasks.raw_logs import Block, ParquetLogs, TsvLogs, check_file, open_logs
from tasks.vocabulary import Encoder, chosen, count_tokens, hashed, merged, vocabulary_rule

# Raise it when prepared folders of an earlier version must not be used any more.
PREPARE_VERSION = 2

_SPLITS = tuple(SPLIT_FRACTIONS)
_FEWEST_ROWS = 10
# What the arrays do not depend on, and what the key has as the vocabulary's rule, with its defaults filled in.
_NOT_IN_KEY = {"description", "raw", "synthetic", "vocabulary", "vocabulary_buckets", "vocabulary_epsilon"}


def prepare(dataset_name: str, dataset: Dataset, raw: Path, *, min_count: int, block_bytes: int = 32 << 20) -> Path:
    """The folder of the dataset's encoded arrays, made now unless the same raw file was prepared before.

    A token belongs to a column's vocabulary if its count in the training part, for a private vocabulary its noisy
    count, is at least ``min_count``. A hashed one has a place for every token.
    """
    check_file(raw)
    identity = _identity(raw)
    described, rule = dataset.model_dump(mode="json", exclude=_NOT_IN_KEY), vocabulary_rule(dataset, min_count)
    key = short_hash([PREPARE_VERSION, described, rule, identity])
    final = home() / "data" / dataset_name / key
    if final.is_dir():
        say(f"{dataset_name}: already prepared in {final}")
        return final
    logs = open_logs(raw, dataset)
    say(f"{dataset_name}: preparing {raw} ({identity[1] / 1e6:,.1f} MB)")
    try:
        with whole_directory(final) as folder, _thread_pool():
            schema = _write(dataset, logs, folder, rule=rule, block_bytes=block_bytes)
            if _identity(raw) != identity:
                raise UserError(f"the raw logs {raw} changed while they were being prepared: start again")
            source = {"path": raw.name, "bytes": identity[1]}
            schema = {"dataset": dataset_name, **schema, "source": source, "ceiling": _ceiling(raw)}
            write_json(folder / "schema.json", schema)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(f"no space left on the disk of {home()} while preparing {dataset_name}") from None
        raise
    rows = ", ".join(f"{schema['splits'][name]['rows']:,} {name}" for name in _SPLITS)
    say(f"{dataset_name}: prepared in {final} ({rows} rows)")
    return final


def _write(
    dataset: Dataset, logs: TsvLogs | ParquetLogs, folder: Path, *, rule: dict[str, Any], block_bytes: int
) -> dict[str, Any]:
    """Writes everything but the schema, which it returns."""
    scratch = folder / "scratch"
    scratch.mkdir()

    phase = _Phase("read")
    blocks = logs.blocks(block_bytes)
    files = [scratch / f"{block.index}.arrow" for block in blocks]
    rows = phase.compute(dask.delayed(_read_block)(logs, *task) for task in zip(blocks, files, strict=True))
    phase.done(sum(rows))
    if sum(rows) < _FEWEST_ROWS:
        raise UserError(f"{logs.path} has {sum(rows)} rows; {_FEWEST_ROWS} are the fewest that can be split")

    starts = itertools.accumulate(rows[:-1], initial=0)
    parts = [_Part(file, start, dataset) for file, start in zip(files, starts, strict=True)]
    boundaries = _boundaries(logs, sum(rows), parts)
    rows_of = np.array([np.bincount(boundaries.split_of(part.order()), minlength=3) for part in parts])
    totals = rows_of.sum(axis=0).tolist()
    _check_splits(logs, totals)

    if rule["kind"] == "hash":
        vocabulary = hashed(rule, dataset.categorical_columns, folder)
    else:
        phase = _Phase("vocabulary")
        counts = phase.compute([merged([dask.delayed(_count_block)(part, boundaries) for part in parts])])[0]
        vocabulary = chosen(rule, dataset.categorical_columns, counts, examples=totals[0], folder=folder)
        phase.done(totals[0])

    phase = _Phase("encode")
    columns = len(dataset.integer_columns), len(dataset.categorical_columns)
    for name, total in zip(_SPLITS, totals, strict=True):
        allocate(folder / name, total, *columns, dataset.labels)
    firsts = (np.cumsum(rows_of, axis=0) - rows_of).tolist()
    phase.compute(
        dask.delayed(_encode_block)(part, boundaries, vocabulary.encoder, folder, first)
        for part, first in zip(parts, firsts, strict=True)
    )
    splits = _describe_splits(logs, totals, parts, boundaries)
    shutil.rmtree(scratch)
    arrays = [path for name in _SPLITS for path in array_files(folder / name, dataset.labels)]
    digests = phase.compute(dask.delayed(digest)(path) for path in arrays)
    phase.done(sum(totals))

    meaning = {
        "tasks": {task: label.kind for task, label in dataset.labels.items()},
        "integer_columns": list(dataset.integer_columns),
        **vocabulary.meaning(),
    }
    return {
        **meaning,
        "vocabulary": vocabulary.description,
        "splits": splits,
        "split_by": "timestamp" if dataset.time_column else "file order",
        "fingerprint": fingerprint(meaning, [tokens.to_pylist() for tokens in vocabulary.tokens], digests),
    }


@dataclass(frozen=True)
class _Part:
    """A parsed block: an Arrow file with integers, categoricals, labels and, if there is one, the time."""

    file: Path
    first_row: int
    dataset: Dataset

    def load(self) -> pa.RecordBatch:
        return pa.ipc.open_file(pa.memory_map(str(self.file))).get_batch(0)

    def order(self) -> np.ndarray:
        """What rows are ordered by: their time, or else their number in the raw file."""
        batch = self.load()
        if self.dataset.time_column:
            return batch.columns[-1].to_numpy()
        return np.arange(self.first_row, self.first_row + batch.num_rows)

    def tokens(self) -> list[tuple[np.ndarray, pa.Array]]:
        """For each categorical column each row's index into the block's dictionary, and that dictionary."""
        first = len(self.dataset.integer_columns)
        columns = self.load().columns[first : first + len(self.dataset.categorical_columns)]
        return [(column.indices.to_numpy(), column.dictionary) for column in columns]


@dataclass(frozen=True)
class _Boundaries:
    """The last moments of the training and of the validation part: times, or row numbers."""

    train: float
    validation: float

    def split_of(self, order: np.ndarray) -> np.ndarray:
        """0, 1 or 2 for each row: its position in ``_SPLITS``."""
        return (order > self.train).astype(np.int8) + (order > self.validation)


def _boundaries(logs: TsvLogs | ParquetLogs, rows: int, parts: list[_Part]) -> _Boundaries:
    """All rows of one moment fall on one side of a boundary, so equal times never straddle it."""
    train = int(SPLIT_FRACTIONS["train"] * rows) - 1
    validation = int((SPLIT_FRACTIONS["train"] + SPLIT_FRACTIONS["validation"]) * rows) - 1
    if not logs.dataset.time_column:
        return _Boundaries(train, validation)
    times = np.concatenate([part.order() for part in parts])
    times.partition([train, validation])
    return _Boundaries(times[train].item(), times[validation].item())


def _check_splits(logs: TsvLogs | ParquetLogs, totals: Sequence[int]) -> None:
    for name, rows in zip(_SPLITS, totals, strict=True):
        if not rows:
            raise UserError(
                f"{logs.path}: the {name} part would be empty, because too many rows have the same value of "
                f"{logs.dataset.time_column!r} (the 80/10/10 split gives {totals[0]}, {totals[1]} and "
                f"{totals[2]} rows, and rows of one time stay together); use a finer time or remove "
                "`time_column` to split by file order"
            )


def _read_block(logs: TsvLogs | ParquetLogs, block: Block, parsed: Path) -> int:
    """Parses a block into an Arrow file; returns the number of rows."""
    dataset = logs.dataset
    table = logs.read(block)
    columns = [pa.array(_log_transform(table[name].to_numpy())) for name in dataset.integer_columns]
    columns += [table[name].combine_chunks() for name in dataset.categorical_columns]
    for task, label in dataset.labels.items():
        values, bad = _label_values(table[label.column].to_numpy(), label)
        if len(bad):
            value = table[label.column][int(bad[0])].as_py()
            allowed = "0 or 1" if label.kind == "binary" else "a whole number from 0 up"
            found = "no value" if value is None else f"{value:.17g}"
            raise UserError(
                f"{logs.place(block, int(bad[0]))}: column {label.column!r} has {found}, but the label of {task} "
                f"(kind {label.kind}) must be {allowed}"
            )
        columns.append(pa.array(values))
    if dataset.time_column:
        column = table[dataset.time_column].combine_chunks()
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise UserError(f"{logs.place(block, row)}: the time column {dataset.time_column!r} has no value")
        columns.append(column)
    batch = pa.RecordBatch.from_arrays(columns, names=[str(i) for i in range(len(columns))])
    with pa.ipc.new_file(str(parsed), batch.schema) as file:
        file.write_batch(batch)
    return table.num_rows


def _log_transform(values: np.ndarray) -> np.ndarray:
    """sign(x)·log(1 + |x|); a missing value stays NaN."""
    return (np.sign(values) * np.log1p(np.abs(values))).astype(np.float32)


def _label_values(values: np.ndarray, label: Label) -> tuple[np.ndarray, np.ndarray]:
    """The label of each row, and the rows whose value is not allowed."""
    good = np.isin(values, (0, 1)) if label.kind == "binary" else (values >= 0) & (values == np.floor(values))
    labels = values > 0 if label.kind == "any" else values
    return labels.astype(np.float32), np.flatnonzero(~good)


def _count_block(part: _Part, boundaries: _Boundaries) -> list[pa.Table]:
    """For each categorical column the tokens of the block's training rows, with their counts."""
    in_training = boundaries.split_of(part.order()) == 0
    return [count_tokens(indices[in_training], dictionary) for indices, dictionary in part.tokens()]


def _encode_block(part: _Part, boundaries: _Boundaries, encoder: Encoder, folder: Path, first_rows: list[int]) -> None:
    """Writes a block's rows into the arrays, in each split from its own first row on."""
    batch, dataset = part.load(), part.dataset
    n_integers, n_categoricals = len(dataset.integer_columns), len(dataset.categorical_columns)
    arrays = {
        "integers": np.empty((batch.num_rows, n_integers), np.float32),
        "categoricals": np.empty((batch.num_rows, n_categoricals), np.int32),
    }
    for position in range(n_integers):
        arrays["integers"][:, position] = batch.columns[position].to_numpy()
    for position, (indices, dictionary) in enumerate(part.tokens()):
        arrays["categoricals"][:, position] = encoder.ids(position, dictionary)[indices]
    for position, task in enumerate(dataset.labels, start=n_integers + n_categoricals):
        arrays[f"label_{task}"] = batch.columns[position].to_numpy()

    split_of = boundaries.split_of(part.order())
    for split, name in enumerate(_SPLITS):
        rows = np.flatnonzero(split_of == split)
        if len(rows):
            for array_name, array in arrays.items():
                write_rows(folder / name / f"{array_name}.npy", first_rows[split], array[rows])


def _describe_splits(
    logs: TsvLogs | ParquetLogs, totals: list[int], parts: list[_Part], boundaries: _Boundaries
) -> dict[str, dict[str, Any]]:
    described: dict[str, dict[str, Any]] = {}
    for split, name in enumerate(_SPLITS):
        described[name] = {"rows": totals[split], "first_time": None, "last_time": None}
        if logs.dataset.time_column:
            orders = [order[boundaries.split_of(order) == split] for order in (part.order() for part in parts)]
            orders = [order for order in orders if len(order)]
            described[name]["first_time"] = logs.time_text(min(order.min() for order in orders).item())
            described[name]["last_time"] = logs.time_text(max(order.max() for order in orders).item())
    return described


def _identity(raw: Path) -> tuple[str, int, int]:
    status = raw.stat()
    return str(raw.resolve()), status.st_size, status.st_mtime_ns


def _ceiling(raw: Path) -> Any:
    path = raw.parent / "ceiling.json"
    if not path.exists():
        return None
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


@contextlib.contextmanager
def _thread_pool() -> Iterator[None]:
    """A pool of our own, which is left only when no block is running any more.

    After an error Dask leaves running tasks alone, and they would still write into a folder that is being
    deleted. If a distributed client is active, Dask uses that instead.
    """
    workers = dask.config.get("num_workers", None) or dask.system.CPU_COUNT
    with ThreadPoolExecutor(workers) as pool, dask.config.set(pool=pool):
        yield


class _Phase:
    """One phase of the work: runs its Dask tasks and says how far and how fast it is."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = time.monotonic()

    def compute(self, tasks: Iterable[Any]) -> list[Any]:
        done = itertools.count(1)

        def started(graph: Any, _: Any) -> None:
            self._ticker = Ticker(self._name, len(graph), "steps")

        with Callback(start_state=started, posttask=lambda *_: self._ticker.update(next(done))):
            return list(dask.compute(*tasks))

    def done(self, rows: int) -> None:
        seconds = max(time.monotonic() - self._begun, 1e-9)
        say(f"{self._name}: {rows:,} rows in {format_seconds(seconds)}, {rows / seconds:,.0f} rows/s")
