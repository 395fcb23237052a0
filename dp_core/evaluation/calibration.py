"""Calibration: whether a model predicts as many clicks or conversions as there are.

AUC does not change if all logits are shifted, so a model with a good AUC can be far off in the number that it predicts.
The results are exact functions of private labels and not private themselves.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dp_core.evaluation.paired import STANDARD_ERRORS


class Calibration(NamedTuple):
    """The sum of predictions over the sum of labels: 1 if they agree, 1.1 if 10 % too many are predicted.

    Attributes:
        ratio: The sum of predictions over the sum of labels.
        interval: Its 95 % interval, in which the labels and the choice of rows are random.
        predicted: The mean prediction.
        observed: The mean label.
        rows: The number of rows.
    """

    ratio: float
    interval: tuple[float, float]
    predicted: float
    observed: float
    rows: int


def predictions(task: str, logits: np.ndarray) -> np.ndarray:
    """Returns what logits predict: probabilities for "pctr" and "pcvr", intensities for "pconvs", in float64."""
    f = np.asarray(logits, np.float64)
    with np.errstate(over="ignore"):
        return np.exp(f) if task == "pconvs" else 1 / (1 + np.exp(-f))


def calibration(task: str, logits: np.ndarray, labels: np.ndarray) -> Calibration:
    """Returns the calibration ratio with its interval.

    With the ratio R = Σp/Σy, the error of log R has to first order the variance of Σ(p − R·y) over (Σp)² (delta
    method). The interval is that of log R, so both its ends are positive.

    Args:
        task: "pctr", "pcvr" or "pconvs".
        logits: Of shape (rows,).
        labels: Of shape (rows,): labels above 0 count as 1, except for "pconvs".

    Raises:
        ValueError: There are fewer than two rows, no label is above 0, or a prediction is not finite.
    """
    predicted, observed = _checked(task, logits, labels)
    if not np.any(observed > 0):
        raise ValueError(f"none of {len(observed):,} labels is above 0, so there is no ratio to them")
    ratio = float(np.sum(predicted) / np.sum(observed))
    residuals = predicted - ratio * observed
    spread = math.sqrt(len(residuals)) * float(np.std(residuals, ddof=1)) / float(np.sum(predicted))
    factor = math.exp(min(STANDARD_ERRORS * spread, 700.0))
    means = float(np.mean(predicted)), float(np.mean(observed))
    return Calibration(ratio, (ratio / factor, ratio * factor), *means, len(observed))


def calibration_error(task: str, logits: np.ndarray, labels: np.ndarray) -> float | None:
    """Returns the standard error of the ratio's logarithm, as ``calibration`` has it; None if there is no ratio."""
    # Predictions of a model that is about to diverge can all be 0, or infinite.
    total = float(np.sum(predictions(task, logits)))
    if len(labels) < 2 or not np.any(labels > 0) or not 0 < total < math.inf:
        return None
    found = calibration(task, logits, labels)
    return math.log(found.interval[1] / found.ratio) / STANDARD_ERRORS


def _checked(task: str, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    predicted = predictions(task, logits)
    observed = np.asarray(labels, np.float64)
    if task != "pconvs":
        observed = (observed > 0).astype(np.float64)
    if predicted.shape != observed.shape or predicted.ndim != 1 or len(predicted) < 2:
        raise ValueError(
            f"calibration needs one logit and one label for each of two rows or more, got {predicted.shape} and "
            f"{observed.shape}"
        )
    for name, values in (("predictions", predicted), ("labels", observed)):
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{int(np.sum(~np.isfinite(values))):,} of {len(values):,} {name} are not finite")
    return predicted, observed
