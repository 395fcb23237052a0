"""Lines of text, and what can be wrong with them before anybody looks at their values."""

from __future__ import annotations

import csv
import functools
from typing import BinaryIO

import numpy as np

from tasks.descriptions import Dataset

LONGEST_LINE = 64 << 20
# Python's own limit is 128 kB a field.
csv.field_size_limit(LONGEST_LINE)

_LINE_END = ord("\n")
_COUNTED_AT_ONCE = 1 << 16


class Lines:
    """The lines of a block, taken apart only if somebody asks."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @functools.cached_property
    def all(self) -> list[bytes]:
        return self._data.removesuffix(b"\n").split(b"\n")

    def text(self, place: int) -> str:
        return self.all[place].removesuffix(b"\r").decode("utf-8", "backslashreplace")


def count_lines(data: bytes) -> int:
    """The number of lines, also if the last one has no end."""
    # Twice as fast as bytes.count, as what numpy makes in between stays in the processor's cache.
    values = np.frombuffer(data, np.uint8)
    pieces = (values[start : start + _COUNTED_AT_ONCE] for start in range(0, len(values), _COUNTED_AT_ONCE))
    ends = sum(int(np.count_nonzero(piece == _LINE_END)) for piece in pieces)
    return ends + (not data.endswith(b"\n"))


def split(text: str, dataset: Dataset) -> list[str]:
    """The fields of a line; raises ``csv.Error`` where its quotes do not match."""
    if dataset.format == "csv" and '"' in text:
        return next(csv.reader([text], delimiter=dataset.separator, strict=True))
    return text.split(dataset.separator)


def is_suspicious(data: bytes, dataset: Dataset, *, checks_text: bool) -> bool:
    """Whether lines may not be rows: carriage returns of their own, or quotes that do not enclose fields.

    Zero bytes are suspicious too, and what is not UTF-8, unless whoever reads on checks the text.
    """
    if b"\0" in data or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n")):
        return True
    if checks_text:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            return True
    return dataset.format == "csv" and b'"' in data and not _quotes_enclose(data, ord(dataset.separator))


def _quotes_enclose(data: bytes, separator: int) -> bool:
    """Whether quotes stand only at both ends of fields, or in pairs between those."""
    padded = np.frombuffer(b"\n" + data + b"\n", np.uint8)
    quotes = np.flatnonzero(padded == ord('"'))
    before, after = padded[quotes[::2] - 1], padded[quotes[1::2] + 1]
    opens = np.isin(before, [separator, ord("\n"), ord('"')])
    closes = np.isin(after, [separator, ord("\r"), ord("\n"), ord('"')])
    return len(quotes) % 2 == 0 and bool(opens.all() and closes.all())


def end_of_text(file: BinaryIO) -> int:
    """The size of a file without the line ends at its end."""
    end = file.seek(0, 2)
    while end:
        start = max(0, end - 4096)
        file.seek(start)
        kept = len(file.read(end - start).rstrip(b"\r\n"))
        if kept:
            return start + kept
        end = start
    return 0
