"""Placeholders: values of a log that stand for a missing one, such as -1 or "none".

It is also part of released models, so it imports nothing of ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def with_missing(table: pa.Table, missing: Sequence[str]) -> pa.Table:
    """Replaces the placeholders for missing values by null, or by "" for tokens."""
    if not missing:
        return table
    texts = pa.array(missing, pa.string())
    numbers = [number for number in map(as_number, missing) if number is not None]
    for position, name in enumerate(table.column_names):
        column = table[name].combine_chunks()
        if pa.types.is_dictionary(column.type):
            tokens = pc.if_else(pc.is_in(column.dictionary, value_set=texts), "", column.dictionary)
            column = pa.DictionaryArray.from_arrays(column.indices, tokens)
        else:
            fitting = [number for number in numbers if pa.types.is_floating(column.type) or number.is_integer()]
            placeholders = pc.is_in(column, value_set=pa.array(fitting, pa.float64()).cast(column.type))
            column = pc.if_else(placeholders, pa.scalar(None, column.type), column)
        table = table.set_column(position, name, column)
    return table


def as_number(text: str) -> float | None:
    """Returns the text as a finite number, or None if it is not one.

    >>> as_number("-1"), as_number("none"), as_number("inf")
    (-1.0, None, None)
    """
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
