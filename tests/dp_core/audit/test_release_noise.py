"""The noise of a vocabulary or a histogram passes if it is what is stated, and wrong noise is caught."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from dp_core.audit import release_noise
from dp_core.audit.release_noise import GaussianNoise, histogram_defects, histogram_noise
from dp_core.labels.bins import noisy_histogram
from dp_core.partition_selection import PartitionSelection

SIGMA = 30.0
SELECTION = PartitionSelection.calibrated(epsilon=1.0, delta=1e-6, columns=4)


def measured(draw: Callable[[int], np.ndarray], sizes: list[int]) -> list[str]:
    parts = [GaussianNoise.measured(draw(size), SIGMA) for size in sizes]
    stored = json.loads(json.dumps(GaussianNoise.together(parts).to_json()))
    return GaussianNoise.from_json(stored).defects("the counts")


@pytest.mark.parametrize("sizes", [[], [0], [1], [2, 1, 0], [3, 3, 3], [10] * 5, [1000], [500, 20_000, 3]])
def test_correct_noise_passes(sizes: list[int]) -> None:
    """The false-alarm rate is 4·10⁻⁶ a run; the seeds are fixed."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        assert measured(lambda size, rng=rng: SIGMA * rng.standard_normal(size), sizes) == []  # type: ignore[misc]


def test_the_selection_measures_what_it_used() -> None:
    counts = np.arange(1, 5000)
    selected = SELECTION.select(counts, np.random.default_rng(0))
    assert selected.noise.draws == len(counts)
    assert selected.noise.defects("the counts") == []
    noise = SELECTION.standard_deviation * np.random.default_rng(0).standard_normal(len(counts))
    np.testing.assert_allclose(noise[selected.kept] + counts[selected.kept], selected.noisy_counts)
    assert selected.noise.squares == pytest.approx(np.sum((noise / SELECTION.standard_deviation) ** 2))


RNG = np.random.default_rng(3)
WRONG: dict[str, tuple[Callable[[int], np.ndarray], str]] = {
    "none": (lambda size: np.zeros(size), "has 0 times the stated standard deviation"),
    "half": (lambda size: SIGMA / 2 * RNG.standard_normal(size), "times the stated standard deviation"),
    "a fifth less": (lambda size: 0.8 * SIGMA * RNG.standard_normal(size), "times the stated standard deviation"),
    "double": (lambda size: 2 * SIGMA * RNG.standard_normal(size), "times the stated standard deviation"),
    "uniform": (lambda size: SIGMA * RNG.uniform(-(3**0.5), 3**0.5, size), "is not Gaussian"),
    "Laplace": (lambda size: RNG.laplace(scale=SIGMA / 2**0.5, size=size), "is not Gaussian"),
    "signs": (lambda size: SIGMA * RNG.choice([-1, 1], size), "is not Gaussian"),
    "biased": (lambda size: SIGMA * (RNG.standard_normal(size) + 0.5), "is not Gaussian"),
    "one draw for all": (lambda size: np.full(size, SIGMA * RNG.standard_normal()), "is not Gaussian"),
    "every draw twice": (lambda size: SIGMA * np.repeat(RNG.standard_normal(size), 2)[:size], "is not independent"),
    "the same in every call": (
        lambda size: SIGMA * np.random.default_rng(5).standard_normal(size),
        "is not fresh: 2 times",
    ),
}


@pytest.mark.parametrize("bug", WRONG)
def test_wrong_noise_is_caught(bug: str) -> None:
    draw, words = WRONG[bug]
    assert any(words in defect for defect in measured(draw, [1500, 1200, 1000]))


@pytest.mark.parametrize("sizes", [[3, 3], [1, 2]])
def test_missing_noise_is_caught_in_few_draws(sizes: list[int]) -> None:
    assert any("has 0 times" in defect for defect in measured(lambda size: np.zeros(size), sizes))


def test_the_rate_of_false_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 2 % per test, four tests: 500 runs have more than 65 alarms once in 10⁴ times."""
    monkeypatch.setattr(release_noise, "FALSE_ALARM_RATE", 0.02)
    rng = np.random.default_rng(0)
    alarms = [len(measured(lambda size: SIGMA * rng.standard_normal(size), [40, 7])) for _ in range(500)]
    assert 5 <= sum(alarms) <= 65


Noised = Callable[..., np.ndarray]


def defects_of(noised: Noised, epsilon: float, *, labels: int = 5000, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    counts = np.minimum(rng.poisson(2.0, labels), 5)
    histogram = noised(counts, 5, epsilon=epsilon, rng=rng)
    probes = [noised(np.zeros(0, np.int64), 9999, epsilon=epsilon, rng=np.random.default_rng(seed)) for seed in (1, 2)]
    stored = histogram_noise(np.bincount(counts, minlength=6), histogram, *probes, epsilon=epsilon)
    return histogram_defects(epsilon, json.loads(json.dumps(stored)))


@pytest.mark.parametrize("epsilon", [1e-3, 0.05, 0.1, 1.0, 5.0, 20.0, 100.0])
@pytest.mark.parametrize("labels", [0, 10, 5000])
def test_a_correct_histogram_passes(epsilon: float, labels: int) -> None:
    for seed in range(5):
        assert defects_of(noisy_histogram, epsilon, labels=labels, seed=seed) == []


def exact(counts: np.ndarray, most: int, *, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    return np.bincount(np.minimum(counts, most), minlength=most + 1)


def halved(counts: np.ndarray, most: int, *, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    return noisy_histogram(counts, most, epsilon=2 * epsilon, rng=rng)


def one_for_all(counts: np.ndarray, most: int, *, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    noise = int(noisy_histogram(np.zeros(0, np.int64), 1, epsilon=epsilon, rng=rng)[0])
    return exact(counts, most, epsilon=epsilon, rng=rng) + noise


def gaussian(counts: np.ndarray, most: int, *, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    noise = np.rint(rng.normal(scale=8**0.5 / epsilon, size=most + 1)).astype(np.int64)
    return np.maximum(exact(counts, most, epsilon=epsilon, rng=rng) + noise, 0)


def stale(counts: np.ndarray, most: int, *, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    return noisy_histogram(counts, most, epsilon=epsilon, rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        (exact, "the noise of the label histogram is 0 in all of 6 cells"),
        (exact, "is not what ε = 0.1 needs"),
        (halved, "is not what ε = 0.1 needs"),
        (one_for_all, "in all of 6 cells"),
        (gaussian, "is not what ε = 0.1 needs"),
        (stale, "is not fresh"),
    ],
)
def test_a_wrong_histogram_is_caught(bug: Noised, words: str) -> None:
    assert any(words in defect for defect in defects_of(bug, 0.1))


def test_a_histogram_that_was_not_measured_is_reported() -> None:
    assert histogram_defects(0.1, None) == ["the noise of the label histogram was not measured"]
