"""Far tails of binomial distributions."""

from __future__ import annotations

from scipy import stats


def smallest_above(probability: float, trials: int, rate: float) -> int:
    """The smallest k with P[Binomial(trials, rate) > k] ≤ ``probability``, however small that is.

    scipy's own ``isf`` answers ``trials`` for probabilities below about 10⁻¹⁶.

    >>> smallest_above(0.05, 100, 0.5), smallest_above(1e-20, 36_672_493, 1_024 / 36_672_493)
    (58, 1334)
    """
    low, high = -1, trials
    while high - low > 1:
        middle = (low + high) // 2
        if stats.binom.sf(middle, trials, rate) <= probability:
            high = middle
        else:
            low = middle
    return high
