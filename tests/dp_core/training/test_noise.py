"""The noise has the stated scale on every coordinate and is independent across steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dp_core.training import noise
from dp_core.training.noise import add_gaussian

pytestmark = pytest.mark.usefixtures("strict_types")

PARAMS = {"a": {"kernel": jnp.zeros((100, 300)), "bias": jnp.zeros(300)}, "b": {"table": jnp.zeros((200, 50))}}


@pytest.fixture(params=["at once", "large ones by themselves"])
def draws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws noise both ways: small arrays together, and large arrays by themselves (with a lowered limit)."""
    if request.param == "large ones by themselves":
        monkeypatch.setattr(noise, "LARGE_ARRAY", 5000)


def flat(values: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(values)])


@pytest.mark.usefixtures("draws")
def test_noise_is_gaussian_with_the_stated_deviation() -> None:
    """Kolmogorov-Smirnov test on each parameter; one seed in 10⁴ fails by chance (fixed here)."""
    noised = add_gaussian(jax.random.key(0), PARAMS, jnp.float32(2.5))
    for leaf in jax.tree.leaves(noised):
        assert stats.kstest(np.asarray(leaf).ravel() / 2.5, "norm").pvalue > 1e-4


@pytest.mark.usefixtures("draws")
def test_parameters_and_steps_get_independent_noise() -> None:
    """Correlations within five standard errors; about one seed in a million fails each (fixed here)."""
    first, second = (
        flat(add_gaussian(jax.random.fold_in(jax.random.key(1), step), PARAMS, jnp.float32(1.0))) for step in range(2)
    )
    n = len(first)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / n**0.5
    for shift in (1, 300, 10_000, n // 2):
        assert abs(np.corrcoef(first[:-shift], first[shift:])[0, 1]) < 5 / (n - shift) ** 0.5
    assert len(np.unique(first)) > 0.99 * n


@pytest.mark.usefixtures("draws")
def test_noise_is_added_to_the_sum() -> None:
    ones = jax.tree.map(jnp.ones_like, PARAMS)
    noised = add_gaussian(jax.random.key(2), ones, jnp.float32(0.0))
    assert all(bool(jnp.all(leaf == 1)) for leaf in jax.tree.leaves(noised))


def test_rows_at_the_end_of_a_large_array_change_no_other_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are padded to divide evenly among devices; any number of devices must train the same model."""
    monkeypatch.setattr(noise, "LARGE_ARRAY", 5000)
    key, deviation = jax.random.key(3), jnp.float32(1.0)
    alone = add_gaussian(key, PARAMS, deviation)
    longer = {**PARAMS, "b": {"table": jnp.zeros((207, 50))}}
    padded = add_gaussian(key, longer, deviation)
    np.testing.assert_array_equal(padded["b"]["table"][:200], alone["b"]["table"])
    np.testing.assert_array_equal(padded["a"]["kernel"], alone["a"]["kernel"])
    np.testing.assert_array_equal(padded["a"]["bias"], alone["a"]["bias"])
