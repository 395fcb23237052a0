"""The table of metrics, the finding on calibration, reliability plots and segments, from planted records."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from tasks.reporting.exhibits.common import Sweep
from tasks.reporting.exhibits.metrics import calibration_findings, metrics_table
from tasks.reporting.exhibits.reliability import reliability_figures
from tasks.reporting.exhibits.segments import segment_findings, segments_table
from tasks.reporting.results import Outcome, Result, choose
from tasks.training.trial import Trial
from tests.support.exhibits import pipeline_of
from tests.support.sweeps import baseline, private

CALIBRATIONS = {None: 1.02, 1.0: 1.5, 8.0: 1.12}


def record(trial: Trial) -> dict[str, Any]:
    off = CALIBRATIONS[trial.epsilon] + 0.01 * trial.seed
    metrics = {"auc": 0.7, "log_loss": 0.5, "normalized_entropy": 0.9, "llh": 0.1, "calibration": off}
    bins = [
        {"rows": 100, "predicted": 0.02 * (k + 1), "observed": 0.02 * (k + 1) / off if k else 0.0} for k in range(10)
    ]
    return {
        "test_metrics": metrics,
        "calibration_error": 0.02,
        "reliability": bins,
        "curve": [{"step": 1, "validation_metrics": {"auc": 0.75, "calibration": 1.0}}],
    }


def old_record(trial: Trial) -> dict[str, Any]:
    """A record of a version without these metrics."""
    return {"curve": [{"step": 1, "train_loss": 0.1, "validation_loss": 0.2}]}


@pytest.fixture(scope="module")
def results() -> list[Result]:
    outcomes = [Outcome(baseline(seed=seed), 0.25, 0.26) for seed in (0, 1)]
    outcomes += [Outcome(private(epsilon=e, seed=seed), 0.3, 0.3) for e in (1.0, 8.0) for seed in (0, 1)]
    return choose(outcomes)


@pytest.fixture(scope="module")
def sweep(results: list[Result]) -> Sweep:
    return Sweep(pipeline_of("relative_loss"), results, {})


def test_the_table_has_means_over_seeds_and_dashes_for_old_records(results: list[Result]) -> None:
    table = metrics_table(results, record)  # type: ignore[arg-type]
    assert table.columns == ["task", "method", "ε budget", "AUC", "log loss", "NE", "LLH", "calibration"]
    assert [row[2].text for row in table.rows] == ["∞", "1", "8"]
    assert [row[7].text for row in table.rows] == ["1.0250 ± 0.0071", "1.5050 ± 0.0071", "1.1250 ± 0.0071"]
    first = table.records[0]
    assert first["test_calibration_mean"] == pytest.approx(1.025)
    assert (first["validation_auc_mean"], first["test_poisson_log_loss_mean"]) == (0.75, None)
    assert "no ε covers them" in table.caption

    old = metrics_table(results, old_record)  # type: ignore[arg-type]
    assert [len(row) for row in old.rows] == [3, 3, 3]

    def mixed(trial: Trial) -> Any:
        return old_record(trial) if trial.epsilon is None else record(trial)

    assert [cell.text for cell in metrics_table(results, mixed).rows[0][3:]] == ["–"] * 5


def test_a_model_off_by_a_factor_is_found_out(results: list[Result]) -> None:
    """1.505 is far outside; 1.125 is outside of 1.1, but not by two standard errors of 0.023."""
    (finding,) = calibration_findings(results, record)  # type: ignore[arg-type]
    assert finding.claim == "pCVR: private models predict as many conversions as there are"
    assert finding.verdict == "not shown"
    assert finding.evidence.startswith("mean prediction over mean label 1.50 ± 0.03 at ε = 1, outside of 0.9 to 1.1; ")
    assert "the non-private model has 1.02 ± 0.02. AUC does not show it" in finding.evidence
    assert calibration_findings(results, old_record) == []  # type: ignore[arg-type]

    def drifted(trial: Trial) -> Any:
        found = record(trial)
        return {**found, "test_metrics": {**found["test_metrics"], "calibration": 1.5}}

    assert "privacy need not be the cause" in calibration_findings(results, drifted)[0].evidence

    def right(trial: Trial) -> Any:
        found = record(trial)
        return {**found, "test_metrics": {**found["test_metrics"], "calibration": 1.0}}

    assert calibration_findings(results, right) == []


def test_reliability_plots_draw_every_bin(sweep: Sweep) -> None:
    (figure,) = reliability_figures(sweep, record)  # type: ignore[arg-type]
    assert figure.name == "reliability_pcvr"
    titles = [node.text or "" for node in ET.fromstring(figure.svg).iter() if node.tag.endswith("title")]
    # The first bin has no positive label, and no place on a log axis.
    for name in ("non-private", "ε = 1", "ε = 8"):
        assert sum(title.startswith(f"{name}: 100 rows") for title in titles) == 9
    assert "Wilson" in figure.caption
    assert reliability_figures(sweep, old_record) == []  # type: ignore[arg-type]


def segments(trial: Trial, *, costly: str = "small") -> list[dict[str, Any]]:
    cost = 0.0 if trial.epsilon is None else 0.05
    lost = {"large": 0.0, "small": 0.0, "others": 0.0, costly: cost}
    common = {"mean_label": 0.2, "normalized_entropy": 0.9, "calibration": 1.1, "calibration_error": 0.1}
    rows = {"large": 700, "small": 200, "others": 100}
    jitter = 0.001 * trial.seed * (trial.epsilon is not None)
    auc = {name: 0.8 - lost[name] - (jitter if name == "small" else 0) for name in rows}
    found = [{**common, "name": name, "rows": rows[name], "auc": auc[name]} for name in rows]
    return [*found, {**common, "name": "rare", "rows": 3, "auc": None, "calibration": None, "calibration_error": None}]


def test_the_table_of_segments_says_where_there_is_one_class(sweep: Sweep) -> None:
    table = segments_table(sweep, {"pcvr": "site"}, segments)  # type: ignore[arg-type]
    assert table is not None
    assert table.columns[:5] == ["task", "segment", "rows", "mean label", "score, non-private"]
    texts = [[cell.text for cell in row] for row in table.rows]
    assert [row[1] for row in texts] == ["site: large", "site: small", "site: others", "site: rare"]
    assert texts[0][4:] == ["0.800 ± 0.000"] * 3 + ["1.100 ± 0.110"] * 3
    assert texts[1][4:6] == ["0.800 ± 0.000", "0.750 ± 0.001"]
    assert texts[3][4:] == ["one class"] * 3 + ["–"] * 3
    assert len(table.records) == 4 * 3
    assert segments_table(sweep, {"pcvr": "site"}, lambda trial: None) is None
    assert segments_table(sweep, {}, segments) is None  # type: ignore[arg-type]


def test_whether_privacy_costs_small_segments_more_is_judged_by_seed(sweep: Sweep) -> None:
    (found,) = segment_findings(sweep, {"pcvr": "site"}, segments)  # type: ignore[arg-type]
    assert "small segments of site" in found.claim
    assert found.verdict == "shown"
    assert "AUC is worse by 0.0253 in small segments and by 0.0000 in large ones" in found.evidence
    (other,) = segment_findings(sweep, {"pcvr": "site"}, lambda trial: segments(trial, costly="large"))  # type: ignore
    assert other.verdict == "not shown"
