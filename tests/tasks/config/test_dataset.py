"""Descriptions of logs: derived columns, and the checks of contradicting keys."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tasks.config.dataset import Dataset

FOLLOWING = {"event": "order", "event_time": "ordered_at", "same": ["user"], "within_days": 30}
TEXT: dict[str, Any] = {
    "format": "csv",
    "header": True,
    "time_column": "time",
    "integer_columns": ["price"],
    "categorical_columns": ["site", "user"],
    "labels": {"pctr": {"column": "click", "kind": "binary"}},
}


def test_columns_by_how_they_are_read() -> None:
    described = Dataset.model_validate(
        {
            **TEXT,
            "missing": -1,
            "keep_rows": {"click": 1, "country": ["DE", "FR"]},
            "labels": {
                "pcvr": {"column": "sale", "kind": "any"},
                "pctr": {"column": "click", "kind": "binary"},
                "pconvs": {"kind": "count", "following": FOLLOWING},
            },
        }
    )
    assert described.missing == ("-1",)
    assert described.keep_rows == {"click": ("1",), "country": ("DE", "FR")}
    assert described.number_columns == ["price", "sale", "click"]
    assert described.time_columns == ["time", "ordered_at"]
    assert described.token_columns == ["site", "user", "order", "country"]
    assert len(described.following) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "parquet"}, "`header` is for text"),
        ({"format": "parquet", "header": False, "delimiter": ";"}, "`delimiter` is for text"),
        ({"format": "parquet", "header": False, "time_format": "iso8601"}, "`time_format: iso8601` is for text"),
        ({"columns": ["a"]}, "leave out `columns`"),
        ({"header": False}, "a csv without a header needs `columns`"),
        ({"delimiter": '"'}, "the delimiter cannot be"),
        ({"delimiter": ";;"}, "at most 1 character"),
        ({"time_column": None, "in_time_order": False}, "without a `time_column`, rows must be in the order of time"),
        ({"time_column": None, "time_format": "iso8601"}, "`time_format` needs a `time_column`"),
        ({"time_column": "price"}, "column 'price' is a label, a time or an event id, so it cannot be a feature"),
        ({"labels": {"pctr": {"kind": "binary"}}}, "a label needs either a `column` or `following` events"),
        (
            {"labels": {"pctr": {"kind": "count", "column": "click", "following": FOLLOWING}}},
            "a label needs either a `column` or `following` events",
        ),
        ({"labels": {"pcvr": {"kind": "binary", "following": FOLLOWING}}}, "`kind` must be count, or any"),
        ({"labels": {"pcvr": {"kind": "any", "following": {**FOLLOWING, "event": "site"}}}}, "cannot be a feature"),
        (
            {"time_column": None, "labels": {"pcvr": {"kind": "any", "following": FOLLOWING}}},
            "labels of `following` events need a `time_column`",
        ),
        (
            {"labels": {"pcvr": {"kind": "any", "following": {**FOLLOWING, "same": ["price"]}}}},
            "column 'price' cannot be both a number and a token or time",
        ),
        ({"vocabulary": "hash", "keep_vocabulary": True}, "`keep_vocabulary` needs a vocabulary made from the data"),
        ({"tolerated_bad_rows": 1.0}, "less than 1"),
        (
            {"header": False, "columns": ["a", "day"], "path_columns": ["day"]},
            "in both `columns` and `path_columns`",
        ),
        ({"header": False, "columns": ["click", "price", "site", "user"]}, "column 'time' is not in `columns`"),
    ],
)
def test_contradicting_keys_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Dataset.model_validate({**TEXT, **changes})
    assert message in str(caught.value)
