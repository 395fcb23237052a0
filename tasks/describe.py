"""Drafts the description of a log for ``pipelines.yaml`` from a sample of its first rows.

A draft says what the sample shows: the format, which column is the time, which are labels, which are features, and
which had better be left out. It is for a person to correct. Of a text at most 32 MB are read, of a Parquet file the
first rows, however large the file is.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import yaml
from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.descriptions import Dataset, TaskName
from tasks.errors import UserError
from tasks.raw_files import RawFile, find_files
from tasks.text_logs import iso_times

_MOST_BYTES, _PIECE, _LONGEST_LINE = 32 << 20, 1 << 20, 1 << 20
_ROWS_OF_LAST_FILE, _LINES_TO_SNIFF = 1000, 1000
# In fewer rows, that a value is always the same or never repeats says nothing.
_ENOUGH_ROWS = 50
_INTEGER = r"^[ \t]*[-+]?(0|[1-9]\d*)[ \t]*$"  # 007 is a code
_NUMBER = r"^[ \t]*[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?[ \t]*$"
_DATE = r"^\d{4}-\d\d-\d\d"
_NAME = re.compile(r"[^\W\d][\w .:-]{0,63}")
_PLAIN = re.compile(r"[A-Za-z_/.][\w./*=-]*|-?[1-9]\d{0,9}", re.ASCII)
_WIDTH = 120

_ABSENT_WORDS = ("null", "(null)", r"\n", "na", "n/a", "#n/a", "nan", "none", "nil", "-", "?")
_ABSENT_NUMBERS = (-1, -9, -99, -999, -9999)
_FIRST_SECOND, _LAST_SECOND = 631_152_000, 2_208_988_800  # of 1990 and 2039
_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6}

# What the words of a name say. The first of several names of a label is the best.
_CLICKED = ["click", "clicked", "clicks", "clk", "ctr", "label", "target", "y"]
_CONVERTED = [
    "conversion",
    "converted",
    "conv",
    "cvr",
    "sale",
    "sold",
    "purchase",
    "purchased",
    "bought",
    "order",
    "install",
]
_CONVERSIONS = ["conversions", "convs", "sales", "orders", "purchases", "installs"]
_FILLERS = frozenset(["is", "has", "was", "did", "n", "nb", "num", "number", "of", "count", "total", "flag", "label"])
_TIMES = frozenset(["time", "timestamp", "ts", "datetime", "date", "day", "hour", "dt", "epoch", "at"])
_NOT_TIMES = frozenset(["since", "delay", "of", "to", "duration", "zone", "elapsed", "last"])
_AFTERWARDS = frozenset(["conversion", "conversions", "attribution", "attributed", "delay", "revenue"])
_OUTCOMES = frozenset(["sale", "sales", "purchase", "purchases", "order", "orders"])
_OF_OUTCOMES = frozenset(["amount", "value", "id", "time", "timestamp", "ts", "date", "at", "total"])
_HISTORY = frozenset(["last", "past", "previous", "prev", "prior", "before", "history", "avg", "mean", "rate"])
_CATEGORIES = frozenset(
    [
        "id",
        "uid",
        "cat",
        "category",
        "type",
        "kind",
        "class",
        "code",
        "campaign",
        "device",
        "advertiser",
        "publisher",
        "partner",
        "site",
        "app",
        "domain",
        "country",
        "region",
        "city",
        "zip",
        "brand",
        "product",
        "placement",
        "slot",
        "creative",
        "banner",
        "channel",
        "segment",
        "os",
        "browser",
        "gender",
        "hour",
        "day",
        "c",
    ]
)


@dataclass(frozen=True)
class Sample:
    """The first rows of a file. ``stored`` is text, or a Parquet column's kind; one of no use has no values."""

    format: str
    delimiter: str | None
    header: bool
    names: tuple[str, ...]
    stored: tuple[str, ...]
    values: tuple[pa.Array | None, ...]
    rows: int
    is_whole: bool
    problems: tuple[str, ...] = ()

    @cached_property
    def columns(self) -> list[Column]:
        return [
            Column(name, "other", stored) if values is None else _look(name, stored, values)
            for name, stored, values in zip(self.names, self.stored, self.values, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Column:
    """What a sample shows of a column. ``numbers`` are NaN, and ``present`` is false, where a value is missing."""

    name: str
    type: str
    stored: str
    distinct: int = 0
    missing_share: float = 0.0
    stand_ins: dict[str, float] = field(default_factory=dict)
    odd_share: float = 0.0
    examples: tuple[str, ...] = ()
    is_hash_like: bool = False
    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0))
    present: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    @cached_property
    def words(self) -> list[str]:
        """The words of the name, without numbers: ``isClick2`` is is, click."""
        return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", self.name)]

    @property
    def is_number(self) -> bool:
        return self.type in ("integer", "number")

    @cached_property
    def known(self) -> np.ndarray:
        return self.numbers[np.isfinite(self.numbers)]

    @cached_property
    def non_decreasing_share(self) -> float | None:
        return float((np.diff(self.known) >= 0).mean()) if len(self.known) > 1 else None

    @cached_property
    def is_count(self) -> bool:
        known = np.zeros(0) if self.type == "time" else self.known
        return len(known) > 0 and bool(((known >= 0) & (known <= 1000) & (known == np.floor(known))).all())

    @cached_property
    def is_binary(self) -> bool:
        return self.is_count and bool((self.known <= 1).all())

    @property
    def is_unique(self) -> bool:
        return bool(self.present.sum() >= _ENOUGH_ROWS and self.distinct > 0.9 * self.present.sum())

    @property
    def is_category(self) -> bool:
        """Whether its numbers are no amounts, but names of something."""
        return self.is_hash_like or not _CATEGORIES.isdisjoint(self.words[-1:])

    @property
    def is_after_the_fact(self) -> bool:
        """Whether its name says that it comes from what the labels predict."""
        is_about = not _OUTCOMES.isdisjoint(self.words) and not _OF_OUTCOMES.isdisjoint(self.words)
        return _HISTORY.isdisjoint(self.words) and (is_about or not _AFTERWARDS.isdisjoint(self.words))

    @cached_property
    def time_format(self) -> str | None:
        """How its values would be read as times, unless they have a type of their own or count from an unknown day."""
        if self.type == "time":
            return "iso8601" if self.stored in ("text", "string") else None
        if self.type != "integer" or not len(self.known):
            return None
        low, high = self.known.min(), self.known.max()
        return next((u for u, n in _UNITS.items() if _FIRST_SECOND * n <= low and high <= _LAST_SECOND * n), None)

    @cached_property
    def time_score(self) -> float | None:
        """How much it looks like the time of the row; None if it cannot be."""
        is_named = not _TIMES.isdisjoint(self.words) and _NOT_TIMES.isdisjoint(self.words)
        is_exact, in_order = is_named and len(self.words) == 1, self.non_decreasing_share == 1
        if self.type == "time" and self.stored != "string":  # a Parquet file's times are no texts
            score = 3.0
        elif self.type == "integer" and self.distinct > 1 and self.time_format and (is_named or in_order):
            score = 2.0
        elif self.type == "integer" and self.distinct > 1 and is_named and (is_exact or in_order):
            score = 1.0
        else:
            return None
        score += is_named + is_exact + 2 * in_order + 2 * self.distinct / len(self.present)
        return round(score - 2 * (not self.present.all()) - 4 * self.is_after_the_fact, 2)

    def follows(self, label: Column) -> bool:
        """Whether it has something to say only where the label is above 0, in too many rows for chance."""
        active = self.present & ~(self.numbers == 0)
        positive = label.numbers > 0
        if not active.any() or not positive[active].all():
            return False
        return bool(active.sum() * math.log(positive.mean()) < math.log(1e-6))


