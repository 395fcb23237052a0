"""Rows that an earlier preparation encoded already, with the same ids, and that new days only add to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tasks.descriptions import SPLIT_FRACTIONS, Dataset
from tasks.encoded import Layout
from tasks.home import home, read_json
from tasks.parsed_blocks import ParsedBlock
from tasks.parts import Part

ROWS_OF_A_COPY = 1 << 17


class EarlierRows(NamedTuple):
    """The first rows of the order of time: where they are, from how many parts, and their labels by day."""

    layout: Layout
    parts: int
    by_day: dict[int, list[float]]


def find_earlier_rows(name: str, dataset: Dataset, parts: Sequence[Part], encoding: str | None) -> EarlierRows | None:
    """The longest earlier preparation whose parts come first, before all others in time, encoded in the same way."""
    # A conversion on a new day may belong to a click on an old one, whose label is then another.
    if encoding is None or dataset.following:
        return None
    keys, best = [part.folder.name for part in parts], None
    for path in (home() / "data" / name).glob("*/schema.json"):
        try:
            schema = read_json(path)
        except (OSError, ValueError):  # not ours, or being deleted
            continue
        count = len(schema.get("parts", ()))
        fits = schema.get("encoding") == encoding and 0 < count < len(keys) and schema["parts"] == keys[:count]
        if fits and (best is None or count > best.parts) and _is_before(parts[:count], parts[count:]):
            best = EarlierRows(_layout(path.parent, dataset, schema), count, _days(schema))
    return best


def copy_rows(source: Layout, target: Layout, first_row: int, last_row: int) -> None:
    for array in target.arrays:
        target.write(array, first_row, source.read(array, first_row, last_row))


def _is_before(old: Sequence[Part], new: Sequence[Part]) -> bool:
    old_blocks: list[ParsedBlock] = [block for part in old for block in part.blocks()]
    new_blocks = [block for part in new for block in part.blocks()]
    ends = [block.last_time for block in old_blocks if block.last_time is not None]
    starts = [block.first_time for block in new_blocks if block.first_time is not None]
    return not ends or not starts or max(ends) <= min(starts)


def _layout(folder: Path, dataset: Dataset, schema: dict[str, Any]) -> Layout:
    splits = tuple((split, schema["splits"][split]["rows"]) for split in SPLIT_FRACTIONS)
    columns = len(dataset.integer_columns), len(dataset.categorical_columns)
    return Layout(folder, splits, *columns, tuple(dataset.labels))


def _days(schema: dict[str, Any]) -> dict[int, list[float]]:
    by_day = schema["statistics"]["by_day"]
    return {int(np.datetime64(day, "D").astype(int)): row for day, row in by_day.items()}
