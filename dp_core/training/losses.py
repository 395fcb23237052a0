"""What each task trains on, and what it is judged by."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


def binary_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """−log p(label) for each example, with p = sigmoid(logit)."""
    return jnp.logaddexp(0.0, logits) - labels * logits


def poisson_log_loss(logits: jax.Array, counts: jax.Array) -> jax.Array:
    """exp(f) − y·f for each example: the unnormalised loss of the paper's appendix."""
    return jnp.exp(logits) - counts * logits


def auc_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    """1 − AUC, by the ranks of the positives (Mann-Whitney), ties counting one half.

    NaN when there is only one class, or a prediction is not a number.

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
    f = logits.astype(np.float64)
    with np.errstate(over="ignore"):  # a diverged model's loss is infinite
        return float(np.mean(np.exp(f) - counts * f))


class Objective(NamedTuple):
    """A task's training loss, by example, and the loss it reports, over a split."""

    example_loss: Callable[[jax.Array, jax.Array], jax.Array]
    reported_loss: Callable[[np.ndarray, np.ndarray], float]
    reported_name: str


_CLASSIFICATION = Objective(binary_cross_entropy, auc_loss, "auc_loss")
OBJECTIVES: dict[str, Objective] = {
    "pctr": _CLASSIFICATION,
    "pcvr": _CLASSIFICATION,
    "pconvs": Objective(poisson_log_loss, mean_poisson_log_loss, "poisson_log_loss"),
}