class Candidate(NamedTuple):
    """A column that can be a task's label; the best name has the lowest rank."""

    column: Column
    task: TaskName
    kind: str
    rank: int


@dataclass(frozen=True)
class Findings:
    """What was made of a sample. ``in_order`` is None where nothing tells."""

    sample: Sample
    time: Column | None
    in_order: bool | None
    candidates: tuple[Candidate, ...]
    is_guess: bool

    @cached_property
    def labels(self) -> dict[TaskName, Candidate]:
        """The best candidate of each task."""
        tasks: tuple[TaskName, ...] = ("pctr", "pcvr", "pconvs")
        of_task = {task: [c for c in self.candidates if c.task == task] for task in tasks}
        return {task: min(found, key=lambda c: c.rank) for task, found in of_task.items() if found}

    @cached_property
    def roles(self) -> dict[Column, str]:
        return {column: self._role(column) for column in self.sample.columns}

    def _role(self, column: Column) -> str:
        """What the column is: time, label, integer, categorical, or why it is left out."""
        labels = [label.column for label in self.labels.values()]
        is_row_number = column.type == "integer" and column.non_decreasing_share == 1
        roles = {
            "name stands twice": self.sample.names.count(column.name) > 1,
            "time": column is self.time,
            "label": column in labels,
            "no name": not column.name,
            "type cannot be used": column.type == "other",
            "like a label": any(column is candidate.column for candidate in self.candidates),
            "another time": column.type == "time" or column.time_score is not None,
            "no values": not column.present.any(),
            "constant": self.sample.rows >= _ENOUGH_ROWS and column.distinct == 1 and bool(column.present.all()),
            "after the fact": column.is_after_the_fact,
            "only where a label is above 0": any(column.follows(label) for label in labels),
            "nearly unique": column.is_unique and (column.type == "text" or column.is_category or is_row_number),
            "ids stored as fractions": column.is_category and column.type == "number" and column.stored != "text",
            "integer": column.is_number and not column.is_category,
        }
        return next((role for role, holds in roles.items() if holds), "categorical")

    def names(self, role: str) -> list[str]:
        return [column.name for column, its in self.roles.items() if its == role]

    @property
    def missing(self) -> list[str]:
        """What stands for a missing value in several columns, or as a word among numbers."""
        columns = Counter(value for column in self.sample.columns for value in column.stand_ins)
        words = {v for c in self.sample.columns if c.is_number for v in c.stand_ins if v.lower() in _ABSENT_WORDS}
        return [value for value, count in columns.items() if count > 1 or value in words]


