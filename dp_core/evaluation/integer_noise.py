"""Integer noise whose privacy is that of a Gaussian release, without floating-point numbers in the output.

*The mechanism.* Integers x, such as counts, are released as x + round(g) with g from N(0, s²), independent for each.
As x is an integer, x + round(g) = round(x + g). So the release is post-processing of the Gaussian release x + g, and
everything that is proven of that holds for it, its privacy loss distribution and composition included. (For the
discrete Gaussian of Canonne, Kamath and Steinke (2020) the bound by concentrated differential privacy is the same, but
its privacy loss distribution is not dominated by the Gaussian's.) The noise has variance s² + 1/12, up to e^(−2π²s²).

*The draw.* P(round(g) ≤ k) = Φ((k + 1/2)/s). A uniform number u of 256 bits from the operating system's entropy is
inverted through that distribution function, which is computed with 100 digits. What is proven: each
P(round(g) ≤ k) is met to 2⁻²⁵⁵, and |round(g)| reaches 18 standard deviations, beyond which there is a mass of
10⁻⁷². So for s ≤ 10⁹ a number is within 10⁻⁶⁵ of its stated distribution in total variation, and 10⁵ numbers
together are within ``DISTANCE``, which must be charged to δ. The output is an integer, so there are no low-order bits
to attack. The time that a draw takes depends on the noise; it is not hidden.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import mpmath
import numpy as np
from scipy import special

# The total variation distance between the draws of a release and their stated distribution is at most this.
DISTANCE = 1e-60

LARGEST_STANDARD_DEVIATION = 1e9
MOST_NUMBERS = 10**5
_BYTES = 32
_DIGITS = 100


def rounded_normal(
    count: int, standard_deviation: float, *, random_bytes: Callable[[int], bytes] = os.urandom
) -> np.ndarray:
    """Draws normal numbers, each rounded to the nearest integer.

    Args:
        count: How many, at most 100,000.
        standard_deviation: Before rounding, positive and at most 10⁹.
        random_bytes: Returns that many random bytes. The default is the operating system's entropy; others are for
            tests only, because whoever knows the noise can subtract it.

    Returns:
        int64 of shape [count].

    Raises:
        ValueError: If an argument is out of range.
    """
    if not 0 < standard_deviation <= LARGEST_STANDARD_DEVIATION or not 0 <= count <= MOST_NUMBERS:
        raise ValueError(
            f"noise needs a standard deviation above 0 and up to {LARGEST_STANDARD_DEVIATION:g} and up to "
            f"{MOST_NUMBERS:,} numbers, got {standard_deviation} and {count:,}"
        )
    words = random_bytes(count * _BYTES)
    with mpmath.workdps(_DIGITS):
        scale = mpmath.mpf(standard_deviation) * mpmath.sqrt(2)
        drawn = [
            _rounded_quantile(int.from_bytes(words[start : start + _BYTES]), scale)
            for start in range(0, count * _BYTES, _BYTES)
        ]
    return np.array(drawn, np.int64).reshape(count)


def _rounded_quantile(word: int, scale: mpmath.mpf) -> int:
    """Returns round(g), where 256 random bits are the sign of g and the probability of a g of larger size.

    The lowest bit is the sign, and the others an integer m of 255 bits; p = (m + 1/2)/2²⁵⁵ is the probability of a
    larger size. So the size is the least k with P(|g| > k + 1/2) = erfc((k + 1/2)/(s·√2)) ≤ p.
    """
    sign, size_word = 1 - 2 * (word & 1), word >> 1
    p = (mpmath.mpf(size_word) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** (8 * _BYTES - 1)
    # A guess in floating point, which the loops correct.
    k = max(0, round(float(special.erfcinv(float(p))) * float(scale) - 0.5))
    while k > 0 and mpmath.erfc((k - mpmath.mpf(1) / 2) / scale) <= p:
        k -= 1
    while mpmath.erfc((k + mpmath.mpf(1) / 2) / scale) > p:
        k += 1
    return sign * k
