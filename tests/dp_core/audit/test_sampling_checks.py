"""Correct samplers pass at the stated false-alarm rate, and wrong ones are caught."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dp_core.audit import sampling_checks
from dp_core.audit.sampling_checks import FALSE_ALARM_RATE, count_watched, sampling_defects, watched_stride
from dp_core.sampling import SAMPLERS, BallsInBinsSampler, PoissonSampler, Sampler, ShuffledSampler

NOBODY = np.zeros(0, int)


def run(draw: Callable[[int], np.ndarray], steps: int, examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sizes of the batches, and how often each watched example took part."""
    stride = watched_stride(examples)
    participations = np.zeros(-(-examples // stride), int)
    sizes = []
    for step in range(steps):
        indices = draw(step)
        count_watched(participations, indices, stride)
        sizes.append(len(indices))
    return np.array(sizes), participations


def run_sampler(sampler: Sampler, steps: int) -> tuple[np.ndarray, np.ndarray]:
    return run(lambda step: sampler.batch(step).indices, steps, sampler.examples)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    ("examples", "batch_size", "steps"),
    [
        (10, 5, 1),
        (10, 10, 3),
        (10, 1, 30),
        (10, 9, 7),
        (1000, 100, 1),
        (1000, 500, 2),
        (1000, 100, 55),
        (1050, 100, 200),
        (20_000, 64, 400),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_correct_sampler_passes(name: str, examples: int, batch_size: int, steps: int, seed: int) -> None:
    """Even in the smallest runs. The seeds are fixed; each run has three tests at a rate of one in a million."""
    largest = batch_size if name == "shuffle" else examples
    sampler = SAMPLERS[name](examples, batch_size, largest, (seed,))
    assert sampling_defects(sampler, *run_sampler(sampler, steps)) == []


def test_watched_examples_are_counted_wherever_they_are() -> None:
    """Against counting all examples: every stride-th one is watched, including the last."""
    rng = np.random.default_rng(0)
    for examples in (3, 4096, 10_000, 12_289):
        batches = [rng.choice(examples, examples // 3, replace=False) for _ in range(5)]
        _, participations = run(batches.__getitem__, 5, examples)
        everybody = np.bincount(np.concatenate(batches), minlength=examples)
        stride = watched_stride(examples)
        np.testing.assert_array_equal(participations, everybody[::stride])
        assert min(examples, 4096) <= len(participations) <= 2 * 4096


def kinds(defects: list[str]) -> set[str]:
    """Returns the tests that gave these defects."""
    words = {"were sampled": "total", "vary with": "sizes", "watched": "participations", "add up": "sum"}
    return {next(kind for word, kind in words.items() if word in defect) for defect in defects}


@pytest.mark.parametrize(("examples", "batch_size", "steps"), [(10, 5, 5), (1000, 100, 1), (100_000, 64, 500)])
def test_each_poisson_test_has_about_the_stated_rate_of_false_alarms(
    examples: int, batch_size: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a rate of 1 %, which can be measured, and from the distributions themselves, which is quick.

    1,000 runs at 1.2 % (the sum of squares is not exactly gamma) have more than 25 alarms once in 3,000 times."""
    monkeypatch.setattr(sampling_checks, "FALSE_ALARM_RATE", 1e-2)
    sampler = PoissonSampler(examples, batch_size, examples)
    rng, q, watched = np.random.default_rng(1), batch_size / examples, min(examples, 4096)
    alarms: Counter[str] = Counter()
    for _ in range(1000):
        sizes, participations = rng.binomial(examples, q, steps), rng.binomial(steps, q, watched)
        alarms.update(kinds(sampling_defects(sampler, sizes, participations)))
    assert all(alarms[kind] <= 25 for kind in ("total", "sizes", "participations")), alarms


@pytest.mark.parametrize(
    ("examples", "batch_size", "epochs"), [(10, 5, 1), (1000, 500, 1), (1000, 100, 2), (1000, 10, 1)]
)
def test_the_balls_in_bins_test_has_about_the_stated_rate_of_false_alarms(
    examples: int, batch_size: int, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above. With two bins the sizes are often equal, which is not suspicious."""
    monkeypatch.setattr(sampling_checks, "FALSE_ALARM_RATE", 1e-2)
    sampler = BallsInBinsSampler(examples, batch_size, examples)
    bins = sampler.batches_per_epoch
    rng = np.random.default_rng(1)
    alarms: Counter[str] = Counter()
    for _ in range(1000):
        sizes = rng.multinomial(examples, np.full(bins, 1 / bins), size=epochs).ravel()
        alarms.update(kinds(sampling_defects(sampler, sizes, np.full(5, epochs))))
    assert alarms["sum"] == 0
    assert alarms["sizes"] <= 25, alarms


@pytest.mark.parametrize(("examples", "batch_size"), [(10, 5), (4096, 64), (100_000, 64), (20_000, 1024)])
def test_the_rate_in_force_holds_for_a_single_batch(examples: int, batch_size: int) -> None:
    """Exactly, by adding up the probabilities of all sizes that raise an alarm; the test uses an approximation."""
    sampler = PoissonSampler(examples, batch_size, examples)
    probability = stats.binom.pmf(np.arange(examples + 1), examples, batch_size / examples)
    alarm: Counter[str] = Counter()
    for size in np.flatnonzero(probability > 1e-12):
        for kind in kinds(sampling_defects(sampler, np.array([size]), NOBODY)):
            alarm[kind] += probability[size]
    assert alarm["total"] <= FALSE_ALARM_RATE
    assert alarm["sizes"] <= 2 * FALSE_ALARM_RATE


def test_shuffled_batches_do_not_pass_for_poissons() -> None:
    """By their sizes, which do not vary, and by their participations; either one is enough."""
    stated = PoissonSampler(1000, 100, 200, (1,))
    sizes, participations = run_sampler(stated, 50)
    shuffled_sizes, shuffled_participations = run_sampler(ShuffledSampler(1000, 100, 100, (1,)), 50)
    assert sampling_defects(stated, sizes, participations) == []
    assert kinds(sampling_defects(stated, shuffled_sizes, participations)) == {"sizes"}
    assert kinds(sampling_defects(stated, sizes, shuffled_participations)) == {"participations"}
    assert kinds(sampling_defects(stated, shuffled_sizes, shuffled_participations)) == {"sizes", "participations"}


def test_balls_in_bins_do_not_pass_for_poissons() -> None:
    stated = PoissonSampler(1000, 100, 200, (1,))
    bins = BallsInBinsSampler(1000, 100, 200, (1,))
    assert "participations" in kinds(sampling_defects(stated, *run_sampler(bins, 50)))


def test_poisson_batches_do_not_pass_for_shuffled_ones() -> None:
    sizes, participations = run_sampler(PoissonSampler(1000, 100, 200, (1,)), 50)
    stated = ShuffledSampler(1000, 100, 200)
    assert any("stated size of 100" in defect for defect in sampling_defects(stated, sizes, NOBODY))
    assert any(
        "in 5 epochs, where at most once per epoch" in defect
        for defect in sampling_defects(stated, sizes, participations)
    )
    right_sizes = np.full(50, 100)
    assert any("at most once per epoch" in defect for defect in sampling_defects(stated, right_sizes, participations))


def test_poisson_batches_do_not_pass_for_balls_in_bins() -> None:
    sizes, participations = run_sampler(PoissonSampler(1000, 100, 200, (1,)), 50)
    stated = BallsInBinsSampler(1000, 100, 200)
    assert any("do not add up to the 1,000 examples" in d for d in sampling_defects(stated, sizes, NOBODY))
    right_sizes, _ = run_sampler(BallsInBinsSampler(1000, 100, 200, (1,)), 50)
    assert any("at most once per epoch" in d for d in sampling_defects(stated, right_sizes, participations))


def test_shuffled_batches_do_not_pass_for_balls_in_bins() -> None:
    """They have each example once per epoch, but their sizes do not vary."""
    stated = BallsInBinsSampler(1000, 50, 200)
    assert kinds(sampling_defects(stated, *run_sampler(ShuffledSampler(1000, 50, 50, (1,)), 100))) == {"sizes"}


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize(("examples", "batch_size", "steps"), [(100_000, 1000, 1), (1000, 100, 20), (1000, 2, 300)])
def test_a_wrong_rate_is_caught(examples: int, batch_size: int, steps: int, factor: float) -> None:
    drawn = PoissonSampler(examples, int(factor * batch_size), examples, (3,))
    stated = dataclasses.replace(drawn, expected_batch_size=batch_size)
    found = kinds(sampling_defects(stated, *run_sampler(drawn, steps)))
    assert "total" in found
    # Those were the sizes. The participations give it away as well.
    _, participations = run_sampler(drawn, steps)
    sizes, _ = run_sampler(dataclasses.replace(stated, entropy=(4,)), steps)
    if examples == 1000:
        assert kinds(sampling_defects(stated, sizes, participations)) == {"participations"}


def test_always_the_same_examples_are_caught_though_the_sizes_are_right() -> None:
    stated = PoissonSampler(10_000, 200, 400, (1,))
    sizes, _ = run_sampler(stated, 50)
    assert sampling_defects(stated, sizes, NOBODY) == []
    _, participations = run(lambda step: np.arange(sizes[step]), 50, 10_000)
    assert kinds(sampling_defects(stated, sizes, participations)) == {"participations"}


def test_favoured_examples_are_caught_though_the_sizes_are_right() -> None:
    """Half of the examples are drawn twice as often as the other half."""
    stated = PoissonSampler(2000, 200, 400, (1,))
    rng = np.random.default_rng(0)
    probability = np.repeat([2 / 3, 1 / 3], 1000) / 1000

    def draw(step: int) -> np.ndarray:
        return rng.choice(2000, rng.binomial(2000, 0.1), replace=False, p=probability)

    assert kinds(sampling_defects(stated, *run(draw, 100, 2000))) == {"participations"}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_batch_above_the_maximum_is_caught(name: str) -> None:
    sampler = SAMPLERS[name](1000, 100, 110)
    found = sampling_defects(sampler, np.array([100, 111, 100]), NOBODY)
    assert "a batch of 111 exceeds the stated maximum of 110" in found
    assert not any("exceeds" in defect for defect in sampling_defects(sampler, np.array([100, 110, 100]), NOBODY))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_run_without_steps_has_nothing_strange(name: str) -> None:
    assert sampling_defects(SAMPLERS[name](1000, 100, 110), NOBODY, np.zeros(1000, int)) == []
