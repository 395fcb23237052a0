"""Metrics of a model on segments of a split, such as the rows of one site: whether it serves small segments worse.

They are exact functions of private labels and not private.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dp_core.evaluation.calibration import calibration_error
from dp_core.evaluation.metrics import (
    auc_loss,
    calibration_ratio,
    mean_log_loss,
    mean_poisson_log_loss,
    normalized_entropy,
)


class SegmentMetrics(NamedTuple):
    """A model on the rows of one segment. A value that is not defined is None.

    Attributes:
        rows: The number of rows.
        mean_label: The mean label.
        auc: None for counts, and where all labels are of one class.
        normalized_entropy: Relative to the segment's own mean label; None where all labels are equal.
        calibration: The mean prediction over the mean label; None where no label is above 0.
        calibration_error: The standard error of the calibration's logarithm, from the choice of rows.
    """

    rows: int
    mean_label: float
    auc: float | None
    normalized_entropy: float | None
    calibration: float | None
    calibration_error: float | None


def largest(codes: np.ndarray, most: int) -> list[int]:
    """Returns the codes with the most rows, largest first; equally large ones by their number.

    >>> largest(np.array([3, 1, 1, 2, 3, 3]), 2)
    [3, 1]
    """
    found, rows = np.unique(codes, return_counts=True)
    return [int(code) for code in found[np.argsort(-rows, kind="stable")][:most]]


def segment_metrics(task: str, logits: np.ndarray, labels: np.ndarray) -> SegmentMetrics:
    """Returns the metrics of a model on the rows of a segment, of which there is at least one."""
    counts = task == "pconvs"
    loss = (mean_poisson_log_loss if counts else mean_log_loss)(logits, labels)
    return SegmentMetrics(
        rows=len(labels),
        mean_label=float(np.mean(labels)),
        auc=None if counts else _finite(1.0 - auc_loss(logits, labels)),
        normalized_entropy=_finite(normalized_entropy(task, loss, labels)),
        calibration=_finite(calibration_ratio(task, logits, labels)),
        calibration_error=calibration_error(task, logits, labels),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
