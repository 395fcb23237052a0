"""Partition selection: a private vocabulary of the tokens with a high enough noisy count.

*The mechanism M.* Each row has one token in each of K categorical columns, and tokens are counted per column. Every
token that occurs gets a noisy count, count + N(0, s²) with s = σ·√K. It is revealed together with its noisy count if
that is at least τ = 1 + s·Φ⁻¹(1 − δ/K). Tokens that do not occur are never revealed.

*The guarantee.* Let D' be D plus one row. Let U be the tokens that occur in D' but not in D: at most one per column,
each with a count of 1. Let M' be M, except that tokens of U are never revealed.

1. M(D) and M'(D') are the same function of the noisy counts of the tokens that both have. The row adds one to at most
   one of these counts per column, which is √K in L2. So the two are post-processing of one Gaussian release with noise
   multiplier σ on neighbours.
2. In M(D'), each token of U reaches τ with probability δ/K, so p, the probability that any does, is at most δ (union
   bound). The noise is independent, so M(D') given that none does is M'(D'):
   M(D') = (1 − p)·M'(D') + p·Q for some distribution Q.

Let A be M followed by everything that is computed from its output and the data later, such as DP-SGD, and A' the same
with M'. Suppose that the Gaussian release of step 1, composed with the later events, makes A(D) and A'(D')
indistinguishable at (ε, δ₀) in both directions. For every event S

    A(D')(S) − e^ε·A(D)(S)  ≤ (1 − p)·[A'(D')(S) − e^ε·A(D)(S)] + p          ≤ δ₀ + δ
    A(D)(S)  − e^ε·A(D')(S) ≤ (1 − p)·[A(D)(S) − e^ε·A'(D')(S)] + p·A(D)(S) ≤ δ₀ + δ

So the selection adds the event ``GaussianDpEvent(σ)`` to the composition, and δ once on top of it. A threshold above τ
only makes p smaller. K is public, and so is the number of rows if δ is derived from it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import dp_accounting
import numpy as np
from scipy import stats

from dp_core.audit.release_noise import GaussianNoise

# The share of a model's δ (1/N) that a private vocabulary gets. Half of it is the δ at which the noise is calibrated,
# and half is for the threshold.
VOCABULARY_SHARE_OF_DELTA = 0.1


class Selected(NamedTuple):
    """The tokens of one column that are revealed.

    Attributes:
        kept: Whether each token is revealed, bool of shape [tokens].
        noisy_counts: The noisy counts of the revealed tokens, in the same order.
        noise: What was measured of the noise on all counts. Not private.
    """

    kept: np.ndarray
    noisy_counts: np.ndarray
    noise: GaussianNoise


class PartitionSelection(NamedTuple):
    """A selection with given noise and threshold; it costs one Gaussian release, plus ``delta``.

    Attributes:
        noise_multiplier: The σ of the Gaussian release, relative to its sensitivity √columns.
        delta: The part of δ that the threshold uses up.
        columns: The number K of categorical columns.
        threshold: The τ that ``delta`` needs for that many columns.
    """

    noise_multiplier: float
    delta: float
    columns: int
    threshold: float

    @classmethod
    def calibrated(cls, *, epsilon: float, delta: float, columns: int) -> PartitionSelection:
        """Returns the selection that is (``epsilon``, ``delta``)-DP by itself, with half of δ for the threshold.

        Args:
            epsilon: The ε of the selection, positive and finite.
            delta: The δ of the selection, between 0 and 1.
            columns: The number of categorical columns, at least 1.
        """
        noise_multiplier = selection_noise_multiplier(epsilon=epsilon, delta=delta / 2)
        threshold = selection_threshold(columns=columns, noise_multiplier=noise_multiplier, delta=delta / 2)
        return cls(noise_multiplier, delta / 2, columns, threshold)

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of the noise on a count."""
        return self.noise_multiplier * math.sqrt(self.columns)

    def select(self, counts: np.ndarray, rng: np.random.Generator | None = None, *, at_least: float = 0) -> Selected:
        """Selects the tokens of one column with a noisy count of at least the threshold.

        The noise comes from the operating system's entropy and is never seeded, because anyone who knows the noise can
        subtract it. It is drawn in 64-bit floating point by NumPy's PCG64, which is not a cryptographic generator and
        does not resist attacks on floating-point noise. It has tails: the ziggurat's last layer starts at 3.654 and
        reaches 3.654 + 53·log(2)/3.654 = 13.7 standard deviations, beyond which a normal draw has a mass of 1e-42.

        Args:
            counts: The counts of the tokens that occur, at least 1 each. Shape [tokens].
            rng: A generator for tests only.
            at_least: A higher threshold to use instead, if any. It costs nothing.

        Returns:
            The revealed tokens and their noisy counts.

        Raises:
            ValueError: If a count is below 1.
        """
        if len(counts) and np.min(counts) < 1:
            raise ValueError(f"only tokens that occur can be selected: counts must be at least 1, got {np.min(counts)}")
        rng = np.random.default_rng() if rng is None else rng
        noisy = counts + self.standard_deviation * rng.standard_normal(len(counts))
        kept = noisy >= max(self.threshold, at_least)
        return Selected(kept, noisy[kept], GaussianNoise.measured(noisy - counts, self.standard_deviation))


def selection_noise_multiplier(*, epsilon: float, delta: float) -> float:
    """Returns the smallest noise multiplier that makes one Gaussian release (``epsilon``, ``delta``)-DP.

    Solves for the exact δ of the release (Balle and Wang, 2018) and rounds the noise up.

    >>> round(selection_noise_multiplier(epsilon=1.0, delta=1e-5), 4)
    3.7306

    Raises:
        ValueError: If ε is not positive and finite, or δ is not between 0 and 1.
    """
    if not 0 < epsilon < math.inf or not 0 < delta < 1:
        raise ValueError(f"epsilon must be positive and finite and delta between 0 and 1, got {epsilon} and {delta}")
    return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * (1 + 1e-9)


def selection_threshold(*, columns: int, noise_multiplier: float, delta: float) -> float:
    """Returns the threshold τ that tokens of a single row reach with probability at most ``delta``.

    The row adds one token with a count of 1 per column; the bound is a union bound over the columns.

    >>> round(selection_threshold(columns=4, noise_multiplier=10.0, delta=1e-6), 2)
    101.53

    Args:
        columns: The number of categorical columns, at least 1.
        noise_multiplier: The σ of the release of all counts, relative to its sensitivity √columns.
        delta: The probability that may be used up, between 0 and 1.

    Raises:
        ValueError: If an argument is out of range.
    """
    if columns < 1 or not noise_multiplier > 0 or not 0 < delta < 1:
        raise ValueError(
            "columns must be 1 or more, noise_multiplier positive and delta between 0 and 1, "
            f"got {columns}, {noise_multiplier} and {delta}"
        )
    return 1 + noise_multiplier * math.sqrt(columns) * float(stats.norm.isf(delta / columns))
