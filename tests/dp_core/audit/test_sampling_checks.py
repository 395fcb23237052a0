"""Correct samplers pass, at no more than the stated rate of false alarms."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dp_core.audit.dealt_checks import BALLS_IN_BINS_CHECKS, SHUFFLE_CHECKS
from dp_core.audit.poisson_checks import POISSON_CHECKS, Batches
from dp_core.audit.sampling_checks import sampling_defects
from dp_core.audit.sampling_counts import SamplingCounts
from dp_core.sampling import SAMPLERS, Sampler
from tests.support.broken_samplers import counted_sampler

CHECKS = {"poisson": POISSON_CHECKS, "balls_in_bins": BALLS_IN_BINS_CHECKS, "shuffle": SHUFFLE_CHECKS}
SIZES = [
    (1, 1, 5),
    (2, 1, 9),
    (8, 1, 40),
    (8, 2, 9),
    (8, 3, 7),
    (8, 8, 3),
    (10, 5, 1),
    (10, 9, 7),
    (40, 20, 10),
    (100, 1, 150),
    (1000, 100, 1),
    (1000, 500, 2),
    (1000, 2, 300),
    (1050, 100, 55),
    (5000, 5000, 4),
    (20_000, 64, 100),
]


def make(name: str, examples: int, batch_size: int, seed: int) -> Sampler:
    return SAMPLERS[name](examples, batch_size, batch_size if name == "shuffle" else examples, (seed,))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(("examples", "batch_size", "steps"), SIZES)
def test_a_correct_sampler_passes(name: str, examples: int, batch_size: int, steps: int) -> None:
    """Even in the smallest runs: 240 runs over all samplers. The seeds are fixed."""
    for seed in range(5):
        sampler = make(name, examples, batch_size, seed)
        assert sampling_defects(sampler, counted_sampler(sampler, steps)) == []


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_correct_sampler_passes_at_the_quick_profiles_size(name: str) -> None:
    sampler = make(name, 120_000, 2048, 0)
    assert sampling_defects(sampler, counted_sampler(sampler, 590)) == []


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(("examples", "batch_size", "steps"), [(8, 2, 9), (40, 20, 10), (200, 10, 45)])
def test_no_test_has_more_false_alarms_than_stated(name: str, examples: int, batch_size: int, steps: int) -> None:
    """At a rate of 3 %, which can be measured: 200 runs have more than 15 alarms of one test once in 2,000 times."""
    alarms: Counter[str] = Counter()
    for seed in range(200):
        sampler = make(name, examples, batch_size, seed)
        batches = Batches(sampler, counted_sampler(sampler, steps))
        alarms.update(check.__name__ for check in CHECKS[name] if check(batches, 0.03) is not None)
    assert max(alarms.values(), default=0) <= 15, alarms


def test_the_tests_are_not_needlessly_lax() -> None:
    """At a rate of 50 %, tests with exact laws have alarms in 10 to 70 % of correct runs: counts are whole numbers."""
    alarms: Counter[str] = Counter()
    for seed in range(50):
        sampler = make("poisson", 1000, 50, seed)
        batches = Batches(sampler, counted_sampler(sampler, 60))
        alarms.update(check.__name__ for check in POISSON_CHECKS if check(batches, 0.5) is not None)
    for name in ("rate", "participations", "blocks", "neighbours", "lags"):
        assert 5 <= alarms[f"check_{name}"] <= 35, alarms


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_batch_above_the_maximum_is_caught(name: str) -> None:
    sampler = SAMPLERS[name](1000, 100, 110)
    for size in (110, 111):
        counts = SamplingCounts(1000)
        counts.add(0, np.arange(size))
        found = "a batch of 111 exceeds the stated maximum of 110" in sampling_defects(sampler, counts)
        assert found == (size == 111)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_run_without_steps_has_nothing_strange(name: str) -> None:
    assert sampling_defects(SAMPLERS[name](1000, 100, 110), SamplingCounts(1000)) == []


def test_another_number_of_examples_is_caught() -> None:
    defects = sampling_defects(SAMPLERS["poisson"](1000, 100, 110), SamplingCounts(999))
    assert defects == ["batches were drawn from 999 examples, where 1,000 are stated"]


def test_steps_that_are_repeated_or_left_out_are_caught() -> None:
    """A resume that draws steps again has fresh batches, but not in turn."""
    sampler, counts = SAMPLERS["poisson"](1000, 100, 1000), SamplingCounts(1000)
    for step in (0, 1, 2, 1, 2, 3):
        counts.add(step, sampler.batch(100 + counts.steps).indices)
    assert sampling_defects(sampler, counts) == ["3 batches were not counted in the order of the steps"]
