"""Parses raw files into *parts*: folders of Arrow blocks that later preparations reuse.

The cache key of a part is the path, size and modification time of its file (or its contents, where they are known),
and the keys of the description that say how to read it. So only new days of a log are parsed, and another vocabulary
needs no parsing at all. A part has the parsed blocks, a summary in ``part.json``, and the bad rows with their file and
line in ``quarantine.csv``.
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
from typing import Any, TypedDict

import dask

from tasks.config.dataset import Dataset
from tasks.data.parsed_blocks import BlockReport, ParsedBlock, parse_block
from tasks.logs.files import RawFile
from tasks.logs.formats import LOG_FORMATS, LogReader
from tasks.logs.rows import Block
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json, short_hash, whole_directory, write_json
from tasks.runtime.parallel import Phase
from tasks.runtime.progress import say

# Raise it when parts of an earlier version must no longer be used.
PARSE_VERSION = 1

QUARANTINE_COLUMNS = ("file", "line", "reason", "problem", "text")

# Keys of a description that do not change how rows are read.
NOT_IN_KEY = {
    "description",
    "raw",
    "day_marker",
    "shares_budget_with",
    "synthetic",
    "in_time_order",
    "tolerated_bad_rows",
    "vocabulary",
    "vocabulary_buckets",
    "vocabulary_epsilon",
    "keep_vocabulary",
    "segment_column",
}
# About how much of a file a task holds in memory.
BLOCK_BYTES = 32 << 20
# Files are parsed in batches of about this many blocks; finished batches survive an interruption.
_BLOCKS_AT_ONCE = 64
# The decompressed copy of a raw file, in its part's folder while it is parsed.
_DECOMPRESSED = "decompressed"
# How many bad rows of a file an error shows.
SHOWN = 5


class BlockSummary(TypedDict):
    """A block in ``part.json``. Lines are numbered from 1; ``disorder`` is a line, its time and the time before it."""

    number: int
    lines: int
    rows: int
    distinct: list[int]
    first_time: float | None
    last_time: float | None
    opening_time: float | None
    disorder: tuple[int, float, float] | None
    starts_at: int
    first_line: int


class PartSummary(TypedDict):
    """The contents of ``part.json``."""

    source: str
    bytes: int
    schema: Sequence[Any]
    time_unit: str
    lines: int
    rows: int
    bad: Counter[str]
    first_bad: list[str]
    missing: Counter[str]
    blocks: list[BlockSummary]


@dataclass(frozen=True)
class Part:
    """A parsed raw file: its folder and its summary."""

    folder: Path
    summary: PartSummary
    dataset: Dataset

    def blocks(self) -> list[ParsedBlock]:
        """Returns the blocks that have rows."""
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


def parse_files(
    name: str, dataset: Dataset, files: Sequence[RawFile], *, block_bytes: int = BLOCK_BYTES, quiet: bool = False
) -> list[Part]:
    """Returns the parts of a log in the order of its files, parsing only those that do not exist yet.

    With ``quiet``, it does not say how many exist.
    """
    folders = [home() / "data" / name / "parts" / part_key(dataset, file) for file in files]
    todo = [(file, folder) for file, folder in zip(files, folders, strict=True) if not folder.is_dir()]
    megabytes = sum(file.size for file, _ in todo) / 1e6
    phase, done = Phase("read", "MB", total=megabytes), 0
    for group in file_groups(todo, block_bytes):
        done += _parse(phase, dataset, group, block_bytes)
    if todo:
        phase.done(done)
    parts = [Part(folder, read_json(folder / "part.json"), dataset) for folder in folders]
    if len(todo) < len(files) and not quiet:
        more = f", {len(todo)} new ({megabytes:,.1f} MB)" if todo else ""
        say(f"{name}: {len(files) - len(todo)} of {len(files)} files were already parsed{more}")
    return parts


def is_parsed(name: str, dataset: Dataset, file: RawFile) -> bool:
    """Whether a file was parsed before."""
    return (home() / "data" / name / "parts" / part_key(dataset, file)).is_dir()


def part_key(dataset: Dataset, file: RawFile) -> str:
    """Returns the cache key of a parsed file."""
    described = dataset.model_dump(mode="json", exclude=NOT_IN_KEY)
    return short_hash([PARSE_VERSION, described, *file.identity])


def file_groups(todo: Sequence[tuple[RawFile, Path]], block_bytes: int) -> Iterator[list[tuple[RawFile, Path]]]:
    """Cuts a list of files, each with its folder, into groups that are worked on together."""
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
    """Parses files; returns the number of their rows."""
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(whole_directory(final)) for _, final in files]
        readers = _open_all([file for file, _ in files], folders, dataset)
        blocks = [reader.blocks(block_bytes) for reader in readers]
        work = list(zip(readers, blocks, folders, strict=True))
        reports = phase.compute(
            [dask.delayed(parse_block)(reader, block, folder) for reader, of_file, folder in work for block in of_file],
            [size for reader, of_file, _ in work for size in block_megabytes(reader.file, of_file)],
            rows_of=lambda report: report.lines,
        )
        in_turn = iter(reports)
        for reader, of_file, folder in work:
            summary = _summary(reader, list(itertools.islice(in_turn, len(of_file))))
            _join_quarantine(reader, summary, folder)
            (folder / _DECOMPRESSED).unlink(missing_ok=True)
            write_json(folder / "part.json", summary)
            if not reader.file.is_unchanged():
                raise UserError(f"the raw log {reader.file.path} changed while it was being prepared: start again")
        return sum(report.lines for report in reports)


def _open_all(files: Sequence[RawFile], folders: Sequence[Path], dataset: Dataset) -> list[LogReader]:
    """Opens files with the reader of their format, after decompressing them into the folders if necessary."""
    contents = decompressed(files, folders, dataset)
    opener = LOG_FORMATS[dataset.format].open
    return [opener(file, content, dataset) for file, content in zip(files, contents, strict=True)]


def decompressed(files: Sequence[RawFile], folders: Sequence[Path], dataset: Dataset) -> list[Path]:
    """Returns the paths of the files' contents: their own, or of decompressed copies in the folders."""
    log_format = LOG_FORMATS[dataset.format]
    packed = [(file, folder / _DECOMPRESSED) for file, folder in zip(files, folders, strict=True) if file.compression]
    if packed and not log_format.is_decompressed:
        file, _ = packed[0]
        raise UserError(
            f"the raw log {file.path} is compressed with {file.compression}, but {log_format.name} files are read as "
            "they are: decompress it first"
        )
    if packed:
        phase = Phase("decompress", "MB")
        phase.compute(
            [dask.delayed(RawFile.decompress)(file, copy) for file, copy in packed],
            [file.size / 1e6 for file, _ in packed],
        )
    copies = dict(packed)
    return [copies.get(file, file.path) for file in files]


