"""Drafts of descriptions: what is found in logs of many kinds, and that no bytes at all make it fail."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tasks import log_samples
from tasks.describe import describe
from tasks.descriptions import Dataset
from tasks.errors import UserError
from tasks.synthetic import generate

Write = Callable[[str, str | bytes], str]
ROWS = 600
RNG = np.random.default_rng(0)
ATTRIBUTION = [
    *("timestamp", "uid", "campaign", "conversion", "conversion_timestamp", "conversion_id", "attribution", "click"),
    *("click_pos", "click_nb", "cost", "cpo", "time_since_last_click", *(f"cat{n}" for n in range(1, 10))),
]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write_file


def text(rows: Sequence[Sequence[Any]], delimiter: str = ",", header: Sequence[str] = ()) -> str:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([header] * bool(header) + list(rows))
    return file.getvalue()


def clicks(rows: int = ROWS) -> list[list[Any]]:
    """A time in milliseconds, a site, a price and a click."""
    sites = RNG.choice(["a.com", "b.com", 'c "quoted", d'], rows)
    return [
        [1_700_000_000_000 + 1000 * i, sites[i], round(0.01 * i % 7, 2), int(RNG.random() < 0.3)] for i in range(rows)
    ]


CLICKS = ("ts", "site", "price", "click")


def drafted(found: dict[str, Any]) -> Dataset:
    """The draft as it would be pasted."""
    json.dumps(found, allow_nan=False)
    assert max(map(len, found["yaml"].splitlines())) <= 120 or "raw" in found["yaml"]
    return Dataset.model_validate(yaml.safe_load(f"datasets:\n{found['yaml']}")["datasets"][found["name"]])


def roles(found: dict[str, Any]) -> dict[str, str]:
    return {column["name"]: column["role"] for column in found["columns"]}


def test_the_layout_of_criteos_challenge(own_home: Path) -> None:
    found = describe([str(generate("display", 2000, 0))], name="mine")
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
    found = describe([str(path)])
    dataset = drafted(found)
    shipped = yaml.safe_load((Path(__file__).parent.parent / "pipelines.yaml").read_text())["datasets"]
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
    """Rows as in Criteo's attribution log: -1 where there is no conversion or no click before."""
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
    found = describe([write("criteo_attribution_dataset.tsv.gz", gzip.compress(attribution(3000).encode()))])
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


@pytest.mark.parametrize(("delimiter", "kind"), [(",", "csv"), (";", "csv"), ("|", "csv"), ("\t", "tsv")])
@pytest.mark.parametrize("has_header", [True, False])
def test_delimiters_quotes_and_headers(write: Write, delimiter: str, kind: str, has_header: bool) -> None:
    rows = [[t, site.replace('"', "") if kind == "tsv" else site, p, c] for t, site, p, c in clicks()]
    found = describe([write("a.log", text(rows, delimiter, CLICKS if has_header else ()))])
    dataset = drafted(found)
    names = CLICKS if has_header else tuple(f"column_{n}" for n in range(1, 5))
    assert found["problems"] == []
    assert [column["name"] for column in found["columns"]] == list(names)
    assert [column["type"] for column in found["columns"]] == ["integer", "text", "number", "integer"]
    assert found["columns"][1]["distinct"] == 3
    assert (dataset.format, dataset.separator, dataset.header) == (kind, delimiter, has_header)
    assert (dataset.time_column, dataset.time_format, dataset.in_time_order) == (names[0], "milliseconds", True)
    assert (dataset.categorical_columns, dataset.integer_columns) == (names[1:2], names[2:3])
    assert found["label_candidates"] == [
        {"name": names[3], "task": "pctr", "kind": "binary", "is_guess": not has_header}
    ]


def test_a_quoted_text_with_tabs_is_a_csv(write: Write) -> None:
    rows = "".join(f'"{site}"\t{c}\t{p}\n' for _, site, p, c in clicks() if '"' not in site)
    dataset = drafted(describe([write("a.txt", '"site"\t"click"\t"price"\n' + rows)]))
    assert (dataset.format, dataset.separator, dataset.categorical_columns) == ("csv", "\t", ("site",))


def test_a_decimal_comma_is_no_delimiter(write: Write) -> None:
    rows = "".join(f"{i % 2};{i % 7},5;{i % 9},25;{i % 5},5\n" for i in range(ROWS))
    found = describe([write("a.csv", "click;a;b;c\n" + rows)])
    assert (found["delimiter"], [column["name"] for column in found["columns"]]) == (";", ["click", "a", "b", "c"])


