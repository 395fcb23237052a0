"""The number of bands of correlated noise with the least error at a budget, with a cache on disk."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from tasks.privacy.cached_accounting import noise_multiplier_for, remembered

if TYPE_CHECKING:
    from dp_core.accounting.mechanism import VocabularyRelease

# The most bands that are tried: the history of b − 1 noises must fit into memory beside the model.
MOST_BANDS = 128
# So many numbers of bands are compared by the tightest bound, those that RDP likes best.
_COMPARED = 3


def bands_for(
    bands: int | Literal["auto"],
    *,
    epsilon: float,
    delta: float,
    examples: int,
    batch_size: int,
    steps: int,
    vocabulary: VocabularyRelease | None = None,
    accountant: Literal["tightest", "RDP"] = "tightest",
    trainings: int = 1,
) -> int:
    """Returns the number of bands that a setting means for a training: itself, or the best one for ``auto``.

    The best is the one with the smallest root mean squared error of the sums of noise up to each step, which is the
    noise multiplier that the budget needs times ``prefix_error``. More bands cancel more noise, but need more of it, as
    each example is sampled with a higher probability. Tried are 1, 2, 3, 4, 6, 8, 12, … up to ``MOST_BANDS``, the
    number of steps, and the number of batches in an epoch.
    """
    if bands != "auto":
        return bands
    return remembered(
        _best_bands,
        epsilon=epsilon,
        delta=delta,
        examples=examples,
        batch_size=batch_size,
        steps=steps,
        # Two draws of a vocabulary cost the same, so ``draw`` is not part of the question.
        vocabulary=None if vocabulary is None else [vocabulary.noise_multiplier, vocabulary.delta],
        accountant=accountant,
        trainings=trainings,
    )


def _best_bands(
    *,
    epsilon: float,
    delta: float,
    examples: int,
    batch_size: int,
    steps: int,
    vocabulary: list[float] | None,
    accountant: Literal["tightest", "RDP"],
    trainings: int,
) -> int:
    from dp_core.accounting.banded_noise import prefix_error, toeplitz_coefficients
    from dp_core.accounting.mechanism import VocabularyRelease

    release = None if vocabulary is None else VocabularyRelease(vocabulary[0], vocabulary[1], "")

    def error(bands: int, by: Literal["tightest", "RDP"]) -> float:
        noise_multiplier = noise_multiplier_for(
            epsilon=epsilon,
            delta=delta,
            examples=examples,
            batch_size=batch_size,
            steps=steps,
            vocabulary=release,
            accountant=by,
            trainings=trainings,
            bands=bands,
        )
        return noise_multiplier * prefix_error(toeplitz_coefficients(bands, steps), steps)

    tried = candidates(min(MOST_BANDS, steps, examples // batch_size))
    by_rdp = {bands: error(bands, "RDP") for bands in tried}
    if accountant == "RDP":
        return min(tried, key=lambda bands: by_rdp[bands])
    # RDP is quick but loose; which numbers are near the best does not depend on it.
    best = sorted(tried, key=lambda bands: by_rdp[bands])[:_COMPARED]
    return min(sorted({1, *best}), key=lambda bands: error(bands, "tightest"))


def candidates(most: int) -> list[int]:
    """Returns the numbers of bands that are tried: powers of two and one and a half times them, and the largest.

    >>> candidates(20)
    [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    powers = [2**exponent for exponent in range(int(math.log2(max(most, 1))) + 1)]
    return sorted({one for power in powers for one in (power, 3 * power // 2) if one <= most} | {max(most, 1)})
