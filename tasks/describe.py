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
_CLICKED = "click clicked clicks clk ctr label target y".split()
_CONVERTED = "conversion converted conv cvr sale sold purchase purchased bought order install".split()
_CONVERSIONS = "conversions convs sales orders purchases installs".split()
_FILLERS = frozenset("is has was did n nb num number of count total flag label".split())
_TIMES = frozenset("time timestamp ts datetime date day hour dt epoch at".split())
_NOT_TIMES = frozenset("since delay of to duration zone elapsed last".split())
_AFTERWARDS = frozenset("conversion conversions attribution attributed delay revenue".split())
_OUTCOMES = frozenset("sale sales purchase purchases order orders".split())
_OF_OUTCOMES = frozenset("amount value id time timestamp ts date at total".split())
_HISTORY = frozenset("last past previous prev prior before history avg mean rate".split())
_CATEGORIES = frozenset(
    "id uid cat category type kind class code campaign device advertiser publisher partner site app domain country "
    "region city zip brand product placement slot creative banner channel segment os browser gender hour day c".split()
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
        told = [f"{verb} {', '.join(map(_shown, names))}" for verb, names in (("lacks", lacks), ("adds", adds)) if names]
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
        return values.cast(pa.timestamp("s"), safe=False) if pa.types.is_date(values.type) else values.cast(...)
    return values.cast(pa.string()) if kind == "string" else values
