"""The sampling error of the test split, which the spread over seeds leaves out: all seeds are tested on the same rows.

The standard error of an AUC is that of Hanley and McNeil (1982): with n₊ positive and n₋ negative rows, Q₁ = A/(2 − A)
and Q₂ = 2A²/(1 + A),

    Var(A) = (A(1 − A) + (n₊ − 1)(Q₁ − A²) + (n₋ − 1)(Q₂ − A²)) / (n₊ n₋).

It is the error of one model. A private model and the baseline are tested on the same rows, so much of it cancels in
their difference: it is an upper bound, and a remark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from tasks.reporting.price.doubts import Doubt
from tasks.reporting.results import Result

# The share of the loss above which the error is worth a remark: one percentage point of relative loss.
_WORTH_SAYING = 0.01


class Labels(NamedTuple):
    """The numbers of rows and of positive labels of a test split."""

    rows: int
    positives: int


def standard_error_of_auc(auc: float, labels: Labels) -> float:
    """Returns the standard error of an AUC; infinite without rows of both labels.

    >>> round(standard_error_of_auc(0.8, Labels(rows=200, positives=100)), 4)
    0.0314
    """
    positives, negatives = labels.positives, labels.rows - labels.positives
    if positives == 0 or negatives == 0:
        return math.inf
    one, two = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (positives - 1) * (one - auc**2) + (negatives - 1) * (two - auc**2)
    return math.sqrt(variance / positives / negatives)


def sampling_doubts(baseline: Result, labels: Labels) -> Iterator[Doubt]:
    """Yields a remark if the AUC of a task's baseline is uncertain by more than a percent of the loss."""
    if baseline.task == "pconvs" or baseline.diverged or baseline.loss == 0:
        return
    error = standard_error_of_auc(1 - baseline.loss, labels)
    if error > _WORTH_SAYING * baseline.loss:
        what = (
            f"the test split has {labels.positives:,} positive labels, so the AUC of one model has a standard error of "
            f"{error:.4f}, which is {100 * error / baseline.loss:.1f} % of the baseline's loss"
        )
        yield Doubt("small_test_split", baseline.task, None, (), what, serious=False)