def describe(raw: Sequence[str], *, name: str | None = None, sample_rows: int = 100_000) -> dict[str, Any]:
    """What the first rows of a log show, with a draft of its description as ``yaml``, and all of it as ``text``.

    ``problems`` says what a person has to look at, ``valid`` whether the draft is a description as it is. A file that
    cannot be described at all is a ``UserError``.
    """
    files = find_files(raw)
    sample = _read(files[0], sample_rows)
    times = sorted((c for c in sample.columns if c.time_score is not None), key=lambda c: -(c.time_score or 0))
    time = times[0] if times else None
    in_order = None
    if time is not None and time.distinct > 1:
        in_order = time.non_decreasing_share == 1 and bool(time.present.all())
    problems = [*sample.problems]
    if len(files) > 1:
        try:
            last = _read(files[-1], _ROWS_OF_LAST_FILE)
            problems += _differences(files[-1].path, sample, last)
            later = [c.known.min() for c in last.columns if time and c.name == time.name and len(c.known)]
            if time is not None and in_order and later:
                in_order = bool(later[0] >= time.known.max())
        except UserError as error:
            problems.append(str(error))
    named = tuple(_candidates(sample.columns))
    guess = [Candidate(c, "pctr", "binary", 0) for c in sample.columns if c.is_binary and c.distinct == 2]
    found = Findings(sample, time, in_order, named or tuple(guess[:1]), not named)
    problems += _problems(found)
    key = name or _name(str(raw[0]))
    draft = "\n".join(_draft(found, key, [str(item) for item in raw])) + "\n"
    try:
        Dataset.model_validate(yaml.safe_load(draft)[key])
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, e['loc']))} {e['msg']}".strip() for e in error.errors())
        problems.append(f"the draft is not a whole description yet: {told}")
    result: dict[str, Any] = {
        "name": key,
        "files": [str(file.path) for file in files],
        "format": sample.format,
        "delimiter": sample.delimiter,
        "header": sample.header,
        "compression": files[0].compression,
        "rows_sampled": sample.rows,
        "rows": _count_rows(files, sample),
        "columns": [
            {
                "name": column.name,
                "type": column.type,
                "stored": column.stored,
                "distinct": column.distinct,
                "distinct_is_at_least": not sample.is_whole or len(files) > 1,
                "missing_share": column.missing_share,
                "stand_ins": column.stand_ins,
                "examples": list(column.examples),
                "role": role,
            }
            for column, role in found.roles.items()
        ],
        "from_path": list(files[0].from_path),
        "time_candidates": [
            {"column": c.name, "time_format": c.time_format, "non_decreasing_share": c.non_decreasing_share}
            for c in times
        ],
        "label_candidates": [
            {"column": c.column.name, "task": c.task, "kind": c.kind, "is_guess": found.is_guess}
            for c in sorted(found.candidates, key=lambda c: c.rank)
        ],
        "in_time_order": in_order,
        "yaml": draft,
        "problems": problems,
    }
    return {**result, "text": _text(result, found)}


