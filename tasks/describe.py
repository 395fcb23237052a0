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

from tasks.descriptions import TASKS, Dataset, TaskName
from tasks.errors import UserError
from tasks.raw_files import RawFile, find_files
from tasks.text_logs import iso_times

# The sample: what stands in the file.

_MOST_BYTES, _PIECE, _LONGEST_LINE = 32 << 20, 1 << 16, 1 << 20
_LINES_TO_SNIFF = 1000
NUMBER = r"^[ \t]*[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?[ \t]*$"  # 007 is a code
DATE = r"^\d{4}-\d\d-\d\d"
ABSENT_WORDS = ("null", "(null)", r"\n", "na", "n/a", "#n/a", "nan", "none", "nil", "-", "?")
_NAME = re.compile(r"[^\W\d][\w .:-]{0,63}")


@dataclass(frozen=True)
class Sample:
    """The first rows of a file. ``stored`` is text, or a Parquet column's kind; one of no use has no ``values``."""

    format: str
    delimiter: str | None
    header: bool
    names: tuple[str, ...]
    stored: tuple[str, ...]
    values: tuple[pa.Array | None, ...]
    rows: int
    is_whole: bool
    problems: tuple[str, ...] = ()


def read_sample(file: RawFile, rows: int) -> Sample:
    with file.path.open("rb") as opened:
        is_parquet = opened.read(4) == b"PAR1"
    return _read_parquet(file.path, rows) if is_parquet else _read_text(file, rows)


def count_rows(files: Sequence[RawFile]) -> int | None:
    try:
        return sum(pa.parquet.read_metadata(file.path).num_rows for file in files)
    except (OSError, ValueError, pa.ArrowException):
        return None


def differences(path: Path, first: Sample, last: Sample) -> Iterator[str]:
    """How the columns of the last file differ from those of the first."""
    lacks = [shown(name) for name in first.names if name not in last.names]
    adds = [shown(name) for name in last.names if name not in first.names]
    types = [shown(name) for name, a, b in zip(first.names, first.stored, last.stored, strict=False) if a != b]
    if (first.format, first.delimiter, first.header) != (last.format, last.delimiter, last.header):
        yield f"{path} has not the format of the first file"
    elif lacks or adds:
        told = [f"{verb} {', '.join(names)}" for verb, names in (("lacks", lacks), ("adds", adds)) if names]
        yield f"{path} has not the columns of the first file: it {' and '.join(told)}"
    elif first.names != last.names:
        yield f"{path} has the columns of the first file in another order"
    elif types:
        yield f"{path} has other types than the first file in {', '.join(types)}"


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
    texts = [line for line in lines if line]
    if not any(line.strip() for line in texts):
        raise UserError(f"the raw logs {file.path} have only blank lines")
    if re.fullmatch(r"\s*[{\[].*[}\]],?\s*", texts[0]) and '"' in texts[0]:
        raise UserError(f"the raw logs {file.path} look like JSON: make a Parquet file, csv or tsv of them first")
    delimiter, width, quotes = _sniff(texts[:_LINES_TO_SNIFF])
    widths = [None if line is None else _fields(line, delimiter, quotes) for line in lines]
    ragged = [number for number, found in enumerate(widths, start=1) if found not in (width, None)]
    if ragged:
        share = percent(len(ragged) / len(lines))
        problems.append(f"{share} of the lines have not {width} fields; the first of them is line {ragged[0]}")
    names = [f"column_{n}" for n in range(1, width + 1)]
    data = "\n".join(line for line, found in zip(lines, widths, strict=True) if line and found == width).encode()
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            pa.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
            pa.csv.ParseOptions(
                delimiter=delimiter, quote_char='"' if quotes else False, invalid_row_handler=lambda _: "skip"
            ),
            pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
            ),
        )
    except pa.ArrowException as error:
        raise UserError(f"the raw logs {file.path} cannot be read as text: {error}") from None
    values = [column.combine_chunks() for column in table.columns]
    header = bool(len(table)) and widths[0] == width and _has_header(values)
    if header:
        names = [column[0].as_py() or "" for column in values]
        values = [column.slice(1) for column in values]
        problems += [f"the header has more than one column {shown(n)}" for n, k in Counter(names).items() if k > 1]
    values = [column.slice(0, rows) for column in values]
    if not len(values[0]):
        raise UserError(f"the raw logs {file.path} have no rows{' after their header' if header else ''}")
    read = (tuple(names), ("text",) * width, tuple(values), len(values[0]))
    return Sample("csv" if quotes else "tsv", delimiter, header, *read, is_whole, tuple(problems))


