"""Tests of cyclic Poisson sampling, where step t samples from part t mod b only.

What an example does in *rounds* of b steps is Poisson sampling with probability q·b, exactly: it is in at most one
batch of a round, and rounds are independent. So tests of Poisson sampling apply to rounds. The rest is tested here:
that no example is in two parts, that parts are equally likely, and that neighbours choose theirs independently.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from scipy import optimize

from dp_core.audit.chances import binomial_chance, dispersion_chance
from dp_core.audit.coincidences import Participations
from dp_core.audit.poisson_checks import (
    Batches,
    Check,
    check_lags,
    check_pairs_of_examples,
    check_pairs_of_steps,
    check_participations,
    check_rate,
    check_sizes,
)
from dp_core.audit.sampling_counts import RUN_LENGTH, class_sizes
from dp_core.cyclic_sampling import CyclicPoissonSampler


@dataclasses.dataclass(frozen=True)
class Rounds(Batches):
    """The counts of whole rounds, as those of batches. An unfinished last round is left out."""

    @property
    def parts(self) -> int:
        assert isinstance(self.sampler, CyclicPoissonSampler)
        return self.sampler.parts

    @property
    def steps(self) -> int:
        return self.counts.steps // self.parts

    @property
    def sizes(self) -> np.ndarray:
        sizes = np.asarray(self.counts.sizes, np.int64)
        return sizes[: self.steps * self.parts].reshape(self.steps, self.parts).sum(axis=1)

    @property
    def probability(self) -> float:
        assert isinstance(self.sampler, CyclicPoissonSampler)
        return self.sampler.round_probability

    @functools.cached_property
    def participations(self) -> Participations:
        steps, of = self.counts.participations()
        whole = steps < self.steps * self.parts
        return Participations(steps[whole] // self.parts, of[whole], self.steps, len(self.counts.watched_numbers()))

    @property
    def rounds_of_parts(self) -> np.ndarray:
        """The number of steps of each part, in the whole run. Shape [parts]."""
        return (self.counts.steps - 1 - np.arange(self.parts)) // self.parts + 1

    def mean_participations(self) -> float:
        """Returns the expected number of batches that an example is in, in the whole run."""
        return self.counts.steps * self.sampler.sampling_probability


def _of_rounds(check: Check) -> Check:
    def of_rounds(batches: Batches, level: float) -> str | None:
        rounds = Rounds(batches.sampler, batches.counts)
        found = check(rounds, level) if rounds.steps else None
        return None if found is None else f"in rounds of {rounds.parts:,} steps: {found}"

    return of_rounds


def check_one_part(batches: Batches, level: float) -> str | None:
    """Tests that every watched example is in batches of one part only."""
    rounds = Rounds(batches.sampler, batches.counts)
    steps, of = batches.counts.participations()
    several = _several(steps % rounds.parts, of)
    if not several:
        return None
    return (
        f"{several:,} watched examples were in batches of more than one of the {rounds.parts:,} parts: their "
        "contributions to correlated noise overlap"
    )


def _several(parts: np.ndarray, of: np.ndarray) -> int:
    """Returns how many examples are in more than one part."""
    pairs = np.unique(np.stack([of, parts]), axis=1)
    return int(np.sum(np.bincount(pairs[0]) > 1)) if pairs.size else 0


def check_parts(batches: Batches, level: float) -> str | None:
    """Tests the number of participations of each part, which has 1/b of the examples."""
    rounds = Rounds(batches.sampler, batches.counts)
    sizes, n, b = np.asarray(batches.counts.sizes, np.int64), batches.sampler.examples, rounds.parts
    found = np.bincount(np.arange(len(sizes)) % b, weights=sizes, minlength=b)
    for part in np.argsort(np.abs(found / np.maximum(rounds.rounds_of_parts, 1) - n / b * rounds.probability))[::-1]:
        times = int(rounds.rounds_of_parts[part])
        if times and _clustered_chance(found[part], n, 1 / b, np.array([times]), rounds.probability) * b < level:
            return (
                f"the examples of part {part:,} of {b:,} were sampled {found[part]:,.0f} times, where "
                f"{n / b * times * rounds.probability:,.0f} are expected of equally likely parts"
            )
    return None


def check_part_of_neighbours(batches: Batches, level: float) -> str | None:
    """Tests how often watched examples i and i + ℓ have the same part, for every ℓ within a run of neighbours.

    At a distance ℓ, every other stretch of ℓ examples is paired with the next, so that no example is in two pairs.
    Given who was seen at all in whole rounds, which does not depend on parts, the number of equal parts is binomial.
    """
    rounds = Rounds(batches.sampler, batches.counts)
    numbers = batches.counts.watched_numbers()
    steps, of = batches.counts.participations()
    whole = steps < rounds.steps * rounds.parts
    part = np.full(len(numbers), -1)
    part[of[whole]] = steps[whole] % rounds.parts
    if rounds.parts == 1 or not len(numbers):
        return None
    # Watched examples come in runs of neighbours, unless all examples are watched.
    worst: tuple[float, int, int, int] | None = None
    for distance in range(1, RUN_LENGTH):
        first = np.arange(len(numbers) - distance)
        first = first[(first // distance) % 2 == 0]
        second = first + distance
        near = numbers[second] - numbers[first] == distance
        near &= numbers[first] // RUN_LENGTH == numbers[second] // RUN_LENGTH
        seen = near & (part[first] >= 0) & (part[second] >= 0)
        same, pairs = int(np.sum(part[first[seen]] == part[second[seen]])), int(seen.sum())
        chance = float(binomial_chance(same, pairs, 1 / rounds.parts)) * (RUN_LENGTH - 1) if pairs else 1.0
        if worst is None or chance < worst[0]:
            worst = chance, distance, same, pairs
    if worst is None or worst[0] >= level:
        return None
    _, distance, same, pairs = worst
    return (
        f"{same:,} of {pairs:,} pairs of examples {distance} apart have the same part, where independent assignment to "
        f"{rounds.parts:,} parts gives {pairs / rounds.parts:,.0f}"
    )


def check_blocks_and_classes(batches: Batches, level: float) -> str | None:
    """Tests the participations of each block of the dataset, and of each residue class of examples.

    The last round may be unfinished: an example is then in one of its batches with a smaller probability. Tails of sums
    of different Bernoulli variables are below those of the binomial law with their mean (Hoeffding, 1956), beyond the
    integers around the mean.
    """
    rounds = Rounds(batches.sampler, batches.counts)
    begun = -(-batches.counts.steps // rounds.parts)
    mean = rounds.mean_participations() / begun
    kinds = (
        ("block", batches.counts.blocks, batches.block_sizes),
        ("residue class", batches.counts.classes, class_sizes(batches.sampler.examples)),
    )
    for kind, found, sizes in kinds:
        expected = sizes * begun * mean
        chances = np.where(np.abs(found - expected) <= 1, 1.0, binomial_chance(found, sizes * begun, mean))
        if chances.min() * len(chances) * 2 < level:
            worst = int(chances.argmin())
            return (
                f"the {sizes[worst]:,} examples of {kind} {worst:,} were sampled {found[worst]:,} times, where "
                f"{expected[worst]:,.1f} are expected: the sampler prefers some examples"
            )
    return None


def check_rows_of_blocks(batches: Batches, level: float) -> str | None:
    """Tests how much the number of a block's examples varies from round to round, if all steps were kept."""
    rounds = Rounds(batches.sampler, batches.counts)
    if batches.counts.block_stride > 1 or not rounds.steps:
        return None
    rows = np.array(batches.counts.block_rows)[: rounds.steps * rounds.parts]
    sums = rows.reshape(rounds.steps, rounds.parts, -1).sum(axis=1).reshape(-1)
    trials = np.tile(batches.block_sizes, rounds.steps)
    if dispersion_chance(sums, trials, rounds.probability) >= level:
        return None
    return (
        f"the number of a block's examples in {rounds.parts:,} steps varies other than for examples that are sampled "
        "independently"
    )


