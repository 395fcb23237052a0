"""Statistical tests of whether a run's batches can have come from the stated sampler.

They look at the size of every batch and at how often each of some watched examples took part. Shuffled batches fail
both tests for Poisson sampling: their sizes do not vary, and no example sits out or takes part twice. Each test has a
false-alarm rate of about one in a million for a correct sampler.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from dp_core.sampling import BallsInBinsSampler, PoissonSampler, Sampler, ShuffledSampler

FALSE_ALARM_RATE = 1e-6
WATCHED_EXAMPLES = 4096

_FEWEST_EXPECTED = 10.0


def watched_stride(examples: int) -> int:
    """Returns the stride between watched examples: example i is watched if i is a multiple of it.

    >>> watched_stride(40_960), watched_stride(100)
    (10, 1)
    """
    return max(1, examples // WATCHED_EXAMPLES)


def count_watched(participations: np.ndarray, indices: np.ndarray, stride: int) -> None:
    """Adds one batch to the participation counts of the watched examples, in place.

    Args:
        participations: The number of batches that each watched example was in so far. Shape [watched].
        indices: The examples of the batch.
        stride: The stride between watched examples.
    """
    np.add.at(participations, indices[indices % stride == 0] // stride, 1)


def sampling_defects(sampler: Sampler, sizes: ArrayLike, participations: ArrayLike) -> list[str]:
    """Tests whether these batches can have come from a sampler.

    Args:
        sampler: The stated sampler.
        sizes: The batch size of every step. Shape [steps].
        participations: The number of batches that each watched example was in. Shape [watched].

    Returns:
        A description of each defect; empty if there is none. A correct sampler has a defect with probability of about
        ``FALSE_ALARM_RATE`` per test.
    """
    sizes, participations = np.asarray(sizes), np.asarray(participations)
    defects = []
    if len(sizes) and sizes.max() > sampler.max_batch_size:
        defects.append(f"a batch of {sizes.max():,} exceeds the stated maximum of {sampler.max_batch_size:,}")
    check = next(check for kind, check in _CHECKS.items() if isinstance(sampler, kind))
    return [*defects, *check(sampler, sizes, participations)] if len(sizes) else defects


def _poisson(sampler: Sampler, sizes: np.ndarray, participations: np.ndarray) -> list[str]:
    defects = []
    steps, q = len(sizes), sampler.sampling_probability
    mean, variance = sampler.examples * q, sampler.examples * q * (1 - q)
    stated = f"where Poisson sampling at probability {q:.3g} gives"

    total = int(sizes.sum())
    if _is_strange(stats.binom(steps * sampler.examples, q), total - 1, total):
        deviation = (steps * variance) ** 0.5
        defects.append(
            f"{total:,} examples were sampled over {steps:,} steps, {stated} {steps * mean:,.0f} ± {deviation:,.0f}"
        )
    if variance > 0:
        # The sum of squares has the mean of a chi-squared variable and slightly more variance. A gamma distribution
        # matches both moments.
        excess_kurtosis = (1 - 6 * q * (1 - q)) / variance
        scale = max(2 + excess_kurtosis, 0.1)
        law = stats.gamma(steps / scale, scale=scale)
        if _is_strange(law, *_squares(sizes, mean, variance)):
            defects.append(
                f"the sizes of the batches vary with a standard deviation of {np.std(sizes):,.2f}, {stated} "
                f"{variance**0.5:,.2f}"
            )
    if len(participations) and not _fits_binomial(participations, steps, q):
        defects.append(
            f"{len(participations):,} watched examples were in {np.mean(participations):.2f} ± "
            f"{np.std(participations):.2f} batches, {stated} {steps * q:.2f} ± {(steps * q * (1 - q)) ** 0.5:.2f}"
        )
    return defects


def _balls_in_bins(sampler: Sampler, sizes: np.ndarray, participations: np.ndarray) -> list[str]:
    assert isinstance(sampler, BallsInBinsSampler)
    bins = sampler.batches_per_epoch
    whole = len(sizes) // bins
    defects = _once_an_epoch(sampler, len(sizes), participations)
    if len(participations) and participations.min() < whole:
        defects.append(f"an example took part {participations.min()} times in {whole} complete epochs")
    epochs = sizes[: whole * bins].reshape(whole, bins)
    if np.any(epochs.sum(axis=1) != sampler.examples):
        defects.append(f"an epoch's batches do not add up to the {sampler.examples:,} examples")
    if whole and bins > 1:
        mean = sampler.examples / bins
        if _is_strange(stats.chi2(whole * (bins - 1)), *_squares(epochs, mean, mean)):
            defects.append(
                f"the sizes of the batches vary with a standard deviation of {np.std(epochs):,.2f}, where balls in "
                f"{bins:,} bins give {(mean * (1 - 1 / bins)) ** 0.5:,.2f}"
            )
    return defects


def _shuffled(sampler: Sampler, sizes: np.ndarray, participations: np.ndarray) -> list[str]:
    assert isinstance(sampler, ShuffledSampler)
    defects = _once_an_epoch(sampler, len(sizes), participations)
    if np.any(sizes != sampler.expected_batch_size):
        defects.append(f"not all batches have the stated size of {sampler.expected_batch_size:,}")
    return defects


def _once_an_epoch(sampler: BallsInBinsSampler | ShuffledSampler, steps: int, participations: np.ndarray) -> list[str]:
    epochs = sampler.epochs(steps)
    most = int(participations.max(initial=0))
    if most > epochs:
        return [f"an example took part {most} times in {epochs} epochs, where at most once per epoch is stated"]
    return []


_CHECKS: dict[type[Sampler], Callable[[Sampler, np.ndarray, np.ndarray], list[str]]] = {
    PoissonSampler: _poisson,
    BallsInBinsSampler: _balls_in_bins,
    ShuffledSampler: _shuffled,
}


def _squares(sizes: np.ndarray, mean: float, variance: float) -> tuple[float, float]:
    """Returns the sum of squared deviations over the variance, and an upper bound on it before rounding.

    Sizes are integers, and sometimes all of them are equal by chance. So the test against too little variation adds
    half an example to each deviation.
    """
    least, most = (float(np.sum((np.abs(sizes - mean) + more) ** 2) / variance) for more in (0.0, 0.5))
    return least, most


def _is_strange(law: stats.rv_frozen, low: float, high: float) -> bool:
    """Returns whether a value between ``low`` and ``high`` is too far out in either tail of the distribution."""
    return min(float(law.cdf(high)), float(law.sf(low))) < FALSE_ALARM_RATE / 2


def _fits_binomial(counts: np.ndarray, trials: int, probability: float) -> bool:
    """Returns whether counts pass Pearson's test, with neighbouring counts pooled into large enough cells."""
    expected = len(counts) * stats.binom.pmf(np.arange(trials + 1), trials, probability)
    observed = np.bincount(counts, minlength=trials + 1)[: trials + 1]
    # Cells are quantiles of the distribution, so none is nearly empty.
    wanted_in_cell = max(_FEWEST_EXPECTED, len(counts) / 20)
    cells = np.maximum(np.floor(np.cumsum(expected) / wanted_in_cell - 1e-9).astype(int), 0)
    totals = np.bincount(cells, weights=expected), np.bincount(cells, weights=observed)
    kept = totals[0] > 0
    wanted, found = totals[0][kept], totals[1][kept]
    if len(wanted) > 1 and wanted[-1] < _FEWEST_EXPECTED:
        wanted, found = np.append(wanted[:-2], wanted[-2:].sum()), np.append(found[:-2], found[-2:].sum())
    if len(wanted) < 2:
        return True
    statistic = float(np.sum((found - wanted) ** 2 / wanted))
    return float(stats.chi2.sf(statistic, len(wanted) - 1)) >= FALSE_ALARM_RATE
