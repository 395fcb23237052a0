"""Recalibration: one shift of all logits that makes the mean prediction on validation rows equal the mean label there.

DP-SGD biases the mean: clipping shortens the gradients of rare labels most. A shift of the logit (pCTR, pCVR) or of the
log intensity (pConvs) corrects the mean and changes no ranking.

*What is released.* The shift s solves Σ p(f_i + s) = Σ y_i over the validation rows, so it depends on their labels and,
by f_i, on their features. It is computed from noisy sums alone: first of the labels, then in each of ``rounds`` rounds
of the predictions at the shift so far, after which

    s ← s + link(noisy mean label) − link(noisy mean prediction),     link = logit, or log for counts.

For counts, one round would be exact without noise. But the sum of a model that predicts far too little drowns in noise,
and a second round, at about the right shift, has a larger sum. For binary labels, each round leaves at most the share
Var(p)/(r(1 − r)) of the error, where r is the mean prediction: below 0.3 for click models, so three rounds leave below
3 %.

*Sensitivity.* Neighbours differ by emptying one validation row, which then contributes nothing (``replace_special``);
the number of rows N is public. A row's term of each sum is a label or a prediction: for binary labels in [0, 1], for
counts clipped to [0, ``LARGEST_COUNT``], a number that does not depend on the data, and divided by it. Terms are
rounded to multiples of 1/``GRID``. So each of the 1 + rounds sums has sensitivity 1, and all of them together
√(1 + rounds): for Gaussian noise, sums that depend on earlier noisy sums compose as if they were one vector. With noise
of standard deviation σ·√(1 + rounds) on each, the release costs ``GaussianDpEvent(σ)``. The shift is post-processing.

*Whom it costs.* It costs the validation rows. Training costs the training rows, and no row is in both splits. So under
the same relation, with the points in time that cut the splits fixed, the model with its shift is (max(ε, ε'), max(δ,
δ'))-DP for every row of both splits (parallel composition, where the second release may depend on the first: for a
training row the shift is post-processing of the model; for a validation row the model does not depend on it). This
would not hold for adding or removing a row: that moves the cut between the splits, and other rows with it.

No row can raise an error, because an error would tell that there is such a row.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from dp_core.evaluation.calibration import predictions
from dp_core.evaluation.integer_noise import rounded_normal

GRID = 2**16
LARGEST_COUNT = 10.0
# Noise may ask for any shift; this many logits are the most that is done.
LARGEST_SHIFT = 5.0
ROUNDS = {"pctr": 3, "pcvr": 3, "pconvs": 2}
# Logits beyond this are taken as this, so that nothing overflows.
_LARGEST_LOGIT = 30.0


@dataclasses.dataclass(frozen=True)
class Recalibration:
    """A shift and what it was computed from.

    Attributes:
        shift: What is added to every logit, a float32 number.
        noise_multiplier: σ: the standard deviation of the noise over the L2 sensitivity of all sums; None without
            noise.
        rounds: The number of sums of predictions.
        rows: The number of validation rows.
        released: The noisy sums in multiples of 1/``GRID``: of labels, then of predictions.
        exact: The same without noise, and therefore not private: for the audit alone.
        largest_term: The largest term of a row in any sum, which must not exceed ``GRID``. For the audit alone.
    """

    shift: float
    noise_multiplier: float | None
    rounds: int
    rows: int
    released: tuple[int, ...]
    exact: tuple[int, ...]
    largest_term: int

    def to_json(self) -> dict[str, Any]:
        """Returns what may be published, JSON-able."""
        return {
            "shift": self.shift,
            "noise_multiplier": self.noise_multiplier,
            "rounds": self.rounds,
            "rows": self.rows,
            "released": list(self.released) if self.noise_multiplier is not None else [],
        }


def standard_deviation(noise_multiplier: float, rounds: int) -> float:
    """Returns that of the noise of each sum, in multiples of 1/``GRID``; rounded up, as the square root is not exact.

    >>> standard_deviation(1.0, 3) / GRID
    2.000000000002
    """
    return noise_multiplier * GRID * math.sqrt(1 + rounds) * (1 + 1e-12)


def recalibrate(
    task: str,
    logits: np.ndarray,
    labels: np.ndarray,
    *,
    noise_multiplier: float | None,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Recalibration:
    """Returns the shift that makes predictions right on average on the given rows.

    Each call is another release.

    Args:
        task: "pctr", "pcvr" or "pconvs".
        logits: Of shape (rows,), one row or more.
        labels: Of shape (rows,).
        noise_multiplier: σ of the release; None for exact sums, which are not private.
        random_bytes: Where noise comes from, as in ``rounded_normal``.
    """
    rounds, rows = ROUNDS[task], len(labels)
    f = np.clip(np.nan_to_num(np.asarray(logits, np.float64)), -_LARGEST_LOGIT, _LARGEST_LOGIT)
    released, exact, largest = list[int](), list[int](), 0

    def noisy_mean(terms: np.ndarray) -> float:
        nonlocal largest
        total = int(terms.sum())
        noise = 0
        if noise_multiplier is not None:
            drawn = rounded_normal(1, standard_deviation(noise_multiplier, rounds), random_bytes=random_bytes)
            noise = int(drawn[0])
        largest = max(largest, int(np.max(np.abs(terms), initial=0)))
        exact.append(total)
        released.append(total + noise)
        return released[-1] / (GRID * rows)

    wanted, shift = _link(task, noisy_mean(_terms(task, np.asarray(labels, np.float64))), rows), 0.0
    for _ in range(rounds):
        found = _link(task, noisy_mean(_terms(task, predictions(task, f + shift))), rows)
        shift = min(max(shift + wanted - found, -LARGEST_SHIFT), LARGEST_SHIFT)
    rounded = float(np.float32(shift))
    return Recalibration(rounded, noise_multiplier, rounds, rows, tuple(released), tuple(exact), largest)


def _terms(task: str, values: np.ndarray) -> np.ndarray:
    """Returns what each row adds to a sum: an integer from 0 to ``GRID``, whatever the row has."""
    bound = LARGEST_COUNT if task == "pconvs" else 1.0
    return np.rint(GRID * np.clip(np.nan_to_num(values), 0.0, bound) / bound).astype(np.int64)


def _link(task: str, mean: float, rows: int) -> float:
    """Returns the logit or logarithm of a mean, kept half an event away from where it is infinite."""
    if task == "pconvs":
        return math.log(max(mean, 0.5 / (rows * LARGEST_COUNT)))
    least = 0.5 / rows
    inside = min(max(mean, least), 1 - least) if rows > 1 else 0.5
    return math.log(inside / (1 - inside))
