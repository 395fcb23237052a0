"""ISO 8601 times are read as Python reads them."""

from __future__ import annotations

import datetime
import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.logs.text_values import iso_times
from tests.support.text_oracle import ISO, moment_of

DATES = ["2023-10-01", "1969-12-31", "2024-02-29", "2023-02-29", "2023-13-01", "2023-00-10", "0001-01-01", "9999-12-31"]
DATES += [
    "0000-01-01",
    "20231001",
    "2023-1-1",
    "2023-W40-1",
    "2023-274",
    "yesterday",
    "12023-01-01",
    "٢٠٢٣-10-01",
    "2023",
]
CLOCKS = ["", "T12:30", " 12:30:00", "T23:59:59.5", "T00:00:00.000001", "T12:30:00.123456", "T24:00:00", "T12:60:00"]
CLOCKS += ["T12", "T1230", "T12:30:60", "T12:30:00.1234567", "T12:30:00.123456789", "t12:30", "T12:30:", "T12:30:00,5"]
ZONES = ["", "", "Z", "+02:00", "-0530", "+14", "-00:00", "+24:00", "+05:60", "z", " UTC", "+2", "+02:00:30"]
PIECES = st.tuples(st.sampled_from(DATES), st.sampled_from(CLOCKS), st.sampled_from(ZONES))
STAMPS = st.datetimes(min_value=datetime.datetime(1, 1, 2), max_value=datetime.datetime(9999, 12, 30))


def _times(texts: list[str], missing: tuple[str, ...] = ()) -> list[int | str | None]:
    """Returns the times, ``"bad"`` for invalid ones."""
    times, bad = iso_times(pa.array(texts, pa.string()), missing)
    assert times.type == pa.int64()
    assert len(times) == len(bad) == len(texts)
    assert all(time is None for time, wrong in zip(times.to_pylist(), bad, strict=True) if wrong)
    return ["bad" if wrong else time for time, wrong in zip(times.to_pylist(), bad, strict=True)]


def _assert_as_python_reads_it(text: str, found: int | str | None) -> None:
    """Asserts that a time equals Python's, and that only unusual or impossible times are refused."""
    if text in ("", "-"):
        assert found is None
    elif found != "bad":
        assert found == moment_of(text), text
    elif re.fullmatch(ISO, text, re.ASCII):
        assert moment_of(text) is None, text


@pytest.mark.parametrize("clock", CLOCKS)
def test_single_times_are_read_as_python_does(clock: str) -> None:
    for date in DATES:
        for zone in ZONES:
            text = f"{date}{clock}{zone}"
            _assert_as_python_reads_it(text, _times([text])[0])


@settings(derandomize=True, deadline=None, max_examples=120)
@given(
    pieces=st.lists(PIECES, max_size=6),
    stamps=st.lists(STAMPS, max_size=4),
    zone=st.sampled_from(["", "Z", "+05:30"]),
    absent=st.booleans(),
)
def test_a_time_means_the_same_beside_any_others(
    pieces: list[tuple[str, str, str]], stamps: list[datetime.datetime], zone: str, absent: bool
) -> None:
    """With and without time zones, among invalid and missing ones."""
    texts = [*("".join(piece) for piece in pieces), *(stamp.isoformat() + zone for stamp in stamps)]
    texts += ["", "-"] if absent else []
    together = _times(texts, ("-",))
    assert together == [_times([text], ("-",))[0] for text in texts]
    for text, found in zip(texts, together, strict=True):
        _assert_as_python_reads_it(text, found)
