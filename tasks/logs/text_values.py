"""Numbers and ISO 8601 times in text. It is also part of released models, so it imports nothing of ours."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NUMBER = r"^[ \t]*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?[ \t]*$"
_ISO = re.compile(
    r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?(Z|[+-]\d\d(:?\d\d)?)?",
    re.ASCII,
)
_ISO_PATTERN = f"^{_ISO.pattern}$"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def not_finite(texts: pa.Array, missing: Sequence[str]) -> np.ndarray:
    """Returns a mask of the texts that are neither a finite number nor missing."""
    _, bad = text_numbers(texts, missing)
    return bad


def text_numbers(texts: pa.Array, missing: Sequence[str]) -> tuple[pa.Array, np.ndarray]:
    """Parses numbers: float64, null if missing, and a mask of the texts that are neither finite numbers nor missing."""
    absent = pc.is_in(texts, value_set=pa.array(["", *missing]))
    is_number = pc.match_substring_regex(texts, _NUMBER)
    numbers = pc.utf8_trim(pc.if_else(is_number, texts, "0"), " \t").cast(pa.float64())
    good = pc.or_(absent, pc.and_(is_number, pc.is_finite(numbers)))
    return pc.if_else(absent, pa.scalar(None, pa.float64()), numbers), ~good.to_numpy(zero_copy_only=False)


def iso_times(texts: pa.Array, missing: tuple[str, ...]) -> tuple[pa.Array, np.ndarray]:
    """Parses ISO 8601 texts: microseconds since 1970, null if missing, and a mask of those that are invalid."""
    absent = pc.is_in(texts, value_set=pa.array(["", *missing]))
    present = pc.if_else(absent, pa.scalar(None, pa.string()), texts)
    # Arrow also accepts texts that Python does not: hours without minutes, and the year 0.
    if pc.all(pc.match_substring_regex(present, _ISO_PATTERN), min_count=0).as_py():
        for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
            with contextlib.suppress(pa.ArrowInvalid):
                return present.cast(kind).cast(pa.int64()), np.zeros(len(texts), bool)
    # Some have a time zone and others do not, or some are invalid.
    coded = present.dictionary_encode()
    values = [iso_microseconds(text) for text in coded.dictionary.to_pylist()]
    times = pa.array(values, pa.int64()).take(coded.indices)
    bad = times.is_null().to_numpy(zero_copy_only=False) & ~absent.to_numpy(zero_copy_only=False)
    return times, bad


def iso_microseconds(text: str) -> int | None:
    """Returns microseconds since 1970, or None if the text is not ISO 8601. Without a time zone it is in UTC.

    >>> iso_microseconds("1970-01-01T00:00:01"), iso_microseconds("1970-01-01T01:00:01+01:00"), iso_microseconds("noon")
    (1000000, 1000000, None)
    """
    if not _ISO.fullmatch(text):
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)) - _EPOCH) // _MICROSECOND
