"""The data card against pandas on the raw table, its plots, and prepared data as an input of MLflow runs."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient

from dp_core.models import AdModel, CategoricalFeature
from tasks.config import load_config
from tasks.data_card import data_card, mlp_parameters, write_data_card
from tasks.datasets import prepare_datasets
from tasks.descriptions import Dataset
from tasks.encoded import Prepared, open_prepared
from tasks.prepare import prepare
from tasks.selection import select
from tasks.svg_plots import Bar, Mark, Point, Series, bar_chart, line_chart, ticks
from tasks.tracking import data_input, log_trial, start_pipeline_run, tracking_uri
from tests.trials import make_prepared, make_trial

SPLITS = ("train", "validation", "test")
PRICE, SITE = "<b>price</b>", 'site & "co"'
MIN_COUNT = 8
LAYERS = {"small": (16, 8), "wide": (40,)}


def raw_table(rows: int = 3000) -> pd.DataFrame:
    """Rows out of order over twelve days, the fifth of which is missing, with missing values and rare tokens."""
    rng = np.random.default_rng(0)
    day = rng.choice([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11], rows)
    seconds = rng.permutation(86_400)[:rows]
    tokens = np.array([f"site {int(n)}" for n in rng.pareto(0.7, rows) * 3], dtype=object)
    sales = rng.poisson(0.2 + 0.05 * day)
    return pd.DataFrame(
        {
            "when": pd.Timestamp("2024-02-25") + pd.to_timedelta(day * 86_400 + seconds, unit="s"),
            PRICE: np.where(rng.random(rows) < 0.3, np.nan, rng.integers(0, 1000, rows)),
            "full": rng.integers(0, 9, rows),
            SITE: np.where(rng.random(rows) < 0.125, None, tokens),
            "sales": sales,
        }
    )


def description(**changes: Any) -> Dataset:
    values: dict[str, Any] = {
        "format": "parquet",
        "time_column": "when",
        "integer_columns": (PRICE, "full"),
        "categorical_columns": (SITE,),
        "labels": {"pconvs": {"column": "sales", "kind": "count"}, "pcvr": {"column": "sales", "kind": "any"}},
    }
    return Dataset.model_validate({**values, **changes})


def prepared_from(folder: Path, table: pd.DataFrame, **changes: Any) -> Prepared:
    raw = folder / "logs <1>.parquet"
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), raw)
    return open_prepared(prepare("logs", description(**changes), raw, min_count=MIN_COUNT))


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("timed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield prepared_from(folder, raw_table())


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects tables by their ids, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.text = ""
        self._rows: list[list[str]] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "table":
            self._rows = self.tables[str(dict(attrs)["id"])] = []
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self._rows[-1][-1] += data
        self.text += data


def page(prepared: Prepared) -> Page:
    return Page(data_card(prepared, hidden_layers=LAYERS))


def plots(html: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def number(text: str) -> float:
    return float(text.replace(",", "").removesuffix(" %"))


def in_order(prepared: Prepared, table: pd.DataFrame) -> pd.DataFrame:
    """The raw table by time, with each row's split by the 80/10/10 rule, which has no ties here."""
    ordered = table.sort_values("when") if prepared.split_by == "timestamp" else table
    bounds = [int(0.8 * len(table)), int(0.9 * len(table)) - int(0.8 * len(table))]
    bounds.append(len(table) - sum(bounds))
    return ordered.assign(split=np.repeat(SPLITS, bounds))


def test_rows_and_times(timed: Prepared) -> None:
    _, *rows = page(timed).tables["rows"]
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
    for task, _, name, mean, positive in tables["labels"][1:]:
        sales = by_split.get_group(name)
        assert number(positive) == pytest.approx(100 * (sales > 0).mean(), abs=0.005)
        assert number(mean) == pytest.approx(sales.mean() if task == "pconvs" else (sales > 0).mean(), rel=1e-4)
        seen.add((task, name))
    assert seen == {(task, name) for task in ("pcvr", "pconvs") for name in SPLITS}

    head, *rows = tables["rates"]
    assert head == ["day", "rows", "mean pconvs", "mean pcvr"]
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
    (row,) = page(timed).tables["vocabulary"][1:]
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
    raw, html = raw_table(), data_card(timed, hidden_layers=LAYERS)
    for column, count, share in Page(html).tables["missing"][1:]:
        assert number(count) == raw[column].isna().sum()
        assert number(share) == pytest.approx(100 * raw[column].isna().mean(), abs=0.005)
    # A bar is as long as its share of the longest there could be.
    bars = plots(html)[-1].findall("g")
    assert [bar.findtext("text") for bar in bars] == [PRICE, "full", SITE]
    price, full, site = (float(rect.get("width", "")) for bar in bars for rect in bar.findall("rect"))
    assert full == 0
    assert price / site == pytest.approx(raw[PRICE].isna().mean() / raw[SITE].isna().mean(), rel=0.01)


