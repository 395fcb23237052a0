"""AUC, log loss and calibration of two models from noisy histograms of their scores by label.

The bins are fixed and do not depend on the data. All estimates are post-processing of the noisy histograms and of the
number of rows N, which is public. Negative counts are not set to 0 in the estimates: noise is as often negative as
positive, and raising all negative counts would move every empty bin up. Instead the four histograms are moved to the
nearest ones that agree with each other (least squares): both models saw the same positives, and positives and negatives
are N together. This takes out most of the noise of empty bins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dp_core.evaluation.calibration import predictions

CHALLENGER, CHAMPION = 0, 1
NEGATIVE, POSITIVE = 0, 1

# Bins of half a logit from −8 to 4: probabilities from 0.0003 to 0.98. What is outside is counted in the outer bins.
WIDTH = 0.5
EDGES = np.linspace(-7.5, 3.5, 23)
MIDPOINTS = np.concatenate([EDGES - WIDTH / 2, EDGES[-1:] + WIDTH / 2])

# Draws that the noise's effect on an estimate is measured with; their standard deviation is known to 2 %.
SIMULATIONS = 1000


class Estimate(NamedTuple):
    """An estimate for both models and its errors.

    Attributes:
        challenger: The challenger's value.
        champion: The champion's.
        noise: Standard errors that the noise of the release causes: of the challenger's value, of the champion's, and
            of their difference.
        sampling: Standard errors that the choice of rows causes, of the same. That of the difference is an upper
            bound if the models' errors are not negatively correlated, which histograms cannot tell.
    """

    challenger: float
    champion: float
    noise: tuple[float, float, float]
    sampling: tuple[float, float, float]


def histograms(challenger_logits: np.ndarray, champion_logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts rows by model, label and score.

    Emptying one row lowers one count of each model by 1 and changes nothing else, so the L2 sensitivity is √2. Every
    row is counted, since an error would tell that there is such a row: a logit that is not a number counts as the
    lowest score, and a label that is not above 0 as negative.

    Returns:
        int64 of shape [2 models, 2 labels, bins].
    """
    positive = (np.asarray(labels) > 0).astype(np.int64)
    counts = np.zeros((2, 2, len(MIDPOINTS)), np.int64)
    for model, logits in enumerate((challenger_logits, champion_logits)):
        scores = np.nan_to_num(np.asarray(logits, np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        np.add.at(counts[model], (positive, np.searchsorted(EDGES, scores, side="right")), 1)
    return counts


def consistent(noisy: np.ndarray, rows: int) -> np.ndarray:
    """Returns the nearest histograms with the same positives for both models, and ``rows`` rows for each.

    Args:
        noisy: Of shape [..., 2 models, 2 labels, bins].
        rows: The public number of rows.
    """
    sums = noisy.sum(axis=-1)
    # Four estimates of the number of positives, of equal variance.
    positives = (sums[..., POSITIVE].sum(axis=-1) + (rows - sums[..., NEGATIVE]).sum(axis=-1)) / 4
    # An estimate without a row of each class would divide by 0.
    positives = np.clip(positives, 1, max(rows - 1, 1))
    wanted = np.stack([rows - positives, positives], axis=-1)[..., None, :]
    return noisy + ((wanted - sums) / noisy.shape[-1])[..., None]


def auc_loss(counts: np.ndarray) -> np.ndarray:
    """Returns 1 − AUC of each histogram, between 0 and 1.

    Of two scores in one bin, the positive's is the larger one with a probability of somewhat more than one half. If the
    log odds of the label rise by t per logit, as they do with t = 1 for a calibrated model, it is 1/2 + t·width/12 to
    first order, for scores that are spread evenly over the bin. The histogram tells t (linear discriminant).

    Args:
        counts: Of shape [..., 2 labels, bins].
    """
    negatives, positives = counts[..., NEGATIVE, :], counts[..., POSITIVE, :]
    won = 1 / 2 + np.clip(_slope(counts), 0, 2) * WIDTH / 12
    below = np.cumsum(negatives, axis=-1) - negatives * (1 - won[..., None])
    pairs = positives.sum(axis=-1) * negatives.sum(axis=-1)
    return np.clip(1 - (positives * below).sum(axis=-1) / pairs, 0, 1)


def _slope(counts: np.ndarray) -> np.ndarray:
    """Returns how fast the log odds of the label rise with the score: the classes' distance over their variance."""
    rows = counts.sum(axis=-1)
    of_negatives, of_positives = np.moveaxis((counts * MIDPOINTS).sum(axis=-1) / rows, -1, 0)
    every, total = counts.sum(axis=-2), rows.sum(axis=-1)
    mean = (every * MIDPOINTS).sum(axis=-1) / total
    spread = (every * (MIDPOINTS - mean[..., None]) ** 2).sum(axis=-1) / total
    distance, rate = of_positives - of_negatives, rows[..., POSITIVE] / total
    return distance / np.maximum(spread - rate * (1 - rate) * distance**2, WIDTH**2 / 12)


def log_loss(counts: np.ndarray) -> np.ndarray:
    """Returns the mean log loss of each histogram, with the logit in the middle of each bin. At least 0.

    Args:
        counts: Of shape [..., 2 labels, bins].
    """
    total = (counts * _ROW_LOSSES).sum(axis=(-1, -2))
    return np.maximum(total / counts.sum(axis=(-1, -2)), 0)


def calibration_ratio(counts: np.ndarray) -> np.ndarray:
    """Returns the sum of predictions over the number of positives of each histogram. At least 0.

    Args:
        counts: Of shape [..., 2 labels, bins].
    """
    predicted = (counts.sum(axis=-2) * _PREDICTED).sum(axis=-1)
    return np.maximum(predicted / counts[..., POSITIVE, :].sum(axis=-1), 0)


_PREDICTED = predictions("pctr", MIDPOINTS)
_ROW_LOSSES = np.stack([np.logaddexp(0, MIDPOINTS), np.logaddexp(0, -MIDPOINTS)])


def estimates(noisy: np.ndarray, rows: int, standard_deviation: float) -> tuple[Estimate, Estimate, Estimate]:
    """Returns AUC loss, log loss and calibration ratio of both models, with their standard errors.

    The effect of the noise is simulated: noise of the same scale is added to the noisy histograms again.

    Args:
        noisy: The released histograms, of shape [2 models, 2 labels, bins].
        rows: The public number of rows.
        standard_deviation: Of the noise on each count.
    """
    rng = np.random.default_rng(0)  # of no secret: what is simulated is computed from what was released
    again = noisy + standard_deviation * rng.standard_normal((SIMULATIONS, *noisy.shape))
    found, simulated = consistent(noisy, rows), consistent(again, rows)
    # Variances need counts that are not negative.
    counts = np.maximum(found, 0)
    measures: list[tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], float]]] = [
        (auc_loss, _auc_variance),
        (log_loss, _log_loss_variance),
        (calibration_ratio, _ratio_variance),
    ]
    return tuple(  # type: ignore[return-value]
        _estimate(measure(found), measure(simulated), [variance(one) for one in counts])
        for measure, variance in measures
    )


