"""The data card against pandas on the raw table: its numbers, its plots, and hostile names."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

from dp_core.models.mlp import AdModel
from dp_core.models.spec import CategoricalFeature, MLPSpec
from tasks.data.prepared import Prepared, open_prepared
from tasks.prepare import prepare_datasets
from tasks.reporting.data_card import data_card, write_data_card
from tasks.runtime.tracking import data_input
from tasks.training.model_size import model_size
from tests.support.documents import HOSTILE, SHOWN, Page, assert_self_contained
from tests.support.timed_log import MIN_COUNT, MODELS, PRICE, SITE, prepared_from, raw_table

SPLITS = ("train", "validation", "test")


def page(prepared: Prepared) -> Page:
    return Page(data_card(prepared, models=MODELS))


def plots(html: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def number(text: str) -> float:
    return float(text.replace(",", "").removesuffix(" %"))


def in_order(prepared: Prepared, table: pd.DataFrame) -> pd.DataFrame:
    """Returns the raw table by time, with the split of each row by the 80/10/10 rule; no times are equal here."""
    ordered = table.sort_values("when") if prepared.split_by == "timestamp" else table
    bounds = [int(0.8 * len(table)), int(0.9 * len(table)) - int(0.8 * len(table))]
    bounds.append(len(table) - sum(bounds))
    return ordered.assign(split=np.repeat(SPLITS, bounds))


def test_rows_and_times(timed: Prepared) -> None:
    _, *rows = page(timed).tables["table-rows"]
    by_split = in_order(timed, raw_table()).groupby("split")["when"]
    for name, count, share, first, last in rows:
        times = by_split.get_group(name)
        assert (number(count), number(share)) == (len(times), pytest.approx(100 * len(times) / 3000, abs=0.005))
        assert (first, last) == (f"{times.min():%Y-%m-%dT%H:%M:%SZ}", f"{times.max():%Y-%m-%dT%H:%M:%SZ}")
    assert [row[0] for row in rows] == list(SPLITS)


def test_labels_by_split_and_by_day(timed: Prepared) -> None:
    tables, raw = page(timed).tables, in_order(timed, raw_table())
    by_split = raw.groupby("split")["sales"]
    seen = set()
    for task, _, name, mean, positive in tables["table-labels"][1:]:
        sales = by_split.get_group(name)
        assert number(positive) == pytest.approx(100 * (sales > 0).mean(), abs=0.005)
        assert number(mean) == pytest.approx(sales.mean() if task == "pConvs" else (sales > 0).mean(), rel=1e-4)
        seen.add((task, name))
    assert seen == {(task, name) for task in ("pCVR", "pConvs") for name in SPLITS}

    head, *rows = tables["table-rates"]
    assert head == ["day", "rows", "mean pConvs", "mean pCVR"]
    days = raw.groupby(raw["when"].dt.strftime("%Y-%m-%d"))["sales"]
    assert [row[0] for row in rows] == sorted(days.groups)
    for day, count, convs, rate in rows:
        sales = days.get_group(day)
        assert number(count) == len(sales)
        assert number(convs) == pytest.approx(sales.mean(), rel=1e-4)
        assert number(rate) == pytest.approx((sales > 0).mean(), rel=1e-4)


def test_coverage_by_the_tokens_of_the_raw_table(timed: Prepared) -> None:
    raw = in_order(timed, raw_table())
    tokens = raw[SITE].fillna("")
    counts = tokens[raw["split"] == "train"].value_counts()
    known = tokens.isin(counts.index[counts >= MIN_COUNT])
    (row,) = page(timed).tables["table-vocabulary"][1:]
    size = int((counts >= MIN_COUNT).sum()) + 1
    assert row[0] == SITE
    assert [number(cell) for cell in row[1:4]] == [size, int(2 * size**0.25), size * int(2 * size**0.25)]
    for name, cell in zip(SPLITS, row[4:], strict=True):
        share = known[raw["split"] == name].mean()
        assert 0 < share < 1
        assert number(cell) == pytest.approx(100 * share, abs=0.005)
        ids = timed.split(name, "pcvr").categoricals[:, 0]
        assert number(cell) == pytest.approx(100 * np.mean(ids != 0), abs=0.005)


def test_missing_shares_by_the_raw_table(timed: Prepared) -> None:
    raw, html = raw_table(), data_card(timed, models=MODELS)
    for column, count, share in Page(html).tables["table-missing"][1:]:
        assert number(count) == raw[column].isna().sum()
        assert number(share) == pytest.approx(100 * raw[column].isna().mean(), abs=0.005)
    # The length of a bar is in proportion to the share.
    bars = plots(html)[-1].findall("g")
    assert [bar.findtext("text") for bar in bars] == [PRICE, "full", SITE]
    price, full, site = (float(rect.get("width", "")) for bar in bars for rect in bar.findall("rect"))
    assert full == 0
    assert price / site == pytest.approx(raw[PRICE].isna().mean() / raw[SITE].isna().mean(), rel=0.01)


def test_parameters_are_those_of_the_model(timed: Prepared) -> None:
    features = [CategoricalFeature(c.vocabulary_size, c.embedding_dimension) for c in timed.categorical_columns]
    rows = {row[0]: row for row in page(timed).tables["table-parameters"][1:]}
    for profile, spec in MODELS.items():
        integers, categoricals = np.zeros((1, 2), np.float32), np.zeros((1, 1), np.int32)
        shapes = jax.eval_shape(AdModel(tuple(features), spec.layers).init, jax.random.key(0), integers, categoricals)
        leaves = jax.tree_util.tree_leaves_with_path(shapes["params"])
        sizes = {jax.tree_util.keystr(path): int(np.prod(leaf.shape)) for path, leaf in leaves}
        assert model_size(spec, timed) == sum(sizes.values()) == number(rows[profile][4])
        embeddings = sum(size for name, size in sizes.items() if "embedding" in name)
        assert [number(cell) for cell in rows[profile][2:4]] == [embeddings, sum(sizes.values()) - embeddings]


def test_the_plots_show_the_rates_and_where_splits_begin(timed: Prepared) -> None:
    html = data_card(timed, models=MODELS)
    raw = in_order(timed, raw_table())
    chart = plots(html)[2]
    assert chart.get("aria-label") == "pCVR: label rate by day"
    notes = {str(path.findtext("title")).split(":")[0]: path for path in chart.findall("path")}
    days = raw["when"].dt.strftime("%Y-%m-%d")
    assert list(notes) == sorted(set(days))
    assert len(chart.findall("polyline")) == 2, "the line is broken where a day is missing"
    # Heights are linear in the rates.
    heights = [float(place(path)[1]) for path in notes.values()]
    rates = (raw["sales"] > 0).groupby(days).mean().sort_index()
    assert np.corrcoef(heights, rates)[0, 1] == pytest.approx(-1, abs=1e-4)
    dashed = [float(line.get("x1", "")) for line in chart.findall("line") if line.get("stroke-dasharray")]
    begins = [days[raw["split"] == name].iloc[0] for name in SPLITS[1:]]
    assert sorted(dashed) == [float(place(notes[day])[0]) for day in begins]


def place(path: ET.Element) -> list[str]:
    return re.findall(r"[\d.]+", str(path.get("transform")))


def test_the_page_needs_nothing_from_elsewhere_and_escapes_names(timed: Prepared, tmp_path: Path) -> None:
    path = write_data_card(timed, tmp_path / "cards" / "logs.html", models={"<i>": MLPSpec(hidden_layers=(3,))})
    html = path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["logs.html"]
    parsed = Page(html)
    assert_self_contained(html)
    assert len(parsed.all("script")) == 1
    assert parsed.all("iframe") == []
    assert [link["href"] for link in parsed.all("a")] == ["/"], "the front page, which the script shows where it is"
    for name in (PRICE, SITE, "logs <1>.parquet", "<i>"):
        assert name in parsed.text
        assert name not in html
    assert "Not for publication" in parsed.text
    assert timed.fingerprint in parsed.text
    assert "incomplete" not in parsed.text
    assert html == data_card(open_prepared(timed.path), models={"<i>": MLPSpec(hidden_layers=(3,))})


def test_names_with_control_characters_and_broken_text(timed: Prepared, tmp_path: Path) -> None:
    missing = {"bell\x07": 5, "half \udc80": 1}
    odd = dataclasses.replace(timed, statistics={**timed.statistics, "missing": missing}, dataset="a\x00b")
    path = write_data_card(odd, tmp_path / "odd.html", models={})
    assert len(plots(path.read_text(encoding="utf-8"))) == 4


def test_hostile_names_stay_text_everywhere(timed: Prepared) -> None:
    statistics = {
        **timed.statistics,
        "missing": {HOSTILE: 5},
        "bad_rows": {HOSTILE: 7},
        "tasks": [HOSTILE],
        "by_day": {day: row[:2] for day, row in timed.statistics["by_day"].items()},
        "by_split": {
            name: {**counts, f"label_{HOSTILE}": counts["label_pcvr"]}
            for name, counts in timed.statistics["by_split"].items()
        },
    }
    odd = dataclasses.replace(
        timed,
        dataset=HOSTILE,
        tasks={HOSTILE: "any"},
        fingerprint=HOSTILE,
        source={**timed.source, "path": HOSTILE},
        vocabulary={"kind": "threshold", HOSTILE: HOSTILE},
        categorical_columns=(dataclasses.replace(timed.categorical_columns[0], name=HOSTILE),),
        statistics=statistics,
    )
    html = data_card(odd, models={HOSTILE: MLPSpec(hidden_layers=(3,))})
    assert_self_contained(html)
    parsed = Page(html)
    assert len(parsed.all("script")) == 1
    # Title and heading, facts, labels, plots, vocabulary and its settings, missing, quarantined rows, parameters.
    assert " ".join(parsed.text.split()).count(SHOWN) > 15


def test_a_log_without_times(own_home: Path, tmp_path: Path) -> None:
    table = raw_table(1010)
    prepared = prepared_from(tmp_path, table, time_column=None, vocabulary="hash", vocabulary_buckets=50)
    html = data_card(prepared, models=MODELS)
    parsed = Page(html)
    assert parsed.tables["table-rows"][0] == ["split", "rows", "share"]
    assert [row[1] for row in parsed.tables["table-rows"][1:]] == ["808", "101", "101"]
    assert "no times" in parsed.text
    head, *rows = parsed.tables["table-rates"]
    assert head[0] == "position in the log"
    pieces = np.array_split(np.arange(1010), np.linspace(0, 1010, 21).astype(int)[1:-1])
    assert [number(row[1]) for row in rows] == [len(piece) for piece in pieces]
    for (_, _, convs, rate), piece in zip(rows, pieces, strict=True):
        sales = table["sales"].to_numpy()[piece]
        assert (number(convs), number(rate)) == pytest.approx((sales.mean(), (sales > 0).mean()), rel=1e-4)
    assert "No token has id 0" in parsed.text
    assert parsed.tables["table-vocabulary"][1][1:] == ["51", "5", "255", *["every token"] * 3]
    assert [label.text for label in plots(html)[1].findall("text")].count("validation") == 1


def test_a_vocabulary_that_was_kept(own_home: Path, tmp_path: Path) -> None:
    table = raw_table()
    first = prepared_from(tmp_path, table[table["when"] < "2024-03-02"], keep_vocabulary=True)
    assert "Kept from" not in page(first).text
    second = prepared_from(tmp_path, table, keep_vocabulary=True)
    text = page(second).text
    assert f"Kept from an earlier preparation (fingerprint {first.fingerprint})" in text
    assert f"{first.splits['train']['rows']:,} training rows of logs <1>.parquet, 2024-02-25T" in text


def test_a_private_vocabulary_and_its_numbers(own_home: Path, tmp_path: Path) -> None:
    prepared = prepared_from(tmp_path, raw_table(), vocabulary="private", vocabulary_epsilon=5.0)
    text = page(prepared).text
    assert "The ε of every model includes this choice" in text
    assert f"epsilon 5, min_count {MIN_COUNT}" in text
    assert prepared.vocabulary["draw"] in text


def test_bad_rows_unfinished_labels_and_very_many_days(timed: Prepared) -> None:
    days = {str(np.datetime64("2020-01-01") + day): [2.0, 1.0, float(day % 2)] for day in range(1500)}
    statistics = {**timed.statistics, "bad_rows": {"few fields": 3, "<not a number>": 1200}, "window_days": 7.5}
    odd = dataclasses.replace(timed, statistics={**statistics, "by_day": days})
    parsed = page(odd)
    assert parsed.tables["table-bad_rows"][1:] == [["<not a number>", "1,200"], ["few fields", "3"]]
    assert "Labels of the last 7.5 days are incomplete" in parsed.text
    _, *rows = parsed.tables["table-rates"]
    assert len(rows) == 375
    assert [rows[0][0], rows[-1][0]] == ["2020-01-01 to 2020-01-04", "2024-02-05 to 2024-02-08"]
    assert {tuple(row[1:]) for row in rows} == {("8", "0.50000", "0.25000")}
    assert "every row was parsed" in page(timed).text


def test_synthetic_data_is_named_so(timed: Prepared) -> None:
    synthetic = dataclasses.replace(timed, ceiling={"pcvr": 0.1})
    assert data_input(synthetic).dataset.source_type == "synthetic"
    assert "from the project's own generator" in page(synthetic).text


def test_preparing_leaves_a_card_in_the_folder(own_home: Path) -> None:
    (prepared,) = prepare_datasets({"profile": "smoke", "tasks": ["pcvr"]})
    card = Path(prepared["data_card"])
    assert card == Path(prepared["path"]) / "data_card.html"
    assert card.is_relative_to(own_home)
    assert prepared["fingerprint"] in card.read_text()