def test_byte_order_mark_and_carriage_returns(write: Write) -> None:
    content = "\ufeff" + text(clicks(), ",", CLICKS).replace("\n", "\r\n")
    found = describe([write("a.csv", content)])
    assert found["problems"] == []
    assert list(roles(found).items()) == [
        *[("ts", "time"), ("site", "categorical"), ("price", "integer"), ("click", "label")]
    ]


def test_compression_makes_no_difference(write: Write, tmp_path: Path) -> None:
    content = text(clicks(), ",", CLICKS)
    plain = describe([write("plain.csv", content)], name="x")
    with pa.output_stream(str(tmp_path / "x.csv.zst"), compression="zstd") as file:
        file.write(content.encode())
    for path in (write("x.csv.gz", gzip.compress(content.encode())), str(tmp_path / "x.csv.zst")):
        packed = describe([path], name="x")
        assert packed["compression"] in ("gzip", "zstd")
        assert packed["columns"] == plain["columns"]
        assert packed["yaml"].replace(path, "") == plain["yaml"].replace(plain["files"][0], "")


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
    found = describe([write("a.csv", text(rows, ",", ("visits", "event_time", "clicked")))])
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
    found = describe([write("a.csv", text(rows, ",", header))])
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
    assert drafted(describe([write("a.csv", text(rows, ",", ("hour", "n", "click")))])).time_column is None


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
    found = describe([write("a.csv", text(rows, ",", ("site", *columns)))])
    assert {t: (label.column, label.kind) for t, label in drafted(found).labels.items()} == labels
    assert ("guess" in found["yaml"]) == ("b" in columns)
    assert roles(found).get("is_mobile", "integer") == "integer"
    assert roles(found).get("clicked_before", "integer") == "integer"
    if "clicked" in columns:
        assert roles(found)["label"] == "like a label"


def test_a_log_without_labels_has_a_draft_that_says_so(write: Write) -> None:
    rows = [[i % 7, "xyz"[i % 3], "true" if i % 2 else "false"] for i in range(ROWS)]
    found = describe([write("a.csv", text(rows, ",", ("visits", "site", "clicked")))])
    assert any("no column can be a label" in problem for problem in found["problems"])
    assert any("clicked" in problem and "true" in problem for problem in found["problems"])
    assert any("not a whole description" in problem and "labels" in problem for problem in found["problems"])
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
    found = describe([str(tmp_path / "a.parquet")])
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
        "tags": "type cannot be used",
        "blob": "type cannot be used",
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
    found = describe([write("a.csv", text(rows, ",", ("click", "visits", "country", "age")))])
    dataset, columns = drafted(found), {column["name"]: column for column in found["columns"]}
    assert dataset.missing == ("NULL",)  # a word among numbers; the others may mean themselves, or the sample is odd
    assert columns["visits"]["type"] == "integer"
    assert columns["visits"]["stand_ins"] == {"NULL": pytest.approx(0.02)}
    assert columns["country"]["stand_ins"] == {"NA": pytest.approx(0.25)}
    assert columns["age"]["stand_ins"] == {"-999": pytest.approx(1 / 9, abs=0.01)}
    assert "NA 25 %" in found["text"]


@pytest.mark.parametrize(("lowest", "missing"), [(-1, ("-1",)), (-2, ())])
def test_a_negative_number_may_mean_itself(write: Write, lowest: int, missing: tuple[str, ...]) -> None:
    """Two columns have -1 as their only negative number; whether it is missing depends on a third one."""
    rows = [[i % 2, i % 7 - 1, i % 5 - 1, i % 11 + lowest] for i in range(ROWS)]
    assert drafted(describe([write("a.csv", text(rows, ",", ("click", "a", "b", "c")))])).missing == missing


def test_codes_with_leading_zeros_are_text(write: Write) -> None:
    rows = [[i % 2, f"{i % 24:02}", i] for i in range(ROWS)]
    assert drafted(describe([write("a.csv", text(rows, ",", ("click", "slot", "n")))])).categorical_columns == ("slot",)


def test_a_few_words_among_numbers_are_a_problem(write: Write) -> None:
    rows = [[i % 2, "oops" if i == 7 else i % 97] for i in range(2000)]
    found = describe([write("a.csv", text(rows, ",", ("click", "visits")))])
    assert drafted(found).integer_columns == ("visits",)
    assert found["problems"] == ["column visits has values that are not numbers in under 0.1 % of the rows"]


def test_awkward_names_survive(write: Write, tmp_path: Path) -> None:
    names = ["on", "null", "a: b", "x # y", "[red]z[/]", "é\u2028\x1b[31m", "1e5", "  ", '"', "-", "{", "2023-10-01"]
    table = pa.table({"click": np.arange(ROWS) % 2} | {name: np.arange(ROWS) % 7 for name in names})
    pa.parquet.write_table(table, tmp_path / "on.parquet")
    found = describe([str(tmp_path / "on.parquet")])
    assert found["name"] == "log_on"
    assert set(drafted(found).integer_columns) == set(names)
    assert "\x1b" not in found["text"] + found["yaml"]
    assert "[red]z[/]" in found["text"]


