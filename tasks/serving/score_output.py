"""Writes predictions of scored blocks into one file, Parquet or CSV, in the order of the files and their lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tasks.data.parts import QUARANTINE_COLUMNS
from tasks.runtime.errors import UserError

FORMATS = (".parquet", ".csv")


class ScoredBlock(NamedTuple):
    """The scores of a block of a file.

    Attributes:
        scores: The Arrow file with the rows' places in the block and their predictions.
        source: The raw file.
        first_line: The line of the block's first row, counted from 1 with the header.
        rows: The number of scored rows.
        bad: The JSON file of the block's bad rows, if there are any.
    """

    scores: Path
    source: Path
    first_line: int
    rows: int
    bad: Path | None


def check_output(output: Path) -> None:
    """Raises ``UserError`` if predictions cannot be written to a file of that name."""
    if output.suffix not in FORMATS:
        raise UserError(f"the output {output} should end with {' or '.join(FORMATS)}")
    if not output.absolute().parent.is_dir():
        raise UserError(f"the folder {output.absolute().parent} of the output does not exist: create it first")
    if output.is_dir():
        raise UserError(f"the output {output} is a folder: give a file")


def quarantine_of(output: Path) -> Path:
    """Returns the path of the bad rows beside an output.

    >>> quarantine_of(Path("scores.parquet")).name
    'scores.quarantine.csv'
    """
    return output.with_name(f"{output.stem}.quarantine.csv")


@contextmanager
def score_writer(path: Path, kind: str, task: str) -> Iterator[Any]:
    """Yields a writer of record batches with the columns file, line and the task."""
    schema = pa.schema({"file": pa.dictionary(pa.int32(), pa.string()), "line": pa.int64(), task: pa.float64()})
    if kind == ".csv":
        schema = schema.set(0, pa.field("file", pa.string()))
        with pa.csv.CSVWriter(str(path), schema) as writer:
            yield writer
    else:
        with pa.parquet.ParquetWriter(str(path), schema, compression="zstd") as writer:
            yield writer


def write_block(writer: Any, block: ScoredBlock, kind: str, task: str) -> None:
    """Appends the scores of a block."""
    if not block.rows:
        return
    batch = pa.ipc.open_file(pa.memory_map(str(block.scores))).get_batch(0)
    file: pa.Array = pa.repeat(str(block.source), block.rows)
    if kind != ".csv":
        indices = pa.array(np.zeros(block.rows, np.int32))
        file = pa.DictionaryArray.from_arrays(indices, pa.array([str(block.source)]))
    lines = pa.array(batch["place"].to_numpy() + block.first_line)
    writer.write_batch(pa.RecordBatch.from_arrays([file, lines, batch["prediction"]], names=["file", "line", task]))


def write_quarantine(path: Path, blocks: list[ScoredBlock]) -> None:
    """Writes the bad rows of all blocks, with the columns that a preparation's quarantine has."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(QUARANTINE_COLUMNS)
        for block in blocks:
            if block.bad is not None:
                for place, reason, problem, text in json.loads(block.bad.read_text(encoding="utf-8")):
                    writer.writerow([block.source, block.first_line + place, reason, problem, text])