def check_neighbours_together(batches: Batches, level: float) -> str | None:
    """Tests how often neighbours i and i + 1 are in a batch together: both in one part, then both sampled."""
    rounds = Rounds(batches.sampler, batches.counts)
    n, b = batches.sampler.examples, rounds.parts
    found, pairs = batches.counts.neighbours, (n // 2, (n - 1) // 2)
    for number, of in zip(found, pairs, strict=True):
        chance = _clustered_chance(float(number), of, 1 / b, rounds.rounds_of_parts, rounds.probability**2)
        if chance * 2 < level:
            return (
                f"{found.sum():,} pairs of neighbouring examples were in a batch together, where independent examples "
                f"give {(n - 1) * rounds.probability**2 * rounds.rounds_of_parts.mean() / b:,.0f}"
            )
    return None


def check_used_again(batches: Batches, level: float) -> str | None:
    """Tests whether two batches of a part are equal, or equal but for a shift of all examples.

    A part has at least as many examples as its largest batch. Each of them is in both samples or in neither with
    probability p² + (1 − p)².
    """
    rounds, sizes = Rounds(batches.sampler, batches.counts), np.asarray(batches.counts.sizes)
    same = rounds.probability**2 + (1 - rounds.probability) ** 2
    prints, parts = np.array(batches.counts.fingerprints, np.uint64), np.arange(len(sizes)) % rounds.parts
    _, number, times = np.unique(prints, return_inverse=True, return_counts=True)
    for step in np.flatnonzero(times[number] > 1):
        equal = np.flatnonzero((number == number[step]) & (parts == parts[step]))
        log_chance = 2 * np.log(len(sizes)) + np.log(batches.sampler.examples) + sizes[step] * np.log(same)
        if len(equal) > 1 and log_chance < np.log(level):
            return f"the batch of step {equal[0]:,} was used again, or shifted, in step {equal[1]:,}"
    return None


def _clustered_chance(found: float, units: int, share: float, times: np.ndarray, probability: float) -> float:
    """Returns a bound on the probability of a count that is as far from its mean, on either side (Chernoff's).

    Each of ``units`` units independently belongs to the counted ones with probability ``share``, and then adds a
    binomial number with ``probability`` and a number of trials that is one of ``times``, each as likely.
    """
    mean = units * share * float(times.mean()) * probability
    if not units or found == mean:
        return 1.0

    def exponent(theta: float) -> float:
        grown = np.log1p(probability * np.expm1(theta)) * times
        return units * float(np.log1p(share * np.mean(np.expm1(grown)))) - theta * found

    # Any θ of the right sign gives a valid bound, so the minimum need not be exact.
    bounds = (0.0, 20.0 / max(1, times.max())) if found > mean else (-20.0, 0.0)
    with np.errstate(over="ignore", divide="ignore"):
        best = float(optimize.minimize_scalar(exponent, bounds=bounds, method="bounded").fun)
    return min(1.0, 2 * float(np.exp(min(best, 0.0))))


CYCLIC_CHECKS: tuple[Check, ...] = (
    check_one_part,
    check_parts,
    check_part_of_neighbours,
    check_blocks_and_classes,
    check_rows_of_blocks,
    check_neighbours_together,
    check_used_again,
    *(
        _of_rounds(check)
        for check in (
            check_rate,
            check_sizes,
            check_participations,
            check_lags,
            check_pairs_of_steps,
            check_pairs_of_examples,
        )
    ),
)
