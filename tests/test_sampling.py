"""The sampler has the rate that it states, and states what cutting batches costs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dp_core.sampling import PoissonSampler, make_sampler, steps_for_epochs, truncation_delta


def test_every_example_has_the_stated_rate() -> None:
    """Each example's count over T steps is Binomial(T, q). Chi-squared over 200 examples; the test
    fails for a correct sampler once in 10⁴ seeds, and the seed is fixed."""
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
    """Pairs are together in a batch at rate q²: a sampler of fixed-size batches is told apart."""
    sampler = PoissonSampler(40, 10, 40, (1,))
    sizes = np.array([sampler.batch(step).size for step in range(4000)])
    expected_variance = 40 * 0.25 * 0.75
    # The sample variance of 4,000 binomials is within 12 % of the truth but once in 10⁷ times.
    assert abs(sizes.var() - expected_variance) < 0.12 * expected_variance
    together = np.mean([{0, 1} <= set(_chosen(sampler, step)) for step in range(4000)])
    assert abs(together - 0.0625) < 5 * (0.0625 * 0.9375 / 4000) ** 0.5


def test_a_batch_depends_on_entropy_and_step_alone() -> None:
    sampler = PoissonSampler(1000, 50, 200, (3, 0))
    late = sampler.batch(17)
    sampler.batch(3)
    np.testing.assert_array_equal(late.indices, sampler.batch(17).indices)
    assert late.size != 0
    other = PoissonSampler(1000, 50, 200, (4, 0))
    assert not np.array_equal(late.indices, other.batch(17).indices)


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


def test_groups_do_not_change_who_is_sampled() -> None:
    alone, grouped = (PoissonSampler(500, 50, 200, (2,), microbatch_size=m).batch(3) for m in (1, 8))
    assert alone.groups is None
    assert sorted(alone.indices) == sorted(grouped.indices)


def test_truncation_leaves_most_of_delta() -> None:
    for examples, size, steps in ((100_000, 1024, 5000), (1000, 100, 50), (16_000, 1024, 80)):
        delta = 1 / examples
        sampler = make_sampler(
            examples=examples, expected_batch_size=size, steps=steps, target_delta=delta, entropy=(0,)
        )
        cost = truncation_delta(
            examples=examples,
            sampling_probability=sampler.sampling_probability,
            max_batch_size=sampler.max_batch_size,
            steps=steps,
        )
        assert cost <= 1e-3 * delta
        # And it is not wasteful: nine standard deviations of room are more than enough.
        assert sampler.max_batch_size <= size + 9 * size**0.5 + 2


def test_truncation_delta_bounds_the_chance_of_a_full_batch() -> None:
    """Against plain counting: how often Binomial(N, q) reaches the maximum within the steps."""
    bound = truncation_delta(examples=500, sampling_probability=0.1, max_batch_size=70, steps=20)
    rng = np.random.default_rng(0)
    reached = (rng.binomial(500, 0.1, size=(200_000, 20)) >= 70).any(axis=1).mean()
    assert reached <= bound <= 1.5 * reached


def test_oversized_batches_are_cut() -> None:
    sampler = PoissonSampler(1000, 500, 450, (0,))
    batches = [sampler.batch(step) for step in range(20)]
    assert all(batch.size <= 450 for batch in batches)
    assert any(batch.size == 450 for batch in batches)


def test_batch_sizes_that_cannot_be() -> None:
    for size in (0, 11):
        with pytest.raises(ValueError, match="from 1 to 10"):
            make_sampler(examples=10, expected_batch_size=size, steps=1, target_delta=0.1, entropy=(0,))


def test_whole_data_as_a_batch() -> None:
    sampler = make_sampler(examples=10, expected_batch_size=10, steps=5, target_delta=0.1, entropy=(0,))
    assert sampler.max_batch_size == 10
    assert sampler.batch(0).size == 10


def test_steps_cover_the_epochs() -> None:
    assert steps_for_epochs(examples=36_672_493, batch_size=65_536, epochs=150) == 83_937
    assert steps_for_epochs(examples=10, batch_size=100, epochs=0.01) == 1


def _chosen(sampler: PoissonSampler, step: int) -> list[int]:
    return sampler.batch(step).indices.tolist()