def test_parameters_are_those_of_the_model(timed: Prepared) -> None:
    features = [CategoricalFeature(c.vocabulary_size, c.embedding_dimension) for c in timed.categorical_columns]
    rows = {row[0]: row for row in page(timed).tables["parameters"][1:]}
    for profile, widths in LAYERS.items():
        integers, categoricals = np.zeros((1, 2), np.float32), np.zeros((1, 1), np.int32)
        shapes = jax.eval_shape(AdModel(tuple(features), widths).init, jax.random.key(0), integers, categoricals)
        leaves = jax.tree_util.tree_leaves_with_path(shapes["params"])
        sizes = {jax.tree_util.keystr(path): int(np.prod(leaf.shape)) for path, leaf in leaves}
        assert mlp_parameters(timed, widths) == sum(sizes.values()) == number(rows[profile][4])
        embeddings = sum(size for name, size in sizes.items() if "embedding" in name)
        assert [number(cell) for cell in rows[profile][2:4]] == [embeddings, sum(sizes.values()) - embeddings]


def test_the_plots_show_the_rates_and_where_splits_begin(timed: Prepared) -> None:
    html = data_card(timed, hidden_layers=LAYERS)
    raw = in_order(timed, raw_table())
    chart = plots(html)[2]
    assert chart.get("aria-label") == "pcvr: label rate by day"
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
    assert dashed == [float(place(notes[day])[0]) for day in begins]


def place(path: ET.Element) -> list[str]:
    return re.findall(r"[\d.]+", str(path.get("transform")))


def test_the_page_needs_nothing_from_elsewhere_and_escapes_names(timed: Prepared, tmp_path: Path) -> None:
    path = write_data_card(timed, tmp_path / "cards" / "logs.html", hidden_layers={"<i>": (3,)})
    html = path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["logs.html"]
    parsed = Page(html)
    assert not re.search(r"https?:|url\(|@import|javascript", html)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in parsed.tags}
    assert not [attrs for _, attrs in parsed.tags if {"src", "href", "onload"} & set(attrs)]
    for name in (PRICE, SITE, "logs <1>.parquet", "<i>"):
        assert name in parsed.text
        assert name not in html
    assert "Not for publication" in parsed.text
    assert timed.fingerprint in parsed.text
    assert "window" not in parsed.text
    assert html == data_card(open_prepared(timed.path), hidden_layers={"<i>": (3,)})


def test_names_with_control_characters_and_broken_text(timed: Prepared, tmp_path: Path) -> None:
    missing = {"bell\x07": 5, "half \udc80": 1}
    odd = dataclasses.replace(timed, statistics={**timed.statistics, "missing": missing}, dataset="a\x00b")
    path = write_data_card(odd, tmp_path / "odd.html", hidden_layers={})
    assert len(plots(path.read_text(encoding="utf-8"))) == 4


def test_a_log_without_times(own_home: Path, tmp_path: Path) -> None:
    table = raw_table(1010)
    prepared = prepared_from(tmp_path, table, time_column=None, vocabulary="hash", vocabulary_buckets=50)
    html = data_card(prepared, hidden_layers=LAYERS)
    parsed = Page(html)
    assert parsed.tables["rows"][0] == ["split", "rows", "share"]
    assert [row[1] for row in parsed.tables["rows"][1:]] == ["808", "101", "101"]
    assert "no times" in parsed.text
    head, *rows = parsed.tables["rates"]
    assert head[0] == "position in the log"
    pieces = np.array_split(np.arange(1010), np.linspace(0, 1010, 21).astype(int)[1:-1])
    assert [number(row[1]) for row in rows] == [len(piece) for piece in pieces]
    for (_, _, convs, rate), piece in zip(rows, pieces, strict=True):
        sales = table["sales"].to_numpy()[piece]
        assert (number(convs), number(rate)) == pytest.approx((sales.mean(), (sales > 0).mean()), rel=1e-4)
    assert "There is no id 0" in parsed.text
    assert parsed.tables["vocabulary"][1][1:] == ["51", "5", "255", *["every token"] * 3]
    assert [label.text for label in plots(html)[1].findall("text")].count("validation") == 1


