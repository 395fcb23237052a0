"""Raw rows in DataFrames: whatever a log can have is read as training read it, and nothing else is."""

from __future__ import annotations

import decimal
import logging
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tasks.serving.frames import InvalidRows, feature_table

MISSING = ("-1", "none")


def number(value: Any) -> float | None:
    frame = pd.DataFrame({"n": pd.Series([value], dtype=object)})
    return feature_table(frame, ["n"], [], MISSING)["n"][0].as_py()


def token(value: Any) -> str:
    frame = pd.DataFrame({"c": pd.Series([value], dtype=object)})
    return feature_table(frame, [], ["c"], MISSING)["c"][0].as_py()


@pytest.mark.parametrize(
    ("given", "read"),
    [
        *[(value, None) for value in (None, math.nan, pd.NA, pd.NaT, "", "none", "-1", -1, "-1.0", np.float32("nan"))],
        *[(5, 5.0), ("5", 5.0), (" 5\t", 5.0), ("1e3", 1000.0), (np.int8(-7), -7.0), (2**70, 2.0**70)],
        *[(decimal.Decimal("2.5"), 2.5), (np.float32(0.5), 0.5), (0, 0.0)],
    ],
)  # fmt: skip
def test_numbers(given: Any, read: float | None) -> None:
    assert number(given) == read


@pytest.mark.parametrize(
    "given", ["abc", "1,5", "nan", "inf", "0x10", True, np.True_, math.inf, -math.inf, 10**400, b"5", [5]]
)
def test_what_is_not_a_number(given: Any) -> None:
    with pytest.raises(InvalidRows, match=r"row 0, column 'n': .* should be a finite number"):
        number(given)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        *[(value, "") for value in (None, math.nan, pd.NA, "", "none", "-1", -1, -1.0)],
        *[("größe", "größe"), ("7", "7"), (7, "7"), (7.0, "7"), ("7.0", "7.0"), (" a", " a"), ("日本\t語", "日本\t語")],
        *[(True, "true"), (np.False_, "false"), (2**63, str(2**63)), (-(10**30), str(-(10**30))), (np.uint64(9), "9")],
    ],
)  # fmt: skip
def test_tokens(given: Any, read: str) -> None:
    assert token(given) == read


@pytest.mark.parametrize("given", [1.5, 2.0**53, math.inf, b"x", ["a"], pd.Timestamp(0), decimal.Decimal(1)])
def test_what_is_not_a_token(given: Any) -> None:
    """A number above 2⁵³ may have been another one before pandas made it a float64."""
    with pytest.raises(InvalidRows, match=r"row 0, column 'c': .* should be text, a whole number, a boolean, or None"):
        token(given)


def test_text_that_is_not_unicode() -> None:
    with pytest.raises(InvalidRows, match="column 'c' has text that is not Unicode"):
        token("\ud800")


@pytest.mark.parametrize(
    "dtype", ["int64", "Int64", "float64", "float32", "str", "object", "category", "string", "int64[pyarrow]"]
)
def test_every_type_of_a_column_reads_the_same(dtype: str) -> None:
    values = pd.Series([3, 250, 3]).astype("str" if dtype in ("str", "string") else dtype).astype(dtype)
    table = feature_table(pd.DataFrame({"n": values, "c": values}), ["n"], ["c"], ())
    assert table["n"].to_pylist() == [3.0, 250.0, 3.0]
    assert table["c"].to_pylist() == ["3", "250", "3"]


def test_columns_that_are_absent_unknown_or_twice(caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.DataFrame({"n": [1], "label": [0]})
    with caplog.at_level(logging.WARNING):
        table = feature_table(frame, ["n", "m"], ["c"], ())
    assert table.to_pylist() == [{"n": 1.0, "m": None, "c": ""}]
    assert "rows without m, c: taken as missing values" in caplog.text
    with pytest.raises(InvalidRows, match="none of the model's columns n, c; they have: x"):
        feature_table(pd.DataFrame({"x": [1]}), ["n"], ["c"], ())
    with pytest.raises(InvalidRows, match="they have no columns"):
        feature_table(pd.DataFrame(), ["n"], ["c"], ())
    with pytest.raises(InvalidRows, match="more than one column 'n'"):
        feature_table(pd.DataFrame([[1, 2]], columns=["n", "n"]), ["n"], ["c"], ())


def test_no_rows() -> None:
    table = feature_table(pd.DataFrame({"n": [], "c": []}), ["n"], ["c"], MISSING)
    assert (table.num_rows, table.column_names) == (0, ["n", "c"])


def test_the_row_that_is_named_is_the_first_wrong_one() -> None:
    with pytest.raises(InvalidRows, match=r"row 2, column 'n': 'x' \(str\)"):
        feature_table(pd.DataFrame({"n": ["1", None, "x", "y"]}, index=[7, 7, 7, 7]), ["n"], [], ())