def _estimate(values: np.ndarray, simulated: np.ndarray, variances: list[float]) -> Estimate:
    difference = simulated[:, CHALLENGER] - simulated[:, CHAMPION]
    noise = [float(np.std(one)) for one in (simulated[:, CHALLENGER], simulated[:, CHAMPION], difference)]
    sampling = [float(np.sqrt(one)) for one in (*variances, sum(variances))]
    return Estimate(float(values[CHALLENGER]), float(values[CHAMPION]), tuple(noise), tuple(sampling))  # type: ignore[arg-type]


def _auc_variance(counts: np.ndarray) -> float:
    """Returns DeLong's variance of one AUC."""
    negatives, positives = counts
    below = (np.cumsum(negatives) - negatives / 2) / max(negatives.sum(), 1)
    above = 1 - (np.cumsum(positives) - positives / 2) / max(positives.sum(), 1)
    return _variance_of_mean(below, positives) + _variance_of_mean(above, negatives)


def _log_loss_variance(counts: np.ndarray) -> float:
    return _variance_of_mean(_ROW_LOSSES.ravel(), counts.ravel())


def _ratio_variance(counts: np.ndarray) -> float:
    """Returns the variance of R = Σp/Σy: that of the mean of p − R·y over the squared mean label (delta method)."""
    rate = counts[POSITIVE].sum() / max(counts.sum(), 1)
    residuals = np.stack([_PREDICTED, _PREDICTED - float(calibration_ratio(counts))])
    return _variance_of_mean(residuals.ravel(), counts.ravel()) / max(rate, 1e-12) ** 2


def _variance_of_mean(values: np.ndarray, counts: np.ndarray) -> float:
    rows = max(float(counts.sum()), 2.0)
    mean = float((values * counts).sum()) / rows
    return float((counts * (values - mean) ** 2).sum()) / (rows - 1) / rows