def test_a_vocabulary_that_was_kept(own_home: Path, tmp_path: Path) -> None:
    table = raw_table()
    first = prepared_from(tmp_path, table[table["when"] < "2024-03-02"], keep_vocabulary=True)
    assert "Kept from" not in page(first).text
    second = prepared_from(tmp_path, table, keep_vocabulary=True)
    text = page(second).text
    assert f"Kept from an earlier preparation, whose fingerprint is {first.fingerprint}" in text
    assert f"{first.splits['train']['rows']:,} training rows of logs <1>.parquet, 2024-02-25T" in text


def test_a_private_vocabulary_and_its_numbers(own_home: Path, tmp_path: Path) -> None:
    prepared = prepared_from(tmp_path, raw_table(), vocabulary="private", vocabulary_epsilon=5.0)
    text = page(prepared).text
    assert "part of the ε of every model" in text
    assert f"epsilon 5, min_count {MIN_COUNT}" in text
    assert prepared.vocabulary["draw"] in text


def test_bad_rows_unfinished_labels_and_very_many_days(timed: Prepared) -> None:
    days = {str(np.datetime64("2020-01-01") + day): [2.0, 1.0, float(day % 2)] for day in range(1500)}
    statistics = {**timed.statistics, "bad_rows": {"few fields": 3, "<not a number>": 1200}, "window_days": 7.5}
    odd = dataclasses.replace(timed, statistics={**statistics, "by_day": days})
    parsed = page(odd)
    assert parsed.tables["bad_rows"][1:] == [["<not a number>", "1,200"], ["few fields", "3"]]
    assert "Those of the last 7.5 days are not complete" in parsed.text
    _, *rows = parsed.tables["rates"]
    assert len(rows) == 375
    assert [rows[0][0], rows[-1][0]] == ["2020-01-01 to 2020-01-04", "2024-02-05 to 2024-02-08"]
    assert {tuple(row[1:]) for row in rows} == {("8", "0.5", "0.25")}
    assert "every row could be read" in page(timed).text


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.238, 0.262), (-3, 60), (0, 1e7), (1e-9, 3e-9), (19000, 19030)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert low - 1e-9 * (high - low) <= found[0] < found[-1] <= high + 1e-9 * (high - low)
    assert np.diff(found) == pytest.approx(found[1] - found[0])
    assert {f"{found[1] - found[0]:e}"[0]} <= set("125")


def test_several_series_with_error_bars_on_a_logarithmic_axis() -> None:
    budgets = (0.5, 1.0, 8.0)
    lines = [Series(name, [Point(e, k / e - 3, 0.25) for e in budgets]) for k, name in enumerate(("a", "<b>", "c"), 1)]
    svg = line_chart(lines, title="loss", x_label="ε", y_label="%", x_ticks={e: f"{e:g}" for e in budgets}, log_x=True)
    chart = ET.fromstring(svg)
    texts = [text.text for text in chart.findall("text")]
    assert {"a", "<b>", "c", "ε", "%", "0.5", "1", "8", "0"} <= set(texts)
    colors = [line.get("stroke") for line in chart.findall("polyline")]
    assert len(set(colors)) == 3
    x = [float(pair.split(",")[0]) for pair in str(chart.findall("polyline")[0].get("points")).split()]
    assert (x[2] - x[1]) / (x[1] - x[0]) == pytest.approx(3, rel=0.01)
    errors = [line for line in chart.findall("line") if line.get("stroke") == colors[0]]
    assert len(errors) == 3


@pytest.mark.parametrize("values", [[0.25], [0.0], [0.0, 0.0], [-1.0, -2.0], [5.0, 5.0], [1e-12, 3e-12]])
def test_every_point_is_inside_the_plot(values: list[float]) -> None:
    points = [Point(x, y, 0.1 * abs(y)) for x, y in enumerate(values)]
    chart = ET.fromstring(line_chart([Series("a", points)], title="", x_label="", y_label="", marks=[Mark(0, "now")]))
    _, _, width, height = map(float, str(chart.get("viewBox")).split())
    for path in chart.findall("path"):
        x, y = map(float, place(path))
        assert 0 < x < width
        assert 0 < y < height - 40
    with pytest.raises(ValueError, match="needs a point"):
        line_chart([Series("a", [Point(0, None)])], title="", x_label="", y_label="")


