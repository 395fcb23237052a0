"""An epoch's examples are shuffled once per epoch and sampler, and batches do not depend on what is cached."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dp_core.sampling
from dp_core.sampling import BallsInBinsSampler, DealtEpoch, EpochSampler, ShuffledSampler, deal

EPOCH_SAMPLERS = [ShuffledSampler, BallsInBinsSampler]


@pytest.fixture
def shuffles(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EpochSampler, int]]:
    """The sampler and the epoch of every shuffle."""
    counted: list[tuple[EpochSampler, int]] = []

    def counting(sampler: EpochSampler, epoch: int) -> DealtEpoch:
        counted.append((sampler, epoch))
        return deal(sampler, epoch)

    monkeypatch.setattr(dp_core.sampling, "deal", counting)
    return counted


@pytest.mark.parametrize("kind", EPOCH_SAMPLERS)
def test_a_run_shuffles_once_an_epoch(kind: type[EpochSampler], shuffles: list[tuple[EpochSampler, int]]) -> None:
    sampler = kind(100, 10, 100, (1,))
    for step in range(35):
        sampler.batch(step)
    assert [epoch for _, epoch in shuffles] == [0, 1, 2, 3]


@pytest.mark.parametrize("kinds", [EPOCH_SAMPLERS, [ShuffledSampler] * 2, [BallsInBinsSampler] * 2])
def test_samplers_side_by_side_each_shuffle_once_an_epoch(
    kinds: list[type[EpochSampler]], shuffles: list[tuple[EpochSampler, int]]
) -> None:
    """Two runs that take turns step by step, as trials that train side by side do."""
    samplers = [kind(100, 10, 100, (seed,)) for seed, kind in enumerate(kinds)]
    for step in range(35):
        for sampler in samplers:
            sampler.batch(step)
    assert shuffles == [(sampler, epoch) for epoch in range(4) for sampler in samplers]


def test_equal_samplers_of_two_trials_do_not_share_an_epoch(shuffles: list[tuple[EpochSampler, int]]) -> None:
    """One may be an epoch ahead of the other without making it shuffle again."""
    ahead, behind = (ShuffledSampler(100, 10, 10, (1,)) for _ in range(2))
    for step in range(10):
        ahead.batch(step + 10)
        behind.batch(step)
    assert [epoch for _, epoch in shuffles] == [1, 0]


@pytest.mark.parametrize("kind", EPOCH_SAMPLERS)
def test_trials_in_threads_shuffle_once_an_epoch_and_draw_the_same(
    kind: type[EpochSampler], shuffles: list[tuple[EpochSampler, int]]
) -> None:
    samplers = [kind(2000, 20, 200, (seed,)) for seed in range(4)]
    expected = [[kind(2000, 20, 200, (seed,)).batch(step).indices for step in range(0, 250, 10)] for seed in range(4)]
    shuffles.clear()
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda sampler: [sampler.batch(step).indices for step in range(250)], samplers))
    assert len(shuffles) == 4 * 3
    for batches, some in zip(drawn, expected, strict=True):
        for found, wanted in zip(batches[::10], some, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_two_threads_may_draw_from_one_sampler() -> None:
    """From different epochs, so that each takes away the epoch that the other one needs."""
    sampler = BallsInBinsSampler(500, 10, 100, (3,))
    expected = [BallsInBinsSampler(500, 10, 100, (3,)).batch(step).indices for step in range(100)]
    with ThreadPoolExecutor(2) as pool:
        drawn = pool.map(lambda step: sampler.batch(step).indices, [step for i in range(50) for step in (i, 50 + i)])
        found = list(drawn)
    for i in range(50):
        np.testing.assert_array_equal(found[2 * i], expected[i])
        np.testing.assert_array_equal(found[2 * i + 1], expected[50 + i])


@pytest.mark.parametrize("kind", EPOCH_SAMPLERS)
def test_batches_are_slices_of_one_shuffle(kind: type[EpochSampler]) -> None:
    """Against the definition, written out: one generator per epoch draws the sizes and then the order."""
    sampler = kind(1003, 50, 60, (3, 0))
    for step in (0, 1, 19, 20, 41, 3):
        epoch, number = divmod(step, 20)
        rng = np.random.default_rng(np.random.SeedSequence((3, 0), spawn_key=(epoch, 0)))
        sizes = [50] * 20 if kind is ShuffledSampler else rng.multinomial(1003, [1 / 20] * 20).tolist()
        order = np.arange(1003, dtype=np.int32)
        rng.shuffle(order)
        start = sum(sizes[:number])
        np.testing.assert_array_equal(sampler.batch(step).indices, order[start : start + min(sizes[number], 60)])


@pytest.mark.parametrize(
    ("kind", "microbatch_size", "digest"),
    [
        (ShuffledSampler, 1, "f259e2470e40055e"),
        (ShuffledSampler, 4, "6952e4a383a8d0d1"),
        (BallsInBinsSampler, 1, "997d879afec76d56"),
        (BallsInBinsSampler, 4, "00b8d0985e5da72b"),
    ],
)
def test_batches_are_the_same_as_ever(kind: type[EpochSampler], microbatch_size: int, digest: str) -> None:
    """Digests from before epochs were kept with their sampler: a reproduction trains on the same batches."""
    sampler, found = kind(1003, 50, 60, (3, 0), microbatch_size), hashlib.blake2b(digest_size=8)
    for step in [*range(45), 7, 44]:
        batch = sampler.batch(step)
        found.update(batch.indices.astype("<i8").tobytes())
        found.update(b"" if batch.groups is None else batch.groups.astype("<i8").tobytes())
    assert found.hexdigest() == digest


@pytest.mark.parametrize("kind", EPOCH_SAMPLERS)
def test_what_is_cached_is_not_part_of_a_sampler(kind: type[EpochSampler]) -> None:
    """Equality, hash and text are those of the settings; copies draw the same batches."""
    fresh, used = kind(100, 10, 100, (1,)), kind(100, 10, 100, (1,))
    batch = used.batch(4).indices
    assert fresh == used
    assert hash(fresh) == hash(used)
    assert repr(fresh) == repr(used)
    assert used != kind(100, 10, 100, (2,))
    for again in (copy.deepcopy(used), pickle.loads(pickle.dumps(used)), dataclasses.replace(used)):
        assert again == used
        np.testing.assert_array_equal(again.batch(4).indices, batch)
    # A changed copy does not inherit the epoch of its original.
    assert dataclasses.replace(used, entropy=(2,)).batch(4).indices.tolist() != batch.tolist()


@pytest.mark.parametrize("kind", EPOCH_SAMPLERS)
def test_a_sampler_holds_at_most_one_epoch(kind: type[EpochSampler]) -> None:
    sampler = kind(100, 10, 100, (1,))
    assert sampler._last.dealt is None
    for epoch in (0, 1, 5, 2):
        sampler.batch(10 * epoch + 3)
        assert sampler._last.dealt is not None
        assert sampler._last.dealt.epoch == epoch
    assert set(vars(sampler._last)) == {"dealt"}


def test_an_epoch_takes_four_bytes_an_example() -> None:
    sampler = ShuffledSampler(100, 10, 10, (1,))
    assert deal(sampler, 0).order.dtype == np.int32
    assert sampler.batch(0).indices.dtype == np.int64
