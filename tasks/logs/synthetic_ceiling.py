"""The losses of the planted model of a synthetic log, which no model can beat on average."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.logs.synthetic_schemas import Kind

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_AUC_BINS = 200_000


def probability(kind: Kind, score: Floats) -> Floats:
    """Returns the planted probability of a click, or of at least one conversion."""
    return 1 / (1 + np.exp(-score)) if kind == "display" else -np.expm1(-np.exp(score))


class Ceiling:
    """Accumulates the planted model's losses, and histograms of its probabilities by label."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._rows = 0
        self._log_loss = self._poisson_log_loss = 0.0
        self._histograms = np.zeros((2, _AUC_BINS), np.int64)

    def add(self, score: Floats, label: Integers) -> None:
        p, positive = probability(self._kind, score), label > 0
        self._rows += len(label)
        self._log_loss -= float(np.log(np.where(positive, p, 1 - p)).sum())
        self._poisson_log_loss += float((np.exp(score) - label * score).sum())
        bins = np.minimum((p * _AUC_BINS).astype(np.int64), _AUC_BINS - 1)
        for side in (0, 1):
            self._histograms[side] += np.bincount(bins[positive == side], minlength=_AUC_BINS)

    def result(self) -> dict[str, Any]:
        negatives, positives = self._histograms
        # Pairs in one bin count as ties. With this many bins the error is far below 1e-4.
        won = np.sum(positives * (np.cumsum(negatives) - negatives / 2))
        pairs = int(positives.sum()) * int(negatives.sum())
        auc = float(won / pairs)
        binary = {"auc": auc, "auc_loss": 1 - auc, "log_loss": self._log_loss / self._rows}
        if self._kind == "display":
            return {"test_rows": self._rows, "tasks": {"pctr": binary}}
        counts = {"poisson_log_loss": self._poisson_log_loss / self._rows}
        return {"test_rows": self._rows, "tasks": {"pcvr": binary, "pconvs": counts}}
