"""Checks of parsed logs: few bad rows, the claimed order of time, plausible times, the same columns in every file."""

from __future__ import annotations

import csv
import itertools
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.config.dataset import Dataset
from tasks.data.parts import QUARANTINE_COLUMNS, SHOWN, Part
from tasks.data.statistics import DAY_SECONDS, UNITS_PER_SECOND
from tasks.logs.formats import LOG_FORMATS
from tasks.runtime.errors import UserError

_MOST_YEARS = 300


def check_bad_rows(dataset: Dataset, parts: Sequence[Part]) -> Counter[str]:
    """Counts bad rows by reason. Raises a ``UserError`` that shows the first ones if there are more than tolerated."""
    reasons: Counter[str] = Counter()
    for part in parts:
        reasons.update(part.summary["bad"])
    bad, total = reasons.total(), sum(part.summary["lines"] for part in parts)
    if bad > dataset.tolerated_bad_rows * total:
        in_order = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        by_reason = ", ".join(f"{count:,} {reason}" for reason, count in in_order)
        shown = [message for part in parts for message in part.summary["first_bad"]][:SHOWN]
        files = [str(part.folder / "quarantine.csv") for part in parts if part.summary["bad"]]
        raise UserError(
            f"{bad:,} of {total:,} rows are bad ({by_reason}); `tolerated_bad_rows` allows a share of "
            f"{dataset.tolerated_bad_rows:g}. The first ones:\n  "
            + "\n  ".join(shown)
            + f"\nAll of them are in {files[0]}"
            + (f" and {len(files) - 1} more such files" if len(files) > 1 else "")
        )
    return reasons


def check_time_order(parts: Sequence[Part]) -> None:
    """Raises a ``UserError`` at the first row that is out of order, for logs that claim ``in_time_order``."""
    latest: float | None = None
    for part in parts:
        unit, word = part.summary["time_unit"], LOG_FORMATS[part.dataset.format].row_word
        for block in part.summary["blocks"]:
            if not block["rows"]:
                continue
            disorder, opening_time = block["disorder"], block["opening_time"]
            if latest is not None and opening_time is not None and opening_time < latest:
                disorder = (block["first_line"], opening_time, latest)
            if disorder is not None:
                line, time, before = disorder
                raise UserError(
                    f"{part.summary['source']}, {word} {line}: the time {format_time(time, unit)} comes after "
                    f"{format_time(before, unit)}, but `in_time_order` says that rows are in the order of time; "
                    "leave it out to have them sorted"
                )
            latest = block["last_time"]


def check_time_unit(parts: Sequence[Part]) -> None:
    """Raises a ``UserError`` if times are centuries away: their unit is not the one that the description says."""
    summary, dataset = parts[0].summary, parts[0].dataset
    most = _MOST_YEARS * 365 * DAY_SECONDS * UNITS_PER_SECOND[summary["time_unit"]]
    ends = [time for part in parts for block in part.blocks() for time in (block.first_time, block.last_time)]
    far = next((time for time in ends if time is not None and abs(time) > most), None)
    if far is not None:
        raise UserError(
            f"{summary['source']}: column {dataset.time_column!r} has {far}, more than {_MOST_YEARS} years from 1970; "
            "if times are not in seconds, set `time_format: milliseconds` or `time_format: microseconds`"
        )


def format_time(value: float, unit: str) -> str:
    """Formats a time, given in a unit since 1970.

    >>> format_time(1_700_000_000, "s")
    '2023-11-14T22:13:20Z'
    """
    try:
        return str(np.int64(np.floor(value)).astype(f"datetime64[{unit}]").astype("datetime64[s]")) + "Z"
    except (OverflowError, ValueError):
        return str(value)


def write_quarantine(parts: Sequence[Part], path: Path) -> None:
    """Writes the bad rows of all parts into one file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow(QUARANTINE_COLUMNS)
        for part in parts:
            if part.summary["bad"]:
                with (part.folder / "quarantine.csv").open(encoding="utf-8", newline="") as rows:
                    rows.readline()  # the header
                    shutil.copyfileobj(rows, file)


def check_same_columns(parts: Sequence[Part]) -> None:
    """Raises a ``UserError`` if a file does not have the columns and types of the first one."""
    first = parts[0].summary
    for part in parts[1:]:
        other = part.summary
        if other["schema"] != first["schema"] or other["time_unit"] != first["time_unit"]:
            pairs = itertools.zip_longest(first["schema"], other["schema"], fillvalue=None)
            one, two = next((pair for pair in pairs if pair[0] != pair[1]), (first["time_unit"], other["time_unit"]))
            raise UserError(
                f"{other['source']} does not have the columns of {first['source']}: "
                f"it has {_shown(two)} in place of {_shown(one)}"
            )


def _shown(column: Any) -> str:
    if column is None:
        return "nothing"
    return repr(column) if isinstance(column, str) else f"{column[0]!r} of type {column[1]}"
