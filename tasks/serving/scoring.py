"""Predicts for whole logs, out of core, under Dask: a file of scores, or logits beside labels to compare models by."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

import dask
import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

from tasks.data.encoding import block_labels, following_labels
from tasks.data.parsed_blocks import ParsedBlock
from tasks.data.parts import block_megabytes, decompressed, file_groups, parse_files
from tasks.logs.files import RawFile, find_files
from tasks.logs.formats import LogReader
from tasks.logs.rows import Block, timed, wanted
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, whole_file
from tasks.runtime.parallel import Phase, cluster
from tasks.runtime.progress import counted, say
from tasks.serving.predictor import Predictor
from tasks.serving.released import ReleasedModel
from tasks.serving.score_output import (
    ScoredBlock,
    check_output,
    quarantine_of,
    score_writer,
    write_block,
    write_quarantine,
)
from tasks.serving.scored_logs import open_scored

# About how much of a file a task holds in memory.
BLOCK_BYTES = 16 << 20


class Scored(TypedDict):
    """What scoring a log did.

    Attributes:
        rows: The rows with a prediction.
        bad_rows: The rows that could not be read, which are in ``quarantine``.
        left_out: The rows that the description's ``keep_rows`` does not keep.
        seconds: The time from the first look at the files to the finished output.
        output: The file of predictions.
        quarantine: The file of bad rows; None if there are none.
    """

    rows: int
    bad_rows: int
    left_out: int
    seconds: float
    rows_per_second: float
    files: int
    task: str
    output: str
    quarantine: str | None


class Predictions(NamedTuple):
    """Predictions for the rows of a log, in chronological order; rows with equal times are in the order of the files.

    Attributes:
        logits: float32 logits or, for pconvs, log intensities.
        labels: float32 labels of every task of the description.
        times: The rows' times in ``time_unit`` since 1970; None if the log has none.
    """

    logits: np.ndarray
    labels: dict[str, np.ndarray]
    times: np.ndarray | None
    time_unit: str


def score(
    model: ReleasedModel,
    inputs: Sequence[str | Path],
    output: Path,
    *,
    columns: Sequence[str] | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Scored:
    """Writes the predictions for every readable row of a log: its file, its line and the prediction.

    The output, and the bad rows beside it, appear whole or not at all.

    Args:
        model: The model.
        inputs: Files, folders or patterns. The log needs no labels and no times.
        output: A file that ends with .parquet or .csv. An existing one is replaced.
        columns: The columns of text without a header, if they are not those of the model's description.
        block_bytes: About how much of a file a task holds in memory.

    Raises:
        UserError: A file cannot be read, or the output cannot be written.
    """
    begun = time.monotonic()
    check_output(output)
    output = output.absolute()
    files = find_files(inputs)
    if output.resolve() in {file.path for file in files}:
        raise UserError(f"the output {output} is one of the files to score")
    with _disk_errors(), cluster(), tempfile.TemporaryDirectory(dir=_home(), prefix=".score-") as scratch:
        phase = Phase("score", "MB", total=sum(file.size for file in files) / 1e6)
        blocks, left_out, bad = _score_files(model, files, Path(scratch), phase, columns, block_bytes)
        quarantine = quarantine_of(output)
        with contextlib.ExitStack() as stack:
            temporary = stack.enter_context(whole_file(output))
            with score_writer(temporary, output.suffix, model.task) as writer:
                for block in blocks:
                    write_block(writer, block, output.suffix, model.task)
            if bad:  # appears before the output: where there are scores, rows without one are accounted for
                write_quarantine(stack.enter_context(whole_file(quarantine)), blocks)
        if not bad:
            quarantine.unlink(missing_ok=True)  # of an earlier output of this name
    rows, seconds = sum(block.rows for block in blocks), time.monotonic() - begun
    phase.done(rows)
    if bad:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in bad.most_common())
        say(f"{counted(bad.total(), 'bad row')} ({reasons}) in {quarantine}")
    return {
        "rows": rows,
        "bad_rows": bad.total(),
        "left_out": left_out,
        "seconds": seconds,
        "rows_per_second": rows / seconds,
        "files": len(files),
        "task": model.task,
        "output": str(output),
        "quarantine": str(quarantine) if bad else None,
    }


def predict_files(
    model: ReleasedModel, files: Sequence[RawFile | str | Path], *, block_bytes: int = 32 << 20
) -> Predictions:
    """Predicts for labelled files, under the model's own vocabulary. Bad rows are left out.

    Files are parsed into the parts that a preparation of the dataset makes and finds (``tasks.data.parts``), so that
    two models with the same description of the log parse them once.

    Raises ``UserError`` if a file cannot be read.
    """
    found = [one for file in files for one in ([file] if isinstance(file, RawFile) else find_files([file]))]
    with cluster(), tempfile.TemporaryDirectory(dir=_home(), prefix=".predict-") as scratch:
        parts = parse_files(model.dataset_name, model.dataset, found, block_bytes=block_bytes, quiet=True)
        unit = parts[0].summary["time_unit"]
        counts = following_labels(model.dataset, parts, unit, Path(scratch))
        blocks = [block for part in parts for block in part.blocks()]
        phase, predictor = Phase("predict"), dask.delayed(model.predictor, traverse=False)
        with threadpool_limits(1, user_api="blas"):
            results = phase.compute(
                [dask.delayed(_predict_block)(predictor, block, counts.get(block.file, [])) for block in blocks],
                [block.rows for block in blocks],
            )
    tasks: list[str] = list(model.dataset.labels)
    logits = np.concatenate([np.empty(0, np.float32), *(logits for logits, _ in results)])
    labels = {
        task: np.concatenate([np.empty(0, np.float32), *(labels[task] for _, labels in results)]) for task in tasks
    }
    if not model.dataset.time_column:
        return Predictions(logits, labels, None, unit)
    times = np.concatenate([block.times() for block in blocks]) if blocks else np.empty(0, np.int64)
    order = np.argsort(times, kind="stable")
    return Predictions(logits[order], {task: labels[task][order] for task in tasks}, times[order], unit)


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(f"no space left on the disk of {home()} or of the output while scoring") from None
        if isinstance(error, PermissionError):
            raise UserError(f"cannot write the output: {error}") from None
        raise


def _home() -> Path:
    home().mkdir(parents=True, exist_ok=True)
    return home()


def _predict_block(
    predictor: Predictor, block: ParsedBlock, counts: list[Path]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    batch, facts = block.load(), predictor.facts
    integers = [batch.column(f"integer {number}").to_numpy() for number in range(len(facts["integer_columns"]))]
    return predictor.logits_of_columns(integers, block.tokens(), block.rows), block_labels(block, counts)


class _BlockResult(NamedTuple):
    lines: int
    rows: int
    left_out: int
    bad: Counter[str]


def _score_files(
    model: ReleasedModel,
    files: Sequence[RawFile],
    scratch: Path,
    phase: Phase,
    columns: Sequence[str] | None,
    block_bytes: int,
) -> tuple[list[ScoredBlock], int, Counter[str]]:
    """Scores files into scratch files, one for each block. Also counts the rows left out, and the bad ones."""
    folders = [scratch / str(number) for number in range(len(files))]
    blocks: list[ScoredBlock] = []
    left_out, bad = 0, Counter[str]()
    predictor = dask.delayed(model.predictor, traverse=False)
    for group in file_groups(list(zip(files, folders, strict=True)), block_bytes):
        for _, folder in group:
            folder.mkdir()
        contents = decompressed([file for file, _ in group], [folder for _, folder in group], model.dataset)
        readers = [
            open_scored(file, content, model.dataset, columns)
            for (file, _), content in zip(group, contents, strict=True)
        ]
        cut = [reader.blocks(block_bytes) for reader in readers]
        work = [
            (reader, block, folder)
            for reader, of_file, (_, folder) in zip(readers, cut, group, strict=True)
            for block in of_file
        ]
        with threadpool_limits(1, user_api="blas"):
            results = phase.compute(
                [dask.delayed(_score_block)(predictor, reader, block, folder) for reader, block, folder in work],
                [
                    size
                    for reader, of_file in zip(readers, cut, strict=True)
                    for size in block_megabytes(reader.file, of_file)
                ],
                rows_of=lambda result: result.lines,
            )
        in_turn = iter(results)
        for reader, of_file, (file, folder), content in zip(readers, cut, group, contents, strict=True):
            line = reader.header_lines + 1
            for block, result in zip(of_file, itertools.islice(in_turn, len(of_file)), strict=True):
                aside = folder / f"{block.number}.bad" if result.bad else None
                blocks.append(ScoredBlock(folder / f"{block.number}.arrow", file.path, line, result.rows, aside))
                line, left_out = line + result.lines, left_out + result.left_out
                bad.update(result.bad)
            if content != file.path:
                content.unlink()
            if not file.is_unchanged():
                raise UserError(f"the raw log {file.path} changed while it was being scored: start again")
    return blocks, left_out, bad


def _score_block(predictor: Predictor, reader: LogReader, block: Block, folder: Path) -> _BlockResult:
    """Scores a block into a file of its own."""
    readable = timed(reader.read(block), reader.dataset)
    rows = wanted(readable, reader.dataset)
    predictions = predictor.predictions(predictor.logits(rows.table))
    batch = pa.RecordBatch.from_arrays(
        [pa.array(rows.places.astype(np.int64)), pa.array(predictions)], names=["place", "prediction"]
    )
    with (
        whole_file(folder / f"{block.number}.arrow", durable=False) as path,
        pa.ipc.new_file(str(path), batch.schema) as file,
    ):
        file.write_batch(batch)
    if rows.bad:
        with whole_file(folder / f"{block.number}.bad", durable=False) as path:
            path.write_text(json.dumps(sorted(rows.bad)), encoding="utf-8")
    left_out = len(readable.places) - len(rows.places)
    return _BlockResult(rows.total, len(rows.places), left_out, Counter(one.reason for one in rows.bad))
