"""Parsed logs: every raw file once, in blocks that are Arrow files, kept for the next preparation.

A parsed file, a *part*, is found again by its path, size and time of change and by what of the description says how
to read it. So new days of a log are parsed without the old ones, and another vocabulary without parsing at all. A
part's folder has, for each block, the wanted rows in the order of time: log-transformed integers, dictionary-encoded
tokens, labels, time. ``quarantine.csv`` has the rows that could not be read, with their file and line.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask

from tasks.descriptions import Dataset
from tasks.errors import UserError
from tasks.home import home, read_json, short_hash, whole_directory, write_json
from tasks.parallel import Phase
from tasks.parquet_logs import ParquetLogs
from tasks.parsed_blocks import Logs, ParsedBlock, parse_block
from tasks.progress import say
from tasks.raw_files import RawFile
from tasks.raw_rows import Block
from tasks.text_logs import TextLogs

# Raise it when parts of an earlier version must not be used any more.
PARSE_VERSION = 1

QUARANTINE_COLUMNS = ("file", "line", "reason", "problem", "text")

# Keys of a description that do not change how a row is read.
NOT_IN_KEY = {
    "description",
    "raw",
    "synthetic",
    "in_time_order",
    "tolerated_bad_rows",
    "vocabulary",
    "vocabulary_buckets",
    "vocabulary_epsilon",
    "keep_vocabulary",
}
# So many blocks of several files are parsed together; what is finished stays if the work is interrupted.
_BLOCKS_AT_ONCE = 64
# How many of a file's bad rows are told.
SHOWN = 5


@dataclass(frozen=True)
class Part:
    """A parsed raw file: its folder, and the summary that is in it."""

    folder: Path
    summary: dict[str, Any]
    dataset: Dataset

    def blocks(self) -> list[ParsedBlock]:
        """The blocks that have rows."""
        return [block for block in self.all_blocks() if block.rows]

    def all_blocks(self) -> list[ParsedBlock]:
        return [
            ParsedBlock(
                file=self.folder / f"{block['number']}.arrow",
                rows=block["rows"],
                distinct=tuple(block["distinct"]),
                first_time=block["first_time"],
                last_time=block["last_time"],
                dataset=self.dataset,
            )
            for block in self.summary["blocks"]
        ]


def parse_files(name: str, dataset: Dataset, files: Sequence[RawFile], *, block_bytes: int) -> list[Part]:
    """The parts of a log, in the order of its files; those that are there already are not made again."""
    folders = [home() / "data" / name / "parts" / part_key(dataset, file) for file in files]
    todo = [(file, folder) for file, folder in zip(files, folders, strict=True) if not folder.is_dir()]
    megabytes = sum(file.size for file, _ in todo) / 1e6
    phase, done = Phase("read", "MB", total=megabytes), 0
    for group in _groups(todo, block_bytes):
        done += _parse(phase, dataset, group, block_bytes)
    if todo:
        phase.done(done)
    parts = [Part(folder, read_json(folder / "part.json"), dataset) for folder in folders]
    if len(todo) < len(files):
        more = f", {len(todo)} new ({megabytes:,.1f} MB)" if todo else ""
        say(f"{name}: {len(files) - len(todo)} of {len(files)} files were parsed before{more}")
    return parts


def part_key(dataset: Dataset, file: RawFile) -> str:
    described = dataset.model_dump(mode="json", exclude=NOT_IN_KEY)
    return short_hash([PARSE_VERSION, described, str(file.path), file.size, file.modified])


def _groups(todo: Sequence[tuple[RawFile, Path]], block_bytes: int) -> Iterator[list[tuple[RawFile, Path]]]:
    group: list[tuple[RawFile, Path]] = []
    blocks = 0
    for file, folder in todo:
        group.append((file, folder))
        blocks += 1 + file.size // block_bytes
        if blocks >= _BLOCKS_AT_ONCE:
            yield group
            group, blocks = [], 0
    if group:
        yield group


def _parse(phase: Phase, dataset: Dataset, files: Sequence[tuple[RawFile, Path]], block_bytes: int) -> int:
    """Parses some files; returns how many lines or rows they had."""
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(whole_directory(final)) for _, final in files]
        opened = _open_all([file for file, _ in files], folders, dataset)
        blocks = [logs.blocks(block_bytes) for logs in opened]
        work = zip(opened, blocks, folders, strict=True)
        results = phase.compute(
            [dask.delayed(parse_block)(logs, block, folder) for logs, of_file, folder in work for block in of_file],
            [size for logs, of_file in zip(opened, blocks, strict=True) for size in _megabytes(logs.file, of_file)],
            rows_of=lambda result: result["lines"],
        )
        in_turn = iter(results)
        for logs, of_file, folder in zip(opened, blocks, folders, strict=True):
            summary = _summary(logs, list(itertools.islice(in_turn, len(of_file))))
            _join_quarantine(logs, summary, folder)
            (folder / "text").unlink(missing_ok=True)
            write_json(folder / "part.json", summary)
            if not logs.file.is_unchanged():
                raise UserError(f"the raw logs {logs.file.path} changed while they were being prepared: start again")
        return sum(result["lines"] for result in results)


def _open_all(files: Sequence[RawFile], folders: Sequence[Path], dataset: Dataset) -> list[Logs]:
    texts = [
        file.path if file.compression is None else folder / "text" for file, folder in zip(files, folders, strict=True)
    ]
    packed = [(file, text) for file, text in zip(files, texts, strict=True) if file.compression]
    if dataset.format == "parquet":
        for file, _ in packed:
            raise UserError(
                f"the raw logs {file.path} are compressed with {file.compression}; a Parquet file is compressed inside"
            )
        return [ParquetLogs.open(file, dataset) for file in files]
    if packed:
        phase = Phase("decompress", "MB")
        phase.compute(
            [dask.delayed(RawFile.decompress)(file, text) for file, text in packed],
            [file.size / 1e6 for file, _ in packed],
        )
    return [TextLogs.open(file, text, dataset) for file, text in zip(files, texts, strict=True)]


def _megabytes(file: RawFile, blocks: Sequence[Block]) -> list[float]:
    """Of the file's size, the share of each block."""
    whole = sum(block.stop - block.start for block in blocks)
    return [file.size / 1e6 * (block.stop - block.start) / whole for block in blocks]


