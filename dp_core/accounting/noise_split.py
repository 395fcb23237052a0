"""How one step's privacy is split between the gradient sum and the count of an adaptive clip norm.

Both are Gaussian releases on the same sample. Together they are exactly one Gaussian release with noise
multiplier z, where 1/z² = 1/z₁² + 1/z₂² (Andrew et al., 2021, "Differentially Private Learning with Adaptive
Clipping").
"""

from __future__ import annotations

import math
from typing import NamedTuple

# The count's share of 1/z². It makes the gradient's noise 2.6 % larger.
COUNT_SHARE = 0.05


class NoiseMultipliers(NamedTuple):
    """The noise multipliers of a step's two releases, each relative to its own sensitivity.

    Attributes:
        of_gradient: Of the sum of clipped gradients.
        of_count: Of the number of gradients longer than the clip norm, which has sensitivity 1.
    """

    of_gradient: float
    of_count: float


def split_noise(noise_multiplier: float) -> NoiseMultipliers:
    """Splits a noise multiplier between the gradient sum and the count.

    The two releases together cost exactly what one Gaussian release with ``noise_multiplier`` costs; the count
    takes ``COUNT_SHARE`` of 1/z².

    >>> round(combined_noise_multiplier(*split_noise(1.5)), 9)
    1.5

    Args:
        noise_multiplier: The noise multiplier z of the whole step, at least 0.

    Returns:
        The two noise multipliers, both larger than z.
    """
    return NoiseMultipliers(noise_multiplier / math.sqrt(1 - COUNT_SHARE), noise_multiplier / math.sqrt(COUNT_SHARE))


def combined_noise_multiplier(gradient: float, count: float) -> float:
    """Returns the noise multiplier of the single Gaussian release that two releases amount to.

    Args:
        gradient: The noise multiplier of the gradient sum, relative to its sensitivity.
        count: The noise multiplier of the count, relative to its sensitivity.

    Returns:
        z with 1/z² = 1/gradient² + 1/count²; 0, which means no privacy, if either has no noise.
    """
    if gradient == 0 or count == 0:
        return 0.0
    return 1 / math.sqrt(1 / gradient**2 + 1 / count**2)
