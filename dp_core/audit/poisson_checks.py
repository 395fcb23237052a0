"""Tests of Poisson sampling on the counts of a run, and those of them that also hold for dealt epochs.

Each test takes the counts and the rate at which it may report a correct sampler, and returns a description of what is
wrong, or None. Tests that look at many counts divide the rate by their number.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable

import numpy as np
from scipy import special, stats

from dp_core.audit.chances import binomial_chance, chernoff_chance, dispersion_chance
from dp_core.audit.coincidences import Participations, common_examples, common_steps, most_frequent
from dp_core.audit.sampling_counts import SamplingCounts, block_edges, class_sizes
from dp_core.sampling import EpochSampler, Sampler


@dataclasses.dataclass(frozen=True)
class Batches:
    """The counts of a run's batches, and the sampler that is stated for them."""

    sampler: Sampler
    counts: SamplingCounts

    @property
    def steps(self) -> int:
        return self.counts.steps

    @property
    def sizes(self) -> np.ndarray:
        return np.asarray(self.counts.sizes, np.int64)

    @property
    def probability(self) -> float:
        return self.sampler.sampling_probability

    @property
    def block_sizes(self) -> np.ndarray:
        return np.diff(block_edges(self.sampler.examples))

    def block_name(self, block: int) -> str:
        edges = block_edges(self.sampler.examples)
        return f"examples {edges[block]:,} to {edges[block + 1] - 1:,}"

    @functools.cached_property
    def participations(self) -> Participations:
        """The participations of the watched examples."""
        steps, of = self.counts.participations()
        return Participations(steps, of, self.steps, len(self.counts.watched_numbers()))

    @functools.cached_property
    def in_common(self) -> tuple[Participations, np.ndarray, np.ndarray]:
        """The pairs of steps that have a watched example in common."""
        return common_examples(self.participations, self.probability)


Check = Callable[[Batches, float], str | None]