def test_names_that_are_twice_or_missing(write: Write) -> None:
    rows = [[i, i % 2, i % 5, i % 7, i % 9] for i in range(ROWS)]
    found = describe([write("a.csv", text(rows, ",", ("", "click", "a", "b", "b")))])
    assert found["problems"] == ["the header has more than one column b"]
    assert found["columns"][0]["role"] == "no name"
    assert drafted(found).integer_columns == ("a",)


def test_only_the_first_rows_are_read(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write("a.csv", text(clicks(5000), ",", CLICKS))
    found = describe([path], sample_rows=1000)
    assert (found["rows_sampled"], found["rows"]) == (1000, None)
    assert found["columns"][0]["distinct"] == 1000
    assert found["columns"][0]["distinct_is_at_least"]
    assert "≥ 1,000" in found["text"]
    monkeypatch.setattr(log_samples, "_MOST_BYTES", 20_000)
    monkeypatch.setattr(log_samples, "_PIECE", 1000)
    found = describe([path])
    assert 100 < found["rows_sampled"] < 1000
    assert found["problems"] == []
    table = pa.table({"click": np.arange(5000) % 2, "n": np.arange(5000) % 9})
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    found = describe([str(tmp_path / "a.parquet")], sample_rows=1000)
    assert (found["rows_sampled"], found["rows"]) == (1000, 5000)


def test_several_files(write: Write) -> None:
    rows = clicks(900)
    for day, start in enumerate((600, 0, 300), start=1):
        write(f"logs/day={day}/part.csv", text(rows[start : start + 300], ",", CLICKS))
    folder = write("x", "y").removesuffix("/x")
    found = describe([f"{folder}/logs/day=*/*.csv"])
    assert (found["name"], len(found["files"]), found["rows"], found["from_path"]) == ("logs", 3, None, ["day"])
    assert found["in_time_order"] is False  # each file is, but the last one is before the first
    assert drafted(found).raw == (f"{folder}/logs/day=*/*.csv",)
    assert "and 2 more" in found["text"]
    assert "path has a value of day" in found["yaml"]
    files = [f"{folder}/logs/day={day}/part.csv" for day in (2, 3, 1)]
    found = describe(files)
    assert (found["in_time_order"], found["problems"]) == (True, [])
    assert drafted(found).raw == tuple(files)


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (text(clicks(9), ",", ("ts", "place", "price", "click")), "lacks site and adds place"),
        (text([row[::-1] for row in clicks(9)], ",", CLICKS[::-1]), "another order"),
        (text(clicks(9), ";", CLICKS), "not the format"),
        (b"\0\0", "neither a Parquet file nor text"),
    ],
)
def test_a_last_file_that_differs(write: Write, last: str | bytes, problem: str) -> None:
    found = describe([write("1.csv", text(clicks(), ",", CLICKS)), write("2.csv", last)])
    assert len(found["problems"]) == 1
    assert problem in found["problems"][0]
    assert "2.csv" in found["problems"][0]


def test_the_types_of_a_last_parquet_file(tmp_path: Path) -> None:
    for name, kind in (("1", pa.int64()), ("2", pa.string())):
        table = pa.table({"click": np.arange(99) % 2, "n": pa.array(np.arange(99) % 9).cast(kind)})
        pa.parquet.write_table(table, tmp_path / f"{name}.parquet")
    found = describe([str(tmp_path)])
    assert found["rows"] == 198
    assert [problem.partition(" has ")[2] for problem in found["problems"]] == ["other types than the first file in n"]


def test_lines_that_do_not_fit_are_reported(write: Write) -> None:
    lines = text(clicks(), ",", CLICKS).split("\n")
    lines[10] += ",more"
    lines[20] = ""
    lines[30] = '1,"open,2,3'
    found = describe([write("a.csv", "\n".join(lines))])
    drafted(found)
    assert found["problems"] == ["0.499 % of the lines have not 4 fields; the first of them is line 11"]


def test_a_few_lines_that_are_no_text(write: Write) -> None:
    lines = text(clicks(), ",", CLICKS).encode().split(b"\n")
    lines[10], lines[400] = b"\xff\xfe,\xe4,1,1", b"a\0b,1,1,1"
    found = describe([write("a.csv", b"\n".join(lines))])
    drafted(found)
    assert found["problems"] == [
        "0.333 % of the lines cannot be read; the first is line 11: not UTF-8 (byte 0xff at position 1)"
    ]
    latin = text([[i % 2, "Zürich", i] for i in range(ROWS)]).encode("latin-1")
    with pytest.raises(UserError, match=r"line 1: not UTF-8 .* 100 % of the lines"):
        describe([write("b.csv", latin)])


