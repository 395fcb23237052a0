"""Compares the losses of two models on the same labelled rows.

The rows are the same, so the errors of the two models are correlated, and the difference of their losses is known far
more exactly than either loss. The area under the ROC curve is compared by the test of DeLong, DeLong and
Clarke-Pearson (1988), with mid-ranks as in Sun and Xu (2014), in O(n log n). Log loss and Poisson log loss are means
over rows, so their difference is the mean of the rows' differences.

The tests are two-sided and asymptotic: they hold for many rows of both classes. The results are exact functions of
private labels and not private themselves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import stats

Verdict = Literal["better", "worse", "within noise"]

CONFIDENCE = 0.95
# Half the width of an interval, in standard errors.
STANDARD_ERRORS = float(stats.norm.isf((1 - CONFIDENCE) / 2))


@dataclasses.dataclass(frozen=True)
class PairedComparison:
    """The losses of two models on the same rows, and whether they differ by more than chance explains.

    Attributes:
        metric: The loss: "auc_loss", "log_loss" or "poisson_log_loss". Smaller is better.
        rows: The number of rows.
        challenger: The challenger's loss.
        champion: The champion's loss.
        difference: The challenger's loss minus the champion's.
        standard_error: Of the difference.
        interval: The difference's 95 % interval.
        p_value: Of the two-sided test that the difference is 0.
        verdict: "better" or "worse" if the interval does not contain 0: of the challenger, against the champion.
    """

    metric: str
    rows: int
    challenger: float
    champion: float
    difference: float
    standard_error: float
    interval: tuple[float, float]
    p_value: float
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Returns the comparison as a JSON-able dictionary."""
        return {**dataclasses.asdict(self), "interval": list(self.interval)}


class NormalTest(NamedTuple):
    """The 95 % interval of a difference, its two-sided p-value and the verdict."""

    interval: tuple[float, float]
    p_value: float
    verdict: Verdict


def normal_test(difference: float, standard_error: float) -> NormalTest:
    """Tests a normally distributed difference of losses against 0.

    >>> normal_test(-0.03, 0.01).verdict, normal_test(0.01, 0.01).verdict
    ('better', 'within noise')

    Args:
        difference: Challenger minus champion.
        standard_error: Of the difference. If it is 0, the difference counts as certain; if infinite, as unknown.
    """
    if not math.isfinite(standard_error):
        return NormalTest((-math.inf, math.inf), 1.0, "within noise")
    half = STANDARD_ERRORS * standard_error
    low, high = difference - half, difference + half
    if standard_error > 0:
        p_value = float(2 * stats.norm.sf(abs(difference) / standard_error))
    else:
        p_value = 1.0 if difference == 0 else 0.0
    verdict: Verdict = "better" if high < 0 else "worse" if low > 0 else "within noise"
    return NormalTest((low, high), p_value, verdict)


def compare(
    task: str, challenger_logits: np.ndarray, champion_logits: np.ndarray, labels: np.ndarray
) -> PairedComparison:
    """Compares two models by the loss that their task reports.

    Args:
        task: "pctr" or "pcvr", compared by AUC loss, or "pconvs", by Poisson log loss.
        challenger_logits: Of shape (rows,). Log intensities for "pconvs".
        champion_logits: The champion's, on the same rows.
        labels: Of shape (rows,).

    Returns:
        The comparison. Equal predictions have a difference of 0, a standard error of 0 and a p-value of 1.

    Raises:
        ValueError: There are fewer than two rows (or rows of a class), shapes differ, a logit, label or loss is not
            finite, or the task is unknown.
    """
    return compare_all(task, challenger_logits, champion_logits, labels)[0]


def compare_all(
    task: str, challenger_logits: np.ndarray, champion_logits: np.ndarray, labels: np.ndarray
) -> tuple[PairedComparison, ...]:
    """Compares two models by the task's reported loss first, then by others: log loss beside AUC loss.

    Takes and raises what ``compare`` does.
    """
    if task not in _METRICS:
        raise ValueError(f"unknown task {task!r}; known: {', '.join(_METRICS)}")
    challenger, champion, labels = _checked(challenger_logits, champion_logits, labels)
    return tuple(
        _comparison(name, len(labels), *paired(challenger, champion, labels)) for name, paired in _METRICS[task]
    )


class LossDifference(NamedTuple):
    """Both losses, the challenger's minus the champion's, and the standard error of that."""

    challenger: float
    champion: float
    difference: float
    standard_error: float


