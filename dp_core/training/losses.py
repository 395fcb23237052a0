"""Losses: what each task trains on, and the loss that it reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dp_core.evaluation.metrics import auc_loss, mean_log_loss, mean_poisson_log_loss, with_normalized


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


class Objective(NamedTuple):
    """The losses of a task.

    Attributes:
        example_loss: ``(logits, labels) -> losses``, the training loss of each example.
        reported_loss: ``(logits, labels) -> loss``, the loss over a whole split, on NumPy arrays.
        reported_name: The name of the reported loss in records and tables.
        gain: The name of the metric that is 1 − the reported loss, if people know the loss by that one.
        beside: ``(loss, logits, labels) -> metrics``, those of a split beside the reported loss, by name.
    """

    example_loss: Callable[[jax.Array, jax.Array], jax.Array]
    reported_loss: Callable[[np.ndarray, np.ndarray], float]
    reported_name: str
    gain: str | None = None
    beside: Callable[[float, np.ndarray, np.ndarray], dict[str, float]] = lambda loss, logits, labels: {}

    def metrics_of_loss(self, loss: float) -> dict[str, float]:
        """Returns the reported loss as a metric.

        >>> OBJECTIVES["pctr"].metrics_of_loss(0.25), OBJECTIVES["pconvs"].metrics_of_loss(0.25)
        ({'auc': 0.75}, {'poisson_log_loss': 0.25})
        """
        return {self.reported_name: loss} if self.gain is None else {self.gain: 1.0 - loss}

    def evaluate(self, logits: np.ndarray, labels: np.ndarray) -> tuple[float, dict[str, float]]:
        """Returns the reported loss over a whole split, and all metrics of the split by name."""
        loss = self.reported_loss(logits, labels)
        return loss, {**self.metrics_of_loss(loss), **self.beside(loss, logits, labels)}


def _beside_auc(loss: float, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    log_loss = mean_log_loss(logits, labels)
    return {"log_loss": log_loss, **with_normalized("pctr", log_loss, logits, labels)}


def _beside_counts(loss: float, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return with_normalized("pconvs", loss, logits, labels)


_CLASSIFICATION = Objective(binary_cross_entropy, auc_loss, "auc_loss", gain="auc", beside=_beside_auc)
OBJECTIVES: dict[str, Objective] = {
    "pctr": _CLASSIFICATION,
    "pcvr": _CLASSIFICATION,
    "pconvs": Objective(poisson_log_loss, mean_poisson_log_loss, "poisson_log_loss", beside=_beside_counts),
}