def test_a_file_that_breaks_off(write: Write, tmp_path: Path) -> None:
    packed = gzip.compress(text([[i % 2, RNG.integers(10**4)] for i in range(50_000)], ",", ("click", "n")).encode())
    found = describe([write("a.csv.gz", packed[: len(packed) // 2])], sample_rows=10**6)
    assert [problem.partition(" broken ")[0] for problem in found["problems"]] == ["the gzip file is"]
    assert found["rows"] is None
    with pytest.raises(UserError, match="not a whole gzip file"):
        describe([write("b.csv.gz", b"\x1f\x8bnonsense")])
    pa.parquet.write_table(pa.table({"click": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="not a whole Parquet file"):
        describe([write("b.parquet", (tmp_path / "a.parquet").read_bytes()[:-5])])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "are empty"),
        (b"\n\t\n \n", "only blank lines"),
        (bytes(range(256)) * 50, "neither a Parquet file nor text"),
        ("a,b\n1,2\n".encode("utf-16"), "neither a Parquet file nor text"),
        (gzip.compress(b"PAR1....PAR1", mtime=0), "neither a Parquet file nor text"),
        ("click,site,price\n", "no rows after their header"),
        ("click,site\r1,a\r0,b\r", "carriage return"),
        ('{"click": 1, "site": "a"}\n', "JSON"),
        ("x" * (1 << 21), "longer than 1 MB"),
    ],
)
def test_what_cannot_be_described(write: Write, content: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        describe([write("a.csv", content)])


@pytest.mark.parametrize("content", ["0,1,2\n", "5", "0\n1\n0\n", "click\n1\n0\n", "1,,\n,,\n"])
def test_very_little_is_described_all_the_same(write: Write, content: str) -> None:
    found = describe([write("a.csv", content)])
    assert yaml.safe_load(found["yaml"])["a"]["format"] in ("csv", "tsv")


SNIPPETS = st.sampled_from(
    [
        "0",
        "1",
        "-1",
        "2.5",
        "NULL",
        "2023-10-01",
        "1e999",
        '"',
        '""',
        ",",
        "\t",
        ";",
        "|",
        "\n",
        "\r\n",
        "click",
        "é",
        " ",
    ]
)
PARQUET = io.BytesIO()
pa.parquet.write_table(pa.table({"click": [0, 1] * 50, "site": ["a", "b"] * 50, "t": [[1]] * 100}), PARQUET)


def check(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        found = describe([str(path)])
    except UserError:
        return
    json.dumps(found, allow_nan=False)
    assert list(yaml.safe_load(found["yaml"])) == [found["name"]]
    assert found["problems"] or drafted(found)


FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@settings(FUZZ, max_examples=100)
@given(st.lists(SNIPPETS, max_size=60).map("".join) | st.text(max_size=80))
@example("a\x85b,c\n1,2\n")
@example('"\n"\n')
def test_no_text_makes_it_fail(tmp_path: Path, content: str) -> None:
    check(tmp_path / "f", content.encode("utf-8", "surrogatepass"))


@settings(FUZZ, max_examples=100)
@given(
    st.binary(max_size=80),
    st.sampled_from([b"", b"PAR1", b"\x1f\x8b\x08", b"(\xb5/\xfd", b"\xef\xbb\xbf", b"click,a\n0,"]),
)
def test_no_bytes_make_it_fail(tmp_path: Path, content: bytes, start: bytes) -> None:
    check(tmp_path / "f", start + content)


@settings(FUZZ, max_examples=60)
@given(st.integers(4, len(PARQUET.getvalue()) - 1), st.binary(min_size=1, max_size=4))
def test_no_damage_to_a_parquet_file_makes_it_fail(tmp_path: Path, place: int, damage: bytes) -> None:
    whole = PARQUET.getvalue()
    check(tmp_path / "f", whole[:place] + damage + whole[place + len(damage) :])


@pytest.mark.parametrize(("unit", "time_format"), [(1, None), (1000, "milliseconds"), (10**6, "microseconds")])
def test_numbers_that_are_times_in_parquet(tmp_path: Path, unit: int, time_format: str | None) -> None:
    times = [unit * (1_600_000_000 + i) for i in range(ROWS)]
    table = pa.table(
        {"event_time": times, "visits": [i % 7 for i in range(ROWS)], "clicked": [i % 2 for i in range(ROWS)]}
    )
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    dataset = drafted(describe([str(tmp_path / "a.parquet")]))
    assert (dataset.time_column, dataset.time_format) == ("event_time", time_format)