def _lines(file: RawFile, rows: int) -> tuple[list[str | None], bool, list[str]]:
    """The first lines of a text, None for what is not text; whether these are all; and what was wrong."""
    data, ends, is_whole, problems = bytearray(), 0, False, []
    try:
        with pa.input_stream(str(file.path), compression=file.compression) as stream:
            while len(data) < _MOST_BYTES and ends <= rows and not is_whole:
                data += (piece := stream.read(_PIECE))
                ends, is_whole = ends + piece.count(b"\n"), not piece
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
        share = percent(len(wrong) / len(lines))
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
    """How many fields a line has; 0 if it is blank or its quotes do not match."""
    if not quotes or '"' not in line:
        return line.count(delimiter) + 1 if line else 0
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
    if any(re.match(f"{NUMBER}|{DATE}", text) or text.lower() in ABSENT_WORDS for text in first):
        return False
    rest = [column.slice(1, _LINES_TO_SNIFF).drop_null() for column in columns]
    rest = [column.filter(pc.invert(is_absent(column))) for column in rest]
    is_typed = [len(c) and pc.all(pc.match_substring_regex(c, f"{NUMBER}|{DATE}")).as_py() for c in rest]
    if any(name and typed for name, typed in zip(first, is_typed, strict=True)):
        return True
    comes_again = any(pc.any(pc.equal(column, name)).as_py() for name, column in zip(first, rest, strict=True))
    return len(set(first)) == len(first) and all(map(_NAME.fullmatch, first)) and not comes_again


def is_absent(texts: pa.Array) -> pa.Array:
    return pc.is_in(pc.utf8_lower(texts), value_set=pa.array(ABSENT_WORDS))


def shown(text: str) -> str:
    """The text on one line, cut, and without what a terminal would act on."""
    text = "".join(sign if sign.isprintable() else "\ufffd" for sign in text[:41])
    return text if len(text) <= 40 else f"{text[:39]}…"


def percent(share: float) -> str:
    """
    >>> percent(0.25), percent(0.00001)
    ('25 %', 'under 0.1 %')
    """
    return f"{100 * share:.3g} %" if share >= 0.001 else "under 0.1 %"


# The columns: what the sample shows of each.

_INTEGER = r"^[-+]?\d+$"
_ABSENT_NUMBERS = (-1, -9, -99, -999, -9999)
_FIRST_SECOND, _LAST_SECOND = 631_152_000, 2_208_988_800  # of 1990 and 2039
_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6}
# In fewer rows, that a value is always the same or never repeats says nothing.
_ENOUGH_ROWS = 50

