"""Far tails of binomial distributions, against adding up the probabilities."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dp_core.accounting.binomials import smallest_above


def listed(probability: float, trials: int, rate: float) -> int:
    """The smallest number with a small enough tail, in exact arithmetic."""
    q, tail = Fraction(rate), Fraction(0)
    for number in range(trials, -1, -1):
        tail += math.comb(trials, number) * q**number * (1 - q) ** (trials - number)
        if tail > Fraction(probability):
            return number
    return 0


@pytest.mark.parametrize("probability", [1.0, 0.5, 0.05, 1e-6, 1e-30, 1e-200])
@pytest.mark.parametrize(("trials", "rate"), [(1, 0.25), (2, 0.5), (7, 0.125), (40, 0.75), (60, 0.001)])
def test_it_is_the_smallest_with_a_small_enough_tail(probability: float, trials: int, rate: float) -> None:
    assert smallest_above(probability, trials, rate) == listed(probability, trials, rate)
