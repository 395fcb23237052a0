"""k-ary randomised response: each label is kept with some probability and otherwise replaced by another value.

The guarantee is label differential privacy (LabelDP) with δ = 0. Neighbours have the same examples with one label
replaced; features and the number of examples are public. A response is the true value with probability
p = e^ε/(e^ε + k − 1), and each of the k − 1 other values with probability q = 1/(e^ε + k − 1). So no response is more
than p/q = e^ε times as likely for one label as for another, whatever is trained on it later (Warner, 1965; Kairouz,
Bonawitz and Ramage, 2016).

The responses have these probabilities exactly, not up to rounding. NumPy's uniform numbers are multiples of 2⁻⁵³,
and p is rounded down to such a multiple, which only makes ε smaller. So ln(p/q) of what ran is at most the requested
ε, and no label is ever revealed for certain: above ε = 36.7 + ln(k − 1), p stays at 1 − 2⁻⁵³.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np

# The number of different values that ``Generator.random`` can return.
_STEPS = 2**53


def response_epsilon(keep_probability: float, number_of_values: int) -> float:
    """Returns the exact ε of randomised response with a given probability of keeping the true value.

    Computed with rational numbers up to the final logarithm, because 1 − p has few significant digits if p is near 1.

    >>> round(response_epsilon(0.75, 2), 4), response_epsilon(1.0, 2)
    (1.0986, inf)

    Args:
        keep_probability: The probability p that the response is the true value.
        number_of_values: The number k of values, at least 2.

    Returns:
        |ln(p/q)|, or infinity if p is 0 or 1.
    """
    keep = Fraction(keep_probability)
    if not 0 < keep < 1:
        return math.inf
    # p/q − 1. If it is negative, the true value is the least likely response, which reveals just as much.
    excess = (keep * number_of_values - 1) / (1 - keep)
    return abs(math.log1p(excess))


@dataclasses.dataclass(frozen=True)
class RandomizedResponse:
    """Randomised response among k values that is ``epsilon``-label-DP.

    Labels and responses are given by their index among the values.

    >>> RandomizedResponse((0.0, 1.0, 2.0), epsilon=math.log(2)).keep_probability
    0.5

    Attributes:
        values: The values, finite and increasing, at least 2.
        epsilon: The ε of one response, positive and finite. What runs may have a slightly smaller one.

    Raises:
        ValueError: If an attribute is out of range, or ε is so small that a response would not depend on its label.
    """

    values: tuple[float, ...]
    epsilon: float

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise ValueError(f"randomised response needs at least 2 values, got {len(self.values)}")
        if not all(math.isfinite(value) for value in self.values):
            raise ValueError(f"values must be finite, got {self.values}")
        if any(one >= next_one for one, next_one in itertools.pairwise(self.values)):
            raise ValueError(f"values must increase, got {self.values}")
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon must be positive and finite, got {self.epsilon}")
        if Fraction(self.keep_probability) * len(self.values) <= 1:
            raise ValueError(f"epsilon = {self.epsilon} is so small that responses would not depend on the label")

    @property
    def keep_probability(self) -> float:
        """The probability p that the response is the true value: a multiple of 2⁻⁵³."""
        k = len(self.values)
        odds = (k - 1) * math.exp(-self.epsilon)
        changed = math.floor(odds / (1 + odds) * _STEPS)
        # Rounding leaves this one or two short of the smallest sufficient number; each turn lowers p by 2⁻⁵³.
        while changed * k < _STEPS * (k - 1) and response_epsilon(1 - changed / _STEPS, k) > self.epsilon:
            changed += 1
        return 1 - changed / _STEPS

    @property
    def other_probability(self) -> float:
        """The probability q that the response is a particular one of the other values."""
        return (1 - self.keep_probability) / (len(self.values) - 1)

    @property
    def debiased_values(self) -> tuple[float, ...]:
        """The unbiased label for each response: (value − q·Σ values)/(p − q).

        Its expectation over the responses to a label is the label's value, since the expected value of a response to
        v is p·v + q·(Σ − v) = (p − q)·v + q·Σ.
        """
        keep = Fraction(self.keep_probability)
        other = (1 - keep) / (len(self.values) - 1)
        values = [Fraction(value) for value in self.values]
        return tuple(float((value - other * sum(values)) / (keep - other)) for value in values)

    def respond(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws a response to each label, independently.

        Anyone who can repeat the draws can undo them. Outside of tests, ``rng`` must come from the operating system's
        entropy (``np.random.default_rng()``), and its state must not be kept. PCG64 is not a cryptographic generator.

        Args:
            indices: The index of each true value, integers from 0 to k − 1 of any shape.
            rng: The source of randomness.

        Returns:
            The index of each response, int64 of the same shape.
        """
        k = len(self.values)
        true = self._checked(indices)
        kept = rng.random(true.shape) < self.keep_probability
        # A shift by 1 to k − 1 modulo k never returns to the true value.
        others = (true + rng.integers(1, k, size=true.shape)) % k
        return np.where(kept, true, others)

    def plain(self, responses: np.ndarray) -> np.ndarray:
        """Returns the values of the responses as they are, float32: biased towards the mean of all values."""
        return np.asarray(self.values, np.float32)[self._checked(responses)]

    def debiased(self, responses: np.ndarray) -> np.ndarray:
        """Returns unbiased labels, float32: ``debiased_values`` of the responses.

        Both training losses, softplus(f) − y·f and exp(f) − y·f, are affine in the label y. So the losses and their
        gradients are unbiased too. The labels can be negative and large: their variance grows as 1/(p − q)².
        """
        return np.asarray(self.debiased_values, np.float32)[self._checked(responses)]

    def _checked(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices)
        if indices.size == 0:
            return indices.astype(np.int64)
        if not np.issubdtype(indices.dtype, np.integer):
            raise ValueError(f"indices of values must be integers, got dtype {indices.dtype}")
        k, low, high = len(self.values), indices.min(), indices.max()
        if low < 0 or high >= k:
            raise ValueError(f"indices of {k} values must be from 0 to {k - 1}, got {low} to {high}")
        return indices.astype(np.int64)
