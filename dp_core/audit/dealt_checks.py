"""Tests of samplers that deal epochs, on the counts of a run.

What must hold: in every epoch each example is in exactly one batch (balls in bins) or at most one (shuffle), and which
batch that is depends neither on the batches of earlier epochs nor, for balls in bins, on other examples.

ε of shuffled batches is that of one plain release per epoch, whatever the order. So most tests of the order are for
balls in bins, and shuffled batches have those whose laws are simple.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from dp_core.audit.chances import binomial_chance, chernoff_chance, dispersion_chance
from dp_core.audit.coincidences import common_steps, most_frequent
from dp_core.audit.poisson_checks import Batches, Check, check_equal_batches, check_pairs_of_steps, pair_defect
from dp_core.audit.sampling_counts import class_sizes
from dp_core.sampling import BallsInBinsSampler, EpochSampler, ShuffledSampler

# The largest distance between epochs that are compared bin by bin.
_MOST_EPOCHS_APART = 16


def _dealer(batches: Batches) -> tuple[EpochSampler, int, int, int]:
    """Returns the sampler, its batches per epoch, the complete epochs, and the batches of the one that is not."""
    assert isinstance(batches.sampler, EpochSampler)
    bins = batches.sampler.batches_per_epoch
    return (batches.sampler, bins, *divmod(batches.steps, bins))


def check_once_an_epoch(batches: Batches, level: float) -> str | None:
    """Tests that no watched example is in two batches of an epoch, and with balls in bins that none is in no batch."""
    sampler, bins, whole, _ = _dealer(batches)
    table = batches.participations
    times = np.bincount(
        table.steps // bins * table.examples + table.of, minlength=sampler.epochs(batches.steps) * table.examples
    )
    if times.max(initial=0) > 1:
        return f"an example took part {times.max()} times in an epoch, where at most once per epoch is stated"
    missing = np.count_nonzero(times[: whole * table.examples] == 0)
    if missing and isinstance(sampler, BallsInBinsSampler):
        return f"{missing:,} times a watched example was in no batch of a complete epoch, where one is stated"
    return None


def check_all_dealt(batches: Batches, level: float) -> str | None:
    """Tests that the batches of an epoch have all examples together."""
    sampler, bins, whole, _ = _dealer(batches)
    sums = batches.sizes[: whole * bins].reshape(whole, bins).sum(axis=1)
    if np.all(sums == sampler.examples):
        return None
    return f"an epoch's batches have {sums[sums != sampler.examples][0]:,} and not {sampler.examples:,} examples"


def check_stated_size(batches: Batches, level: float) -> str | None:
    """Tests that all batches have the same size."""
    stated = batches.sampler.expected_batch_size
    return None if np.all(batches.sizes == stated) else f"not all batches have the stated size of {stated:,}"


def check_sizes(batches: Batches, level: float) -> str | None:
    """Tests how much the sizes of batches vary. Given the batches before, each is binomial in what is left."""
    sampler, bins, _, _ = _dealer(batches)
    sizes = batches.sizes
    place = np.arange(len(sizes)) % bins
    dealt = np.cumsum(sizes) - sizes
    left = np.maximum(sampler.examples - (dealt - dealt[np.arange(len(sizes)) - place]), 0)
    outlier = len(sizes) * float(binomial_chance(sizes, sampler.examples, 1 / bins).min()) < level / 2
    if not outlier and dispersion_chance(sizes, left, 1 / (bins - place)) >= level / 2:
        return None
    stated = (sampler.examples / bins * (1 - 1 / bins)) ** 0.5
    return (
        f"the sizes of the batches vary with a standard deviation of {np.std(sizes):,.2f}, where balls in {bins:,} "
        f"bins give {stated:,.2f}"
    )


def check_totals(batches: Batches, level: float) -> str | None:
    """Tests the participations of each block and each residue class: all of it once per complete epoch."""
    sampler, bins, whole, rest = _dealer(batches)
    found = np.concatenate([batches.counts.blocks, batches.counts.classes])
    sizes = np.concatenate([batches.block_sizes, class_sizes(sampler.examples)])
    if isinstance(sampler, BallsInBinsSampler):
        chances, expected = binomial_chance(found - whole * sizes, sizes, rest / bins), (whole + rest / bins) * sizes
    else:
        epochs = sampler.epochs(batches.steps)
        dealt = batches.steps * sampler.expected_batch_size / (epochs * sampler.examples)
        chances, expected = chernoff_chance(found, epochs * sizes, dealt), epochs * dealt * sizes
        chances = np.where(found > epochs * sizes, 0.0, 2 * chances)
    if chances.min() * len(chances) >= level:
        return None
    worst = int(chances.argmin())
    blocks = len(batches.block_sizes)
    name = (
        batches.block_name(worst) if worst < blocks else f"examples {worst - blocks:,} modulo {len(found) - blocks:,}"
    )
    return (
        f"{name} were dealt {found[worst]:,} times over {batches.steps / bins:.4g} epochs, where "
        f"{expected[worst]:,.1f} are expected: the sampler prefers some examples"
    )


def check_block_rows(batches: Batches, level: float) -> str | None:
    """Tests how much the number of a block's examples varies. Given the rows before, it is binomial in what is left."""
    _, bins, _, _ = _dealer(batches)
    rows, sizes = np.array(batches.counts.block_rows), batches.block_sizes
    epochs = np.arange(len(rows)) * batches.counts.block_stride // bins
    place = np.arange(len(rows)) - np.searchsorted(epochs, epochs)
    dealt = np.cumsum(rows, axis=0) - rows
    left = np.maximum(sizes - (dealt - dealt[np.arange(len(rows)) - place]), 0)
    chance = 1 / (bins - place)[:, None]
    if dispersion_chance(rows.reshape(-1), left.reshape(-1), np.broadcast_to(chance, rows.shape).reshape(-1)) >= level:
        return None
    stated, actual = np.mean(sizes / bins * (1 - 1 / bins)), np.mean((rows - sizes / bins) ** 2)
    return (
        f"the number of a block's examples in a batch has a variance of {actual:,.2f}, where independent examples give "
        f"{stated:,.2f}: examples are {'clustered' if actual > stated else 'stratified'}"
    )


