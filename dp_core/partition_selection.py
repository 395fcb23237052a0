"""Which tokens may be told: those whose noisy count is high enough (partition selection).

The mechanism M. Each row has one token in each of K categorical columns, and a token is counted in
its column. Every token that occurs gets count + N(0, s²) with s = σ·√K, and is revealed, with that
noisy count, if it is at least τ = 1 + s·Φ⁻¹(1 − δ/K). Tokens that do not occur are never revealed.

The guarantee. Let D' be D with one row more. Let U be the tokens that D' has and D has not: at most
one in each column, each with a count of 1. Let M' be M with the tokens of U never revealed.

1. M(D) and M'(D') are the same function of the noisy counts of the tokens that both have. The row
   adds one to at most one of these counts in each column, which is √K in L2. So the two are
   post-processing of one Gaussian release with noise multiplier σ on neighbours.
2. In M(D') a token of U reaches τ with probability δ/K, so p, the probability that any does, is at
   most δ (union bound). Noise is independent, so M(D') given that none does is M'(D'):
   M(D') = (1 − p)·M'(D') + p·Q for some distribution Q.

Let A be M with everything that is computed from its outcome and from the data later, such as
DP-SGD, and A' the same with M'. Suppose that the Gaussian release of 1, composed with the later
events, makes A(D) and A'(D') indistinguishable at (ε, δ₀) in both directions. For every event S

    A(D')(S) − e^ε·A(D)(S)  ≤ (1 − p)·[A'(D')(S) − e^ε·A(D)(S)] + p          ≤ δ₀ + δ
    A(D)(S)  − e^ε·A(D')(S) ≤ (1 − p)·[A(D)(S) − e^ε·A'(D')(S)] + p·A(D)(S) ≤ δ₀ + δ

So the selection costs the event ``GaussianDpEvent(σ)`` in the composition, and δ once, beside it. A
threshold above τ only makes p smaller. K, and the number of rows if δ is made from it, are public.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import dp_accounting
import numpy as np
from scipy import stats

# The share of a model's δ (1/N) that a private vocabulary is given. Half of it is the δ at which the
# noise is calibrated, half is the threshold's.
VOCABULARY_SHARE_OF_DELTA = 0.1


class Selected(NamedTuple):
    """Whether each token is revealed, and the noisy counts of those that are, in the same order."""

    kept: np.ndarray
    noisy_counts: np.ndarray


class PartitionSelection(NamedTuple):
    """A Gaussian release of ``noise_multiplier``, relative to its sensitivity, and ``delta`` beside it.

    ``threshold`` is the one that ``delta`` needs for so many ``columns``.
    """

    noise_multiplier: float
    delta: float
    columns: int
    threshold: float

    @classmethod
    def calibrated(cls, *, epsilon: float, delta: float, columns: int) -> PartitionSelection:
        """The selection that is (``epsilon``, ``delta``)-private by itself, half of δ being the threshold's."""
        noise_multiplier = selection_noise_multiplier(epsilon=epsilon, delta=delta / 2)
        threshold = selection_threshold(columns=columns, noise_multiplier=noise_multiplier, delta=delta / 2)
        return cls(noise_multiplier, delta / 2, columns, threshold)

    @property
    def standard_deviation(self) -> float:
        """Of the noise on a count."""
        return self.noise_multiplier * math.sqrt(self.columns)

    def select(self, counts: np.ndarray, rng: np.random.Generator | None = None, *, at_least: float = 0) -> Selected:
        """Selects among the tokens of one column: those whose noisy count is at least the threshold and ``at_least``.

        ``counts`` are of the tokens that occur, so none is 0. The noise comes from the operating system's
        entropy and is never seeded, because whoever knows the noise can subtract it; ``rng`` is for tests.
        It is drawn in 64-bit floating point by NumPy's PCG64: not a cryptographic generator, and not proof
        against attacks on floating-point noise.
        """
        if len(counts) and np.min(counts) < 1:
            raise ValueError(f"tokens that do not occur cannot be selected: a count is {np.min(counts)}, not 1 or more")
        rng = np.random.default_rng() if rng is None else rng
        noisy = counts + self.standard_deviation * rng.standard_normal(len(counts))
        kept = noisy >= max(self.threshold, at_least)
        return Selected(kept, noisy[kept])


def selection_noise_multiplier(*, epsilon: float, delta: float) -> float:
    """The least noise multiplier of one Gaussian release that is (``epsilon``, ``delta``)-private.

    By finding the root of the exact δ of that release (Balle and Wang 2018), on its safe side.

    >>> round(selection_noise_multiplier(epsilon=1.0, delta=1e-5), 4)
    3.7306
    """
    if not 0 < epsilon < math.inf or not 0 < delta < 1:
        raise ValueError(f"epsilon must be positive and finite and delta between 0 and 1, got {epsilon} and {delta}")
    return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * (1 + 1e-9)


def selection_threshold(*, columns: int, noise_multiplier: float, delta: float) -> float:
    """τ: ``columns`` tokens with a count of 1 reach it with probability at most ``delta`` in all.

    >>> round(selection_threshold(columns=4, noise_multiplier=10.0, delta=1e-6), 2)
    101.53
    """
    if columns < 1 or not noise_multiplier > 0 or not 0 < delta < 1:
        raise ValueError(
            "columns must be 1 or more, noise_multiplier positive and delta between 0 and 1, "
            f"got {columns}, {noise_multiplier} and {delta}"
        )
    return 1 + noise_multiplier * math.sqrt(columns) * float(stats.norm.isf(delta / columns))