# What a word in a column's name says. Those of labels are in order, the best first.
_WORDS = {
    says: words.split()
    for says, words in {
        "clicked": "click clicked clicks clk ctr label target y",
        "converted": "conversion converted conv cvr sale sold purchase purchased bought order install",
        "conversions": "conversions convs sales orders purchases installs",
        "nothing": "is has was did n nb num number of count total flag label",
        "time": "time timestamp ts datetime date day hour dt epoch at",
        "no time": "since delay of to duration zone elapsed last",
        "afterwards": "conversion conversions attribution attributed delay revenue",
        "outcome": "sale sales purchase purchases order orders",
        "of an outcome": "amount value id time timestamp ts date at total",
        "history": "last past previous prev prior before history avg mean rate",
        "category": "id uid cat category type kind class code campaign device advertiser publisher partner site app "
        "domain country region city zip brand product placement slot creative banner channel segment os browser gender "
        "hour day month c",
    }.items()
}


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
    def last_word(self) -> str:
        return self.words[-1] if self.words else ""

    def says(self, what: str) -> bool:
        return not set(self.words).isdisjoint(_WORDS[what])

    @cached_property
    def known(self) -> np.ndarray:
        return self.numbers[np.isfinite(self.numbers)]

    @cached_property
    def non_decreasing_share(self) -> float | None:
        return float((np.diff(self.known) >= 0).mean()) if len(self.known) > 1 else None

    @property
    def is_number(self) -> bool:
        return self.type in ("integer", "number")

    @cached_property
    def is_count(self) -> bool:
        known = np.zeros(0) if self.type == "time" else self.known
        return len(known) > 0 and bool(((known >= 0) & (known <= 1000) & (known == np.floor(known))).all())

    @cached_property
    def is_binary(self) -> bool:
        return self.is_count and bool((self.known <= 1).all())

    @property
    def is_category(self) -> bool:
        """Whether its numbers are no amounts, but names of something."""
        return self.is_hash_like or self.last_word in _WORDS["category"]

    @property
    def is_unique(self) -> bool:
        return bool(self.present.sum() >= _ENOUGH_ROWS and self.distinct > 0.9 * self.present.sum())

    @property
    def is_after_the_fact(self) -> bool:
        """Whether its name says that it comes from what the labels predict."""
        is_about = self.says("outcome") and self.says("of an outcome")
        return (is_about or self.says("afterwards")) and not self.says("history")

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
        is_named, in_order = self.says("time") and not self.says("no time"), self.non_decreasing_share == 1
        is_exact, is_whole = is_named and len(self.words) == 1, bool(self.present.all())
        if (self.is_after_the_fact and not is_whole) or not len(self.known):
            return None
        if self.type == "time" and self.stored != "string":  # a Parquet file's times are no texts
            score = 3.0
        elif self.type == "integer" and self.time_format and self.distinct > 1 and (is_named or in_order):
            score = 2.0
        # Hours and days come again, which the sample may be too short to show.
        elif (
            self.type == "integer" and is_named and self.known.max() > 31 and (in_order or self.words == ["timestamp"])
        ):
            score = 1.0
        else:
            return None
        score += is_named + is_exact + 2 * in_order + 3 * self.distinct / len(self.present)
        return score - 2 * (not is_whole) - 4 * self.is_after_the_fact

    def follows(self, label: Column) -> bool:
        """Whether it has something to say only where the label is above 0, in too many rows for chance."""
        active, positive = self.present & ~(self.numbers == 0), label.numbers > 0
        if not active.any() or not positive[active].all():
            return False
        return bool(active.sum() * math.log(positive.mean()) < math.log(1e-6))


def columns_of(sample: Sample) -> tuple[Column, ...]:
    """What the sample shows of each of its columns, in their order."""
    return tuple(
        Column(name, "other", stored) if values is None else _look(name, stored, values)
        for name, stored, values in zip(sample.names, sample.stored, sample.values, strict=True)
    )


def _look(name: str, stored: str, values: pa.Array) -> Column:
    """Judges a column by its distinct values, in the order in which they come."""
    coded = values.dictionary_encode()
    indices = coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)
    texts = coded.dictionary.cast(pa.string())
    shares = np.bincount(indices, minlength=len(texts) + 1)[:-1] / len(values)
    blank, is_text = _mask(pc.equal(texts, "")), stored in ("text", "string")
    absent = _mask(is_absent(texts)) & is_text
    regular = ~absent & ~blank
    type_, numbers = _typed(stored, coded.dictionary, regular, shares)
    is_number = type_ in ("integer", "number")
    odd = regular & np.isnan(numbers) & is_number & is_text
    negative = np.unique(numbers[regular & (numbers < 0)])
    if is_number and len(negative) == 1 and negative[0] in _ABSENT_NUMBERS and regular.sum() > 2:
        absent |= (numbers == negative[0]) & (shares >= 0.01)
    elif not is_number:
        absent &= shares >= 0.005
    regular = ~absent & ~blank
    numbers[~regular] = np.nan
    known = np.abs(numbers[np.isfinite(numbers)])
    # A hash has few small values, where amounts have many, and is seldom a round number.
    is_hash_like = type_ == "integer" and len(known) > 1 and known.max() >= 1e6
    is_hash_like = is_hash_like and bool(np.median(known) >= 0.2 * known.max() and (known % 10 == 0).mean() < 0.5)
    return Column(
        name,
        type_,
        stored,
        distinct=int(regular.sum()),
        missing_share=abs(round(float(1 - shares[~blank].sum()), 6)),
        stand_ins={texts[int(i)].as_py(): round(float(shares[i]), 6) for i in np.flatnonzero(absent)},
        odd_share=float(shares[odd].sum()),
        examples=tuple(shown(text) for text in texts.filter(pa.array(regular)).slice(0, 3).to_pylist()),
        is_hash_like=is_hash_like,
        numbers=np.append(numbers, np.nan)[indices],
        present=np.append(regular, False)[indices],
    )