def _candidates(columns: Iterable[Column]) -> Iterator[Candidate]:
    """The columns whose names and values are those of a label."""
    for column in columns:
        words = [word for word in column.words if word not in _FILLERS] or column.words[-1:]
        core, last = words[0] if len(words) == 1 else "", "".join(words[-1:])
        if column.is_count and (core in _CONVERSIONS or (core in _CONVERTED and not column.is_binary)):
            rank = [*_CONVERSIONS, *_CONVERTED].index(core)
            yield Candidate(column, "pcvr", "any", 50 + rank)
            yield Candidate(column, "pconvs", "count", rank)
        elif column.is_binary and core in _CONVERTED:
            yield Candidate(column, "pcvr", "binary", _CONVERTED.index(core))
        elif column.is_binary and core in _CLICKED:
            yield Candidate(column, "pctr", "binary", _CLICKED.index(core))
        elif column.is_binary and last in ("clicked", "converted", "purchased") and _HISTORY.isdisjoint(words):
            yield Candidate(column, "pctr" if last == "clicked" else "pcvr", "binary", 100)


def _problems(found: Findings) -> Iterator[str]:
    """What a person has to look at in single columns."""
    for column, role in found.roles.items():
        name, words = _shown(column.name), column.words[-1:]
        if column.odd_share:
            yield f"column {name} has values that are not numbers in {_percent(column.odd_share)} of the rows"
        if column.distinct == 2 and not column.is_count and not {*_CLICKED, *_CONVERTED}.isdisjoint(words):
            values = " and ".join(column.examples)
            yield f"column {name} is called like a label, but has {values}: a label is 0 or 1"
        if column.type == "time" and column.stored == "string" and found.time is None:
            yield f"column {name} has times as texts: in a Parquet file they must be timestamps, dates or numbers"
        if role in ("time", "label") and not column.present.all():
            yield f"column {name} is the {role}, but is missing in {_percent(1 - column.present.mean())} of the rows"
    if not found.labels:
        yield "no column can be a label: it would be 0 or 1, or a small whole number called conversions or the like"


def _differences(path: Path, first: Sample, last: Sample) -> Iterator[str]:
    """How the columns of the last file differ from those of the first."""
    if (first.format, first.delimiter, first.header) != (last.format, last.delimiter, last.header):
        yield f"{path} has not the format of the first file"
    elif first.names != last.names:
        lacks, adds = ([n for n in a if n not in b] for a, b in ((first.names, last.names), (last.names, first.names)))
        told = [
            f"{verb} {', '.join(map(_shown, names))}" for verb, names in (("lacks", lacks), ("adds", adds)) if names
        ]
        yield f"{path} has not the columns of the first file: it {' and '.join(told) or 'has them in another order'}"
    elif first.stored != last.stored:
        other = [_shown(n) for n, a, b in zip(first.names, first.stored, last.stored, strict=True) if a != b]
        yield f"{path} has other types than the first file in {', '.join(other)}"


def _read(file: RawFile, rows: int) -> Sample:
    with file.path.open("rb") as opened:
        is_parquet = opened.read(4) == b"PAR1"
    return _read_parquet(file.path, rows) if is_parquet else _read_text(file, rows)


def _count_rows(files: Sequence[RawFile], sample: Sample) -> int | None:
    if sample.format != "parquet":
        return sample.rows if sample.is_whole and len(files) == 1 else None
    try:
        return sum(pa.parquet.read_metadata(file.path).num_rows for file in files)
    except (OSError, ValueError, pa.ArrowException):
        return None


def _read_parquet(path: Path, rows: int) -> Sample:
    batches, size, count = [], 0, 0
    try:
        with pa.parquet.ParquetFile(path) as parquet:
            schema, total = parquet.schema_arrow, parquet.metadata.num_rows
            names = [f.name for f in schema if _kind(f.type) and schema.names.count(f.name) == 1]
            for batch in parquet.iter_batches(min(rows, 8192), columns=names, use_threads=False):
                batches.append(batch)
                size, count = size + batch.nbytes, count + batch.num_rows
                if count >= rows or size > 4 * _MOST_BYTES:
                    break
        table = pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in names])).slice(0, rows)
        values = tuple(_plain(table[f.name].combine_chunks()) if f.name in names else None for f in schema)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UserError(f"the raw logs {path} are not a whole Parquet file: {error}") from None
    if not len(table):
        raise UserError(f"the raw logs {path} are a Parquet file without rows that can be used")
    stored = tuple(_kind(f.type) or str(f.type) for f in schema)
    return Sample("parquet", None, False, tuple(schema.names), stored, values, len(table), len(table) == total)


