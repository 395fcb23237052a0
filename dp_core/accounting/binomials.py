"""Far tails of binomial distributions."""

from __future__ import annotations

from scipy import stats


def smallest_above(probability: float, trials: int, rate: float) -> int:
    """Returns the smallest k with P[Binomial(trials, rate) > k] ≤ ``probability``.

    Works for arbitrarily small probabilities. scipy's own ``isf`` returns ``trials`` below about 1e-16.

    >>> smallest_above(0.05, 100, 0.5), smallest_above(1e-20, 36_672_493, 1_024 / 36_672_493)
    (58, 1334)

    Args:
        probability: The largest acceptable tail probability, above 0.
        trials: The number of trials.
        rate: The success probability of one trial.

    Returns:
        k, from 0 to ``trials``.
    """
    low, high = -1, trials
    while high - low > 1:
        middle = (low + high) // 2
        if stats.binom.sf(middle, trials, rate) <= probability:
            high = middle
        else:
            low = middle
    return high