def _typed(stored: str, values: pa.Array, regular: np.ndarray, shares: np.ndarray) -> tuple[str, np.ndarray]:
    """The type of a column's distinct values, and their numbers, NaN where they have none."""
    if stored not in ("text", "string"):
        whole = {"time": pa.int64(), "boolean": pa.int8()}.get(stored, values.type)
        return stored, np.array(values.cast(whole).cast(pa.float64(), safe=False))
    numbers, texts = np.full(len(values), np.nan), values.filter(pa.array(regular))
    matches = _mask(pc.match_substring_regex(values, NUMBER)) & regular
    share = shares[matches].sum() / max(shares[regular].sum(), 1e-9)
    if stored == "text" and len(texts) and (matches[regular].all() or (share > 0.99 and matches.sum() > 10)):
        trimmed = pc.utf8_trim_whitespace(values.filter(pa.array(matches)))
        numbers[matches] = np.array(trimmed.cast(pa.float64()))
        return "integer" if pc.all(pc.match_substring_regex(trimmed, _INTEGER)).as_py() else "number", numbers
    if len(texts) and pc.all(pc.match_substring_regex(texts, DATE)).as_py():
        times, wrong = iso_times(texts, ())
        if not wrong.any():
            numbers[regular] = np.array(times.cast(pa.float64(), safe=False))
            return "time", numbers
    is_boolean = len(texts) and pc.all(pc.is_in(pc.utf8_lower(texts), pa.array(["true", "false"]))).as_py()
    return "boolean" if is_boolean else "text", numbers


def _mask(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False).astype(bool)


# The description: what is made of them.

