"""All steps from a plan to a report on tiny data, without Airflow."""

from __future__ import annotations

import json
import re
import struct
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tasks.training.finished
from tasks.report import report
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json
from tasks.runtime.mlflow_views import compare_path
from tasks.training.items import read_plan
from tests.support.documents import Page, assert_self_contained
from tests.support.reports import (
    Ran,
    artifacts,
    check_trial,
    check_views,
    configure,
    history,
    mlflow_runs,
    planned,
    read_csv,
    records,
    report_home,
    run,
)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home that all tests of this file share, so that they reuse each other's trials."""
    with report_home(tmp_path_factory.mktemp("report")) as folder:
        yield folder


@pytest.fixture(scope="module")
def clips(here: Path) -> Ran:
    return run("clips")


FILES = {
    *("page.html", "report.md", "summary.json", "figure.svg", "figure.png"),
    *("reliability_pcvr.svg", "reliability_pcvr.png"),
    *(
        "table.csv",
        "paper.csv",
        "settings.csv",
        "metrics.csv",
        "segments.csv",
        "choice.csv",
        "trials.csv",
        "varied.csv",
        "fixed.csv",
    ),
    *("statements.html", "data_card_tiny_clicks.html"),
}


def test_every_file_of_a_report(here: Path, clips: Ran) -> None:
    assert clips.trained == 2 + 2 * 2 * 2
    assert {path.name for path in clips.report.iterdir()} == FILES
    assert clips.report == here / "home" / "reports" / "clips" / clips.folder.name
    assert (clips.report.parent / "latest").resolve() == clips.report
    assert clips.files == {
        "page": str(clips.report / "page.html"),
        "markdown": str(clips.report / "report.md"),
        "table": str(clips.report / "table.csv"),
    }
    ET.parse(clips.report / "figure.svg")
    png = (clips.report / "figure.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", png[16:20])[0] > 500
    html = (clips.report / "page.html").read_text()
    assert_self_contained(html)
    page = Page(html)
    assert "Clip norms side by side" in page.text
    assert "make run PIPELINE=clips PROFILE=tiny" in page.text
    summary = json.loads((clips.report / "summary.json").read_text())
    assert (summary["pipeline"], summary["shows"]) == ("clips", "the paper's Table 2")
    assert summary["headline"] in (clips.report / "report.md").read_text()
    # Two of the exhibit, one on the calibration of each clip norm, and one on segments.
    assert sum(summary["findings"].values()) == 5
    index = (here / "home" / "reports" / "index.html").read_text()
    assert f"clips/{clips.folder.name}/page.html" in index


def test_the_tables_are_of_what_was_trained(here: Path, clips: Ran) -> None:
    rows = read_csv(clips.report / "table.csv")
    assert [(row["method"], row["epsilon"]) for row in rows] == [
        ("non-private", "inf"),
        *((method, epsilon) for epsilon in ("2", "8") for method in ("C = 1", "C = 3")),
    ]
    for row in rows:
        losses = []
        for item in clips.plan["items"]:
            trial = item["trial"]
            if row["method"] == ("non-private" if trial["epsilon"] is None else f"C = {trial['l2_clip_norm']:g}") and (
                trial["epsilon"] is None or row["epsilon"] == f"{trial['epsilon']:g}"
            ):
                losses += [one["test_loss"] for one in all_records(here) if one["trial"] == trial]
        assert len(losses) == 2
        assert float(row["loss_mean"]) == pytest.approx(sum(losses) / 2, rel=1e-6)
        assert float(row["score"]) == pytest.approx(1 - sum(losses) / 2, rel=1e-6)
    trials = read_csv(clips.report / "trials.csv")
    assert len(trials) == 10
    assert {row["audit"] for row in trials} == {"passed"}
    for row in trials:
        if row["epsilon_budget"] != "inf":
            assert float(row["epsilon_lower"]) <= float(row["epsilon"]) <= float(row["epsilon_budget"])
    # Each clip norm is a method of its own, so validation had nothing to choose among.
    assert {row["chosen"] for row in trials} == {"True"}
    choice = read_csv(clips.report / "choice.csv")
    assert [row["trainings"] for row in choice] == ["2"] * 4
    assert all(float(row["ε of the run"]) < float(row["ε with the choice, if secret"]) for row in choice)
    varied = {row["setting"]: (row["values"], row["where"]) for row in read_csv(clips.report / "varied.csv")}
    assert varied == {"ε budget": ("2, 8", "DP-SGD"), "clip norm C": ("1, 3", "DP-SGD"), "seed": ("0, 1", "all")}
    fixed = [(row["setting"], row["value"], row["where"]) for row in read_csv(clips.report / "fixed.csv")]
    assert ("model", "mlp, layers 8", "all") in fixed
    assert {("optimiser", "yogi", "non-private"), ("optimiser", "sgd", "DP-SGD")} <= set(fixed)


