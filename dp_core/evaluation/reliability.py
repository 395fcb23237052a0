"""Reliability: the mean label of rows with similar predictions, in bins of about equal numbers of rows.

A calibrated model has bins on the diagonal. The bins are exact functions of private labels and not private.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dp_core.evaluation.calibration import predictions
from dp_core.evaluation.paired import STANDARD_ERRORS

BINS = 10


class Bin(NamedTuple):
    """Rows with similar predictions: their number, mean prediction and mean label."""

    rows: int
    predicted: float
    observed: float


def reliability(task: str, logits: np.ndarray, labels: np.ndarray, *, bins: int = BINS) -> list[Bin]:
    """Returns bins by increasing prediction, cut at quantiles of the predictions.

    Equal predictions are in one bin, so bins are of unequal size, or fewer, where a model predicts few values. None if
    a prediction is not finite.
    """
    predicted, observed = predictions(task, logits), np.asarray(labels, np.float64)
    if not len(predicted) or not np.all(np.isfinite(predicted)):
        return []
    edges = np.unique(np.quantile(predicted, np.arange(1, bins) / bins, method="lower"))
    places = np.searchsorted(edges, predicted, side="left")
    rows = np.bincount(places, minlength=bins)
    sums = [np.bincount(places, weights=values, minlength=bins) for values in (predicted, observed)]
    return [
        Bin(int(count), float(ours / count), float(theirs / count))
        for count, ours, theirs in zip(rows, *sums, strict=True)
        if count
    ]


def interval(task: str, rows: int, observed: float) -> tuple[float, float]:
    """Returns the 95 % score interval of a mean label: Wilson's for binary labels, Poisson's for counts.

    Both are the rates r with |observed − r| ≤ z·√(variance(r)/rows): the variance is r(1 − r) for binary labels and r
    for counts. That of counts is too short if they vary more than Poisson variables do.

    >>> [round(end, 4) for end in interval("pctr", 100, 0.0)], [round(end, 4) for end in interval("pconvs", 100, 0.0)]
    ([0.0, 0.037], [0.0, 0.0384])
    """
    z2 = STANDARD_ERRORS**2 / rows
    if task == "pconvs":
        middle, half, scale = observed + z2 / 2, math.sqrt(z2 * observed + z2**2 / 4), 1.0
    else:
        middle, half = observed + z2 / 2, math.sqrt(z2 * observed * (1 - observed) + z2**2 / 4)
        scale = 1 / (1 + z2)
    return max(0.0, scale * (middle - half)), scale * (middle + half)
