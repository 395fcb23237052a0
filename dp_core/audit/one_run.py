"""A lower bound on ε from one training run with canaries (Steinke, Nasr and Jagielski, 2023).

A fair coin decides for each of m canaries whether it is in the training data. After training, an attacker looks at
the model and guesses the coins of some canaries. If training is (ε, 0)-DP, the number of correct guesses is
stochastically dominated by Binomial(guesses, e^ε/(1 + e^ε)); δ adds a little to the tail. So if the
observed number is too unlikely for an ε, the run's ε is larger, with the stated confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

# The shares of canaries, by highest and lowest score, that are guessed to be in and out. With few epochs some included
# canaries are never sampled, so only high scores are informative. All pairs are tried (Bonferroni).
WAYS_TO_GUESS = ((0.05, 0.0), (0.1, 0.0), (0.2, 0.0), (0.4, 0.0), (0.05, 0.05), (0.1, 0.1), (0.25, 0.25), (0.5, 0.5))


class OneRunAudit(NamedTuple):
    """The lower bound on ε from one run.

    Attributes:
        epsilon_lower: With probability ``confidence``, the run's ε is at least this.
        confidence: The confidence level.
        canaries: The number of canaries.
        guesses: The number of canaries that were guessed.
        correct: The number of correct guesses.
    """

    epsilon_lower: float
    confidence: float
    canaries: int
    guesses: int
    correct: int


def audit_scores(
    attacks: Sequence[Sequence[float]], included: Sequence[bool], *, delta: float, confidence: float
) -> OneRunAudit:
    """Returns the best lower bound on ε that the scores of one or several attacks give.

    The attacks and the ways to guess share 1 − ``confidence`` equally (Bonferroni), so the bound is valid although the
    best of them is returned.

    Args:
        attacks: The scores of each attack, higher for canaries that seem to be included. Shape [attacks, canaries].
        included: Whether each canary was in the training data, decided by independent fair coins. Shape [canaries].
        delta: The δ at which ε is bounded.
        confidence: The probability that the bound holds.

    Returns:
        The bound; its ``epsilon_lower`` is 0 if the attacks show nothing.
    """
    coins, canaries = np.asarray(included, bool), len(included)
    allowed = (1 - confidence) / (len(WAYS_TO_GUESS) * len(attacks))
    best = OneRunAudit(0.0, confidence, canaries, 0, 0)
    for scores in attacks:
        # Ties are broken by position, which is independent of the coins.
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
    """Returns an upper bound on the probability of at least ``correct`` correct guesses under (ε, δ)-DP training.

    Steinke, Nasr and Jagielski (2023), Theorem 5.2. Without δ it is the tail of a binomial distribution:

    >>> round(probability_bound(100, 10, 10, epsilon=math.log(3), delta=0.0), 6) == round(0.75**10, 6)
    True

    Args:
        canaries: The number of canaries with a coin.
        guesses: The number of canaries that were guessed.
        correct: The number of correct guesses.
        epsilon: The ε of the training.
        delta: The δ of the training.

    Returns:
        A probability, at most 1.
    """
    right = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, right))
    if delta == 0 or correct == 0:
        return min(1.0, tail)
    # δ can be spent on lifting outcomes that are i below ``correct`` up to it; the best i counts.
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
