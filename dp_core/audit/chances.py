"""Bounds on the probability of counts under a stated law, which tests of the audit compare with a false-alarm rate.

All bounds hold at any size, for cells of any expectation: exact binomial tails, Chernoff bounds, and bets against the
law. None is an approximation for large numbers, so a run of one step and a dataset of eight examples are safe.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

# The stakes of the bets on squared deviations. Positive ones win if counts vary too much, by a few percent (the small
# stakes, over many counts) or by a lot; negative ones if counts vary too little.
_STAKES = np.array([0.005, 0.015, 0.05, 0.15, 0.3, -0.005, -0.015, -0.05, -0.15, -0.5, -2.0, -10.0, -1000.0])
# Squared deviations above this are bet on as if they were this, so that single outliers, which have tests of their own,
# do not decide and the bets' expectations are finite.
_LARGEST_SQUARE = 40.0
# What lies further out in a tail adds less than 1e-12 to the expectation of a bet.
_NEGLIGIBLE = 1e-18
# The most values of laws for which expectations of bets are computed, and the fewest laws.
_MOST_VALUES = 400_000
_FEWEST_LAWS = 16


def binomial_chance(successes: ArrayLike, trials: ArrayLike, probability: ArrayLike) -> np.ndarray:
    """Returns two-sided p-values of binomial counts, twice the smaller tail and at most 1.

    >>> float(binomial_chance(0, 10, 0.5))
    0.001953125
    """
    below = stats.binom.cdf(successes, trials, probability)
    above = stats.binom.sf(np.asarray(successes) - 1, trials, probability)
    return np.minimum(1.0, 2 * np.minimum(below, above))


def chernoff_chance(successes: ArrayLike, trials: ArrayLike, probability: ArrayLike) -> np.ndarray:
    """Returns bounds on the probability of a number of successes that is as far from its mean, on the same side.

    The bound is exp(−trials·KL(successes/trials ‖ probability)). It holds for independent successes with that mean
    probability, equal or not (Hoeffding, 1963), and for negatively associated ones such as draws without replacement.

    >>> float(chernoff_chance(5, 10, 0.5))
    1.0
    """
    x, n, p = (np.asarray(value, np.float64) for value in (successes, trials, probability))
    with np.errstate(divide="ignore", invalid="ignore"):
        # scipy's kl_div is x·log(x/y) − x + y, and 0 at x = y = 0; the linear terms cancel.
        divergence = special.kl_div(x, n * p) + special.kl_div(n - x, n * (1 - p))
    return np.exp(-np.maximum(divergence, 0.0))


def dispersion_chance(counts: ArrayLike, trials: ArrayLike, probability: ArrayLike) -> float:
    """Returns a bound on the probability that binomial counts vary this much more, or less, than they should.

    Each count may depend on the earlier ones: what must be binomial, with these trials and probabilities, is its law
    given them. For a stake s, the product over counts of exp(s·z²)/E[exp(s·z²)], where z is the count's standardised
    deviation, then has expectation 1, so it exceeds 1/p with probability at most p (Markov's inequality). The result is
    the smallest such p over a few stakes, times their number.

    Args:
        counts: The counts. Shape [counts].
        trials: The number of trials of each. Broadcast to [counts].
        probability: The probability of success of each. Broadcast to [counts].

    Returns:
        A p-value. If there are many different laws, only the counts of the first few hundred are bet on.
    """
    counts = np.asarray(counts)
    if not len(counts):
        return 1.0
    laws = np.stack(np.broadcast_arrays(trials, np.asarray(probability, np.float64), counts)[:2], axis=-1)
    different, law_of = _in_order_of_occurrence(laws)
    values, log_chances = _binomials(different)
    used = law_of < len(values)
    squares = _squares(counts[used], *laws[used].T)
    number, total = np.bincount(law_of[used], minlength=len(values)), float(squares.sum())
    possible = _squares(values, *(column[:, None] for column in different[: len(values)].T))
    winnings = [
        stake * total - number @ np.log(np.exp(log_chances + stake * possible).sum(axis=1) + 1e-12) for stake in _STAKES
    ]
    return float(min(1.0, len(_STAKES) * np.exp(-max(*winnings, 0.0))))


def _in_order_of_occurrence(laws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the different rows in the order of their first occurrence, and the number of each row among them."""
    _, first, inverse = np.unique(laws, axis=0, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return laws[np.sort(first)], rank[inverse.reshape(-1)]


def _binomials(laws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values of each law that are not negligible and their log-probabilities, of shape [laws, values].

    Only the first laws are used, as many as ``_MOST_VALUES`` allows.
    """
    trials, probability = laws.T
    mean = trials * probability
    # Bernstein's inequality: beyond this distance there is less than the negligible probability.
    log = -np.log(_NEGLIGIBLE)
    distance = log / 3 + np.sqrt((log / 3) ** 2 + 2 * log * mean * (1 - probability))
    low = np.maximum(np.floor(mean - distance), 0)
    width = int((np.minimum(np.ceil(mean + distance), trials) - low).max()) + 1
    laws = laws[: max(_FEWEST_LAWS, _MOST_VALUES // width)]
    n, p = laws[:, :1], laws[:, 1:]
    values = low[: len(laws), None] + np.arange(width)
    inside = np.minimum(values, n)
    ways = special.gammaln(n + 1) - special.gammaln(inside + 1) - special.gammaln(n - inside + 1)
    log_chances = ways + special.xlogy(inside, p) + special.xlog1py(n - inside, -p)
    return values, np.where(values <= n, log_chances, -np.inf)


def _squares(values: np.ndarray, trials: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Returns squared standardised deviations, capped. A count that cannot vary is not off, or infinitely far off."""
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = (values - trials * probability) ** 2 / (trials * probability * (1 - probability))
    return np.minimum(np.nan_to_num(squares, nan=0.0, posinf=_LARGEST_SQUARE), _LARGEST_SQUARE)