def block_megabytes(file: RawFile, blocks: Sequence[Block]) -> list[float]:
    """Splits the size of a file among its blocks."""
    whole = sum(block.stop - block.start for block in blocks)
    return [file.size / 1e6 * (block.stop - block.start) / whole for block in blocks]


def _summary(reader: LogReader, reports: list[BlockReport]) -> PartSummary:
    """Summarizes the blocks of a file."""
    line, bad, missing = reader.header_lines + 1, Counter[str](), Counter[str]()
    blocks = []
    for report in reports:
        blocks.append(_block_summary(report, line))
        line += report.lines
        bad.update(report.bad)
        missing.update(report.missing)
    return {
        "source": str(reader.file.path),
        "bytes": reader.file.size,
        "schema": reader.schema,
        "time_unit": reader.time_unit,
        "lines": sum(block["lines"] for block in blocks),
        "rows": sum(block["rows"] for block in blocks),
        "bad": bad,
        "first_bad": [],
        "missing": missing,
        "blocks": blocks,
    }


def _block_summary(report: BlockReport, starts_at: int) -> BlockSummary:
    opening, disorder = report.opening, report.opening.disorder
    return {
        "number": report.number,
        "lines": report.lines,
        "rows": report.rows,
        "distinct": report.distinct,
        "first_time": report.first_time,
        "last_time": report.last_time,
        "opening_time": opening.time,
        "disorder": disorder and (starts_at + disorder.place, disorder.time, disorder.time_before),
        "starts_at": starts_at,
        "first_line": starts_at + opening.first_place,
    }


def _join_quarantine(reader: LogReader, summary: PartSummary, folder: Path) -> None:
    """Moves the bad rows of all blocks into one file, and messages about the first ones into the summary."""
    if not summary["bad"]:
        return
    row_word = LOG_FORMATS[reader.dataset.format].row_word
    with (folder / "quarantine.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(QUARANTINE_COLUMNS)
        for block in summary["blocks"]:
            of_block = folder / f"{block['number']}.bad"
            if of_block.exists():
                for place, reason, problem, text in json.loads(of_block.read_text(encoding="utf-8")):
                    line = block["starts_at"] + place
                    writer.writerow([reader.file.path, line, reason, problem, text])
                    if len(summary["first_bad"]) < SHOWN:
                        summary["first_bad"].append(f"{reader.file.path}, {row_word} {line}: {problem}")
                of_block.unlink()
