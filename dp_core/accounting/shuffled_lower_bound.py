"""A lower bound on ε for one epoch of shuffled batches.

After Chua et al. (2024), "How Private are DP-SGD Implementations?".
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, special

from dp_core.accounting.loss_cells import MARGIN, TINY


def shuffled_epsilon_lower(*, steps: int, noise_multiplier: float, delta: float, dealt: float = 1.0) -> float:
    """Returns a lower bound on every valid ε of one epoch of shuffled batches of a fixed size.

    Neighbours differ by zeroing one example out. Let all other examples contribute −1, and this one +1 or, zeroed
    out, 0. After a shift, the batch sums are N(0, σ²) except for one at a random position, which is N(2, σ²) or
    N(1, σ²). For every threshold t, the event that the largest sum exceeds t gives a lower bound on ε. The best t
    is found by a search.

    Args:
        steps: The number of batches that were released, at least 1.
        noise_multiplier: The noise's standard deviation in clip norms.
        delta: The δ of the guarantee.
        dealt: The probability that an example is in one of these batches at all.

    Returns:
        A number that the true ε is not below, at least 0.

    Raises:
        ValueError: If an argument is out of range.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta}")
    if steps < 1 or not 0 < noise_multiplier < math.inf:
        raise ValueError(f"there must be steps and noise, got {steps} steps and noise {noise_multiplier}")
    if not 0 < dealt <= 1:
        raise ValueError(f"dealt must be above 0 and up to 1, got {dealt}")

    def bound(threshold: np.ndarray) -> np.ndarray:
        other = special.log_ndtr(threshold / noise_multiplier)

        def above(shift: float) -> np.ndarray:
            """Returns the probability that some sum exceeds the threshold if the example shifts its own by
            ``shift``."""
            low = special.log_ndtr((threshold - shift) / noise_multiplier)
            # An example that was not dealt shifts no sum.
            one = low if dealt == 1 else np.logaddexp(math.log(dealt) + low, math.log1p(-dealt) + other)
            return -np.expm1((steps - 1) * other + one)

        present, zeroed = above(2), above(1)
        possible = (present > delta * (1 + MARGIN)) & (zeroed > TINY)
        return np.where(possible, np.log(np.where(possible, (present - delta) / np.maximum(zeroed, TINY), 1.0)), 0.0)

    highest = 2 - noise_multiplier * float(special.ndtri(delta / (steps + 1)))
    grid = np.linspace(-6 * noise_multiplier, highest, 20_001)
    values = bound(grid)
    best = int(np.argmax(values))
    around = (float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)]))
    refined = optimize.minimize_scalar(lambda threshold: -float(bound(np.array(threshold))), bounds=around)
    return max(float(values[best]), -float(refined.fun), 0.0) * (1 - MARGIN)