_ROWS_OF_LAST_FILE = 1000
_WIDTH = 120
_PLAIN = re.compile(r"[A-Za-z_/.][\w./*=-]*", re.ASCII)
_USES = ("time", "label", "integer", "categorical")
_FACTS = ("name", "type", "stored", "distinct", "missing_share", "stand_ins")


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
    columns: tuple[Column, ...]
    time: Column | None
    in_order: bool | None
    candidates: tuple[Candidate, ...]
    is_guess: bool

    @cached_property
    def labels(self) -> dict[TaskName, Candidate]:
        """The best candidate of each task."""
        of_task = {task: [c for c in self.candidates if c.task == task] for task in TASKS}
        return {task: min(found, key=lambda c: c.rank) for task, found in of_task.items() if found}

    @cached_property
    def roles(self) -> dict[Column, str]:
        """What each column is: one of ``_USES``, or why it is left out."""
        return {column: self._role(column) for column in self.columns}

    def _role(self, column: Column) -> str:
        labels = [label.column for label in self.labels.values()]
        is_row_number = column.type == "integer" and column.non_decreasing_share == 1
        roles = {
            "name stands twice": self.sample.names.count(column.name) > 1,
            "time": column is self.time,
            "label": column in labels,
            "no name": not column.name,
            "type cannot be used": column.type == "other",
            "like a label": any(column is candidate.column for candidate in self.candidates),
            "no values": not column.present.any(),
            "constant": self.sample.rows >= _ENOUGH_ROWS and column.distinct == 1 and bool(column.present.all()),
            "after the fact": column.is_after_the_fact,
            "only where a label is above 0": any(column.follows(label) for label in labels),
            "another time": column.type == "time" or (column.time_format is not None and column.time_score is not None),
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
        columns = Counter(value for column in self.columns for value in column.stand_ins)
        words = {v for c in self.columns if c.is_number for v in c.stand_ins if v.lower() in ABSENT_WORDS}
        return [value for value, count in columns.items() if count > 1 or value in words]


def describe(raw: Sequence[str], *, name: str | None = None, sample_rows: int = 100_000) -> dict[str, Any]:
    """What the first rows of a log show, with a draft of its description as ``yaml``, and all of it as ``text``.

    ``problems`` says what a person has to look at; an empty one means that the draft is a valid description. A file
    that cannot be described at all is a ``UserError``.
    """
    files = find_files(raw)
    sample = read_sample(files[0], sample_rows)
    columns = columns_of(sample)
    usable = [column for column in columns if column.name and sample.names.count(column.name) == 1]
    times = sorted((c for c in usable if c.time_score is not None), key=lambda c: -(c.time_score or 0))
    time = times[0] if times else None
    in_order = None
    if time is not None and time.distinct > 1:
        in_order = time.non_decreasing_share == 1 and bool(time.present.all())
    problems = [*sample.problems]
    if len(files) > 1:
        try:
            last = read_sample(files[-1], _ROWS_OF_LAST_FILE)
            problems += differences(files[-1].path, sample, last)
            later = [c.known.min() for c in columns_of(last) if time and c.name == time.name and len(c.known)]
            if time is not None and in_order and later:
                in_order = bool(later[0] >= time.known.max())
        except UserError as error:
            problems.append(str(error))
    named = tuple(_candidates(usable))
    guess = [Candidate(c, "pctr", "binary", 0) for c in usable if c.is_binary and c.distinct == 2]
    found = Findings(sample, columns, time, in_order, named or tuple(guess[:1]), not named)
    key = name or _name(str(raw[0]))
    draft = "\n".join(_draft(found, key, list(dict.fromkeys(map(str, raw))))) + "\n"
    problems += _problems(found)
    try:
        Dataset.model_validate(yaml.safe_load(draft)[key])
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, e['loc']))} {e['msg']}".strip() for e in error.errors())
        problems.append(f"the draft is not a whole description yet: {told}")
    is_all = sample.is_whole and len(files) == 1
    result: dict[str, Any] = {
        "name": key,
        "files": [str(file.path) for file in files],
        "format": sample.format,
        "delimiter": sample.delimiter,
        "header": sample.header,
        "compression": files[0].compression,
        "rows_sampled": sample.rows,
        "rows": count_rows(files) if sample.format == "parquet" else sample.rows if is_all else None,
        "columns": [
            {fact: getattr(column, fact) for fact in _FACTS}
            | {"distinct_is_at_least": not is_all, "examples": list(column.examples), "role": role}
            for column, role in found.roles.items()
        ],
        "from_path": list(files[0].from_path),
        "time_candidates": [
            {fact: getattr(column, fact) for fact in ("name", "time_format", "non_decreasing_share")}
            for column in times
        ],
        "label_candidates": [
            {"name": c.column.name, "task": c.task, "kind": c.kind, "is_guess": found.is_guess}
            for c in found.candidates
        ],
        "in_time_order": in_order,
        "yaml": draft,
        "problems": problems,
    }
    return {**result, "text": _text(result, found)}


def _candidates(columns: Iterable[Column]) -> Iterator[Candidate]:
    """The columns whose names and values are those of a label."""
    converted, conversions, clicked = _WORDS["converted"], _WORDS["conversions"], _WORDS["clicked"]
    for column in columns:
        words = [word for word in column.words if word not in _WORDS["nothing"]] or column.words[-1:]
        core, last = words[0] if len(words) == 1 else "", column.last_word
        if column.is_count and (core in conversions or (core in converted and not column.is_binary)):
            rank = [*conversions, *converted].index(core)
            yield Candidate(column, "pcvr", "any", 50 + rank)
            yield Candidate(column, "pconvs", "count", rank)
        elif column.is_binary and core in converted:
            yield Candidate(column, "pcvr", "binary", converted.index(core))
        elif column.is_binary and core in clicked:
            yield Candidate(column, "pctr", "binary", clicked.index(core))
        elif column.is_binary and last in ("clicked", "converted", "purchased") and not column.says("history"):
            yield Candidate(column, "pctr" if last == "clicked" else "pcvr", "binary", 100)


