"""Whether parsed logs can be trusted: few unreadable rows, the order they claim, the same columns in every file."""

from __future__ import annotations

import csv
import itertools
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.descriptions import Dataset
from tasks.errors import UserError
from tasks.parts import QUARANTINE_COLUMNS, SHOWN, Part
from tasks.statistics import DAY_SECONDS, UNITS_PER_SECOND

_MOST_YEARS = 300


def check_bad_rows(dataset: Dataset, parts: Sequence[Part]) -> Counter[str]:
    """How many rows were put aside, by reason; more than is tolerated are an error that shows the first of them."""
    reasons: Counter[str] = Counter()
    for part in parts:
        reasons.update(part.summary["bad"])
    bad, total = reasons.total(), sum(part.summary["lines"] for part in parts)
    if bad > dataset.tolerated_bad_rows * total:
        in_order = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        by_reason = ", ".join(f"{count:,} {reason}" for reason, count in in_order)
        shown = [story for part in parts for story in part.summary["first_bad"]][:SHOWN]
        files = [str(part.folder / "quarantine.csv") for part in parts if part.summary["bad"]]
        raise UserError(
            f"{bad:,} of {total:,} rows cannot be read ({by_reason}); `tolerated_bad_rows` allows a share of "
            f"{dataset.tolerated_bad_rows:g}. The first:\n  "
            + "\n  ".join(shown)
            + f"\nAll of them are in {files[0]}"
            + (f" and {len(files) - 1} more such files" if len(files) > 1 else "")
        )
    return reasons


def check_time_order(parts: Sequence[Part]) -> None:
    """Refuses logs that claim to be in the order of time and are not."""
    latest: float | None = None
    for part in parts:
        unit, word = part.summary["time_unit"], "row" if part.dataset.format == "parquet" else "line"
        for block in part.summary["blocks"]:
            if not block["rows"]:
                continue
            line, time, before = block["first_line"], block["opening_time"], latest
            if before is None or time >= before:
                line, time, before = block["disorder"] or (None, None, None)
            if line is not None and before is not None:
                raise UserError(
                    f"{part.summary['source']}, {word} {line}: the time {time_text(time, unit)} comes after "
                    f"{time_text(before, unit)}, but `in_time_order` claims that rows are in the order of time; "
                    "without it they are sorted"
                )
            latest = block["last_time"]


def check_time_unit(parts: Sequence[Part]) -> None:
    """Refuses times that are centuries away: they are in another unit than is said, and days would be wrong."""
    summary, dataset = parts[0].summary, parts[0].dataset
    most = _MOST_YEARS * 365 * DAY_SECONDS * UNITS_PER_SECOND[summary["time_unit"]]
    ends = [time for part in parts for block in part.blocks() for time in (block.first_time, block.last_time)]
    far = next((time for time in ends if time is not None and abs(time) > most), None)
    if far is not None:
        raise UserError(
            f"{summary['source']}: column {dataset.time_column!r} has {far}, more than {_MOST_YEARS} years from 1970; "
            "if times are not seconds, say `time_format: milliseconds` or `time_format: microseconds`"
        )


def time_text(value: float, unit: str) -> str:
    """A time in its unit since 1970, for a person.

    >>> time_text(1_700_000_000, "s")
    '2023-11-14T22:13:20Z'
    """
    try:
        return str(np.int64(np.floor(value)).astype(f"datetime64[{unit}]").astype("datetime64[s]")) + "Z"
    except (OverflowError, ValueError):
        return str(value)


def write_quarantine(parts: Sequence[Part], path: Path) -> None:
    """All rows that were put aside, in one file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow(QUARANTINE_COLUMNS)
        for part in parts:
            if part.summary["bad"]:
                with (part.folder / "quarantine.csv").open(encoding="utf-8", newline="") as rows:
                    rows.readline()  # the header
                    shutil.copyfileobj(rows, file)


def check_alike(parts: Sequence[Part]) -> None:
    """Refuses parts with other columns or types than the first one's."""
    first = parts[0].summary
    for part in parts[1:]:
        other = part.summary
        if other["schema"] != first["schema"] or other["time_unit"] != first["time_unit"]:
            pairs = itertools.zip_longest(first["schema"], other["schema"], fillvalue="nothing")
            one, two = next((pair for pair in pairs if pair[0] != pair[1]), (first["time_unit"], other["time_unit"]))
            raise UserError(
                f"{other['source']} has other columns than {first['source']}: "
                f"{_shown(two)} where that has {_shown(one)}"
            )


def _shown(column: Any) -> str:
    return repr(column) if isinstance(column, str) else f"{column[0]!r} of type {column[1]}"
