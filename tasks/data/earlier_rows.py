"""Reuses rows that an earlier preparation encoded with the same ids, when a log only gained newer rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tasks.config.dataset import SPLIT_FRACTIONS, Dataset
from tasks.data.parsed_blocks import ParsedBlock
from tasks.data.parts import Part
from tasks.data.prepared import Layout
from tasks.data.schema import Schema
from tasks.integrity.manifest import check_folder
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json
from tasks.runtime.progress import say

ROWS_OF_A_COPY = 1 << 17


class EarlierRows(NamedTuple):
    """The oldest rows, already encoded: their arrays, the number of their parts, and their label sums by day."""

    layout: Layout
    parts: int
    by_day: dict[int, list[float]]


def find_earlier_rows(name: str, dataset: Dataset, parts: Sequence[Part], encoding: str | None) -> EarlierRows | None:
    """Returns the longest earlier preparation with the same ids and parts that all come before the others in time."""
    # A conversion on a new day may change the label of a click on an old day.
    if encoding is None or dataset.following:
        return None
    keys, best = [part.folder.name for part in parts], None
    for path in (home() / "data" / name).glob("*/schema.json"):
        try:
            schema: Schema = read_json(path)
        except (OSError, UserError):  # not ours, or being deleted
            continue
        count = len(schema.get("parts", ()))
        fits = schema.get("encoding") == encoding and 0 < count < len(keys) and schema["parts"] == keys[:count]
        if fits and (best is None or count > best.parts) and _is_before(parts[:count], parts[count:]):
            try:
                check_folder(path.parent)
            except UserError as error:
                say(f"{name}: earlier rows are not reused: {error}")
                continue
            best = EarlierRows(_layout(path.parent, dataset, schema), count, _days(schema))
    return best


def copy_rows(source: Layout, target: Layout, first_row: int, last_row: int) -> None:
    """Copies a range of rows to the same positions of another layout."""
    for array in target.arrays:
        target.write(array, first_row, source.read(array, first_row, last_row))


def _is_before(old: Sequence[Part], new: Sequence[Part]) -> bool:
    old_blocks: list[ParsedBlock] = [block for part in old for block in part.blocks()]
    new_blocks = [block for part in new for block in part.blocks()]
    ends = [block.last_time for block in old_blocks if block.last_time is not None]
    starts = [block.first_time for block in new_blocks if block.first_time is not None]
    return not ends or not starts or max(ends) <= min(starts)


def _layout(folder: Path, dataset: Dataset, schema: Schema) -> Layout:
    splits = tuple((split, schema["splits"][split]["rows"]) for split in SPLIT_FRACTIONS)
    columns = len(dataset.integer_columns), len(dataset.categorical_columns)
    return Layout(folder, splits, *columns, tuple(dataset.labels))


def _days(schema: Schema) -> dict[int, list[float]]:
    by_day = schema["statistics"]["by_day"]
    return {int(np.datetime64(day, "D").astype(int)): row for day, row in by_day.items()}
