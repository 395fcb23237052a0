"""Metrics, reliability bins and segments against scikit-learn, SciPy and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from sklearn.metrics import log_loss, mean_poisson_deviance, roc_auc_score

from dp_core.evaluation.calibration import calibration, predictions
from dp_core.evaluation.metrics import normalized_entropy
from dp_core.evaluation.reliability import BINS, interval, reliability
from dp_core.evaluation.segments import segment_metrics
from dp_core.training.losses import OBJECTIVES


def rows(task: str, count: int = 2000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1, 1, count).astype(np.float32)
    expected = predictions(task, logits + 0.3)
    labels = rng.poisson(expected) if task == "pconvs" else rng.random(count) < expected
    return logits, labels.astype(np.float32)


def test_binary_metrics_are_scikit_learns() -> None:
    logits, labels = rows("pctr")
    loss, metrics = OBJECTIVES["pctr"].evaluate(logits, labels)
    probabilities = predictions("pctr", logits)
    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, logits)) == pytest.approx(1 - loss)
    assert metrics["log_loss"] == pytest.approx(log_loss(labels, probabilities))
    constant = log_loss(labels, np.full(len(labels), labels.mean()))
    assert metrics["normalized_entropy"] == pytest.approx(metrics["log_loss"] / constant)
    assert metrics["llh"] == pytest.approx(1 - metrics["normalized_entropy"])
    assert metrics["calibration"] == pytest.approx(probabilities.mean() / labels.mean())
    assert set(metrics) == {"auc", "log_loss", "normalized_entropy", "llh", "calibration"}


def test_counts_are_normalised_by_scikit_learns_deviance() -> None:
    logits, labels = rows("pconvs")
    loss, metrics = OBJECTIVES["pconvs"].evaluate(logits, labels)
    predicted = predictions("pconvs", logits)
    constant = mean_poisson_deviance(labels, np.full(len(labels), labels.mean()))
    assert metrics["normalized_entropy"] == pytest.approx(mean_poisson_deviance(labels, predicted) / constant)
    assert metrics["poisson_log_loss"] == loss
    assert metrics["calibration"] == pytest.approx(predicted.mean() / labels.mean())
    assert set(metrics) == {"poisson_log_loss", "normalized_entropy", "llh", "calibration"}


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["pctr", "pconvs"]), st.integers(0, 1000), st.floats(-2, 2))
def test_the_best_constant_has_an_entropy_of_one_and_auc_hides_a_shift(task: str, seed: int, shift: float) -> None:
    _, labels = rows(task, 300, seed)
    mean = labels.mean(dtype=np.float64)
    link = np.log(mean) if task == "pconvs" else np.log(mean / (1 - mean))
    constant = OBJECTIVES[task].evaluate(np.full(300, link), labels)[1]
    assert constant["normalized_entropy"] == pytest.approx(1, abs=1e-6)
    assert constant["calibration"] == pytest.approx(1, abs=1e-6)
    moved = OBJECTIVES[task].evaluate(np.full(300, link + shift), labels)[1]
    assert moved["normalized_entropy"] >= 1 - 1e-6
    if task == "pctr":
        assert moved["auc"] == constant["auc"] == 0.5
    else:
        assert moved["calibration"] == pytest.approx(np.exp(shift), rel=1e-5)


@pytest.mark.parametrize("labels", [[0.0, 0.0], [1.0, 1.0]])
def test_labels_that_are_all_equal_have_no_normalised_entropy(labels: list[float]) -> None:
    for task in ("pctr", "pconvs"):
        assert np.isnan(normalized_entropy(task, 0.3, np.array(labels)))
    assert np.isnan(normalized_entropy("pconvs", 0.3, np.full(7, 3.0)))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.5, 3.0]), min_size=1, max_size=60), st.integers(2, 12))
def test_bins_keep_rows_sums_and_order(values: list[float], bins: int) -> None:
    logits, rng = np.array(values), np.random.default_rng(0)
    labels = rng.integers(0, 2, len(values)).astype(float)
    found = reliability("pctr", logits, labels, bins=bins)
    assert 1 <= len(found) <= min(bins, len(set(values)))
    assert sum(one.rows for one in found) == len(values)
    assert sum(one.rows * one.predicted for one in found) == pytest.approx(predictions("pctr", logits).sum())
    assert sum(one.rows * one.observed for one in found) == pytest.approx(labels.sum())
    assert [one.predicted for one in found] == sorted({one.predicted for one in found})


def test_bins_of_different_predictions_have_equal_numbers_of_rows() -> None:
    logits, labels = rows("pctr", 1000)
    found = reliability("pctr", logits, labels)
    assert [one.rows for one in found] == pytest.approx([100] * BINS, abs=1)
    order = np.argsort(logits)
    assert found[0].observed == pytest.approx(labels[order[: found[0].rows]].mean())
    assert reliability("pctr", np.array([np.nan, 1.0]), np.zeros(2)) == []


@pytest.mark.parametrize("observed", [0.0, 0.07, 0.5, 1.0])
def test_intervals_are_the_rates_that_a_score_test_keeps(observed: float) -> None:
    low, high = interval("pctr", 50, observed)
    wilson = stats.binomtest(round(50 * observed), 50).proportion_ci(method="wilson")
    if (50 * observed).is_integer():
        assert (low, high) == pytest.approx((wilson.low, wilson.high), abs=1e-9)
    z = stats.norm.isf(0.025)
    for end in interval("pconvs", 50, observed):
        assert abs(observed - end) == pytest.approx(z * np.sqrt(end / 50), abs=1e-9)
    root = optimize.brentq(lambda r: r - observed - z * np.sqrt(r / 50), observed + 1e-6, observed + 5)
    assert interval("pconvs", 50, observed)[1] == pytest.approx(root)


def test_a_segment_with_one_class_has_no_auc() -> None:
    logits, labels = rows("pctr", 200)
    whole = segment_metrics("pctr", logits, labels)
    assert whole.auc == pytest.approx(roc_auc_score(labels, logits))
    found = calibration("pctr", logits, labels)
    assert whole.calibration == pytest.approx(found.ratio)
    assert whole.calibration_error is not None
    assert found.ratio * np.exp(stats.norm.isf(0.025) * whole.calibration_error) == pytest.approx(found.interval[1])
    none = segment_metrics("pctr", logits[labels == 0], labels[labels == 0])
    assert (none.auc, none.normalized_entropy, none.calibration, none.calibration_error) == (None,) * 4
    one = segment_metrics("pctr", logits[:1], np.ones(1))
    assert (one.rows, one.auc, one.calibration_error) == (1, None, None)
    assert one.calibration is not None
    assert segment_metrics("pconvs", *rows("pconvs", 100)).auc is None


def test_predictions_that_are_all_zero_have_a_calibration_without_an_error() -> None:
    found = segment_metrics("pctr", np.full(3, -1e30), np.array([0.0, 1.0, 1.0]))
    assert (found.calibration, found.calibration_error) == (0.0, None)
