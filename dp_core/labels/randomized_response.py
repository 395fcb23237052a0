"""Randomised response: each label is told as it is with some probability, and as another one otherwise.

The guarantee is label differential privacy with δ = 0. Neighbours have the same examples with one
label replaced; features, and how many examples there are, are public. A response is its true value with
probability p = e^ε/(e^ε + k − 1) and each of the k − 1 others with q = 1/(e^ε + k − 1), so no response
is more than p/q = e^ε times as likely from one label as from another, whatever is trained on it later.

What is drawn has these probabilities exactly, not up to rounding. NumPy's uniform numbers are
multiples of 2⁻⁵³; p is rounded down to such a multiple, which makes ε smaller and never larger. So
ln(p/q) of what ran is at most the ε that was asked for, and no label is ever told for certain: above
ε = 36.7 + ln(k − 1), p stays at 1 − 2⁻⁵³.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np

_STEPS = 2**53  # how many different numbers ``Generator.random`` draws from


def response_epsilon(keep_probability: float, number_of_values: int) -> float:
    """ε of randomised response among so many values that keeps the true one with ``keep_probability``.

    In rational numbers up to the last logarithm: 1 − p has few digits where p is nearly one.

    >>> round(response_epsilon(0.75, 2), 4), response_epsilon(1.0, 2)
    (1.0986, inf)
    """
    keep = Fraction(keep_probability)
    if not 0 < keep < 1:
        return math.inf
    # p/q − 1. Below zero the true value is the least likely response, which tells as much.
    excess = (keep * number_of_values - 1) / (1 - keep)
    return abs(math.log1p(excess))


@dataclasses.dataclass(frozen=True)
class RandomizedResponse:
    """Responses among ``values``, which rise, that are ``epsilon``-private for each label.

    Labels and responses are given by their index among the values.

    >>> RandomizedResponse((0.0, 1.0, 2.0), epsilon=math.log(2)).keep_probability
    0.5
    """

    values: tuple[float, ...]
    epsilon: float

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise ValueError(f"a response needs 2 values or more to choose from, got {len(self.values)}")
        if not all(math.isfinite(value) for value in self.values):
            raise ValueError(f"values must be finite, got {self.values}")
        if any(one >= next_one for one, next_one in itertools.pairwise(self.values)):
            raise ValueError(f"values must rise, got {self.values}")
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite, got {self.epsilon}")
        if Fraction(self.keep_probability) * len(self.values) <= 1:
            raise ValueError(f"epsilon is {self.epsilon}, so small that no response would tell anything of its label")

    @property
    def keep_probability(self) -> float:
        """p: that the response is the true value. A multiple of 2⁻⁵³."""
        k = len(self.values)
        odds = (k - 1) * math.exp(-self.epsilon)
        changed = math.floor(odds / (1 + odds) * _STEPS)
        # Short of the least that is enough by one or two, for rounding; each turn makes p smaller by 2⁻⁵³.
        while changed * k < _STEPS * (k - 1) and response_epsilon(1 - changed / _STEPS, k) > self.epsilon:
            changed += 1
        return 1 - changed / _STEPS

    @property
    def other_probability(self) -> float:
        """q: that the response is a certain one of the other values."""
        return (1 - self.keep_probability) / (len(self.values) - 1)

    @property
    def debiased_values(self) -> tuple[float, ...]:
        """What each response stands for: (value − q·Σ values)/(p − q).

        Their mean over the responses to a label is the label's own value: p·v + q·(Σ − v) = (p − q)·v + q·Σ.
        """
        keep = Fraction(self.keep_probability)
        other = (1 - keep) / (len(self.values) - 1)
        values = [Fraction(value) for value in self.values]
        return tuple(float((value - other * sum(values)) / (keep - other)) for value in values)

    def respond(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The index of a response to each index of a true value, independently.

        Whoever can repeat the draws can undo them: outside of tests ``rng`` must come from the operating
        system's entropy (``np.random.default_rng()``), and its state must not be kept. PCG64 is not a
        cryptographic generator.
        """
        k = len(self.values)
        true = self._checked(indices)
        kept = rng.random(true.shape) < self.keep_probability
        # A step of 1 to k − 1 round the circle of values: never back to the true one.
        others = (true + rng.integers(1, k, size=true.shape)) % k
        return np.where(kept, true, others)

    def plain(self, responses: np.ndarray) -> np.ndarray:
        """The responses' values as they are: biased towards the mean of all values, with the least variance."""
        return np.asarray(self.values, np.float32)[self._checked(responses)]

    def debiased(self, responses: np.ndarray) -> np.ndarray:
        """Labels whose expectation is the true value: ``debiased_values`` of the responses.

        Both training losses, softplus(f) − y·f and exp(f) − y·f, are affine in the label y. So their
        expectation, and that of their gradient, is the one with the true label. The labels can be negative
        and large: the variance grows as 1/(p − q)².
        """
        return np.asarray(self.debiased_values, np.float32)[self._checked(responses)]

    def _checked(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices)
        if indices.size == 0:
            return indices.astype(np.int64)
        if not np.issubdtype(indices.dtype, np.integer):
            raise ValueError(f"indices of values must be whole numbers, got {indices.dtype}")
        k, low, high = len(self.values), indices.min(), indices.max()
        if low < 0 or high >= k:
            raise ValueError(f"indices of {k} values must be 0 to {k - 1}, got {low} to {high}")
        return indices.astype(np.int64)