def _kind(type_: pa.DataType) -> str:
    """What a Parquet column of this type can be used as; nothing if not at all."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    kinds = {
        "boolean": pa.types.is_boolean(type_),
        "integer": pa.types.is_integer(type_),
        "number": pa.types.is_floating(type_) or pa.types.is_decimal(type_),
        "string": pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_),
        "time": pa.types.is_timestamp(type_) or pa.types.is_date(type_),
    }
    return next((kind for kind, holds in kinds.items() if holds), "")


def _plain(values: pa.Array) -> pa.Array:
    """The values in a type whose distinct values Arrow can list and write."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    kind = _kind(values.type)
    if kind == "number":
        values = values.cast(pa.float64(), safe=False)
        return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)
    if kind == "time":
        return values.cast(pa.timestamp(values.type.unit if pa.types.is_timestamp(values.type) else "s"))
    return values.cast(pa.string()) if kind == "string" else values


def _read_text(file: RawFile, rows: int) -> Sample:
    lines, is_whole, problems = _lines(file, rows)
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line is not None]
    texts = [line for _, line in numbered if line.strip()]
    if not texts:
        raise UserError(f"the raw logs {file.path} have only blank lines")
    if re.fullmatch(r"\s*[{\[].*[}\]],?\s*", texts[0]) and '"' in texts[0]:
        raise UserError(f"the raw logs {file.path} look like JSON: make a Parquet file, csv or tsv of them first")
    delimiter, width, quotes = _sniff(texts[:_LINES_TO_SNIFF])
    fitting = [line for line in texts if _fields(line, delimiter, quotes) == width]
    if len(fitting) < len(numbered):
        first = next(number for number, line in numbered if not line or _fields(line, delimiter, quotes) != width)
        share = _percent(1 - len(fitting) / len(numbered))
        problems.append(f"{share} of the lines have not {width} fields; the first of them is line {first}")
    names, data = [f"column_{n}" for n in range(1, width + 1)], "\n".join(fitting).encode()
    options = {
        "read_options": pa.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
        "parse_options": pa.csv.ParseOptions(
            delimiter=delimiter, quote_char='"' if quotes else False, invalid_row_handler=lambda _: "skip"
        ),
        "convert_options": pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
        ),
    }
    try:
        values = [column.combine_chunks() for column in pa.csv.read_csv(pa.BufferReader(data), **options).columns]
    except pa.ArrowException as error:
        raise UserError(f"the raw logs {file.path} cannot be read as text: {error}") from None
    header = _has_header(values)
    if header:
        names = [column[0].as_py() or "" for column in values]
        values = [column.slice(1) for column in values]
        problems += [f"the header has more than one column {_shown(n)}" for n, k in Counter(names).items() if k > 1]
    values = [column.slice(0, rows) for column in values]
    if not len(values[0]):
        raise UserError(f"the raw logs {file.path} have a header line and no rows")
    kind = "csv" if quotes else "tsv"
    read = (tuple(names), ("text",) * width, tuple(values), len(values[0]))
    return Sample(kind, delimiter, header, *read, is_whole, tuple(problems))