def _problems(found: Findings) -> Iterator[str]:
    """What a person has to look at in single columns."""
    for column, role in found.roles.items():
        name, is_named = shown(column.name), column.last_word in _WORDS["clicked"] + _WORDS["converted"]
        if column.odd_share:
            yield f"column {name} has values that are not numbers in {percent(column.odd_share)} of the rows"
        if column.distinct == 2 and not column.is_count and is_named:
            yield f"column {name} is called like a label, but has {' and '.join(column.examples)}: a label is 0 or 1"
        if column.type == "time" and column.stored == "string" and found.time is None:
            yield f"column {name} has times as texts: in a Parquet file they must be timestamps, dates or numbers"
        if role in ("time", "label") and not column.present.all():
            yield f"column {name} is the {role}, but is missing in {percent(1 - column.present.mean())} of the rows"
    if not found.labels:
        yield "no column can be a label: it would be 0 or 1, or a small whole number called conversions or the like"


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
    if reasons := [role for role in dict.fromkeys(found.roles.values()) if role not in _USES]:
        told = (f"{', '.join(map(_scalar, found.names(reason)))} ({reason})" for reason in reasons)
        yield from _comment(f"Left out: {'; '.join(told)}.")
    if not found.labels:
        yield from _comment("labels: {pctr: {column: ?, kind: binary}}")
        yield from _comment(
            "is needed: a column of 0 and 1 for pctr or pcvr, or a count for pcvr (any), pconvs (count)."
        )
        return
    if found.is_guess:
        yield from _comment("The label is a guess: it is the first column of 0 and 1.")
    elif "pctr" in found.labels and "pcvr" in found.labels:
        clicked = _scalar(found.labels["pctr"].column.name)
        yield from _comment(f"For pcvr after a click alone, add: keep_rows: {{{clicked}: 1}}")
    yield "    labels:"
    for task, label in found.labels.items():
        yield f"      {task}: {{column: {_scalar(label.column.name)}, kind: {label.kind}}}"


def _list(key: str, values: Iterable[str]) -> Iterator[str]:
    items = [_scalar(value) for value in values]
    line = f"    {key}: [{', '.join(items)}]"
    if len(line) > _WIDTH:
        yield f"    {key}:"
        line = "      ["
        for item in items[:-1]:
            if len(line) + len(item) >= _WIDTH and not line.endswith("["):
                yield line.rstrip()
                line = "       "
            line += f"{item}, "
        if len(line) + len(items[-1]) >= _WIDTH and not line.endswith("["):
            yield line.rstrip()
            line = "       "
        line += f"{items[-1]}]"
    yield line


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    # ", subsequent_indent="    # ", break_long_words=False)


def _scalar(text: str) -> str:
    """The text as YAML, on one line."""
    if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
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


def _text(result: dict[str, Any], found: Findings) -> str:
    """The columns as a table, what is wrong, the draft, and what to do with it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("column", "type", "distinct", "missing", "examples", "use"):
        table.add_column(title, justify="right" if title == "distinct" else "left", overflow="fold")
    for column in result["columns"]:
        missing = [percent(column["missing_share"])] if column["missing_share"] else []
        missing += [f"{shown(value)} {percent(share)}" for value, share in column["stand_ins"].items()]
        distinct = f"{'≥ ' if column['distinct_is_at_least'] else ''}{column['distinct']:,}"
        use = column["role"] if column["role"] in _USES else f"left out: {column['role']}"
        cells = (
            shown(column["name"]),
            column["type"],
            distinct,
            ", ".join(missing),
            ", ".join(column["examples"]),
            use,
        )
        table.add_row(*map(Text, cells))
    page = io.StringIO()
    width = min(max(shutil.get_terminal_size((_WIDTH, 24)).columns, 60), 160)
    Console(file=page, width=width, color_system=None).print(table)
    of_all = "" if result["rows"] is None else f" of {result['rows']:,}"
    packed = f" compressed with {result['compression']}" if result["compression"] else ""
    several = f" and {len(result['files']) - 1:,} more" if len(result["files"]) > 1 else ""
    tasks = ",".join(found.labels) or "..."
    return "\n".join(
        [
            f"{shown(Path(result['files'][0]).name)}{several}: {result['format']}{packed}, "
            f"{result['rows_sampled']:,}{of_all} rows looked at",
            "\n".join(line.rstrip() for line in page.getvalue().splitlines()),
            *(f"! {problem}" for problem in result["problems"]),
            "",
            result["yaml"],
            "Paste this under `datasets:` in pipelines.yaml, then `python -m tasks validate` and",
            f"`make run DATASET={result['name']} TASKS={tasks}`.",
        ]
    )
