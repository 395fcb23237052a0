"""Raw rows as a model's user has them, in a pandas DataFrame, to the columns that a reader of logs returns.

A value may be text, a number, a boolean, None or NaN, as in the log that the model was trained on: a number may come as
text, and a token as a whole number. It is also part of released models.
"""

from __future__ import annotations

import decimal
import logging
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tasks.logs.placeholders import with_missing
from tasks.logs.text_values import text_numbers
from tasks.logs.token_dictionaries import as_tokens

# Above, float64 does not hold every whole number, so that one cannot tell which number it was.
_LARGEST_EXACT = 2**53


class InvalidRows(ValueError):
    """Rows that the model cannot read. The message names the column and the first such row."""


def feature_table(
    frame: pd.DataFrame, integer_columns: Sequence[str], categorical_columns: Sequence[str], missing: Sequence[str]
) -> pa.Table:
    """Returns the feature columns of raw rows: float64 numbers, null if missing, and tokens, "" if missing.

    A column that the frame does not have is missing in every row; other columns than features are ignored.

    Raises:
        InvalidRows: The frame has no feature column, or one twice, or a value that its column cannot have.
    """
    names = [*integer_columns, *categorical_columns]
    given = [str(name) for name in frame.columns]
    for name in names:
        if given.count(name) > 1:
            raise InvalidRows(f"the rows have more than one column {name!r}")
    absent = [name for name in names if name not in given]
    if len(absent) == len(names):
        has = f"they have: {', '.join(given)}" if given else "they have no columns"
        raise InvalidRows(f"the rows have none of the model's columns {', '.join(names)}; {has}")
    if absent and len(frame):
        logging.getLogger(__name__).warning("rows without %s: taken as missing values", ", ".join(absent))
    columns: dict[str, pa.Array] = {}
    for name in integer_columns:
        columns[name] = _numbers(name, _column(frame, name), missing)
    for name in categorical_columns:
        columns[name] = _tokens(name, _column(frame, name))
    return with_missing(pa.table(columns), missing)


def _column(frame: pd.DataFrame, name: str) -> pd.Series:
    if name not in frame.columns:
        return pd.Series([None] * len(frame), dtype=object)
    values = frame[name]
    # A categorical column stands for its values.
    return values.astype(object) if isinstance(values.dtype, pd.CategoricalDtype) else values


def _numbers(name: str, values: pd.Series, missing: Sequence[str]) -> pa.Array:
    should = "a finite number, text of one, or None"
    if pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(values.dtype):
        if pd.api.types.is_complex_dtype(values.dtype):
            raise _invalid(name, values, 0, should)
        found = values.to_numpy(np.float64, na_value=np.nan)
    else:
        plain = list(values)
        found = np.array(_converted(name, values, _number, should), np.float64)
        written = [row for row, value in enumerate(plain) if isinstance(value, str)]
        parsed, bad = text_numbers(_texts(name, [plain[row] for row in written]), missing)
        if bad.any():
            raise _invalid(name, values, written[int(np.flatnonzero(bad)[0])], should)
        found[written] = parsed.to_numpy(zero_copy_only=False)
    infinite = np.flatnonzero(np.isinf(found))
    if len(infinite):
        raise _invalid(name, values, int(infinite[0]), should)
    # `from_pandas`: NaN becomes null.
    return pa.array(found, pa.float64(), from_pandas=True)


def _tokens(name: str, values: pd.Series) -> pa.DictionaryArray:
    if pd.api.types.is_bool_dtype(values.dtype) or pd.api.types.is_integer_dtype(values.dtype):
        return as_tokens(pa.array(values, from_pandas=True))
    should = "text, a whole number, a boolean, or None (read columns of tokens as text: dtype=str)"
    return as_tokens(_texts(name, _converted(name, values, _token, should)))


def _texts(name: str, texts: list[str]) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        raise InvalidRows(f"column {name!r} has text that is not Unicode") from None


def _converted(name: str, values: pd.Series, convert: Callable[[Any], Any], should: str) -> list[Any]:
    """Converts values one by one. Raises ``InvalidRows`` at the first for which ``convert`` raises ``ValueError``."""
    found = []
    for row, value in enumerate(values):
        try:
            found.append(convert(value))
        except (ValueError, OverflowError):
            raise _invalid(name, values, row, should) from None
    return found


def _number(value: Any) -> float:
    """Returns a number, NaN if it is missing or text."""
    if isinstance(value, str) or _is_missing(value):
        return math.nan
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | decimal.Decimal):
        raise ValueError(value)
    return float(value)


def _token(value: Any) -> str:
    """Returns a token as text, "" if it is missing.

    >>> _token("7a"), _token(7), _token(7.0), _token(True), _token(None)
    ('7a', '7', '7', 'true', '')
    """
    if isinstance(value, str):
        return str(value)
    if _is_missing(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, numbers.Integral):
        return str(int(value))
    # A column of whole numbers in which some are missing is one of float64 in pandas.
    if isinstance(value, numbers.Real) and float(value).is_integer() and abs(float(value)) < _LARGEST_EXACT:
        return str(int(float(value)))
    raise ValueError(value)


def _is_missing(value: Any) -> bool:
    return (
        value is None
        or value is pd.NA
        or value is pd.NaT
        or (isinstance(value, float | np.floating) and value != value)
    )


def _invalid(name: str, values: pd.Series, row: int, should: str) -> InvalidRows:
    value = values.iloc[row]
    return InvalidRows(f"row {row}, column {name!r}: {str(value)[:80]!r} ({type(value).__name__}) should be {should}")