def test_a_result_that_means_nothing_says_so_and_does_not_overwrite(
    here: Path, clips: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (clips.report.parent / "latest").resolve()
    found = planned("clips")
    configure(here, "evaluations: 2", "evaluations: 2, only_for_tests: true")
    try:
        made = Path(report(found["run"])["page"])
    finally:
        configure(here)
    assert (clips.report.parent / "latest").resolve() == before
    assert (clips.report.parent / "latest-tiny").resolve() == made.parent
    assert "only for tests" in made.read_text().split('class="headline"')[0].split("<main>")[1]
    index = (here / "home" / "reports" / "index.html").read_text().split("All runs")[0]
    assert f"clips/{made.parent.name}/" not in index
    # The log of the step has what the terminal shows; none of its lines is taken for a progress line or an error.
    log = capsys.readouterr().out
    summary = read_json(made.parent / "summary.json")
    assert summary["headline"] in log
    assert all(claim["claim"] in log for claim in summary["claims"])
    assert all(cell in log for row in summary["table"]["rows"] for cell, _ in row)
    assert not any(line.startswith("✗") for line in log.splitlines())


def test_every_trial_has_a_statement_and_links(clips: Ran) -> None:
    html, statements = ((clips.report / name).read_text() for name in ("page.html", "statements.html"))
    page, anchors = Page(html), {found["id"] for found in Page(statements).all("section")}
    assert_self_contained(statements)
    links = [found["href"] or "" for found in page.all("a")]
    assert [link for link in links if "statements" in link] == [f"statements.html#trial-{n}" for n in range(1, 11)]
    assert anchors == {f"trial-{number}" for number in range(1, 11)}
    paths = [found["data-mlflow"] or "" for found in page.all("span") if "data-mlflow" in found]
    assert sum("/runs/" in path for path in paths) == 10 + 1
    head, *rows = page.tables["table-trials"]
    assert head[:6] == ["task", "method", "ε budget", "clip norm C", "seed", "chosen"]
    assert "test AUC" in head
    assert {row[0] for row in rows} == {"pCVR"}
    # What a reader of the page meets is typeset: no backquotes, no hyphens for minus signs, no name of configuration.
    assert "`" not in page.text + Page(statements).text
    assert not re.search(r"(?<![\w.)\]-])-\d", page.text.replace("EPSILONS=-", ""))
    assert "pcvr" not in page.text
    assert "L_" not in page.text


def all_records(here: Path) -> list[Mapping[str, Any]]:
    return [read_json(path) for path in (here / "home" / "trials").glob("*/record.json")]


def test_mlflow_has_the_report_on_the_parent_run(here: Path, clips: Ran) -> None:
    parent, children = mlflow_runs(here, clips)
    assert parent.info.status == "FINISHED"
    assert artifacts(here, parent.info.run_id) == {"data_cards", *FILES}
    losses = {row["method"] + row["epsilon"]: float(row["loss_mean"]) for row in read_csv(clips.report / "table.csv")}
    assert parent.data.metrics["baseline_loss/pcvr"] == pytest.approx(losses["non-privateinf"], rel=1e-6)
    for method in (1, 3):
        # Over ε: at a thousand steps for each unit of it.
        curve = history(here, parent.info.run_id, f"test_loss/pcvr/C_{method}")
        assert curve == {2000: pytest.approx(losses[f"C = {method}2"]), 8000: pytest.approx(losses[f"C = {method}8"])}
        relative = history(here, parent.info.run_id, f"relative_loss_percent/pcvr/C_{method}")
        assert set(relative) == {2000, 8000}
        assert parent.data.metrics[f"epsilon_with_choice_if_secret/pcvr/C_{method}"] > 4
    assert len(children) == 10
    assert {child.info.status for child in children} == {"FINISHED"}
    assert {child.data.tags["reused"] for child in children} == {"false"}


def test_mlflow_compares_the_trials_at_once(here: Path, clips: Ran) -> None:
    """Trials have the same few metrics, the relative loss among them, and the sweep has a view of them."""
    parent, children = mlflow_runs(here, clips)
    losses = {one["test_loss"] for one in all_records(here)}
    for child in children:
        check_trial(child, parent.data.metrics["baseline_loss/pcvr"], losses)
    names = {child.info.run_name for child in children}
    assert {"non-private · seed 0", "ε 2 · C 1 · seed 0", "ε 8 · C 3 · seed 1"} <= names
    assert len(names) == 10
    rows = [line for line in (clips.report / "report.md").read_text().splitlines() if line.startswith("|")]
    assert "\n".join(rows[:4]) in parent.data.tags["mlflow.note.content"], "the table"
    check_views(here, parent, children)


def test_a_second_run_trains_nothing_and_says_the_same(here: Path, clips: Ran) -> None:
    before = records(here)
    again = run("clips")
    assert again.trained == 0
    assert records(here) == before
    assert again.report != clips.report
    assert (again.report / "table.csv").read_text() == (clips.report / "table.csv").read_text()
    assert (again.report / "figure.svg").read_text() == (clips.report / "figure.svg").read_text()
    # The trials have their runs already: the new parent has none of its own, and shows the earlier ones.
    parent, children = mlflow_runs(here, again)
    assert children == []
    first, earlier = mlflow_runs(here, clips)
    compare = compare_path(first.info.experiment_id, [child.info.run_id for child in earlier])
    assert f"[Compare the 10 trials](#/{compare})" in parent.data.tags["mlflow.note.content"]
    for child in earlier:
        assert len(history(here, child.info.run_id, "epsilon")) == 1


def test_another_pipeline_finds_the_trials_that_it_shares(here: Path, clips: Ran) -> None:
    """Without columns, validation chooses the clip norm."""
    losses = run("losses")
    assert losses.trained == 0
    rows = {row["epsilon"]: row for row in read_csv(losses.report / "table.csv")}
    assert list(rows) == ["inf", "2", "8"]
    assert float(rows["inf"]["relative_loss_percent_mean"]) == 0
    by_validation: dict[float, list[float]] = {1.0: [], 3.0: []}
    by_test: dict[float, list[float]] = {1.0: [], 3.0: []}
    for one in all_records(here):
        trial = one["trial"]
        if (trial["epsilon"], trial["learning_rate"], trial["mechanism"]) == (8, 0.1, "dp_sgd") and trial["seed"] < 2:
            by_validation[trial["l2_clip_norm"]].append(one["validation_loss"])
            by_test[trial["l2_clip_norm"]].append(one["test_loss"])
    assert {len(found) for found in by_test.values()} == {2}
    best = min(by_validation, key=lambda clip: sum(by_validation[clip]))
    assert float(rows["8"]["loss_mean"]) == pytest.approx(sum(by_test[best]) / 2, rel=1e-6)
    assert [row["trainings"] for row in read_csv(losses.report / "choice.csv")] == ["4", "4"]


@pytest.mark.parametrize(
    ("old", "new", "touched"),
    [
        ("l2_clip_norm: [1, 3]", "l2_clip_norm: [1, 5]", 4),
        ("epsilons: [2, 8]", "epsilons: [2, 9]", 4),
        ("seeds: 2", "seeds: 3", 5),
        ("non_private: {optimizer: yogi, learning_rate: 0.01", "non_private: {optimizer: yogi, learning_rate: 0.02", 2),
        ("learning_rate: 0.1, batch_size", "learning_rate: 0.2, batch_size", 8),
        ("paper: {C = 1: {2: 0.75", "paper: {C = 1: {2: 0.74", 0),
        ("hidden_layers: [8]", "hidden_layers: [16]", 10),
    ],
    ids=["clip", "epsilon", "seeds", "baseline", "rate", "paper", "model"],
)
def test_a_changed_number_trains_only_what_it_touches(here: Path, clips: Ran, old: str, new: str, touched: int) -> None:
    before = {json.dumps(item["trial"], sort_keys=True) for item in clips.plan["items"]}
    configure(here, old, new)
    try:
        found = planned("clips")
    finally:
        configure(here)
    left = [item["trial"] for group in found["groups"] for item in group["items"]]
    assert len(left) == touched
    asked = {json.dumps(item["trial"], sort_keys=True) for item in read_plan(found["run"])["items"]}
    assert {json.dumps(trial, sort_keys=True) for trial in left} == asked - before


def test_a_plan_that_is_not_trained_has_no_report(here: Path, clips: Ran) -> None:
    found = planned("clips", epsilons=[9])
    with pytest.raises(UserError, match=r"trial 3 \(pCVR · ε=9 .* is not trained yet"):
        report(found["run"])
    assert not (here / "home" / "reports" / "clips" / Path(found["run"]).name).exists()


def test_a_report_that_is_made_again_is_new(here: Path, clips: Ran) -> None:
    """A report can be made again, for instance after a change of the paper's numbers."""
    ran = run("clips", epsilons=[8])
    assert (ran.trained, "EPSILONS=8" in (ran.report / "report.md").read_text()) == (0, True)
    configure(here, "8: 0.76", "8: 0.77")
    try:
        report(str(ran.folder))
    finally:
        configure(here)
    assert "0.7700" in (ran.report / "report.md").read_text()
    assert {path.name for path in ran.report.iterdir()} == FILES
    _, children = mlflow_runs(here, ran)
    assert children == [], "they are runs of an earlier parent"


def test_a_report_parses_each_record_once(here: Path, clips: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging, the audit, the choice of settings, its cost and the tables share what was parsed."""
    parsed: list[Path] = []

    def read(path: Path) -> Any:
        parsed.append(path)
        return read_json(path)

    monkeypatch.setattr(tasks.training.finished, "_parsed", {})
    monkeypatch.setattr(tasks.training.finished, "read_json", read)
    report(str(clips.folder))
    names = Counter(path.name for path in parsed)
    trials = len(clips.plan["items"])
    # Segments are of the baseline and of the best private model at two budgets, with two seeds each.
    assert names == {"record.json": trials, "evidence.json": trials, "audit.json": trials, "segments.json": 6}


def test_a_method_that_diverges_is_a_result(here: Path, clips: Ran) -> None:
    """One learning rate is far too large; the trials of the other are reused."""
    rates = run("rates")
    assert rates.trained == 4
    rows = {(row["method"], row["epsilon"]): row for row in read_csv(rates.report / "table.csv")}
    assert {rows["sgd · 1e+30", epsilon]["loss_mean"] for epsilon in ("2", "8")} == {""}
    assert 0 < float(rows["sgd · 0.1", "8"]["loss_mean"]) < 1
    assert (rates.report / "report.md").read_text().count("diverged") >= 4
    parent, _ = mlflow_runs(here, rates)
    assert "test_loss/pcvr/sgd_0.1" in parent.data.metrics
    assert not any("1e_30" in name or "1e+30" in name for name in parent.data.metrics if "test_loss" in name)
    # A run that diverged has no guarantee to give: no ε, no budget kept, no price of the choice.
    assert not any("1e+30" in name for name in parent.data.metrics if "epsilon" in name)
    trials = read_csv(rates.report / "trials.csv")
    gone = [row for row in trials if "1e+30" in row["name"]]
    assert [(row["audit"], row["epsilon"]) for row in gone] == [("diverged", "")] * 4
    choice = {row["method"]: row["ε with the choice, if secret"] for row in read_csv(rates.report / "choice.csv")}
    assert choice["sgd · 1e+30"] == "none"
    assert float(choice["sgd · 0.1"]) > 0
