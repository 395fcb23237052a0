"""An exhibit that is registered from outside: the configuration checks it, and a report shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.reporting.document import Cell, Figure, Finding, Table
from tasks.reporting.exhibits.common import Exhibit, Sweep
from tasks.reporting.exhibits.registry import EXHIBITS, ExhibitSpec, exhibits, register_exhibit
from tasks.reporting.plots import line_chart
from tasks.reporting.series import Point, Series
from tests.support.documents import Page
from tests.support.reports import read_csv, report_home, run
from tests.support.yaml_files import GRID, SMALL, edit, loader, mistakes


def by_batch_size(sweep: Sweep) -> Exhibit:
    """The mean test loss of each batch size."""
    losses = {arm.value("batch_size"): result.loss for result in sweep.results if (arm := result.arm).values}
    points = [Point(size, loss) for size, loss in sorted(losses.items())]
    svg = line_chart([Series("loss", points)], title="Loss", x_label="batch size", y_label="loss")
    rows = [[Cell(str(size), size), Cell(f"{loss:.4f}", loss)] for size, loss in losses.items()]
    return Exhibit(
        headline="A toy exhibit of batch sizes.",
        figures=[Figure("toy_figure", "Loss by batch size", svg)],
        tables=[Table("table", "Loss by batch size", ["batch size", "loss"], rows)],
        findings=[Finding("Toys work", "shown", f"{len(rows)} batch sizes")],
    )


@pytest.fixture
def toy() -> Iterator[ExhibitSpec]:
    spec = ExhibitSpec("toy", by_batch_size, columns=("batch_size",))
    register_exhibit(spec)
    yield spec
    del EXHIBITS[spec.name]


def with_exhibit(text: str, *lines: str) -> str:
    title = "    title: A sweep\n"
    return edit(text, title, title + "".join(f"    {line}\n" for line in lines))


def test_a_name_is_registered_once(toy: ExhibitSpec) -> None:
    register_exhibit(toy)
    with pytest.raises(ValueError, match="an exhibit named 'toy' is already registered"):
        register_exhibit(ExhibitSpec("toy", lambda sweep: by_batch_size(sweep)))
    with pytest.raises(ValueError, match="'clip_norm' is already registered"):
        register_exhibit(replace(exhibits()["clip_norm"], make=by_batch_size))


def test_columns_may_be_a_list(toy: ExhibitSpec) -> None:
    columns: Any = ["batch_size"]
    assert ExhibitSpec("toy", by_batch_size, columns=columns) == toy


def test_a_pipeline_may_name_an_exhibit_from_outside(tmp_path: Path, toy: ExhibitSpec) -> None:
    load = loader(tmp_path)
    text = with_exhibit(SMALL, "exhibit: toy", "columns: [batch_size]")
    assert load(text).pipeline("sweep").exhibit == "toy"
    assert mistakes(load, with_exhibit(SMALL, "exhibit: toy")) == [
        "my.yaml:15: pipelines.sweep.columns: exhibit toy needs columns: [batch_size]; "
        "exhibit comparison takes any columns"
    ]
    labels = "            label_dp: {optimizer: sgd, learning_rate: 1, batch_size: 9, epochs: 1, response: binary}\n"
    assert mistakes(load, text + labels) == [
        f"my.yaml:25: {GRID}.tasks.pctr: exhibit toy shows one mechanism: give dp_sgd or label_dp, not both"
    ]


def test_a_report_shows_an_exhibit_from_outside(tmp_path: Path, toy: ExhibitSpec) -> None:
    with report_home(tmp_path) as folder:
        path = folder / "my.yaml"
        text = path.read_text()
        path.write_text(text.replace("exhibit: clip_norm", "exhibit: toy").replace("[l2_clip_norm]", "[batch_size]"))
        ran = run("clips", epsilons=[8], seeds=1)
    assert ran.trained == 1 + 2
    page = Page((ran.report / "page.html").read_text())
    assert "A toy exhibit of batch sizes." in page.text
    assert "Toys work" in page.text
    assert {"toy_figure.svg", "toy_figure.png", "table.csv"} <= {file.name for file in ran.report.iterdir()}
    (row,) = read_csv(ran.report / "table.csv")
    assert row["batch size"] == "200"
    assert 0 < float(row["loss"]) < 1