def check_shuffled_blocks(batches: Batches, level: float) -> str | None:
    """Tests the number of examples of each block in each batch, a draw without replacement."""
    n, sizes = batches.sampler.examples, batches.block_sizes
    rows = np.array(batches.counts.block_rows)
    drawn = batches.sampler.expected_batch_size
    chances = 2 * chernoff_chance(rows, drawn, sizes / n)
    if chances.min() * chances.size >= level:
        return None
    row, block = np.unravel_index(int(chances.argmin()), rows.shape)
    return (
        f"a batch has {rows[row, block]:,} of {batches.block_name(int(block))}, where shuffling gives "
        f"{drawn * sizes[block] / n:,.1f}: the examples are not shuffled"
    )


def check_neighbours(batches: Batches, level: float) -> str | None:
    """Tests how often neighbours i and i + 1 are in a batch together. Pairs with even i share no example."""
    sampler, bins, whole, rest = _dealer(batches)
    pairs = np.array([sampler.examples // 2, (sampler.examples - 1) // 2])
    found, trials = batches.counts.neighbours, (whole + (rest > 0)) * pairs
    expected = pairs * (whole / bins + rest / bins**2)
    with np.errstate(invalid="ignore"):
        chances = 2 * chernoff_chance(found, trials, np.nan_to_num(expected / trials))
    if chances.min() * 2 >= level:
        return None
    return (
        f"{found.sum():,} pairs of neighbouring examples were in a batch together, where independent examples give "
        f"{expected.sum():,.0f}"
    )


def check_epochs(batches: Batches, level: float) -> str | None:
    """Tests for each distance between epochs, and each shift, how many watched examples' batches moved by that shift.

    For balls in bins, the shifts of an example between epochs that are a given distance apart are independent and
    uniform. For shuffled batches, given the earlier epochs and the places of k examples, another example is in a given
    batch with probability at most batch size/(N − k). So counts of few enough examples are bounded by a binomial law.
    """
    sampler, bins, whole, _ = _dealer(batches)
    table = batches.participations
    shuffled = isinstance(sampler, ShuffledSampler)
    examples = min(table.examples, max(1, sampler.examples // 16)) if shuffled else table.examples
    table = table.part(whole * bins, examples)
    place = np.full((whole, examples), -1)
    place[table.steps // bins, table.of] = table.steps % bins
    apart = range(1, min(whole, _MOST_EPOCHS_APART + 1))
    for distance in apart:
        present = (place[distance:] >= 0) & (place[:-distance] >= 0)
        shifts = (place[distance:] - place[:-distance])[present] % bins
        found = np.bincount(shifts, minlength=bins)
        if shuffled:
            bound = min(1.0, sampler.expected_batch_size / (sampler.examples - examples + 1))
            chances = stats.binom.sf(found - 1, len(shifts), bound)
        else:
            chances = binomial_chance(found, len(shifts), 1 / bins)
        if chances.min() * bins * len(apart) < level:
            shift = int(chances.argmin())
            return (
                f"{found[shift]:,} of {len(shifts):,} times a watched example was dealt {shift:,} batches further on "
                f"than {distance} epochs before, where independent epochs give {len(shifts) / bins:,.1f}"
            )
    return None


def check_pairs_of_examples(batches: Batches, level: float) -> str | None:
    """Tests the largest number of batches that two watched examples were in together."""
    sampler, _, _, _ = _dealer(batches)
    table, first, second = common_steps(batches.participations, batches.probability)
    epochs = sampler.epochs(table.number_of_steps)
    return pair_defect(table, most_frequent(first, second)[2], epochs, batches.probability, level)


_SHARED: tuple[Check, ...] = (
    check_once_an_epoch,
    check_totals,
    check_epochs,
    check_equal_batches,
    check_pairs_of_steps,
    check_pairs_of_examples,
)
BALLS_IN_BINS_CHECKS: tuple[Check, ...] = (
    *_SHARED,
    check_all_dealt,
    check_sizes,
    check_block_rows,
    check_neighbours,
)
SHUFFLE_CHECKS: tuple[Check, ...] = (*_SHARED, check_stated_size, check_shuffled_blocks)
