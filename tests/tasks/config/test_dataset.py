"""Descriptions of logs: what goes together and what does not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tasks.descriptions import Dataset

FOLLOWING = {"event": "order", "event_time": "ordered_at", "same": ["user"], "within_days": 30}
TEXT: dict[str, Any] = {
    "format": "csv",
    "header": True,
    "time_column": "time",
    "integer_columns": ["price"],
    "categorical_columns": ["site", "user"],
    "labels": {"pctr": {"column": "click", "kind": "binary"}},
}


def test_what_is_read_as_what() -> None:
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
    assert described.separator == ","
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
        ({"header": False}, "a csv without header needs `columns`"),
        ({"delimiter": '"'}, "the delimiter cannot be"),
        ({"delimiter": ";;"}, "at most 1 character"),
        ({"time_column": None, "in_time_order": False}, "nothing but the order of the rows tells their time"),
        ({"time_column": None, "time_format": "iso8601"}, "`time_format` is for a `time_column`"),
        ({"time_column": "price"}, "column 'price' is a label or the time, so it cannot be a feature"),
        ({"labels": {"pctr": {"kind": "binary"}}}, "give either the `column` of the label, or which `following`"),
        (
            {"labels": {"pctr": {"kind": "count", "column": "click", "following": FOLLOWING}}},
            "give either the `column` of the label, or which `following`",
        ),
        ({"labels": {"pcvr": {"kind": "binary", "following": FOLLOWING}}}, "`kind` must be count, or any"),
        ({"labels": {"pcvr": {"kind": "any", "following": {**FOLLOWING, "event": "site"}}}}, "cannot be a feature"),
        (
            {"time_column": None, "labels": {"pcvr": {"kind": "any", "following": FOLLOWING}}},
            "labels of `following` events need a `time_column`",
        ),
        (
            {"labels": {"pcvr": {"kind": "any", "following": {**FOLLOWING, "same": ["price"]}}}},
            "column 'price' is used both as a number and as a token or time",
        ),
        ({"vocabulary": "hash", "keep_vocabulary": True}, "`keep_vocabulary` is for a vocabulary made from the data"),
        ({"tolerated_bad_rows": 1.0}, "less than 1"),
        (
            {"header": False, "columns": ["a", "day"], "path_columns": ["day"]},
            "both in `columns` and in `path_columns`",
        ),
        ({"header": False, "columns": ["click", "price", "site", "user"]}, "column 'time' is not in `columns`"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Dataset.model_validate({**TEXT, **changes})
    assert message in str(caught.value)
