"""Reports of real trainings: the verdict on the price of privacy, and two recipes side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.reporting.terminal import print_report
from tests.support.documents import Page
from tests.support.reports import GRID, Ran, configure, mlflow_runs, read_csv, report_home, run

SECTION = "    exhibit: relative_loss\n    datasets: {pcvr: tiny_clicks}\n    grids:\n      tiny:"
RECIPE = "{optimizer: sgd, learning_rate: 0.1, batch_size: 200, epochs: 2, l2_clip_norm: [1, 3]}"
SAID = "Not the price of privacy yet: "


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with report_home(tmp_path_factory.mktemp("report")) as folder:
        yield folder


@pytest.fixture(scope="module")
def losses(here: Path) -> Ran:
    return run("losses")


def test_the_verdict_is_on_the_page_in_the_terminal_and_in_mlflow(
    here: Path, losses: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    """The grid of `losses` has one learning rate, so its table is not the price of privacy, and says so."""
    summary = json.loads((losses.report / "summary.json").read_text())
    assert summary["verdict"].startswith(SAID)
    assert "settings that matter were not tuned" in summary["verdict"]
    html = (losses.report / "page.html").read_text()
    assert html.index("Not the price of privacy yet") < html.index("<h2>Tables</h2>")
    assert "one value of learning rate was tried" in Page(html).text
    assert SAID in (losses.report / "report.md").read_text()
    print_report(losses.report)
    assert f"✗ {SAID}" in capsys.readouterr().out
    parent, _ = mlflow_runs(here, losses)
    assert parent.data.tags["price_of_privacy"] == "not yet"
    assert parent.data.tags["verdict"] == summary["verdict"]
    assert parent.data.metrics["serious_doubts"] == sum(caveat["serious"] for caveat in summary["caveats"])
    assert parent.data.metrics["doubts/not_tuned"] >= 1
    assert SAID in parent.data.tags["mlflow.note.content"]


def test_two_recipes_share_a_trial_and_the_baseline(here: Path, losses: Ran) -> None:
    second = f"dp_sgd: {RECIPE}\n            paper_recipe: {RECIPE.replace('[1, 3]', '[3, 9]')}"
    configure(here, SECTION + GRID, SECTION + GRID.replace(f"dp_sgd: {RECIPE}", second))
    try:
        found = run("losses")
    finally:
        configure(here)
    # C = 1 and 3 are trained already.
    assert (losses.trained, found.trained) == (2 + 2 * 2 * 2, 2 * 2)
    recipes = {(item["trial"]["l2_clip_norm"], tuple(item["recipes"])) for item in found.plan["items"]}
    assert recipes == {(None, ()), (1.0, ("ours",)), (3.0, ("ours", "paper_recipe")), (9.0, ("paper_recipe",))}
    rows = read_csv(found.report / "table.csv")
    found_rows = [(row["recipe"], row["epsilon"]) for row in rows]
    assert found_rows == [("", "inf"), *((name, epsilon) for name in ("ours", "paper_recipe") for epsilon in "28")]
    parent, children = mlflow_runs(here, found)
    assert {"relative_loss_percent/pcvr/ours", "relative_loss_percent/pcvr/paper_recipe"} <= set(parent.data.metrics)
    # The runs of trials that an earlier run trained stay where they are, and get the tag.
    _, earlier = mlflow_runs(here, losses)
    tagged = {
        (child.data.params.get("l2_clip_norm"), child.data.tags.get("recipes")) for child in [*children, *earlier]
    }
    assert tagged == {(None, None), ("1", "ours"), ("3", "ours, paper_recipe"), ("9", "paper_recipe")}
    assert all("paper's recipe" in child.info.run_name for child in children)
