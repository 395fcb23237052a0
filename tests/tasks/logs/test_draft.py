"""Drafts of descriptions: which columns of a log are its time, labels and features."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml

from tasks.config.dataset import Dataset
from tasks.logs.draft import draft_description
from tasks.logs.synthetic import generate
from tests.support.drafts import RNG, ROWS, Write, drafted, roles, text

ATTRIBUTION = [
    *("timestamp", "uid", "campaign", "conversion", "conversion_timestamp", "conversion_id", "attribution", "click"),
    *("click_pos", "click_nb", "cost", "cpo", "time_since_last_click", *(f"cat{n}" for n in range(1, 10))),
]


def test_the_layout_of_criteos_challenge(own_home: Path) -> None:
    found = draft_description([str(generate("display", 2000, 0))], name="mine")
    dataset = drafted(found)
    assert found["problems"] == []
    assert (found["name"], found["rows"], found["rows_sampled"], found["header"]) == ("mine", 2000, 2000, False)
    assert (dataset.format, dataset.delimiter, dataset.header) == ("tsv", None, False)
    assert dataset.columns == tuple(f"column_{n}" for n in range(1, 41))
    assert dataset.integer_columns == dataset.columns[1:14]
    assert dataset.categorical_columns == dataset.columns[14:]
    assert (dataset.time_column, dataset.in_time_order, dataset.missing) == (None, None, ())
    assert {task: (label.column, label.kind) for task, label in dataset.labels.items()} == {
        "pctr": ("column_1", "binary")
    }
    assert "guess" in found["yaml"]
    assert "in the order of time" in found["yaml"]
    assert found["columns"][1]["missing_share"] == pytest.approx(0.45, abs=0.05)


def test_synthetic_clicks(own_home: Path) -> None:
    path = generate("clicks", 2000, 0)
    found = draft_description([str(path)])
    dataset = drafted(found)
    shipped = yaml.safe_load((Path(__file__).parents[3] / "pipelines.yaml").read_text())["datasets"]
    assert found["problems"] == []
    assert (dataset.raw, dataset.format, dataset.time_column) == ((str(path),), "parquet", "timestamp")
    assert dataset.in_time_order is True
    for key in ("integer_columns", "categorical_columns"):
        assert list(getattr(dataset, key)) == shipped["synthetic_clicks"][key]
    assert dataset.labels == Dataset.model_validate(shipped["synthetic_clicks"]).labels
    assert len(found["yaml"].splitlines()) < 20
    assert found["yaml"] in found["text"]
    assert "make run DATASET=clicks TASKS=pcvr,pconvs" in found["text"]


def attribution(rows: int) -> str:
    """Rows as in Criteo's attribution log: -1 if there is no conversion or no earlier click."""
    converted = RNG.random(rows) < 0.1
    hashes = RNG.integers(10**6, 3 * 10**7, (rows // 20, 2))
    columns: list[Any] = [
        np.sort(RNG.integers(0, 2_600_000, rows)),
        RNG.choice(hashes[:, 0], rows),
        RNG.choice(hashes[:20, 1], rows),
        converted.astype(int),
        np.where(converted, RNG.integers(0, 2_600_000, rows), -1),
        np.where(converted, RNG.integers(0, 10**7, rows), -1),
        (converted & (RNG.random(rows) < 0.5)).astype(int),
        (RNG.random(rows) < 0.4).astype(int),
        np.where(converted, RNG.integers(0, 5, rows), -1),
        np.where(converted, RNG.integers(1, 9, rows), -1),
        [f"{cost:.6g}" for cost in RNG.exponential(1e-4, rows)],
        [f"{cost:.6g}" for cost in RNG.exponential(0.1, rows)],
        np.where(RNG.random(rows) < 0.4, -1, RNG.integers(0, 10**6, rows)),
        *(RNG.choice(hashes[: 5 + 3 * n, n % 2], rows) for n in range(9)),
    ]
    return text(list(zip(*columns, strict=True)), "\t", ATTRIBUTION)


def test_the_layout_of_criteos_attribution_log(write: Write) -> None:
    found = draft_description([write("criteo_attribution_dataset.tsv.gz", gzip.compress(attribution(3000).encode()))])
    dataset = drafted(found)
    assert found["problems"] == []
    assert (found["name"], found["compression"]) == ("criteo_attribution_dataset", "gzip")
    assert (dataset.format, dataset.header, dataset.missing) == ("tsv", True, ("-1",))
    assert (dataset.time_column, dataset.time_format, dataset.in_time_order) == ("timestamp", None, True)
    assert dataset.integer_columns == ("cost", "cpo", "time_since_last_click")
    assert dataset.categorical_columns == ("uid", "campaign", *(f"cat{n}" for n in range(1, 10)))
    assert {task: (label.column, label.kind) for task, label in dataset.labels.items()} == {
        "pctr": ("click", "binary"),
        "pcvr": ("conversion", "binary"),
    }
    assert {n: r for n, r in roles(found).items() if n not in (*dataset.used_columns,)} == {
        "conversion_timestamp": "after the fact",
        "conversion_id": "after the fact",
        "attribution": "after the fact",
        "click_pos": "only where a label is above 0",
        "click_nb": "only where a label is above 0",
    }
    for name in ("conversion_id", "click_pos"):
        assert name in found["yaml"].split("Left out")[1]


@pytest.mark.parametrize(
    ("times", "time_format"),
    [
        ([f"2023-10-01T12:{i // 60:02}:{i % 60:02}Z" for i in range(ROWS)], "iso8601"),
        ([f"2023-10-{1 + i // 60:02}" for i in range(ROWS)], "iso8601"),
        ([1_600_000_000 + i for i in range(ROWS)], None),
        ([1_600_000_000_000_000 + i for i in range(ROWS)], "microseconds"),
        ([14_102_100 + i // 100 for i in range(ROWS)], None),
    ],
)
@pytest.mark.parametrize("in_order", [True, False])
def test_times(write: Write, times: list[Any], time_format: str | None, in_order: bool) -> None:
    order = range(ROWS) if in_order else RNG.permutation(ROWS)
    rows = [[i % 7, times[i], i % 2] for i in order]
    found = draft_description([write("a.csv", text(rows, ",", ("visits", "event_time", "clicked")))])
    dataset = drafted(found)
    if times[0] == 14_102_100 and not in_order:  # numbers that could be anything, but for their name
        assert dataset.time_column is None
        return
    assert (dataset.time_column, dataset.time_format) == ("event_time", time_format)
    assert (dataset.in_time_order, found["in_time_order"]) == (in_order or None, in_order)


def test_the_finest_time_of_the_row_itself_is_chosen(write: Write) -> None:
    header = ("day", "conversion_time", "hour", "signup_date", "logged_at", "click")
    rows = [
        [f"2023-10-0{1 + i // 100}", 1_600_000_000 + i, i % 24, f"2020-0{1 + i % 9}-01", 1_600_000_000 + i, i % 3 // 2]
        for i in range(ROWS)
    ]
    found = draft_description([write("a.csv", text(rows, ",", header))])
    assert found["time_candidates"][0]["name"] == "logged_at"
    assert roles(found) == {
        "day": "another time",
        "conversion_time": "after the fact",
        "hour": "categorical",
        "signup_date": "another time",
        "logged_at": "time",
        "click": "label",
    }


def test_hours_of_the_day_are_not_the_time(write: Write) -> None:
    rows = [[i // 100, i % 5, i % 2] for i in range(ROWS)]
    assert drafted(draft_description([write("a.csv", text(rows, ",", ("hour", "n", "click")))])).time_column is None


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        ({"isClick": "01", "converted": "01"}, {"pctr": ("isClick", "binary"), "pcvr": ("converted", "binary")}),
        ({"num_sales": "0123"}, {"pcvr": ("num_sales", "any"), "pconvs": ("num_sales", "count")}),
        ({"conversions": "01"}, {"pcvr": ("conversions", "any"), "pconvs": ("conversions", "count")}),
        ({"orders": "0012", "purchase": "01"}, {"pcvr": ("purchase", "binary"), "pconvs": ("orders", "count")}),
        ({"label": "01", "clicked": "01", "is_mobile": "01"}, {"pctr": ("clicked", "binary")}),
        ({"is_mobile": "01", "y": "0"}, {"pctr": ("y", "binary")}),
        ({"a": "0123", "b": "01", "c": "01"}, {"pctr": ("b", "binary")}),
        ({"user_clicked": "01", "clicked_before": "01"}, {"pctr": ("user_clicked", "binary")}),
    ],
)
def test_labels(write: Write, columns: dict[str, str], labels: dict[str, tuple[str, str]]) -> None:
    values = [RNG.choice(list(of), ROWS) for of in columns.values()]
    rows = list(zip(RNG.choice(list("xyz"), ROWS), *values, strict=True))
    found = draft_description([write("a.csv", text(rows, ",", ("site", *columns)))])
    assert {t: (label.column, label.kind) for t, label in drafted(found).labels.items()} == labels
    assert ("guess" in found["yaml"]) == ("b" in columns)
    assert roles(found).get("is_mobile", "integer") == "integer"
    assert roles(found).get("clicked_before", "integer") == "integer"
    if "clicked" in columns:
        assert roles(found)["label"] == "like a label"


def test_a_log_without_labels_has_a_draft_that_says_so(write: Write) -> None:
    rows = [[i % 7, "xyz"[i % 3], "true" if i % 2 else "false"] for i in range(ROWS)]
    found = draft_description([write("a.csv", text(rows, ",", ("visits", "site", "clicked")))])
    assert any("no column can be a label" in problem for problem in found["problems"])
    assert any("clicked" in problem and "true" in problem for problem in found["problems"])
    assert any("not a complete description" in problem and "labels" in problem for problem in found["problems"])
    assert "# labels:" in found["yaml"]
    assert "labels" not in yaml.safe_load(found["yaml"])["a"]


def test_columns_that_are_no_features(tmp_path: Path) -> None:
    table = pa.table(
        {
            "click": pa.array(np.arange(ROWS) % 3 == 0),
            "request": [f"{i:032x}" for i in range(ROWS)],
            "row": np.arange(ROWS),
            "version": ["1.2"] * ROWS,
            "nothing": pa.nulls(ROWS, pa.string()),
            "tags": [[1, 2]] * ROWS,
            "blob": [b"x"] * ROWS,
            "sales_amount": RNG.random(ROWS),
            "time_delay_for_conversion": RNG.random(ROWS),
            "landing": [i % 5 + 1.0 if i % 3 == 0 else None for i in range(ROWS)],
            "seen": pa.array(1000 * np.arange(ROWS), pa.timestamp("ms", "Europe/Berlin")),
            "born": pa.array(np.arange(ROWS, dtype=np.int32) % 9, pa.int32()).cast(pa.date32()),
            "advertiser_id": [float(i % 9) for i in range(ROWS)],
            "device_type": pa.array(np.arange(ROWS) % 4, pa.int8()),
            "user": RNG.integers(0, 2**62, 99)[np.arange(ROWS) % 99],
            "site": pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode(),
            "is_app": pa.array([True, False, None, False] * (ROWS // 4)),
            "price": pa.array(np.arange(ROWS) % 50).cast(pa.decimal128(25, 2)),
            "bid_micros": 10_000 * RNG.integers(100, 500, ROWS),
        }
    )
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    found = draft_description([str(tmp_path / "a.parquet")])
    dataset = drafted(found)
    assert found["problems"] == []
    assert dataset.integer_columns == ("price", "bid_micros")
    assert dataset.categorical_columns == ("device_type", "user", "site", "is_app")
    assert (dataset.time_column, dataset.in_time_order) == ("seen", True)
    assert {n: r for n, r in roles(found).items() if n not in dataset.used_columns} == {
        "request": "nearly unique",
        "row": "nearly unique",
        "version": "constant",
        "nothing": "no values",
        "tags": "unsupported type",
        "blob": "unsupported type",
        "sales_amount": "after the fact",
        "time_delay_for_conversion": "after the fact",
        "landing": "only where a label is above 0",
        "born": "another time",
        "advertiser_id": "ids stored as fractions",
    }


def test_what_stands_for_a_missing_value(write: Write) -> None:
    rows = [
        [i % 2, "NULL" if i % 50 == 0 else i, "NA" if i % 4 == 0 else "xyz"[i % 3], -999 if i % 9 == 0 else i % 13]
        for i in range(ROWS)
    ]
    found = draft_description([write("a.csv", text(rows, ",", ("click", "visits", "country", "age")))])
    dataset, columns = drafted(found), {column["name"]: column for column in found["columns"]}
    assert dataset.missing == ("NULL",)  # a word among numbers; the others may mean themselves, or the sample is odd
    assert columns["visits"]["type"] == "integer"
    assert columns["visits"]["stand_ins"] == {"NULL": pytest.approx(0.02)}
    assert columns["country"]["stand_ins"] == {"NA": pytest.approx(0.25)}
    assert columns["age"]["stand_ins"] == {"-999": pytest.approx(1 / 9, abs=0.01)}
    assert "NA 25 %" in found["text"]


@pytest.mark.parametrize(("lowest", "missing"), [(-1, ("-1",)), (-2, ())])
def test_a_negative_number_may_mean_itself(write: Write, lowest: int, missing: tuple[str, ...]) -> None:
    """-1 is the only negative number of two columns; a third column decides whether it means missing."""
    rows = [[i % 2, i % 7 - 1, i % 5 - 1, i % 11 + lowest] for i in range(ROWS)]
    assert drafted(draft_description([write("a.csv", text(rows, ",", ("click", "a", "b", "c")))])).missing == missing


def test_codes_with_leading_zeros_are_text(write: Write) -> None:
    rows = [[i % 2, f"{i % 24:02}", i] for i in range(ROWS)]
    assert drafted(
        draft_description([write("a.csv", text(rows, ",", ("click", "slot", "n")))])
    ).categorical_columns == ("slot",)


def test_a_few_words_among_numbers_are_a_problem(write: Write) -> None:
    rows = [[i % 2, "oops" if i == 7 else i % 97] for i in range(2000)]
    found = draft_description([write("a.csv", text(rows, ",", ("click", "visits")))])
    assert drafted(found).integer_columns == ("visits",)
    assert found["problems"] == ["column visits has values that are not numbers in under 0.1 % of the rows"]


def test_awkward_names_survive(write: Write, tmp_path: Path) -> None:
    names = ["on", "null", "a: b", "x # y", "[red]z[/]", "é\u2028\x1b[31m", "1e5", "  ", '"', "-", "{", "2023-10-01"]
    table = pa.table({"click": np.arange(ROWS) % 2} | {name: np.arange(ROWS) % 7 for name in names})
    pa.parquet.write_table(table, tmp_path / "on.parquet")
    found = draft_description([str(tmp_path / "on.parquet")])
    assert found["name"] == "log_on"
    assert set(drafted(found).integer_columns) == set(names)
    assert "\x1b" not in found["text"] + found["yaml"]
    assert "[red]z[/]" in found["text"]


def test_names_that_are_twice_or_missing(write: Write) -> None:
    rows = [[i, i % 2, i % 5, i % 7, i % 9] for i in range(ROWS)]
    found = draft_description([write("a.csv", text(rows, ",", ("", "click", "a", "b", "b")))])
    assert found["problems"] == ["the header has more than one column b"]
    assert found["columns"][0]["role"] == "no name"
    assert drafted(found).integer_columns == ("a",)


@pytest.mark.parametrize(("unit", "time_format"), [(1, None), (1000, "milliseconds"), (10**6, "microseconds")])
def test_numbers_that_are_times_in_parquet(tmp_path: Path, unit: int, time_format: str | None) -> None:
    times = [unit * (1_600_000_000 + i) for i in range(ROWS)]
    table = pa.table(
        {"event_time": times, "visits": [i % 7 for i in range(ROWS)], "clicked": [i % 2 for i in range(ROWS)]}
    )
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    dataset = drafted(draft_description([str(tmp_path / "a.parquet")]))
    assert (dataset.time_column, dataset.time_format) == ("event_time", time_format)
