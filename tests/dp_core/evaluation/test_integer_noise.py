"""The rounded normal draws against the distribution that is stated for them."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import stats

from dp_core.evaluation.integer_noise import rounded_normal


@pytest.mark.parametrize("standard_deviation", [0.3, 1.0, 8.77])
def test_draws_have_the_stated_probabilities(standard_deviation: float) -> None:
    """A chi-squared test that correct draws fail with probability 1e-6; the seed is fixed."""
    drawn = rounded_normal(4000, standard_deviation, random_bytes=np.random.default_rng(0).bytes)
    law = stats.norm(0, standard_deviation)
    reach = int(np.ceil(2 * standard_deviation))
    cells = np.clip(drawn, -reach, reach) + reach
    edges = np.arange(-reach, reach) + 0.5
    expected = 4000 * np.diff(np.concatenate([[0], law.cdf(edges), [1]]))
    assert stats.chisquare(np.bincount(cells, minlength=2 * reach + 1), expected).pvalue > 1e-6


@pytest.mark.parametrize("standard_deviation", [0.2, 8.77, 1e9])
def test_a_draw_is_the_quantile_of_its_bits(standard_deviation: float) -> None:
    """P(|round(g)| > k) and P(|round(g)| ≥ k) enclose the probability that the bits stand for."""
    rng = np.random.default_rng(1)
    words = [
        rng.bytes(32),
        bytes(31) + b"\x02",
        bytes(16) + rng.bytes(16),
        b"\xff" * 32,
        bytes(32),
        bytes(31) + b"\x01",
    ]
    drawn = rounded_normal(len(words), standard_deviation, random_bytes=lambda count: b"".join(words))
    with mpmath.workdps(120):
        half, scale = mpmath.mpf(1) / 2, mpmath.mpf(standard_deviation) * mpmath.sqrt(2)
        for word, value in zip(words, drawn, strict=True):
            number = int.from_bytes(word)
            p = ((number >> 1) + half) / mpmath.mpf(2) ** 255
            size = abs(int(value))
            assert mpmath.erfc((size + half) / scale) <= p
            assert size == 0 or mpmath.erfc((size - half) / scale) > p
            assert value == 0 or (value < 0) == (number & 1)


def test_draws_reach_eighteen_standard_deviations() -> None:
    assert rounded_normal(1, 1000.0, random_bytes=bytes) > 18_000


def test_every_call_draws_anew() -> None:
    """Equal calls have a probability below 1e-100."""
    assert not np.array_equal(rounded_normal(100, 50.0), rounded_normal(100, 50.0))


@pytest.mark.parametrize(("count", "standard_deviation"), [(1, 0.0), (1, np.inf), (1, np.nan), (-1, 1.0), (10**7, 1.0)])
def test_noise_out_of_range_is_refused(count: int, standard_deviation: float) -> None:
    with pytest.raises(ValueError, match="standard deviation"):
        rounded_normal(count, standard_deviation)
    assert rounded_normal(0, 1.0).shape == (0,)
