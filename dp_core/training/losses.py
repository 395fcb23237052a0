"""Losses: what each task trains on, and the loss that it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


def binary_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns −log p(label) for each example, where p(1) = sigmoid(logit).

    Args:
        logits: Of shape (examples,).
        labels: 0 or 1, or an unbiased estimate of it, of shape (examples,).
    """
    return jnp.logaddexp(0.0, logits) - labels * logits


def poisson_log_loss(logits: jax.Array, counts: jax.Array) -> jax.Array:
    """Returns exp(f) − y·f for each example, the Poisson log loss without log y! (appendix of the paper).

    Args:
        logits: Log intensities f, of shape (examples,).
        counts: Observed counts y, of shape (examples,).
    """
    return jnp.exp(logits) - counts * logits


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
    """Returns the mean of ``poisson_log_loss`` over a split, in float64.

    >>> mean_poisson_log_loss(np.array([0.0, 0.0]), np.array([0, 3]))
    1.0
    """
    f = logits.astype(np.float64)
    with np.errstate(over="ignore"):  # The loss of a diverged model is infinite.
        return float(np.mean(np.exp(f) - counts * f))


def mean_log_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean of ``binary_cross_entropy`` over a split, in float64.

    >>> round(mean_log_loss(np.array([0.0, 0.0]), np.array([0, 1])), 4)
    0.6931
    """
    f = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):  # The loss of a diverged model is not a number.
        return float(np.mean(np.logaddexp(0.0, f) - labels * f))


class Objective(NamedTuple):
    """The losses of a task.

    Attributes:
        example_loss: ``(logits, labels) -> losses``, the training loss of each example.
        reported_loss: ``(logits, labels) -> loss``, the loss over a whole split, on NumPy arrays.
        reported_name: The name of the reported loss in records and tables.
        gain: The name of the metric that is 1 − the reported loss, if people know the loss by that one.
        beside: Metrics of a split beside the reported loss, by name.
    """

    example_loss: Callable[[jax.Array, jax.Array], jax.Array]
    reported_loss: Callable[[np.ndarray, np.ndarray], float]
    reported_name: str
    gain: str | None = None
    beside: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {}

    def metrics_of_loss(self, loss: float) -> dict[str, float]:
        """Returns the reported loss as a metric.

        >>> OBJECTIVES["pctr"].metrics_of_loss(0.25), OBJECTIVES["pconvs"].metrics_of_loss(0.25)
        ({'auc': 0.75}, {'poisson_log_loss': 0.25})
        """
        return {self.reported_name: loss} if self.gain is None else {self.gain: 1.0 - loss}

    def evaluate(self, logits: np.ndarray, labels: np.ndarray) -> tuple[float, dict[str, float]]:
        """Returns the reported loss over a whole split, and all metrics of the split by name."""
        loss = self.reported_loss(logits, labels)
        others = {name: metric(logits, labels) for name, metric in self.beside.items()}
        return loss, {**self.metrics_of_loss(loss), **others}


_CLASSIFICATION = Objective(binary_cross_entropy, auc_loss, "auc_loss", gain="auc", beside={"log_loss": mean_log_loss})
OBJECTIVES: dict[str, Objective] = {
    "pctr": _CLASSIFICATION,
    "pcvr": _CLASSIFICATION,
    "pconvs": Objective(poisson_log_loss, mean_poisson_log_loss, "poisson_log_loss"),
}