def _lines(file: RawFile, rows: int) -> tuple[list[str | None], bool, list[str]]:
    """The first lines of a text, None for what is not text; whether these are all; and what was wrong."""
    data, is_whole, problems = bytearray(), False, []
    try:
        with pa.input_stream(str(file.path), compression=file.compression) as stream:
            while len(data) < _MOST_BYTES and data.count(b"\n") <= rows and not is_whole:
                data += (piece := stream.read(_PIECE))
                is_whole = not piece
    except (OSError, pa.ArrowException) as error:
        if not data:
            raise UserError(f"the raw logs {file.path} are not a whole {file.compression} file: {error}") from None
        problems.append(f"the {file.compression} file is broken after {len(data):,} bytes of text: {error}")
    if data.startswith((b"PAR1", b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4096]:
        raise UserError(f"the raw logs {file.path} are neither a Parquet file nor text in UTF-8")
    if not is_whole and b"\n" in data:
        del data[data.rindex(b"\n") :]
    parts = bytes(data).removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n")
    lines: list[str | None] = []
    wrong: list[str] = []
    for number, part in enumerate(parts[: rows + 1], start=1):
        try:
            lines.append(_decoded(part.removesuffix(b"\r")))
        except ValueError as error:
            lines.append(None)
            wrong.append(f"line {number}: {error}")
    if wrong:
        share = _percent(len(wrong) / len(lines))
        if 10 * len(wrong) > len(lines):
            raise UserError(f"{file.path}, {wrong[0]}; {share} of the lines cannot be read")
        problems.append(f"{share} of the lines cannot be read; the first is {wrong[0]}")
    return lines, is_whole and len(parts) <= rows + 1, problems


def _decoded(line: bytes) -> str:
    """The text of a line; a ``ValueError`` says why there is none."""
    if len(line) > _LONGEST_LINE:
        raise ValueError(f"longer than {_LONGEST_LINE >> 20} MB")
    if b"\0" in line or b"\r" in line:
        raise ValueError("a zero byte" if b"\0" in line else "a carriage return inside the line")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1})") from None


def _fields(line: str, delimiter: str, quotes: bool) -> int:
    """How many fields a line has; 0 if its quotes do not match."""
    if not quotes or '"' not in line:
        return line.count(delimiter) + 1
    try:
        return len(next(csv.reader([line], delimiter=delimiter, strict=True)))
    except csv.Error:
        return 0


def _sniff(lines: Sequence[str]) -> tuple[str, int, bool]:
    """The delimiter that gives most lines the same number of fields, that number, and whether there are quotes."""
    found = [((0.5, False, 1), ",")]
    for delimiter in "\t|;,":
        fields = [_fields(line, delimiter, delimiter != "\t") for line in lines]
        width, hits = max(((n, k) for n, k in Counter(fields).items() if n > 1), key=lambda c: c[1], default=(1, 0))
        # A decimal comma may be in every row, but it is not in the header.
        found.append(((round(hits / len(lines), 1), fields[0] == width, width), delimiter))
    (_, _, width), delimiter = max(found, key=lambda f: f[0])
    quoted = sum(line.startswith('"') or f'{delimiter}"' in line for line in lines)
    return delimiter, width, delimiter != "\t" or 2 * quoted > len(lines)


def _has_header(columns: Sequence[pa.Array]) -> bool:
    """Whether the first line names the columns: words where numbers follow, or words that never come again."""
    first = [column[0].as_py() or "" for column in columns]
    if any(re.match(f"{_NUMBER}|{_DATE}", text) or text.lower() in _ABSENT_WORDS for text in first):
        return False
    rest = [column.slice(1, _LINES_TO_SNIFF).drop_null() for column in columns]
    rest = [column.filter(pc.invert(_is_absent(column))) for column in rest]
    matches = [pc.all(pc.match_substring_regex(column, f"{_NUMBER}|{_DATE}")).as_py() for column in rest]
    if any(name and match for name, match in zip(first, matches, strict=True)):
        return True
    come_again = any(pc.any(pc.equal(column, name)).as_py() for name, column in zip(first, rest, strict=True))
    return len(set(first)) == len(first) and all(map(_NAME.fullmatch, first)) and not come_again


def _is_absent(texts: pa.Array) -> pa.Array:
    return pc.is_in(pc.utf8_lower(texts), value_set=pa.array(_ABSENT_WORDS))