def _summary(logs: Logs, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """What is known of a part; lines are numbered from 1, as an editor shows them."""
    line, bad, missing = logs.header_lines + 1, Counter[str](), Counter[str]()
    for block in blocks:
        block["starts_at"] = line
        block["first_line"] = line + block.pop("first_place")
        if block["disorder"]:
            block["disorder"][0] += line
        line += block["lines"]
        bad.update(block.pop("bad"))
        missing.update(block.pop("missing"))
    return {
        "source": str(logs.file.path),
        "bytes": logs.file.size,
        "schema": logs.schema,
        "time_unit": logs.time_unit,
        "lines": sum(block["lines"] for block in blocks),
        "rows": sum(block["rows"] for block in blocks),
        "bad": bad,
        "first_bad": [],
        "missing": missing,
        "blocks": blocks,
    }


def _join_quarantine(logs: Logs, summary: dict[str, Any], folder: Path) -> None:
    """Moves the bad rows of all blocks into one file, and the first of them into the summary."""
    if not summary["bad"]:
        return
    with (folder / "quarantine.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(QUARANTINE_COLUMNS)
        for block in summary["blocks"]:
            of_block = folder / f"{block['number']}.bad"
            if of_block.exists():
                for place, reason, problem, text in json.loads(of_block.read_text(encoding="utf-8")):
                    line = block["starts_at"] + place
                    writer.writerow([logs.file.path, line, reason, problem, text])
                    if len(summary["first_bad"]) < SHOWN:
                        summary["first_bad"].append(f"{logs.file.path}, {logs.row_word} {line}: {problem}")
                of_block.unlink()
