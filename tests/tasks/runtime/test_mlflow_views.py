"""Views that the MLflow UI opens by a key."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from tasks.runtime.mlflow_views import compare_path, comparison_view, experiment_path, trials_view


def key_of(path: str) -> str:
    (key,) = parse_qs(urlsplit(path).query)["viewStateShareKey"]
    return key


def test_the_path_of_a_comparison_opens_its_view() -> None:
    runs = ["b" * 32, "a" * 32]
    tag, value = comparison_view(runs, ["epsilon", "l2_clip_norm"])
    path = compare_path("7", reversed(runs))
    assert tag == f"mlflow.sharedViewState.{key_of(path)}", "in whatever order the runs are given"
    assert path.startswith("experiments/7/runs?")
    assert compare_path("7", runs[:1]) != path
    view = json.loads(value)
    assert all(run in view["searchFilter"] for run in runs)
    kinds = {chart["type"]: chart for chart in view["compareRunCharts"]}
    assert kinds["SCATTER"]["xaxis"]["key"] == "epsilon"
    (everyone, private) = (chart for chart in view["compareRunCharts"] if chart["type"] == "PARALLEL")
    assert everyone["selectedParams"] == [], "a baseline has no clip norm, and would have no line"
    assert private["selectedParams"] == ["l2_clip_norm"]
    assert {chart["metricSectionId"] for chart in view["compareRunCharts"]} == {view["compareRunSections"][0]["uuid"]}


def test_the_table_of_trials_has_what_varies() -> None:
    tag, value = trials_view(["task", "epsilon", "learning_rate"])
    assert tag == f"mlflow.sharedViewState.{key_of(experiment_path('1'))}"
    columns = json.loads(value)["selectedColumns"]
    assert {"metrics.`test/auc`", "metrics.`relative_loss_percent`", "params.`learning_rate`"} <= set(columns)


@pytest.mark.parametrize("runs", [100, 5000])
def test_a_view_fits_into_a_tag(runs: int) -> None:
    """MLflow refuses a tag of an experiment that is longer than 20,000 characters."""
    _, value = comparison_view([f"{number:032x}" for number in range(runs)], ["epsilon"])
    assert len(value) <= 20_000
    assert ("run_id" in json.loads(value)["searchFilter"]) == (runs == 100)