def _look(name: str, stored: str, values: pa.Array) -> Column:
    """Judges a column by its distinct values, in the order in which they come."""
    coded = values.dictionary_encode()
    indices = coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)
    texts = coded.dictionary.cast(pa.string())
    shares = np.bincount(indices, minlength=len(texts) + 1)[:-1] / max(len(values), 1)
    is_text = stored in ("text", "string")
    words = _mask(_is_absent(texts)) & is_text
    regular = ~words & ~_mask(pc.equal(texts, ""))
    type_, numbers = _typed(stored, coded.dictionary, regular, shares)
    is_number = type_ in ("integer", "number")
    odd = regular & np.isnan(numbers) & is_number & is_text
    negative = np.unique(numbers[regular & (numbers < 0)])
    if is_number and len(negative) == 1 and negative[0] in _ABSENT_NUMBERS and regular.sum() > 2:
        words |= (numbers == negative[0]) & (shares >= 0.01)
    elif not is_number:
        words &= shares >= 0.005
    regular &= ~words
    numbers[~regular] = np.nan
    present = np.append(regular, False)[indices]
    known = np.abs(numbers[np.isfinite(numbers)])
    # A hash has no small values, as amounts have, and is no round number.
    is_hash_like = type_ == "integer" and len(known) > 1 and known.max() >= 1e6
    is_hash_like = is_hash_like and bool(np.median(known) >= 0.2 * known.max() and (known % 10 == 0).mean() < 0.5)
    examples = texts.filter(pa.array(regular)).slice(0, 3).to_pylist()
    return Column(
        name,
        type_,
        stored,
        distinct=int(regular.sum()),
        missing_share=round(float(1 - shares.sum() + shares[_mask(pc.equal(texts, ""))].sum()), 6),
        stand_ins={texts[int(i)].as_py(): round(float(shares[i]), 6) for i in np.flatnonzero(words)},
        odd_share=float(shares[odd].sum()),
        examples=tuple(_shown(text) for text in examples),
        is_hash_like=is_hash_like,
        numbers=np.append(numbers, np.nan)[indices],
        present=present,
    )


def _typed(stored: str, values: pa.Array, regular: np.ndarray, shares: np.ndarray) -> tuple[str, np.ndarray]:
    """The type of a column's distinct values, and their numbers: NaN where there are none."""
    nothing = np.full(len(values), np.nan)
    if stored not in ("text", "string"):
        as_int = values.cast(pa.int64() if stored == "time" else pa.int8()) if stored in ("time", "boolean") else values
        return stored, as_int.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).copy()
    chosen = pa.array(regular)
    texts = values.filter(chosen)
    if not len(texts):
        return "text", nothing
    if stored == "text":
        matches = _mask(pc.match_substring_regex(values, _NUMBER)) & regular
        share = shares[matches].sum() / shares[regular].sum()
        if matches[regular].all() or (share > 0.99 and matches.sum() > 10):
            trimmed = pc.utf8_trim_whitespace(values.filter(pa.array(matches)))
            nothing[matches] = trimmed.cast(pa.float64()).to_numpy(zero_copy_only=False)
            is_whole = pc.all(pc.match_substring_regex(trimmed, _INTEGER)).as_py()
            return "integer" if is_whole else "number", nothing
    if pc.all(pc.match_substring_regex(texts, _DATE)).as_py():
        times, wrong = iso_times(texts, ())
        if not wrong.any():
            nothing[regular] = times.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            return "time", nothing
    is_boolean = pc.all(pc.is_in(pc.utf8_lower(texts), value_set=pa.array(["true", "false"]))).as_py()
    return "boolean" if is_boolean else "text", nothing


def _mask(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False).astype(bool)


def _draft(found: Findings, name: str, raw: Sequence[str]) -> Iterator[str]:
    """The lines of the section, to be pasted under ``datasets``."""
    sample, time = found.sample, found.time
    yield f"  {_scalar(name)}:"
    yield from _list("raw", raw) if len(raw) > 1 else [f"    raw: {_scalar(raw[0])}"]
    yield f"    format: {sample.format}"
    if sample.format == "csv" and sample.delimiter != ",":
        yield f"    delimiter: {_scalar(sample.delimiter or '')}"
    if sample.header:
        yield "    header: true"
    elif sample.format != "parquet":
        yield from _list("columns", sample.names)
    if found.missing:
        yield from _list("missing", found.missing)
    if time is None:
        yield from _comment("No time was found: the rows, and the files by their names, must be in the order of time.")
    else:
        yield f"    time_column: {_scalar(time.name)}"
        if sample.format != "parquet" and time.time_format not in (None, "seconds"):
            yield f"    time_format: {time.time_format}"
        if found.in_order:
            yield "    in_time_order: true"
    for role in ("integer", "categorical"):
        if names := found.names(role):
            yield from _list(f"{role}_columns", names)
    left_out = dict.fromkeys(r for r in found.roles.values() if r not in ("time", "label", "integer", "categorical"))
    if left_out:
        told = (f"{', '.join(map(_scalar, found.names(reason)))} ({reason})" for reason in left_out)
        yield from _comment(f"Left out: {'; '.join(told)}.")
    if not found.labels:
        yield from _comment(
            "labels: {pctr: {column: ..., kind: binary}} is needed: a column of 0 and 1 for pctr or pcvr,"
        )
        yield from _comment("or one of counts, of kind any for pcvr and of kind count for pconvs.")
        return
    if found.is_guess:
        yield from _comment("The label is a guess: it is the first column of 0 and 1.")
    elif "pctr" in found.labels and "pcvr" in found.labels:
        column = _scalar(found.labels["pctr"].column.name)
        yield from _comment(f"For pcvr after a click alone, add: keep_rows: {{{column}: 1}}")
    yield "    labels:"
    for task, label in found.labels.items():
        yield f"      {task}: {{column: {_scalar(label.column.name)}, kind: {label.kind}}}"