def test_bars() -> None:
    chart = ET.fromstring(bar_chart([Bar("x" * 60, 3, "3"), Bar("y", 0, "none")], title="a & b"))
    assert [float(rect.get("width", "")) > 0 for rect in chart.iter("rect")] == [True, False]
    assert [title.text for title in chart.iter("title")] == ["x" * 60 + ": 3", "y: none"]
    assert max(len(str(text.text)) for text in chart.iter("text")) == 24
    ET.fromstring(bar_chart([Bar("y", 0, "0")], title=""))
    ET.fromstring(bar_chart([], title=""))


RECORD = {
    "curve": [],
    "loss_name": "auc_loss",
    **dict.fromkeys(("validation_loss", "test_loss", "steps_per_second", "seconds"), 0.5),
    **dict.fromkeys(("steps", "parameters"), 10),
}


def test_every_run_has_its_data_as_an_input(own_home: Path, tmp_path: Path, timed: Prepared) -> None:
    """Through real MLflow: the parent has all data and the cards, and a trial the data that it is trained on."""
    config = load_config()
    selection = select(config, {"profile": "smoke"})
    tiny = make_prepared(tmp_path / "raw")
    data = {"tiny_clicks": tiny, "logs": timed}
    cards = {name: write_data_card(p, p.path / "data_card.html", hidden_layers=LAYERS) for name, p in data.items()}
    parent = start_pipeline_run(config, selection, "first", data, cards)
    trial = make_trial(tiny)
    run_id = log_trial(parent, trial, RECORD, reused=False)
    assert log_trial(parent, trial, RECORD, reused=True) == run_id

    client = MlflowClient(tracking_uri())
    child, first = client.get_run(run_id), client.get_run(parent["mlflow_run"])
    assert first.data.tags["data_fingerprint"] == f"tiny_clicks={tiny.fingerprint},logs={timed.fingerprint}"
    for name, card in cards.items():
        logged = client.download_artifacts(parent["mlflow_run"], f"data_cards/{name}.html", str(tmp_path))
        assert Path(logged).read_bytes() == card.read_bytes()
    assert first.inputs is not None
    assert {found.dataset.name: found.dataset.digest for found in first.inputs.dataset_inputs} == {
        name: prepared.fingerprint for name, prepared in data.items()
    }
    assert child.inputs is not None
    (found,) = child.inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest) == ("tiny_clicks", trial.data_fingerprint)
    assert {tag.key: tag.value for tag in found.tags} == {"mlflow.data.context": "training"}
    assert (found.dataset.source_type, json.loads(found.dataset.source)["uri"]) == ("local", "clicks.parquet")
    assert json.loads(found.dataset.profile or "") == {"num_rows": 3000, "train": 2400, "validation": 300, "test": 300}
    columns = json.loads(found.dataset.schema or "")["mlflow_colspec"]
    assert [column["name"] for column in columns] == ["price", "color", "label pcvr", "label pconvs"]

    # A second run of the same data, and a trial whose parent is in another store or has other data.
    again = start_pipeline_run(config, selection, "second", data, {})
    client.log_inputs(run_id, [data_input(tiny)])
    stranger = log_trial({**again, "mlflow_run": "0" * 32}, trial, RECORD, reused=True)
    other = log_trial(again, make_trial(tiny, data_fingerprint="another"), RECORD, reused=True)
    query = f"dataset.digest = '{tiny.fingerprint}' AND dataset.context = 'training'"
    runs = client.search_runs([parent["experiment"]], query)
    assert {run.info.run_id for run in runs} == {run_id, parent["mlflow_run"], again["mlflow_run"]}
    assert not {stranger, other} & {run.info.run_id for run in runs}


def test_synthetic_data_is_named_so(timed: Prepared) -> None:
    synthetic = dataclasses.replace(timed, ceiling={"pcvr": 0.1})
    assert data_input(synthetic).dataset.source_type == "synthetic"
    assert "generator of synthetic logs" in page(synthetic).text


def test_preparing_leaves_a_card_in_the_folder(own_home: Path) -> None:
    (prepared,) = prepare_datasets({"profile": "smoke", "tasks": ["pcvr"]})
    card = Path(prepared["data_card"])
    assert card == Path(prepared["path"]) / "data_card.html"
    assert card.is_relative_to(own_home)
    assert prepared["fingerprint"] in card.read_text()
