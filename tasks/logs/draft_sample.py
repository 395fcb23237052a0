"""The first rows of a log, with its format detected and its faults listed.

At most 32 MB of text are read, or the first rows of a Parquet file, however large the file is.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tasks.logs.files import RawFile
from tasks.runtime.errors import UserError

_MOST_BYTES, _PIECE, _LONGEST_LINE = 32 << 20, 1 << 16, 1 << 20
_LINES_TO_SNIFF = 1000
NUMBER = r"^[ \t]*[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?[ \t]*$"  # 007 is a code
DATE = r"^\d{4}-\d\d-\d\d"
ABSENT_WORDS = ("null", "(null)", r"\n", "na", "n/a", "#n/a", "nan", "none", "nil", "-", "?")
_NAME = re.compile(r"[^\W\d][\w .:-]{0,63}")


@dataclass(frozen=True)
class Sample:
    """The first rows of a file.

    Attributes:
        stored: For each column "text", or the kind of its Parquet type.
        values: For each column its values, or None if its type cannot be used.
        is_whole: Whether the sample has all rows of the file.
        problems: What is wrong with the file.
    """

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
    """Reads the first rows of a file. Raises a ``UserError`` if it is neither text nor Parquet."""
    with file.path.open("rb") as opened:
        is_parquet = opened.read(4) == b"PAR1"
    return _read_parquet(file.path, rows) if is_parquet else _read_text(file, rows)


def count_rows(files: Sequence[RawFile]) -> int | None:
    """Returns the number of rows of Parquet files by their metadata, or None if one cannot be read."""
    try:
        return sum(pa.parquet.read_metadata(file.path).num_rows for file in files)
    except (OSError, ValueError, pa.ArrowException):
        return None


def differences(path: Path, first: Sample, last: Sample) -> Iterator[str]:
    """Yields how the last file differs from the first, if it does."""
    lacks = [shown(name) for name in first.names if name not in last.names]
    adds = [shown(name) for name in last.names if name not in first.names]
    types = [shown(name) for name, a, b in zip(first.names, first.stored, last.stored, strict=False) if a != b]
    if (first.format, first.delimiter, first.header) != (last.format, last.delimiter, last.header):
        yield f"{path} does not have the format of the first file"
    elif lacks or adds:
        changes = [f"{verb} {', '.join(names)}" for verb, names in (("lacks", lacks), ("adds", adds)) if names]
        yield f"{path} does not have the columns of the first file: it {' and '.join(changes)}"
    elif first.names != last.names:
        yield f"{path} has the columns of the first file in another order"
    elif types:
        yield f"{path} does not have the types of the first file in {', '.join(types)}"


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
        raise UserError(f"the raw log {path} is not a complete Parquet file: {error}") from None
    if not len(table):
        raise UserError(f"the raw log {path} is a Parquet file without usable rows")
    stored = tuple(_kind(f.type) or str(f.type) for f in schema)
    return Sample("parquet", None, False, tuple(schema.names), stored, values, len(table), len(table) == total)


def _kind(type_: pa.DataType) -> str:
    """Returns the kind of a Parquet type, or "" if the type cannot be used."""
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
    """Casts values to a type that Arrow can dictionary-encode and format."""
    values.validate(full=True)  # the Parquet reader checks neither UTF-8 nor the indices of a dictionary
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
        raise UserError(f"the raw log {file.path} has only blank lines")
    if re.fullmatch(r"\s*[{\[].*[}\]],?\s*", texts[0]) and '"' in texts[0]:
        raise UserError(f"the raw log {file.path} looks like JSON: convert it to Parquet, csv or tsv first")
    delimiter, width, quotes = _sniff(texts[:_LINES_TO_SNIFF])
    widths = [None if line is None else _fields(line, delimiter, quotes) for line in lines]
    ragged = [number for number, found in enumerate(widths, start=1) if found not in (width, None)]
    if ragged:
        share = percent(len(ragged) / len(lines))
        problems.append(f"{share} of the lines do not have {width} fields; the first is line {ragged[0]}")
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
        raise UserError(f"the raw log {file.path} cannot be read as text: {error}") from None
    values = [column.combine_chunks() for column in table.columns]
    header = bool(len(table)) and widths[0] == width and _has_header(values)
    if header:
        names = [column[0].as_py() or "" for column in values]
        values = [column.slice(1) for column in values]
        problems += [f"the header has more than one column {shown(n)}" for n, k in Counter(names).items() if k > 1]
    values = [column.slice(0, rows) for column in values]
    if not len(values[0]):
        raise UserError(f"the raw log {file.path} has no rows{' after its header' if header else ''}")
    read = (tuple(names), ("text",) * width, tuple(values), len(values[0]))
    return Sample("csv" if quotes else "tsv", delimiter, header, *read, is_whole, tuple(problems))


def _lines(file: RawFile, rows: int) -> tuple[list[str | None], bool, list[str]]:
    """Returns the first lines (None if a line is not text), whether they are the whole file, and the problems."""
    data, ends, is_whole, problems = bytearray(), 0, False, []
    try:
        with pa.input_stream(str(file.path), compression=file.compression) as stream:
            while len(data) < _MOST_BYTES and ends <= rows and not is_whole:
                data += (piece := stream.read(_PIECE))
                ends, is_whole = ends + piece.count(b"\n"), not piece
    except (OSError, pa.ArrowException) as error:
        if not data:
            raise UserError(f"the raw log {file.path} is not a complete {file.compression} file: {error}") from None
        problems.append(f"the {file.compression} file is broken after {len(data):,} bytes of text: {error}")
    if data.startswith((b"PAR1", b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4096]:
        raise UserError(f"the raw log {file.path} is neither a Parquet file nor UTF-8 text")
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
    """Decodes a line; raises a ``ValueError`` that says why it cannot."""
    if len(line) > _LONGEST_LINE:
        raise ValueError(f"longer than {_LONGEST_LINE >> 20} MB")
    if b"\0" in line or b"\r" in line:
        raise ValueError("a zero byte" if b"\0" in line else "a carriage return inside the line")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start + 1})") from None


def _fields(line: str, delimiter: str, quotes: bool) -> int:
    """Counts the fields of a line: 0 if it is blank or its quotes do not match."""
    if not quotes or '"' not in line:
        return line.count(delimiter) + 1 if line else 0
    try:
        return len(next(csv.reader([line], delimiter=delimiter, strict=True)))
    except csv.Error:
        return 0


def _sniff(lines: Sequence[str]) -> tuple[str, int, bool]:
    """Returns the delimiter that most lines agree on, their number of fields, and whether fields may be quoted."""
    found = [((0.5, False, 1), ",")]
    for delimiter in "\t|;,":
        fields = [_fields(line, delimiter, delimiter != "\t") for line in lines]
        width, hits = max(((n, k) for n, k in Counter(fields).items() if n > 1), key=lambda c: c[1], default=(1, 0))
        # A decimal comma may be in every row but is not in the header.
        found.append(((round(hits / len(lines), 1), fields[0] == width, width), delimiter))
    (_, _, width), delimiter = max(found, key=lambda f: f[0])
    quoted = sum(line.startswith('"') or f'{delimiter}"' in line for line in lines)
    return delimiter, width, delimiter != "\t" or 2 * quoted > len(lines)


def _has_header(columns: Sequence[pa.Array]) -> bool:
    """Whether the first line names the columns: words above numbers, or words that never occur again."""
    first = [column[0].as_py() or "" for column in columns]
    if any(re.match(f"{NUMBER}|{DATE}", text) or text.lower() in ABSENT_WORDS for text in first):
        return False
    rest = [column.slice(1, _LINES_TO_SNIFF).drop_null() for column in columns]
    rest = [column.filter(pc.invert(is_absent(column))) for column in rest]
    is_typed = [len(c) and pc.all(pc.match_substring_regex(c, f"{NUMBER}|{DATE}")).as_py() for c in rest]
    if any(name and typed for name, typed in zip(first, is_typed, strict=True)):
        return True
    occurs_again = any(pc.any(pc.equal(column, name)).as_py() for name, column in zip(first, rest, strict=True))
    return len(set(first)) == len(first) and all(map(_NAME.fullmatch, first)) and not occurs_again


def is_absent(texts: pa.Array) -> pa.Array:
    return pc.is_in(pc.utf8_lower(texts), value_set=pa.array(ABSENT_WORDS))


def shown(text: str) -> str:
    """Shortens a text to 40 printable characters, safe for a terminal."""
    text = "".join(sign if sign.isprintable() else "\ufffd" for sign in text[:41])
    return text if len(text) <= 40 else f"{text[:39]}…"


def percent(share: float) -> str:
    """Formats a share as a percentage.

    >>> percent(0.25), percent(0.00001)
    ('25 %', 'under 0.1 %')
    """
    return f"{100 * share:.3g} %" if share >= 0.001 else "under 0.1 %"