def _list(key: str, values: Iterable[str]) -> Iterator[str]:
    items = [_scalar(value) for value in values]
    line = f"    {key}: [{', '.join(items)}]"
    if len(line) <= _WIDTH:
        yield line
        return
    yield f"    {key}:"
    line = "      ["
    for position, item in enumerate(items):
        item += "]" if position == len(items) - 1 else ", "
        if len(line) + len(item.rstrip()) > _WIDTH and line.strip() != "[":
            yield line.rstrip()
            line = "       "
        line += item
    yield line


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    # ", subsequent_indent="    # ", break_long_words=False)


def _scalar(text: str) -> str:
    """The text as YAML, on one line."""
    if _PLAIN.fullmatch(text) and str(yaml.safe_load(text)) == text:
        return text
    return yaml.safe_dump(text, default_style='"', width=math.inf).removesuffix("\n")


def _name(raw: str) -> str:
    """A key for the log: the name of its file or, of a pattern, of the folder that it starts from.

    >>> _name("logs/day=*/*.parquet"), _name("/data/2023 clicks.csv.gz")
    ('logs', 'log_2023_clicks')
    """
    parts = [part for part in Path(raw).absolute().parts if not re.search(r"[*?\[=/]", part)]
    name = re.sub(r"\W+", "_", parts[-1].split(".")[0] if parts else "", flags=re.ASCII).strip("_").lower()
    return name if re.match(r"[a-z]", name) and yaml.safe_load(name) == name else f"log_{name}".rstrip("_")


def _shown(text: str) -> str:
    """The text on one line, cut, and without what a terminal would act on."""
    text = "".join(sign if sign.isprintable() else "�" for sign in text[:41])
    return text if len(text) <= 40 else f"{text[:39]}…"


def _percent(share: float) -> str:
    """
    >>> _percent(0.25), _percent(0.00001)
    ('25 %', 'under 0.1 %')
    """
    return f"{100 * share:.3g} %" if share >= 0.001 else "under 0.1 %"


def _text(result: dict[str, Any], found: Findings) -> str:
    """The columns as a table, what is wrong, the draft, and what to do with it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("column", "type", "distinct", "missing", "examples", "use"):
        table.add_column(title, justify="right" if title == "distinct" else "left", overflow="fold")
    for column in result["columns"]:
        missing = [_percent(column["missing_share"])] if column["missing_share"] else []
        missing += [f"{_shown(value)} {_percent(share)}" for value, share in column["stand_ins"].items()]
        distinct = f"{'≥ ' if column['distinct_is_at_least'] else ''}{column['distinct']:,}"
        used = column["role"] in ("time", "label", "integer", "categorical")
        cells = (_shown(column["name"]), column["type"], distinct, ", ".join(missing), ", ".join(column["examples"]))
        table.add_row(*map(Text, cells), Text(column["role"] if used else f"left out: {column['role']}"))
    width = min(max(shutil.get_terminal_size((_WIDTH, 24)).columns, 60), 160)
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(table)
    rows = "rows" if result["rows"] is None else f"of {result['rows']:,} rows"
    packed = f", compressed with {result['compression']}" if result["compression"] else ""
    several = f", and {len(result['files']) - 1:,} more files" if len(result["files"]) > 1 else ""
    tasks = ",".join(found.labels) or "..."
    lines = [
        f"{_shown(Path(result['files'][0]).name)}{several}: {result['format']}{packed}, "
        f"{result['rows_sampled']:,} {rows} looked at",
        "",
        console.file.getvalue().strip("\n"),  # type: ignore[attr-defined]
        "",
        *(f"! {problem}" for problem in result["problems"]),
        *([""] if result["problems"] else []),
        result["yaml"],
        f"Paste this under `datasets:` in pipelines.yaml, then `python -m tasks validate` and "
        f"`make run DATASET={result['name']} TASKS={tasks}`.",
    ]
    return "\n".join(lines)