def auc_difference(challenger: np.ndarray, champion: np.ndarray, labels: np.ndarray) -> LossDifference:
    """Returns both AUC losses, their difference and its standard error by DeLong's paired test; ties count one half.

    Raises:
        ValueError: A class has fewer than two rows, so that its part of the variance is unknown.
    """
    positive = labels > 0
    positives, negatives = int(np.sum(positive)), int(np.sum(~positive))
    if min(positives, negatives) < 2:
        raise ValueError(
            f"AUC needs at least two rows with a label above 0 and two without, got {positives:,} and {negatives:,}"
        )
    # For each positive the share of negatives that it beats, and for each negative the share of positives that beat it.
    parts = [_placements(logits[positive], logits[~positive]) for logits in (challenger, champion)]
    ours, theirs = (1.0 - float(np.mean(of_positives)) for of_positives, _ in parts)
    gains = [one - other for one, other in zip(*parts, strict=True)]
    variance = sum(float(np.var(gain, ddof=1)) / len(gain) for gain in gains)
    return LossDifference(ours, theirs, -float(np.mean(gains[0])), math.sqrt(variance))


def log_loss_difference(challenger: np.ndarray, champion: np.ndarray, labels: np.ndarray) -> LossDifference:
    """Returns both mean log losses, their difference and its standard error."""
    positive = (labels > 0).astype(np.float64)
    return _mean_difference(*(np.logaddexp(0.0, f) - positive * f for f in (challenger, champion)))


def poisson_log_loss_difference(challenger: np.ndarray, champion: np.ndarray, labels: np.ndarray) -> LossDifference:
    """Returns both mean Poisson log losses exp(f) − y·f, their difference and its standard error."""
    with np.errstate(over="ignore"):
        losses = [np.exp(f) - labels * f for f in (challenger, champion)]
    for name, logits, loss in zip(("challenger", "champion"), (challenger, champion), losses, strict=True):
        if not np.all(np.isfinite(loss)):
            raise ValueError(f"the {name}'s log intensities are up to {np.max(logits):g}: its loss is infinite")
    return _mean_difference(*losses)


_METRICS: dict[str, tuple[tuple[str, Callable[[np.ndarray, np.ndarray, np.ndarray], LossDifference]], ...]] = {
    "pctr": (("auc_loss", auc_difference), ("log_loss", log_loss_difference)),
    "pcvr": (("auc_loss", auc_difference), ("log_loss", log_loss_difference)),
    "pconvs": (("poisson_log_loss", poisson_log_loss_difference),),
}


def _checked(
    challenger: np.ndarray, champion: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    given = {"challenger's logits": challenger, "champion's logits": champion, "labels": labels}
    arrays = {name: np.asarray(values, np.float64) for name, values in given.items()}
    shapes = {values.shape for values in arrays.values()}
    if len(shapes) > 1 or len(next(iter(shapes))) != 1:
        raise ValueError(f"logits and labels must be one number a row, got shapes {[a.shape for a in arrays.values()]}")
    if len(labels) < 2:
        raise ValueError(f"a comparison needs at least two rows, got {len(labels)}")
    for name, values in arrays.items():
        bad = int(np.sum(~np.isfinite(values)))
        if bad:
            raise ValueError(f"{bad:,} of {len(labels):,} of the {name} are not finite")
    ours, theirs, labelled = arrays.values()
    return ours, theirs, labelled


def _comparison(
    metric: str, rows: int, challenger: float, champion: float, difference: float, standard_error: float
) -> PairedComparison:
    tested = normal_test(difference, standard_error)
    return PairedComparison(metric, rows, challenger, champion, difference, standard_error, *tested)


def _mean_difference(challenger: np.ndarray, champion: np.ndarray) -> LossDifference:
    by_row = challenger - champion
    standard_error = float(np.std(by_row, ddof=1)) / math.sqrt(len(by_row))
    return LossDifference(float(np.mean(challenger)), float(np.mean(champion)), float(np.mean(by_row)), standard_error)


def _placements(positives: np.ndarray, negatives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each positive the share of negatives below it, and for each negative that of positives above it."""
    below, not_above = (np.searchsorted(np.sort(negatives), positives, side=side) for side in ("left", "right"))
    not_above_it, below_it = (np.searchsorted(np.sort(positives), negatives, side=side) for side in ("right", "left"))
    above = 1.0 - (below_it + not_above_it) / (2 * len(positives))
    return (below + not_above) / (2 * len(negatives)), above
