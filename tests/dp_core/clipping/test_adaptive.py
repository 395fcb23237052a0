"""The clip norm moves towards its quantile, by a count whose noise is accounted for."""

from __future__ import annotations

from functools import partial

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dp_core.adaptive_clipping import CLIP_LEARNING_RATE, combined_noise_multiplier, next_clip_norm, split_noise

pytestmark = pytest.mark.usefixtures("strict_types")


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 7.5])
def test_the_two_releases_are_worth_the_one(noise_multiplier: float) -> None:
    """By the accountant: the composition of both costs what one release with the given multiplier costs."""

    def epsilon(*multipliers: float) -> float:
        accountant = dp_accounting.rdp.RdpAccountant()
        for multiplier in multipliers:
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
        return accountant.get_epsilon(1e-6)

    of_gradient, of_count = split_noise(noise_multiplier)
    assert noise_multiplier < of_gradient < of_count
    assert epsilon(of_gradient, of_count) == pytest.approx(epsilon(noise_multiplier), rel=1e-9)
    assert combined_noise_multiplier(of_gradient, of_count) == pytest.approx(noise_multiplier, rel=1e-12)


def test_no_noise_on_either_is_no_privacy() -> None:
    assert combined_noise_multiplier(0.0, 5.0) == combined_noise_multiplier(5.0, 0.0) == 0.0


@pytest.mark.parametrize(("too_long", "direction"), [(100, 1), (50, 0), (0, -1)])
def test_the_clip_norm_moves_towards_the_quantile(too_long: int, direction: int) -> None:
    moved = next_clip_norm(
        jnp.float32(2.0),
        jnp.int32(too_long),
        jax.random.key(0),
        count_noise_multiplier=0.0,
        expected_count=100.0,
        quantile=0.5,
    )
    np.testing.assert_allclose(moved, 2.0 * np.exp(direction * CLIP_LEARNING_RATE / 2), rtol=1e-6)


def test_the_count_has_the_stated_noise() -> None:
    """4,000 draws: mean and deviation within five standard errors, once in a million seeds not (fixed here)."""
    draw = partial(
        next_clip_norm,
        jnp.float32(2.0),
        jnp.int32(30),
        count_noise_multiplier=4.0,
        expected_count=100.0,
        quantile=0.5,
    )
    moved = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(1), 4000))
    counts = 100 * (0.5 + np.log(np.asarray(moved) / 2) / CLIP_LEARNING_RATE)
    assert abs(np.mean(counts) - 30) < 5 * 4 / 4000**0.5
    assert abs(np.std(counts) / 4 - 1) < 5 / 8000**0.5
