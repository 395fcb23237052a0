"""Each sampler draws the batches that it states."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from scipy import stats

from dp_core.epochs import steps_for_epochs
from dp_core.sampling import (
    SAMPLERS,
    BallsInBinsSampler,
    PoissonSampler,
    Sampler,
    ShuffledSampler,
    make_sampler,
)

EPOCH_SAMPLERS = [ShuffledSampler, BallsInBinsSampler]


def epoch_of(sampler: ShuffledSampler | BallsInBinsSampler, epoch: int) -> list[np.ndarray]:
    per_epoch = sampler.batches_per_epoch
    return [sampler.batch(step).indices for step in range(epoch * per_epoch, (epoch + 1) * per_epoch)]


def test_every_example_has_the_stated_rate() -> None:
    """Each example's count over T steps is Binomial(T, q). Chi-squared test over 200 examples; a correct sampler fails
    for one seed in 5,000, and the seed is fixed."""
    sampler = PoissonSampler(200, 30, 200, (7,))
    steps = 4000
    counts = np.zeros(200)
    for step in range(steps):
        batch = sampler.batch(step)
        assert len(set(batch.indices.tolist())) == batch.size
        counts[batch.indices] += 1
    q = sampler.sampling_probability
    statistic = np.sum((counts - steps * q) ** 2) / (steps * q * (1 - q))
    assert stats.chi2.sf(statistic, 200) > 1e-4
    assert stats.chi2.cdf(statistic, 200) > 1e-4


def test_examples_join_independently() -> None:
    """Pairs are together in a batch at rate q², which a sampler of fixed-size batches would fail."""
    sampler = PoissonSampler(40, 10, 40, (1,))
    batches = [set(sampler.batch(step).indices.tolist()) for step in range(4000)]
    sizes = np.array([len(batch) for batch in batches])
    expected_variance = 40 * 0.25 * 0.75
    # The sample variance of 4,000 binomials is off by more than 12 % once in 10⁷ times.
    assert abs(sizes.var() - expected_variance) < 0.12 * expected_variance
    together = np.mean([{0, 1} <= batch for batch in batches])
    assert abs(together - 0.0625) < 5 * (0.0625 * 0.9375 / 4000) ** 0.5


@pytest.mark.parametrize("kind", SAMPLERS.values())
@pytest.mark.parametrize("microbatch_size", [1, 4])
def test_a_batch_depends_on_entropy_and_step_alone(kind: type[Sampler], microbatch_size: int) -> None:
    """It does not depend on earlier calls: a run that resumes from a checkpoint gets the same batches."""
    sampler = kind(1000, 50, 200, (3, 0), microbatch_size)
    steps = [17, 3, 45, 59, 0, 20, 17, 199, 0]
    asked = [sampler.batch(step) for step in steps]
    for step, batch in zip(steps, asked, strict=True):
        again = kind(1000, 50, 200, (3, 0), microbatch_size).batch(step)
        np.testing.assert_array_equal(batch.indices, again.indices)
        np.testing.assert_array_equal(batch.groups, again.groups)
        assert batch.size != 0
    different = {batch.indices.tobytes() for batch in asked}
    assert len(different) == len(set(steps))
    other = kind(1000, 50, 200, (4, 0), microbatch_size)
    assert all(other.batch(step).indices.tobytes() not in different for step in steps)


def test_two_samplers_that_take_turns_do_not_mix_up_their_epochs() -> None:
    """Each sampler caches its own epoch."""
    samplers = [kind(100, size, 100, (seed,)) for kind in EPOCH_SAMPLERS for size in (10, 20) for seed in (1, 2)]
    alone = [[sampler.batch(step).indices for step in range(12)] for sampler in samplers]
    in_turns = [[sampler.batch(step).indices for sampler in samplers] for step in range(12)]
    for number, batches in enumerate(alone):
        for step, batch in enumerate(batches):
            np.testing.assert_array_equal(batch, in_turns[step][number])
    # Changing a returned batch does not change what the next caller gets.
    samplers[0].batch(3).indices[:] = 0
    np.testing.assert_array_equal(samplers[0].batch(3).indices, alone[0][3])


def test_an_example_draws_its_group_by_itself() -> None:
    """Groups are uniform, and independent between examples: two are together at rate 1/groups.
    Five standard deviations; the seed is fixed."""
    sampler = PoissonSampler(60, 40, 60, (5,), microbatch_size=4)
    steps, counts, together, both = 3000, np.zeros(10), 0, 0
    for step in range(steps):
        batch = sampler.batch(step)
        assert batch.groups is not None
        assert np.all(np.diff(batch.groups) >= 0)
        counts += np.bincount(batch.groups, minlength=10)
        where = dict(zip(batch.indices.tolist(), batch.groups.tolist(), strict=True))
        if 0 in where and 1 in where:
            both += 1
            together += where[0] == where[1]
    expected = counts.sum() / 10
    assert stats.chi2.sf(np.sum((counts - expected) ** 2) / expected, 9) > 1e-5
    assert abs(together / both - 0.1) < 5 * (0.09 / both) ** 0.5


@pytest.mark.parametrize("kind", SAMPLERS.values())
def test_groups_do_not_change_who_is_sampled(kind: type[Sampler]) -> None:
    alone, grouped = (kind(500, 50, 200, (2,), microbatch_size=m).batch(3) for m in (1, 8))
    assert alone.groups is None
    assert sorted(alone.indices) == sorted(grouped.indices)


@pytest.mark.parametrize(("examples", "size"), [(100, 10), (105, 10), (109, 10), (10, 10), (7, 1), (1000, 333)])
def test_shuffled_batches_have_one_size_and_each_example_at_most_once_an_epoch(examples: int, size: int) -> None:
    sampler = ShuffledSampler(examples, size, size, (3,))
    for epoch in range(3):
        batches = epoch_of(sampler, epoch)
        assert [len(batch) for batch in batches] == [size] * (examples // size)
        dealt = np.concatenate(batches)
        assert len(set(dealt.tolist())) == len(dealt) == examples - examples % size
        assert 0 <= dealt.min() <= dealt.max() < examples


def test_each_epoch_is_shuffled_anew() -> None:
    """An example is equally likely to be in each batch, or left over, in each epoch.

    Chi-squared tests over 2,000 epochs; each fails a correct sampler for one seed in 10⁴, and the seed is fixed."""
    sampler = ShuffledSampler(23, 5, 5, (11,))
    epochs, places = 2000, np.zeros((23, 5))
    for epoch in range(epochs):
        for number, batch in enumerate(epoch_of(sampler, epoch)):
            places[batch, number] += 1
    places[:, 4] = epochs - places[:, :4].sum(axis=1)
    expected = epochs * np.array([5, 5, 5, 5, 3]) / 23
    for example in (0, 1, 22):
        assert stats.chi2.sf(np.sum((places[example] - expected) ** 2 / expected), 4) > 1e-4


@pytest.mark.parametrize(("examples", "size"), [(100, 10), (105, 10), (96, 10), (10, 10), (7, 1), (1000, 3)])
def test_balls_in_bins_have_each_example_exactly_once_an_epoch(examples: int, size: int) -> None:
    sampler = BallsInBinsSampler(examples, size, examples, (3,))
    assert sampler.batches_per_epoch == round(examples / size)
    for epoch in range(3):
        assert sorted(np.concatenate(epoch_of(sampler, epoch)).tolist()) == list(range(examples))


def test_balls_fall_into_bins_uniformly_and_independently() -> None:
    """Four tests, each of which fails a correct sampler for one seed in 5,000; the seed is fixed.

    Batch sizes of an epoch are multinomial (Pearson's statistic, summed over epochs); each example is in each bin
    equally often; pairs meet at rate 1/bins; an example returns to its bin of the previous epoch at that rate."""
    examples, bins, epochs = 60, 6, 1500
    sampler = BallsInBinsSampler(examples, examples // bins, examples, (5,))
    where = np.empty((epochs, examples), int)
    for epoch in range(epochs):
        for number, batch in enumerate(epoch_of(sampler, epoch)):
            where[epoch, batch] = number

    sizes = np.stack([np.bincount(row, minlength=bins) for row in where])
    mean = examples / bins
    in_range(stats.chi2(epochs * (bins - 1)), np.sum((sizes - mean) ** 2) / mean)

    in_each = np.stack([np.bincount(column, minlength=bins) for column in where.T])
    expected = epochs / bins
    in_range(stats.chi2(examples * (bins - 1)), np.sum((in_each - expected) ** 2) / expected)

    # With uniform and independent bins, any two pairs meet independently of each other.
    pairs = list(itertools.combinations(range(examples), 2))
    met = sum(np.sum(where[:, i] == where[:, j]) for i, j in pairs)
    in_range(stats.norm(*binomial_moments(len(pairs) * epochs, 1 / bins)), met)
    again = np.sum(where[1:] == where[:-1])
    in_range(stats.norm(*binomial_moments((epochs - 1) * examples, 1 / bins)), again)


def binomial_moments(trials: int, probability: float) -> tuple[float, float]:
    """Returns the mean and the standard deviation."""
    return trials * probability, (trials * probability * (1 - probability)) ** 0.5


def in_range(law: stats.rv_frozen, value: float) -> None:
    """Asserts that a value is not in either 10⁻⁴ tail of the distribution."""
    assert law.ppf(1e-4) < value < law.isf(1e-4)


@pytest.mark.parametrize("kind", [PoissonSampler, BallsInBinsSampler])
def test_oversized_batches_are_cut(kind: type[Sampler]) -> None:
    sampler = kind(1000, 500, 490, (0,))
    batches = [sampler.batch(step) for step in range(40)]
    assert all(len(set(batch.indices.tolist())) == batch.size <= 490 for batch in batches)
    assert any(batch.size == 490 for batch in batches)
    assert any(batch.size < 490 for batch in batches)


def test_who_is_cut_is_random() -> None:
    """A tenth of the examples does not fit, and each example is equally likely to be dropped, whatever its index.
    Five standard deviations between the halves; the seed is fixed."""
    sampler = BallsInBinsSampler(1000, 500, 450, (0,))
    steps = 400
    counts = np.zeros(1000)
    for step in range(steps):
        counts[sampler.batch(step).indices] += 1
    first, second = counts[:500].sum(), counts[500:].sum()
    assert abs(first - second) < 5 * (1000 * steps / 4) ** 0.5


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_is_made_from_its_name(name: str) -> None:
    sampler = make_sampler(
        name, examples=1000, expected_batch_size=50, steps=100, target_delta=1e-4, entropy=[1, 2], microbatch_size=5
    )
    assert type(sampler) is SAMPLERS[name]
    assert (sampler.name, sampler.entropy, sampler.microbatch_size) == (name, (1, 2), 5)
    assert (sampler.max_batch_size == 50) == (name == "shuffle")
    assert sampler.sampling_probability == pytest.approx(0.05)


def test_a_sampler_without_a_name_is_poisson_without_groups() -> None:
    sampler = make_sampler(examples=1000, expected_batch_size=50, steps=100, target_delta=1e-4)
    assert (sampler.name, sampler.entropy, sampler.microbatch_size) == ("poisson", (), 1)


@pytest.mark.parametrize("name", SAMPLERS)
def test_batch_sizes_that_cannot_be(name: str) -> None:
    for size in (0, -1, 11):
        with pytest.raises(ValueError, match="from 1 to 10"):
            make_sampler(name, examples=10, expected_batch_size=size, steps=1, target_delta=0.1, entropy=(0,))


def test_a_sampler_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="unknown sampler"):
        make_sampler("with_replacement", examples=10, expected_batch_size=5, steps=1, target_delta=0.1)


@pytest.mark.parametrize("name", SAMPLERS)
def test_whole_data_as_a_batch(name: str) -> None:
    sampler = make_sampler(name, examples=10, expected_batch_size=10, steps=5, target_delta=0.1, entropy=(0,))
    assert sampler.max_batch_size == 10
    assert sampler.sampling_probability == 1
    for step in range(3):
        assert sorted(sampler.batch(step).indices.tolist()) == list(range(10))


def test_steps_cover_the_epochs() -> None:
    assert steps_for_epochs(examples=36_672_493, batch_size=65_536, epochs=150) == 83_937
    assert steps_for_epochs(examples=10, batch_size=100, epochs=0.01) == 1
    # 1,050 examples are 10.5 batches of 100: the remainder sits out, or makes the ten batches larger.
    for name, steps in (("poisson", 32), ("shuffle", 30), ("balls_in_bins", 30)):
        assert steps_for_epochs(examples=1050, batch_size=100, epochs=3, sampler=name) == steps
    for name in SAMPLERS:
        assert steps_for_epochs(examples=1000, batch_size=100, epochs=0.25, sampler=name) == 3


def test_drawing_the_papers_batch_is_quick() -> None:
    """Drawing 65,536 of 40 million rows takes about 1 ms, whatever the number of rows."""
    sampler = PoissonSampler(40_000_000, 65_536, 70_000, (1,))
    seconds = []
    for step in range(10):
        began = time.perf_counter()
        sampler.batch(step)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) <= 5e-3