def check_rate(batches: Batches, level: float) -> str | None:
    """Tests the number of sampled examples in the whole run and in its halves, quarters and eighths."""
    steps, q, sizes = batches.steps, batches.probability, batches.sizes
    segments = {
        (steps * part // parts, steps * (part + 1) // parts)
        for parts in (1, 2, 4, 8)
        for part in range(parts)
        if parts <= steps
    }
    first, last = np.array(sorted(segments, key=lambda segment: segment[0] - segment[1])).T
    totals = np.concatenate([[0], np.cumsum(sizes)])
    found, trials = totals[last] - totals[first], (last - first) * batches.sampler.examples
    chances = binomial_chance(found, trials, q)
    if chances.min() * len(first) >= level:
        return None
    worst = 0 if chances[0] * len(first) < level else int(chances.argmin())
    where = f"over {steps:,} steps" if worst == 0 else f"in steps {first[worst]:,} to {last[worst] - 1:,}"
    mean, deviation = trials[worst] * q, (trials[worst] * q * (1 - q)) ** 0.5
    return (
        f"{found[worst]:,} examples were sampled {where}, where Poisson sampling at probability {q:.3g} gives "
        f"{mean:,.0f} ± {deviation:,.0f}"
    )


def check_sizes(batches: Batches, level: float) -> str | None:
    """Tests how much the sizes of batches vary. It sees dependence among all examples, also where none is watched."""
    q, n = batches.probability, batches.sampler.examples
    if dispersion_chance(batches.sizes, n, q) >= level:
        return None
    return (
        f"the sizes of the batches vary with a standard deviation of {np.std(batches.sizes):,.2f}, where Poisson "
        f"sampling at probability {q:.3g} gives {(n * q * (1 - q)) ** 0.5:,.2f}"
    )


def check_participations(batches: Batches, level: float) -> str | None:
    """Tests for every number c how many watched examples were in at most c batches."""
    steps, q, table = batches.steps, batches.probability, batches.participations
    counts = table.counts()
    below = stats.binom.cdf(np.arange(steps + 1), steps, q)
    # What is less likely than this for one example is too unlikely for any of them.
    rare = level / (4 * max(table.examples, 1))
    tested = np.flatnonzero((below > rare) & (below < 1 - rare))
    high = int(np.argmax(below >= 1 - rare))
    low = int(tested[0]) if len(tested) else high
    impossible = np.count_nonzero((counts < low) | (counts > high))
    at_most = np.cumsum(np.bincount(counts, minlength=steps + 1))[tested]
    chances = binomial_chance(at_most, table.examples, below[tested])
    if not impossible and chances.min(initial=1.0) * 2 * max(len(tested), 1) >= level:
        return None
    return (
        f"{table.examples:,} watched examples were in {np.mean(counts):.2f} ± {np.std(counts):.2f} batches (from "
        f"{counts.min()} to {counts.max()}), where Poisson sampling at probability {q:.3g} gives {steps * q:.2f} ± "
        f"{(steps * q * (1 - q)) ** 0.5:.2f}"
    )


def check_blocks(batches: Batches, level: float) -> str | None:
    """Tests the participations of each block of the dataset."""
    found, trials = batches.counts.blocks, batches.steps * batches.block_sizes
    chances = binomial_chance(found, trials, batches.probability)
    if chances.min() * len(chances) >= level:
        return None
    worst = int(chances.argmin())
    return (
        f"{batches.block_name(worst)} were sampled {found[worst]:,} times, where "
        f"{trials[worst] * batches.probability:,.0f} are expected: the sampler prefers some parts of the dataset"
    )


def check_classes(batches: Batches, level: float) -> str | None:
    """Tests the participations of each residue class. It sees any single example that is in far too many batches."""
    sizes = class_sizes(batches.sampler.examples)
    found, trials = batches.counts.classes, batches.steps * sizes
    chances = binomial_chance(found, trials, batches.probability)
    if chances.min() * len(chances) >= level:
        return None
    worst = int(chances.argmin())
    return (
        f"the {sizes[worst]:,} examples {worst:,} modulo {len(sizes):,} were sampled {found[worst]:,} times, where "
        f"{trials[worst] * batches.probability:,.1f} are expected: the sampler prefers some examples"
    )


def check_block_rows(batches: Batches, level: float) -> str | None:
    """Tests how much the number of examples of a block varies from batch to batch."""
    rows = np.array(batches.counts.block_rows).reshape(-1)
    trials = np.tile(batches.block_sizes, len(batches.counts.block_rows))
    q = batches.probability
    if dispersion_chance(rows, trials, q) >= level:
        return None
    stated = float(np.mean(trials * q * (1 - q)))
    actual = float(np.mean((rows - trials * q) ** 2))
    return (
        f"the number of a block's examples in a batch has a variance of {actual:,.2f}, where independent examples give "
        f"{stated:,.2f}: examples are {'clustered' if actual > stated else 'stratified'}"
    )


def check_neighbours(batches: Batches, level: float) -> str | None:
    """Tests how often neighbours i and i + 1 are in a batch together. Pairs with even i share no example."""
    n, q = batches.sampler.examples, batches.probability
    found, pairs = batches.counts.neighbours, np.array([n // 2, (n - 1) // 2])
    chances = binomial_chance(found, batches.steps * pairs, q * q)
    if chances.min() * 2 >= level:
        return None
    return (
        f"{found.sum():,} pairs of neighbouring examples were in a batch together, where independent examples give "
        f"{batches.steps * (n - 1) * q * q:,.0f}"
    )


def check_lags(batches: Batches, level: float) -> str | None:
    """Tests for every lag how many watched examples of a batch are again in the batch that many steps later.

    For a lag ℓ, steps t with an even t // ℓ share no step with each other, nor do those with an odd one. So each half
    of the participations that come back has a binomial law.
    """
    q = batches.probability
    table, first, second = batches.in_common
    steps = table.number_of_steps
    if steps < 2:
        return None
    lag = second - first
    found = np.bincount(2 * lag + (first // np.maximum(lag, 1)) % 2, minlength=2 * steps).reshape(steps, 2)[1:]
    lags = np.arange(1, steps)
    whole, rest = np.divmod(steps - lags, 2 * lags)
    even = whole * lags + np.minimum(rest, lags)
    trials = table.examples * np.stack([even, steps - lags - even], axis=1)
    chances = binomial_chance(found, trials, q * q)
    if chances.min() * chances.size >= level:
        return None
    worst = int(chances.min(axis=1).argmin())
    return (
        f"{found[worst].sum():,} times a watched example was again in the batch {lags[worst]:,} steps later, where "
        f"independent batches give {trials[worst].sum() * q * q:,.1f}"
    )


def check_equal_batches(batches: Batches, level: float) -> str | None:
    """Tests whether two batches are equal, or equal but for a shift of all examples, at any distance.

    For two independent batches of m examples that has a probability of at most N/C(N, m), so batches are left out that
    are so small, or so nearly the whole dataset, that it may happen.
    """
    n, prints = batches.sampler.examples, np.array(batches.counts.fingerprints, np.uint64)
    # The batches of one dealt epoch share no example, so they are not independent. Another test compares them.
    epochs = np.arange(batches.steps)
    if isinstance(batches.sampler, EpochSampler):
        epochs //= batches.sampler.batches_per_epoch
    repeated = [print_ for print_, number in Counter(batches.counts.fingerprints).items() if number > 1]
    for print_ in repeated:
        steps = np.flatnonzero(prints == np.uint64(print_))
        later = steps[epochs[steps] > epochs[steps[0]]]
        m = batches.counts.sizes[steps[0]]
        choices = special.gammaln(n + 1) - special.gammaln(m + 1) - special.gammaln(max(n - m, 0) + 1)
        if len(later) and 2 * np.log(batches.steps) + np.log(n) - choices < np.log(level):
            return (
                f"the batch of step {steps[0]:,} was used again, or shifted, in step {later[0]:,}: {len(repeated):,} "
                "batches were used more than once"
            )
    return None


def check_pairs_of_steps(batches: Batches, level: float) -> str | None:
    """Tests the largest number of watched examples that two batches have in common."""
    q = batches.probability
    table, first, second = batches.in_common
    one, other, common = most_frequent(first, second)
    pairs = table.number_of_steps * (table.number_of_steps - 1) / 2
    if common <= table.examples * q * q or pairs * chernoff_chance(common, table.examples, q * q) >= level:
        return None
    return (
        f"the batches of steps {one:,} and {other:,} have {common:,} of {table.examples:,} watched examples in common, "
        f"where independent batches have {table.examples * q * q:.1f}"
    )


def check_pairs_of_examples(batches: Batches, level: float) -> str | None:
    """Tests the largest number of batches that two watched examples were in together."""
    q = batches.probability
    table, first, second = common_steps(batches.participations, q)
    return pair_defect(table, most_frequent(first, second)[2], table.number_of_steps, q * q, level)


def pair_defect(table: Participations, together: int, trials: int, probability: float, level: float) -> str | None:
    pairs = table.examples * (table.examples - 1) / 2
    if together <= trials * probability or pairs * chernoff_chance(together, trials, probability) >= level:
        return None
    return (
        f"two watched examples were in {together:,} batches together, where independent examples give "
        f"{trials * probability:.2g}"
    )


POISSON_CHECKS: tuple[Check, ...] = (
    check_rate,
    check_sizes,
    check_participations,
    check_blocks,
    check_classes,
    check_block_rows,
    check_neighbours,
    check_lags,
    check_equal_batches,
    check_pairs_of_steps,
    check_pairs_of_examples,
)
