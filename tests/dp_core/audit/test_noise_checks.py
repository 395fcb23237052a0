"""Noise checks pass normal noise and see what is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dp_core.audit.noise_checks import NoiseTest, noise_tests, strangest

SIZES = {"kernel": 3000, "table": 20_000, "bias": 16, "one": 1}
Noise = dict[str, np.ndarray]


def normal(seed: int, steps: int = 3) -> Noise:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((steps, size), dtype=np.float32) for name, size in SIZES.items()}


def test_normal_noise_passes() -> None:
    for seed in range(100):
        assert strangest(noise_tests(normal(seed))) == []


@pytest.mark.parametrize("steps", [1, 2, 64])
def test_any_number_of_steps_and_small_arrays(steps: int) -> None:
    rng = np.random.default_rng(steps)
    for size in (1, 2, 29, 30, 59):
        assert strangest(noise_tests({"only": rng.standard_normal((steps, size), dtype=np.float32)})) == []


def test_p_values_are_not_too_small() -> None:
    """Each is below 5 % with probability at most 5 %, or 10.1 % in 400 tests with probability 10⁻⁵."""
    found: list[list[NoiseTest]] = [noise_tests(normal(seed)) for seed in range(1000, 1400)]
    shares = np.mean([[test.p_value < 0.05 for test in tests] for tests in found], axis=0)
    assert np.all(shares <= 0.101), shares
    # They have power: most kinds of tests fail about as often as they may.
    assert np.sum(shares > 0.02) >= 5


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Noise], Noise]:
    return lambda noise: {**noise, name: change(noise[name])}


WRONG: dict[str, tuple[Callable[[Noise], Noise], str]] = {
    "none": (lambda noise: {name: 0 * values for name, values in noise.items()}, "0 times the stated"),
    "97 per cent": (lambda noise: {name: 0.97 * values for name, values in noise.items()}, "times the stated"),
    "half of a bias": (changed("bias", lambda noise: 0.2 * noise), "of bias has"),
    "a block": (
        changed("table", lambda noise: np.where(np.arange(20_000) // 100 == 70, 0.0, noise)),
        "coordinates from",
    ),
    "one step": (changed("table", lambda noise: noise * np.array([[1.0], [1.0], [0.95]])), "of probed step 2"),
    "a mean": (changed("table", lambda noise: noise + 0.05), "has a mean of"),
    "no tails": (changed("table", lambda noise: np.clip(noise, -3.0, 3.0)), "draws beyond"),
    "heavy tails": (changed("table", lambda noise: np.where(np.abs(noise) > 2.9, 2 * noise, noise)), "draws beyond"),
    "uniform": (changed("table", lambda noise: np.sign(noise)), "is not distributed normally"),
    "equal steps": (changed("table", lambda noise: noise[[0, 0, 2]]), "probed step 0 and probed step 1"),
    "opposite steps": (changed("kernel", lambda noise: noise[[0, 1, 1]] * np.array([[1], [1], [-1]])), "probed step 1"),
    "equal arrays": (lambda noise: {**noise, "kernel": noise["table"][:, :3000]}, "of kernel and table"),
    "equal at an offset": (lambda noise: {**noise, "kernel": noise["table"][:, 100:3100]}, "three consecutive draws"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_noise_is_named(name: str) -> None:
    change, words = WRONG[name]
    for seed in range(3):
        found = strangest(noise_tests(change(normal(seed))))
        assert any(words in one for one in found), found
