"""Samplers with one bug each, to be stated as correct ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dp_core.audit.sampling_counts import SamplingCounts
from dp_core.sampling import BallsInBinsSampler, EpochSampler, PoissonSampler, Sampler, ShuffledSampler

Draw = Callable[[int], np.ndarray]


def counted(draw: Draw, steps: int, examples: int) -> SamplingCounts:
    """Returns the counts of the batches of a run."""
    counts = SamplingCounts(examples)
    for step in range(steps):
        counts.add(step, draw(step))
    return counts


def counted_sampler(sampler: Sampler, steps: int) -> SamplingCounts:
    return counted(lambda step: sampler.batch(step).indices, steps, sampler.examples)


def poisson(examples: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(examples, rng.binomial(examples, rate), replace=False, shuffle=False)


def poisson_bugs(stated: PoissonSampler, steps: int) -> dict[str, Draw]:
    """Returns broken Poisson samplers: for each the batch of a step."""
    n, b, q = stated.examples, stated.expected_batch_size, stated.sampling_probability
    rng = np.random.default_rng(7)
    epoch = round(n / b)
    shuffled = ShuffledSampler(n, b, b, (1,))
    thrown = BallsInBinsSampler(n, b, n, (1,))
    mates = rng.permutation(n)
    edges = np.arange(65) * n // 64
    never = rng.permutation(n)[: n // 50]
    kept: list[np.ndarray] = []

    def fresh(step: int) -> np.ndarray:
        return poisson(n, q, rng)

    def within(candidates: np.ndarray) -> Draw:
        return lambda step: candidates[poisson(len(candidates), b / len(candidates), rng)]

    def halfway(step: int) -> np.ndarray:
        """Half of the batch before is kept, and half of a fresh one added."""
        batch = fresh(step)
        if step:
            old = kept[-1][rng.random(len(kept[-1])) < 0.5]
            batch = np.union1d(batch[rng.random(len(batch)) < 0.5], old)
        kept.append(batch)
        return batch

    def in_pairs(step: int) -> np.ndarray:
        return mates[: n // 2 * 2].reshape(-1, 2)[poisson(n // 2, q, rng)].reshape(-1)

    def contiguous(step: int) -> np.ndarray:
        start = rng.integers(n)
        return (start + np.arange(rng.binomial(n, q))) % n

    def clusters(step: int) -> np.ndarray:
        return (poisson(n // 4, q, rng)[:, None] * 4 + np.arange(4)).reshape(-1)

    def stratified(step: int) -> np.ndarray:
        shares = np.diff(np.arange(65) * rng.binomial(n, q) // 64)
        blocks = zip(edges[:-1], np.diff(edges), shares, strict=True)
        return np.concatenate([low + rng.choice(size, share, replace=False) for low, size, share in blocks])

    def clipped(step: int) -> np.ndarray:
        return fresh(step)[:b]

    return {
        "q 10 % too high": lambda step: poisson(n, 1.1 * q, rng),
        "q 10 % too low": lambda step: poisson(n, 0.9 * q, rng),
        "q drifts": lambda step: poisson(n, q * (0.9 + 0.2 * step / steps), rng),
        "q is doubled in the last eighth": lambda step: poisson(n, q * (1 + (step >= steps * 7 // 8)), rng),
        "fixed size": lambda step: rng.choice(n, b, replace=False),
        "with replacement": lambda step: rng.choice(n, rng.binomial(n, q)),
        "one example twice": lambda step: np.append(fresh(step)[1:], mates[:2].repeat(2)) if step == 1 else fresh(step),
        "an index too far": lambda step: np.append(fresh(step), n) if step == 1 else fresh(step),
        "shuffled": lambda step: shuffled.batch(step).indices,
        "balls in bins": lambda step: thrown.batch(step).indices,
        "one batch for 16 steps": lambda step: PoissonSampler(n, b, n, (step // 16,)).batch(0).indices,
        "one batch used twice": lambda step: (
            PoissonSampler(n, b, n, (0 if step == steps - 1 else step,)).batch(0).indices
        ),
        "the same batches every epoch": lambda step: PoissonSampler(n, b, n, (step % epoch,)).batch(0).indices,
        "half of the batch before": halfway,
        "a clock of steps as seed, rotated": lambda step: (PoissonSampler(n, b, n, (9,)).batch(0).indices + step) % n,
        "contiguous": contiguous,
        "clusters of 4": clusters,
        "pairs": in_pairs,
        "stratified": stratified,
        "only even examples": within(np.arange(0, n, 2)),
        "the last 1 % never": within(np.arange(n - n // 100)),
        "the last block never": within(np.arange(edges[-2])),
        "2 % at random never": within(np.setdiff1d(np.arange(n), never)),
        "the first example always": lambda step: np.union1d(fresh(step), [0]),
        "some example always": lambda step: np.union1d(fresh(step), mates[:1]),
        "early examples first": lambda step: poisson(n // 2, 2 * q, rng) + (n - n // 2) * (step >= steps // 2),
        "clipped at the mean": clipped,
    }


def dealt_bugs(stated: EpochSampler, steps: int) -> dict[str, Draw]:
    """Returns broken balls in bins or shuffles: for each the batch of a step."""
    n, bins = stated.examples, stated.batches_per_epoch
    kind = type(stated)

    def sampler(*entropy: int) -> EpochSampler:
        return kind(n, stated.expected_batch_size, stated.max_batch_size, entropy)

    correct, other = sampler(5), sampler(6)
    rng = np.random.default_rng(8)
    always = rng.permutation(n)
    thrown = {epoch: rng.integers(bins, size=n) for epoch in range(-(-steps // bins))}

    def by_bin(bin_of: Callable[[int], np.ndarray]) -> Draw:
        return lambda step: np.flatnonzero(bin_of(step // bins) == step % bins)

    def exchanged(step: int) -> np.ndarray:
        """One example takes another one's place in every epoch."""
        batch = correct.batch(step).indices
        return np.where(batch == always[0], always[1], batch)

    pairs = np.arange(n) // 2
    return {
        "the same deal every epoch": lambda step: correct.batch(step % bins).indices,
        "the second epoch repeated": lambda step: correct.batch(step - bins if step // bins == 2 else step).indices,
        "rotated deals": lambda step: correct.batch((step + step // bins) % bins).indices,
        "deals of shifted examples": lambda step: (correct.batch(step % bins).indices + 7 * (step // bins)) % n,
        "one batch for two steps": lambda step: correct.batch(step - step % 2).indices,
        "epochs that begin too late": lambda step: correct.batch(step + bins // 2 * (step >= bins)).indices,
        "one example for another": exchanged,
        "half of the epochs by another order": lambda step: (correct if step % 2 else other).batch(step).indices,
        "one example twice": lambda step: np.append(correct.batch(step).indices[1:], correct.batch(step).indices[-1]),
        "round robin": by_bin(lambda epoch: (np.arange(n) + epoch) % bins),
        "not shuffled": by_bin(lambda epoch: np.arange(n) * bins // n),
        "pairs": by_bin(lambda epoch: thrown[epoch][pairs]),
        "uneven bins": by_bin(lambda epoch: np.minimum(thrown[epoch], thrown[epoch][::-1])),
        "Poisson": lambda step: poisson(n, 1 / bins, rng),
    }
