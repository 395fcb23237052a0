"""Losses agree with scikit-learn and with the paper's formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special
from sklearn.metrics import log_loss, roc_auc_score

from dp_core.evaluation.metrics import auc_loss, mean_poisson_log_loss
from dp_core.training.losses import binary_cross_entropy, poisson_log_loss


def test_auc_loss_equals_scikit_learn_with_and_without_ties() -> None:
    rng = np.random.default_rng(0)
    for decimals in (8, 1, 0):
        logits = np.round(rng.normal(size=2000), decimals).astype(np.float32)
        labels = (rng.random(2000) < special.expit(logits)).astype(np.float32)
        assert auc_loss(logits, labels) == pytest.approx(1 - roc_auc_score(labels, logits), abs=1e-12)


def test_auc_loss_of_one_class_or_of_nan_is_nan() -> None:
    assert np.isnan(auc_loss(np.array([1.0, 2.0]), np.array([1.0, 1.0])))
    assert np.isnan(auc_loss(np.array([1.0, np.nan]), np.array([0.0, 1.0])))


def test_binary_cross_entropy_equals_scikit_learn() -> None:
    logits = np.array([-60.0, -3, 0, 2, 60], np.float32)
    labels = np.array([0.0, 1, 1, 0, 1], np.float32)
    mean = float(np.mean(binary_cross_entropy(logits, labels)))
    assert mean == pytest.approx(log_loss(labels, special.expit(logits.astype(np.float64))), rel=1e-5)


def test_poisson_log_loss_is_the_papers() -> None:
    f, y = np.array([-1.0, 0.5, 2.0], np.float32), np.array([0.0, 3.0, 1.0], np.float32)
    np.testing.assert_allclose(poisson_log_loss(f, y), np.exp(f) - y * f, rtol=1e-6)
    assert mean_poisson_log_loss(f, y) == pytest.approx(float(np.mean(np.exp(f) - y * f)))
    # The minimum is at exp(f) = mean count.
    around = [mean_poisson_log_loss(np.full(4, np.log(m), np.float32), np.array([0, 1, 2, 5.0])) for m in (1.9, 2, 2.1)]
    assert around[1] < min(around[0], around[2])
