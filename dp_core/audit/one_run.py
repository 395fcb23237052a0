"""A lower bound on ε from one training run with canaries (Steinke, Nasr and Jagielski, 2023).

Each of m canaries is in the training data or not, by a fair coin. After training one looks at the
model and guesses for some of them which. If training is (ε, 0)-private, the number of right guesses
is no larger, in the sense of distributions, than that of as many coins that land right with
probability e^ε/(1 + e^ε). A δ adds a little to the probability of every outcome. So, if that many
right guesses are too unlikely for an ε, the run's ε is above it, with the stated confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

# Which shares of the canaries are guessed to be in and to be out: the outermost scores. With few epochs some
# canaries that are in are never sampled, so that only high scores tell. All ways are tried, and share the confidence.
WAYS_TO_GUESS = ((0.05, 0.0), (0.1, 0.0), (0.2, 0.0), (0.4, 0.0), (0.05, 0.05), (0.1, 0.1), (0.25, 0.25), (0.5, 0.5))


class OneRunAudit(NamedTuple):
    """With ``confidence`` ε is at least ``epsilon_lower``; from ``correct`` of ``guesses`` on ``canaries``."""

    epsilon_lower: float
    confidence: float
    canaries: int
    guesses: int
    correct: int


def audit_scores(
    attacks: Sequence[Sequence[float]], included: Sequence[bool], *, delta: float, confidence: float
) -> OneRunAudit:
    """The best lower bound that the scores of one attack or several give, where those of included canaries should
    be higher. The attacks share the confidence like the ways to guess."""
    coins, canaries = np.asarray(included, bool), len(included)
    allowed = (1 - confidence) / (len(WAYS_TO_GUESS) * len(attacks))
    best = OneRunAudit(0.0, confidence, canaries, 0, 0)
    for scores in attacks:
        # Ties are broken by place, which has nothing to do with the coins.
        order = np.argsort(np.asarray(scores, float), kind="stable")
        for share_in, share_out in WAYS_TO_GUESS:
            highest, lowest = order[canaries - int(share_in * canaries) :], order[: int(share_out * canaries)]
            guesses = len(highest) + len(lowest)
            if guesses == 0:
                continue
            correct = int(coins[highest].sum() + (~coins[lowest]).sum())
            lower = _epsilon_lower(canaries, guesses, correct, delta=delta, allowed=allowed)
            if lower > best.epsilon_lower or best.guesses == 0:
                best = OneRunAudit(lower, confidence, canaries, guesses, correct)
    return best


def probability_bound(canaries: int, guesses: int, correct: int, *, epsilon: float, delta: float) -> float:
    """At most how likely an (ε, δ)-private training allows so many right guesses, or more.

    Without δ it is the tail of a binomial distribution:

    >>> round(probability_bound(100, 10, 10, epsilon=math.log(3), delta=0.0), 6) == round(0.75**10, 6)
    True
    """
    right = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, right))
    if delta == 0 or correct == 0:
        return min(1.0, tail)
    # δ can be spent on lifting outcomes from i below the mark to above it, at the best rate of all i.
    below = np.cumsum(stats.binom.pmf(correct - np.arange(1, correct + 1), guesses, right))
    rate = float(np.max(below / np.arange(1, correct + 1)))
    return min(1.0, tail + 2 * canaries * delta * rate)


def _epsilon_lower(canaries: int, guesses: int, correct: int, *, delta: float, allowed: float) -> float:
    def excess(epsilon: float) -> float:
        return probability_bound(canaries, guesses, correct, epsilon=epsilon, delta=delta) - allowed

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
        if high > 100:
            return high / 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-6))
