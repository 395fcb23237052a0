"""A slow and obvious reader of text logs, to compare ours with."""

from __future__ import annotations

import csv
import datetime
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tasks.config.dataset import Dataset
from tasks.logs.text_lines import Dialect

COLUMNS = ("n", "unused", "c", "time", "y")
DIALECTS = {"csv": Dialect(",", quotes=True), "tsv": Dialect("\t", quotes=False)}
BOM = b"\xef\xbb\xbf"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def fields_of(line: str, separator: str, *, quotes: bool) -> list[str] | None:
    """Splits a line by RFC 4180, character by character; a quote inside an unquoted field is literal."""
    if not quotes:
        return line.split(separator)
    fields, at = [], 0
    while True:
        if line[at : at + 1] == '"':
            closed = re.compile(r'"((?:[^"]|"")*)"').match(line, at)
            if closed is None:
                return None
            fields.append(closed[1].replace('""', '"'))
            at = closed.end()
        else:
            stop = line.find(separator, at)
            stop = len(line) if stop < 0 else stop
            fields.append(line[at:stop])
            at = stop
        if at == len(line):
            return fields
        if line[at] != separator:
            return None
        at += 1


def number_of(text: str, missing: Sequence[str]) -> float | None:
    """Returns the number, None if missing, NaN if it is not a finite number."""
    if text in ("", *missing):
        return None
    if not re.fullmatch(r"[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*", text):
        return math.nan
    value = float(text)
    if value in [float(known) for known in missing if known != "\\N"]:
        return None
    return value if math.isfinite(value) else math.nan


ISO = r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)?)?"


def moment_of(text: str) -> int | None:
    """Returns microseconds since 1970 as Python reads the time."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)) - EPOCH) // datetime.timedelta(
        microseconds=1
    )


class Line(NamedTuple):
    """What is wrong with a line (nothing, its fields or a value), and its values."""

    wrong: str | None
    values: dict[str, Any]


def line_of(line: bytes, description: Dataset) -> Line:
    line = line.removesuffix(b"\r")
    if b"\0" in line or b"\r" in line:
        return Line("not text", {})
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return Line("not text", {})
    fields = fields_of(text, DIALECTS[description.format].separator, quotes=description.format == "csv")
    if description.format == "csv" and len(text) < 100_000:
        try:
            by_python = next(csv.reader([text], delimiter=DIALECTS[description.format].separator, strict=True)) or [""]
        except csv.Error:
            by_python = None
        assert fields == by_python
    if fields is None:
        return Line("wrong quotes", {})
    if len(fields) != len(COLUMNS):
        return Line("wrong number of fields", {})
    texts = dict(zip(COLUMNS, fields, strict=True))
    values: dict[str, Any] = {name: number_of(texts[name], description.missing) for name in ("n", "y", "time")}
    values["c"] = "" if texts["c"] in description.missing else texts["c"]
    if description.time_format == "iso8601":
        absent = texts["time"] in ("", *description.missing)
        values["time"] = moment_of(texts["time"]) if not absent and re.fullmatch(ISO, texts["time"], re.ASCII) else None
    if any(isinstance(value, float) and math.isnan(value) for value in values.values()) or values["time"] is None:
        return Line("value", {})
    return Line(None, values)


def lines_of(data: bytes, description: Dataset) -> list[Line]:
    """Reads the lines of a file without its byte order mark and trailing line ends."""
    text = data.removeprefix(BOM).rstrip(b"\r\n")
    return [line_of(line, description) for line in text.split(b"\n")] if text else []
