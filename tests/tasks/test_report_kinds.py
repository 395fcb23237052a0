"""Reports of pipelines of other kinds: any settings, responses on labels, a random search. They share trials."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import Page
from tests.support.reports import Ran, mlflow_runs, read_csv, report_home, run


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home that all tests of this file share, so that they reuse each other's trials."""
    with report_home(tmp_path_factory.mktemp("report")) as folder:
        yield folder


@pytest.fixture(scope="module")
def clips(here: Path) -> Ran:
    return run("clips")


def test_any_settings_are_compared(here: Path, clips: Ran) -> None:
    """A pipeline without an exhibit gets the general one. A fourth of its trials is reused."""
    compared = run("settings")
    assert compared.trained == 2 * 2 * 8 - 8
    rows = {(row["method"], row["epsilon"]): row for row in read_csv(compared.report / "table.csv")}
    assert len(rows) == 1 + 2 * 8
    same = {(row["method"], row["epsilon"]): row for row in read_csv(clips.report / "table.csv")}
    for clip, epsilon in ((1, "2"), (1, "8"), (3, "2"), (3, "8")):
        found = rows[f"sgd · 0.1 · C = {clip}", epsilon]
        assert found["loss_mean"] == same[f"C = {clip}", epsilon]["loss_mean"]
        assert (found["optimizer"], found["learning_rate"], found["l2_clip_norm"]) == ("sgd", "0.1", str(clip))
    matters = read_csv(compared.report / "settings_that_matter.csv")
    assert {row["setting"] for row in matters} == {"optimiser", "learning rate", "clip norm C"}
    page = Page((compared.report / "page.html").read_text())
    assert "Which setting matters" in page.text
    assert "Settings are in the order of this difference" in page.text
    assert "7 of 8 combinations" in page.text
    summary = json.loads((compared.report / "summary.json").read_text())
    assert summary["headline"].startswith("pCVR, test AUC, chosen by validation: at ε = 2 ")
    parent, _ = mlflow_runs(here, compared)
    assert "test_loss/pcvr/adam_0.01_C_3" in parent.data.metrics


def test_responses_on_labels_are_paid_for_once(here: Path, clips: Ran) -> None:
    """Two learning rates share a draw of responses; the trials of DP-SGD and the baseline are reused."""
    labels = run("labels", seeds=1)
    assert labels.trained == 4
    choice = {(row["method"], row["ε budget"]): row for row in read_csv(labels.report / "choice.csv")}
    for epsilon in ("2", "8"):
        response = choice["randomised response · debiased", epsilon]
        assert response["trainings"] == "2"
        assert float(response["ε with the choice, if secret"]) == pytest.approx(float(epsilon), abs=1e-3)
        private = choice["DP-SGD", epsilon]
        assert float(private["ε with the choice, if secret"]) > float(private["ε of the run"])
    assert "pCVR, randomised response · debiased:" in (labels.report / "report.md").read_text()
    assert {path.name for path in labels.report.glob("*.svg")} == {"figure_pcvr.svg", "reliability_pcvr.svg"}


def test_a_random_search_is_reported_with_its_own_price(here: Path, clips: Ran) -> None:
    drawn = run("drawn")
    assert drawn.plan["mean_trials"] == {"pcvr": 2}
    choice = read_csv(drawn.report / "choice.csv")
    assert [row["ε budget"] for row in choice] == ["2", "8"]
    for row in choice:
        assert row["ε with the choice, if secret"] == row["composition"]
        assert int(row["trainings"]) == sum(
            item["trial"]["epsilon"] == float(row["ε budget"]) for item in drawn.plan["items"]
        )
    assert {row["seeds"] for row in read_csv(drawn.report / "table.csv")} == {"1"}
