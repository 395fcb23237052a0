"""Metrics of one model on a labelled split: AUC, log loss, normalised entropy and calibration.

*Normalised entropy.* NE = (mean log loss)/(entropy of the split's own mean label): the loss relative to that of a model
that predicts the mean label for every row (He et al., 2014, section 3). 1 is no better than that constant, and 0 is
perfect. LLH = 1 − NE is the share of the constant's loss that the model saves.

*For counts*, the Poisson log loss has no zero of its own, because the log y! is left out. The deviance has one: it is
the loss less that of a model that predicts every count exactly. So NE of counts is the model's mean Poisson deviance
over that of the constant, and LLH is the share of deviance explained. For binary labels the deviance is twice the log
loss, so both definitions are one.

*Calibration* is the mean prediction over the mean label. AUC does not change if all logits are shifted, and NE hardly
shows it for rare labels; calibration does.

All are exact functions of held-out labels, which no ε covers.
"""

from __future__ import annotations

import numpy as np

from dp_core.evaluation.calibration import predictions


def auc_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns 1 − AUC, computed from the ranks of the positives (Mann-Whitney); ties count one half.

    Args:
        logits: Predictions, of shape (examples,).
        labels: Positive examples have labels above 0.

    Returns:
        A number in [0, 1], or NaN if there is only one class or a prediction is not finite.

    >>> auc_loss(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.25
    """
    positives = int(np.sum(labels > 0))
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0 or not np.all(np.isfinite(logits)):
        return float("nan")
    _, inverse, counts = np.unique(logits, return_inverse=True, return_counts=True)
    average_ranks = np.cumsum(counts) - (counts - 1) / 2
    rank_sum = float(np.sum(average_ranks[inverse[labels > 0]]))
    wins = rank_sum - positives * (positives + 1) / 2
    return 1.0 - wins / (positives * negatives)


def mean_poisson_log_loss(logits: np.ndarray, counts: np.ndarray) -> float:
    """Returns the mean of exp(f) − y·f over a split, in float64.

    >>> mean_poisson_log_loss(np.array([0.0, 0.0]), np.array([0, 3]))
    1.0
    """
    f = logits.astype(np.float64)
    with np.errstate(over="ignore"):  # The loss of a diverged model is infinite.
        return float(np.mean(np.exp(f) - counts * f))


def mean_log_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean of −log p(label) over a split, in float64, where p(1) = sigmoid(logit).

    >>> round(mean_log_loss(np.array([0.0, 0.0]), np.array([0, 1])), 4)
    0.6931
    """
    f = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # The loss of a diverged model is not a number.
        return float(np.mean(np.logaddexp(0.0, f) - labels * f))


def normalized_entropy(task: str, loss: float, labels: np.ndarray) -> float:
    """Returns NE, given the mean log loss (pCTR, pCVR) or the mean Poisson log loss (pConvs) over the same rows.

    NaN if the constant's loss is zero, so that there is nothing to compare with: all labels are equal.

    >>> round(normalized_entropy("pctr", 0.5, np.array([0, 1])), 4)  # 0.5 over log 2
    0.7213
    >>> normalized_entropy("pconvs", 1.0, np.array([0, 2]))  # the loss of predicting the mean, 1
    1.0
    """
    y = np.asarray(labels, np.float64)
    mean = float(np.mean(y)) if len(y) else float("nan")
    if task == "pconvs":
        positive = y[y > 0]
        perfect = mean - float(np.sum(positive * np.log(positive))) / max(len(y), 1)
        constant = mean - mean * np.log(mean) if mean > 0 else 0.0
        loss, constant = loss - perfect, constant - perfect
    else:
        constant = -mean * np.log(mean) - (1 - mean) * np.log1p(-mean) if 0 < mean < 1 else 0.0
    # Equal counts differ from their mean by rounding alone.
    return float(loss / constant) if constant > 1e-12 else float("nan")


def calibration_ratio(task: str, logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean prediction over the mean label; NaN if no label is above 0.

    >>> calibration_ratio("pctr", np.array([0.0, 0.0]), np.array([0, 0, 1, 0]))
    2.0
    """
    observed = float(np.mean(labels)) if len(labels) else 0.0
    return float(np.mean(predictions(task, logits))) / observed if observed > 0 else float("nan")


def with_normalized(task: str, log_loss: float, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns NE, LLH and calibration of a split by name, given its mean log loss or Poisson log loss."""
    entropy = normalized_entropy(task, log_loss, labels)
    return {
        "normalized_entropy": entropy,
        "llh": 1.0 - entropy,
        "calibration": calibration_ratio(task, logits, labels),
    }
