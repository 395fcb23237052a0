"""What a trial's record keeps of its model on the test split. No ε covers it."""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np

from dp_core.evaluation.calibration import calibration_error
from dp_core.evaluation.reliability import reliability
from dp_core.training.losses import OBJECTIVES
from tasks.training.finished import ReliabilityBin


class Tested(TypedDict):
    """The fields of ``TrialRecord`` that are of the test split."""

    test_loss: float | None
    test_metrics: dict[str, float]
    reliability: list[ReliabilityBin]
    calibration_error: float | None


NOT_TESTED = Tested(test_loss=None, test_metrics={}, reliability=[], calibration_error=None)


def tested(task: str, logits: np.ndarray, labels: np.ndarray) -> Tested:
    """Returns the reported loss and all metrics of the test split. If the loss is not finite, there is nothing."""
    loss, metrics = OBJECTIVES[task].evaluate(logits, labels)
    if not math.isfinite(loss):
        return NOT_TESTED
    return {
        "test_loss": loss,
        "test_metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
        "reliability": [
            ReliabilityBin(rows=one.rows, predicted=one.predicted, observed=one.observed)
            for one in reliability(task, logits, labels)
        ],
        "calibration_error": calibration_error(task, logits, labels),
    }
