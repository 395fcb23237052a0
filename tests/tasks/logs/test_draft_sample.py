"""Samples of logs: formats are detected, faults are reported, and no input crashes the draft."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tasks.logs import draft_sample as log_samples
from tasks.logs.draft import draft_description
from tasks.runtime.errors import UserError
from tests.support.drafts import CLICKS, RNG, ROWS, Write, clicks, drafted, roles, text


@pytest.mark.parametrize(("delimiter", "kind"), [(",", "csv"), (";", "csv"), ("|", "csv"), ("\t", "tsv")])
@pytest.mark.parametrize("has_header", [True, False])
def test_delimiters_quotes_and_headers(write: Write, delimiter: str, kind: str, has_header: bool) -> None:
    rows = [[t, site.replace('"', "") if kind == "tsv" else site, p, c] for t, site, p, c in clicks()]
    found = draft_description([write("a.log", text(rows, delimiter, CLICKS if has_header else ()))])
    dataset = drafted(found)
    names = CLICKS if has_header else tuple(f"column_{n}" for n in range(1, 5))
    assert found["problems"] == []
    assert [column["name"] for column in found["columns"]] == list(names)
    assert [column["type"] for column in found["columns"]] == ["integer", "text", "number", "integer"]
    assert found["columns"][1]["distinct"] == 3
    set_delimiter = None if delimiter in (",", "\t") else delimiter
    assert (dataset.format, dataset.delimiter, dataset.header) == (kind, set_delimiter, has_header)
    assert (dataset.time_column, dataset.time_format, dataset.in_time_order) == (names[0], "milliseconds", True)
    assert (dataset.categorical_columns, dataset.integer_columns) == (names[1:2], names[2:3])
    assert found["label_candidates"] == [
        {"name": names[3], "task": "pctr", "kind": "binary", "is_guess": not has_header}
    ]


def test_a_quoted_text_with_tabs_is_a_csv(write: Write) -> None:
    rows = "".join(f'"{site}"\t{c}\t{p}\n' for _, site, p, c in clicks() if '"' not in site)
    dataset = drafted(draft_description([write("a.txt", '"site"\t"click"\t"price"\n' + rows)]))
    assert (dataset.format, dataset.delimiter, dataset.categorical_columns) == ("csv", "\t", ("site",))


def test_a_decimal_comma_is_no_delimiter(write: Write) -> None:
    rows = "".join(f"{i % 2};{i % 7},5;{i % 9},25;{i % 5},5\n" for i in range(ROWS))
    found = draft_description([write("a.csv", "click;a;b;c\n" + rows)])
    assert (found["delimiter"], [column["name"] for column in found["columns"]]) == (";", ["click", "a", "b", "c"])


def test_byte_order_mark_and_carriage_returns(write: Write) -> None:
    content = "\ufeff" + text(clicks(), ",", CLICKS).replace("\n", "\r\n")
    found = draft_description([write("a.csv", content)])
    assert found["problems"] == []
    assert list(roles(found).items()) == [
        *[("ts", "time"), ("site", "categorical"), ("price", "integer"), ("click", "label")]
    ]


def test_compression_makes_no_difference(write: Write, tmp_path: Path) -> None:
    content = text(clicks(), ",", CLICKS)
    plain = draft_description([write("plain.csv", content)], name="x")
    with pa.output_stream(str(tmp_path / "x.csv.zst"), compression="zstd") as file:
        file.write(content.encode())
    for path in (write("x.csv.gz", gzip.compress(content.encode())), str(tmp_path / "x.csv.zst")):
        packed = draft_description([path], name="x")
        assert packed["compression"] in ("gzip", "zstd")
        assert packed["columns"] == plain["columns"]
        assert packed["yaml"].replace(path, "") == plain["yaml"].replace(plain["files"][0], "")


def test_only_the_first_rows_are_read(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write("a.csv", text(clicks(5000), ",", CLICKS))
    found = draft_description([path], sample_rows=1000)
    assert (found["rows_sampled"], found["rows"]) == (1000, None)
    assert found["columns"][0]["distinct"] == 1000
    assert found["columns"][0]["distinct_is_at_least"]
    assert "≥ 1,000" in found["text"]
    monkeypatch.setattr(log_samples, "_MOST_BYTES", 20_000)
    monkeypatch.setattr(log_samples, "_PIECE", 1000)
    found = draft_description([path])
    assert 100 < found["rows_sampled"] < 1000
    assert found["problems"] == []
    table = pa.table({"click": np.arange(5000) % 2, "n": np.arange(5000) % 9})
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    found = draft_description([str(tmp_path / "a.parquet")], sample_rows=1000)
    assert (found["rows_sampled"], found["rows"]) == (1000, 5000)


def test_several_files(write: Write) -> None:
    rows = clicks(900)
    for day, start in enumerate((600, 0, 300), start=1):
        write(f"logs/day={day}/part.csv", text(rows[start : start + 300], ",", CLICKS))
    folder = write("x", "y").removesuffix("/x")
    found = draft_description([f"{folder}/logs/day=*/*.csv"])
    assert (found["name"], len(found["files"]), found["rows"], found["from_path"]) == ("logs", 3, None, ["day"])
    assert found["in_time_order"] is False  # each file is, but the last one is before the first
    assert drafted(found).raw == (f"{folder}/logs/day=*/*.csv",)
    assert "and 2 more" in found["text"]
    assert "Every path has a value of day" in found["yaml"]
    files = [f"{folder}/logs/day={day}/part.csv" for day in (2, 3, 1)]
    found = draft_description(files)
    assert (found["in_time_order"], found["problems"]) == (True, [])
    assert drafted(found).raw == tuple(files)


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (text(clicks(9), ",", ("ts", "place", "price", "click")), "lacks site and adds place"),
        (text([row[::-1] for row in clicks(9)], ",", CLICKS[::-1]), "another order"),
        (text(clicks(9), ";", CLICKS), "not have the format"),
        (b"\0\0", "neither a Parquet file nor UTF-8 text"),
    ],
)
def test_a_last_file_that_differs(write: Write, last: str | bytes, problem: str) -> None:
    found = draft_description([write("1.csv", text(clicks(), ",", CLICKS)), write("2.csv", last)])
    assert len(found["problems"]) == 1
    assert problem in found["problems"][0]
    assert "2.csv" in found["problems"][0]


def test_the_types_of_a_last_parquet_file(tmp_path: Path) -> None:
    for name, kind in (("1", pa.int64()), ("2", pa.string())):
        table = pa.table({"click": np.arange(99) % 2, "n": pa.array(np.arange(99) % 9).cast(kind)})
        pa.parquet.write_table(table, tmp_path / f"{name}.parquet")
    found = draft_description([str(tmp_path)])
    assert found["rows"] == 198
    assert [problem.partition(" does ")[2] for problem in found["problems"]] == [
        "not have the types of the first file in n"
    ]


def test_lines_that_do_not_fit_are_reported(write: Write) -> None:
    lines = text(clicks(), ",", CLICKS).split("\n")
    lines[10] += ",more"
    lines[20] = ""
    lines[30] = '1,"open,2,3'
    found = draft_description([write("a.csv", "\n".join(lines))])
    drafted(found)
    assert found["problems"] == ["0.499 % of the lines do not have 4 fields; the first is line 11"]


def test_a_few_lines_that_are_no_text(write: Write) -> None:
    lines = text(clicks(), ",", CLICKS).encode().split(b"\n")
    lines[10], lines[400] = b"\xff\xfe,\xe4,1,1", b"a\0b,1,1,1"
    found = draft_description([write("a.csv", b"\n".join(lines))])
    drafted(found)
    assert found["problems"] == [
        "0.333 % of the lines cannot be read; the first is line 11: not UTF-8 (byte 0xff at position 1)"
    ]
    latin = text([[i % 2, "Zürich", i] for i in range(ROWS)]).encode("latin-1")
    with pytest.raises(UserError, match=r"line 1: not UTF-8 .* 100 % of the lines"):
        draft_description([write("b.csv", latin)])


def test_a_file_that_breaks_off(write: Write, tmp_path: Path) -> None:
    packed = gzip.compress(text([[i % 2, RNG.integers(10**4)] for i in range(50_000)], ",", ("click", "n")).encode())
    found = draft_description([write("a.csv.gz", packed[: len(packed) // 2])], sample_rows=10**6)
    assert [problem.partition(" broken ")[0] for problem in found["problems"]] == ["the gzip file is"]
    assert found["rows"] is None
    with pytest.raises(UserError, match="not a complete gzip file"):
        draft_description([write("b.csv.gz", b"\x1f\x8bnonsense")])
    pa.parquet.write_table(pa.table({"click": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="not a complete Parquet file"):
        draft_description([write("b.parquet", (tmp_path / "a.parquet").read_bytes()[:-5])])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\t\n \n", "only blank lines"),
        (bytes(range(256)) * 50, "neither a Parquet file nor UTF-8 text"),
        ("a,b\n1,2\n".encode("utf-16"), "neither a Parquet file nor UTF-8 text"),
        (gzip.compress(b"PAR1....PAR1", mtime=0), "neither a Parquet file nor UTF-8 text"),
        ("click,site,price\n", "no rows after its header"),
        ("click,site\r1,a\r0,b\r", "carriage return"),
        ('{"click": 1, "site": "a"}\n', "JSON"),
        ("x" * (1 << 21), "longer than 1 MB"),
    ],
)
def test_what_cannot_be_described(write: Write, content: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        draft_description([write("a.csv", content)])


@pytest.mark.parametrize("content", ["0,1,2\n", "5", "0\n1\n0\n", "click\n1\n0\n", "1,,\n,,\n"])
def test_very_little_is_described_all_the_same(write: Write, content: str) -> None:
    found = draft_description([write("a.csv", content)])
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
        found = draft_description([str(path)])
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
