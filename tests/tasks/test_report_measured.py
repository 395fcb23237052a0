"""The report of a pipeline that measures and trains nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.measure import measure
from tasks.report import report
from tests.support.reports import Ran, artifacts, mlflow_runs, planned, read_csv, records, report_home


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    with report_home(tmp_path) as folder:
        yield folder


def test_curves_are_reported_without_training(here: Path) -> None:
    found = planned("noise")
    assert found["groups"] == []
    before = records(here)
    files = report(measure(found["run"]))
    assert records(here) == before
    rows = read_csv(Path(files["table"]))
    assert [(row["fixed"], row["batch_size"]) for row in rows] == [
        (fixed, size) for fixed in ("epochs", "steps") for size in ("200", "400")
    ]
    for row in rows:
        sigma, size = float(row["noise_multiplier"]), int(row["batch_size"])
        assert float(row["standard_deviation"]) == pytest.approx(sigma / size, rel=1e-6)
        assert int(row["steps"]) == (10 if row["fixed"] == "steps" else 2400 / size)
    folder = Path(files["page"]).parent
    assert {path.name for path in folder.iterdir()} == {
        *("page.html", "report.md", "summary.json", "table.csv", "fixed.csv", "data_card_tiny_clicks.html"),
        *("figure_a.svg", "figure_a.png", "figure_b.svg", "figure_b.png"),
    }
    ran = Ran(Path(found["run"]), 0, folder, files)
    parent, children = mlflow_runs(here, ran)
    assert (parent.info.status, children) == ("FINISHED", [])
    assert "page.html" in artifacts(here, parent.info.run_id)
    logged = {f"noise_std/fixed_{row['fixed']}/batch_{row['batch_size']}" for row in rows}
    assert set(parent.data.metrics) == logged
