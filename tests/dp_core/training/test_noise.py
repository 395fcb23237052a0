"""The noise has the stated scale and tails on every coordinate and is independent across steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dp_core.accounting.noise_tails import SUPPORT
from dp_core.training import noise
from dp_core.training.generators import chacha_key, generator_of
from dp_core.training.noise import add_gaussian, noise_support, normal_of_words, standard_normal

pytestmark = pytest.mark.usefixtures("strict_types")

PARAMS = {"a": {"kernel": jnp.zeros((100, 300)), "bias": jnp.zeros(300)}, "b": {"table": jnp.zeros((200, 50))}}
SECRET = chacha_key(np.arange(8, dtype=np.uint32))
KEYS = {"seeded": jax.random.key(7), "secret": SECRET}


def of_numbers(m: np.ndarray, sign: int = 0) -> np.ndarray:
    """Returns the draws of given 62-bit numbers m, through the words that hold them."""
    first = ((m >> np.uint64(31)) << np.uint64(1)).astype(np.uint32) | np.uint32(sign)
    second = ((m & np.uint64(2**31 - 1)) << np.uint64(1)).astype(np.uint32)
    return np.asarray(jax.jit(normal_of_words)(jnp.asarray(first), jnp.asarray(second)))


def numbers() -> np.ndarray:
    """Returns increasing numbers m over the whole range: the first ones, and others evenly on a logarithmic scale."""
    spread = np.exp2(np.linspace(0, 62, 200_001)[:-1]).astype(np.uint64)
    return np.unique(np.concatenate([np.arange(4096, dtype=np.uint64), spread, np.array([2**62 - 1], np.uint64)]))


def test_a_draw_is_the_inverse_of_the_normal_law() -> None:
    """Over the whole range, to 4e-7 absolutely or relatively: a few roundings of float32."""
    m = numbers()
    exact = stats.norm.isf(((m.astype(np.longdouble) + 0.5) / 2.0**63).astype(np.float64))
    drawn = of_numbers(m)
    np.testing.assert_array_less(np.abs(drawn - exact), 4e-7 * np.maximum(1, exact))
    np.testing.assert_array_equal(of_numbers(m, sign=1), -drawn)
    # Falling as m grows, except for rounding.
    assert np.all(np.diff(drawn.astype(np.float64)) <= 4 * np.spacing(drawn[1:]))


def test_the_support_is_what_the_accounting_says() -> None:
    m = numbers()
    drawn = of_numbers(m)
    assert drawn.argmax() == 0
    assert drawn.max() == np.float32(noise_support())
    assert noise_support() - 1e-3 < SUPPORT <= noise_support()
    assert drawn[-1] == pytest.approx(0, abs=1e-6)
    # The gaps are those that the docstring of noise_tails states.
    assert -np.diff(drawn).min() == pytest.approx(0.12, abs=0.005)
    assert -np.diff(of_numbers(np.arange(2**17, 2**17 + 4096, dtype=np.uint64))).min() < 3e-6
    assert of_numbers(np.array([2**17], np.uint64)) > 7.6


@pytest.mark.parametrize("tail", [3.0, 5.22, 7.0, 8.5])
def test_tails_have_the_mass_of_the_normal_law(tail: float) -> None:
    """Exactly: a draw is above the limit for the smallest numbers m, which are counted by bisection."""
    low, high = 0, 2**62
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if of_numbers(np.array([middle], np.uint64))[0] > tail else (low, middle)
    assert high / 2**63 == pytest.approx(stats.norm.sf(tail), rel=1e-3 if tail < 8 else 0.05)


@pytest.mark.parametrize("kind", KEYS)
def test_draws_have_the_moments_and_tails_of_the_normal_law(kind: str) -> None:
    """Within five standard errors each; about one seed in 200,000 fails (fixed here)."""
    n = 2**20
    drawn = np.asarray(standard_normal(KEYS[kind], (n,)), np.float64)
    assert abs(drawn.mean()) < 5 / n**0.5
    assert abs(drawn.var() - 1) < 5 * (2 / n) ** 0.5
    assert stats.kstest(drawn, "norm").pvalue > 1e-5
    for limit in (1.0, 2.0, 3.0, 4.0):
        chance = stats.norm.sf(limit)
        for beyond in (np.mean(drawn > limit), np.mean(drawn < -limit)):
            assert abs(beyond - chance) < 5 * (chance / n) ** 0.5
    # jax.random.normal has 2²³ values in all, of which a million draws repeat 6 %. Float32 rounds these to fewer
    # values than 64 bits, but repeats are half as many.
    assert len(np.unique(drawn)) > 0.955 * n


@pytest.mark.parametrize("kind", KEYS)
def test_draws_of_arrays_steps_and_purposes_are_distinct(kind: str) -> None:
    """Also for step numbers above 2¹⁶, where a narrower counter would start again."""
    keys = [
        jax.random.fold_in(jax.random.fold_in(KEYS[kind], step), purpose)
        for step in (0, 1, 2**16, 2**16 + 1, 2**31 - 1)
        for purpose in (0, 1)
    ]
    drawn = np.stack([np.asarray(standard_normal(key, (2000,))) for key in keys])
    likeness = np.corrcoef(drawn) - np.eye(len(keys))
    assert np.abs(likeness).max() < 6 / 2000**0.5


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 5)])
def test_an_element_depends_on_its_position_only(kind: str, shape: tuple[int, ...]) -> None:
    drawn = standard_normal(KEYS[kind], shape)
    assert drawn.shape == shape
    assert drawn.dtype == jnp.float32
    if len(shape) > 1:
        longer = standard_normal(KEYS[kind], (shape[0] + 4, *shape[1:]))
        np.testing.assert_array_equal(longer[: shape[0]], drawn)
        wider = standard_normal(KEYS[kind], (*shape[:-1], shape[-1] + 3))
        np.testing.assert_array_equal(wider[..., : shape[-1]], drawn)
    assert len(np.unique(drawn)) == drawn.size


def test_secret_noise_is_the_halved_sum_of_four_draws() -> None:
    zero = jnp.zeros(1, jnp.uint32)
    words = generator_of(SECRET).blocks(SECRET, zero, zero)
    draws = [float(normal_of_words(*pair)[0]) for pair in zip(words[::2], words[1::2], strict=True)]
    expected = [sum(draws[:4]) / 2, sum(draws[4:]) / 2]
    np.testing.assert_allclose(standard_normal(SECRET, (2,)), expected, rtol=1e-6)


def test_noise_of_unknown_generators_is_refused() -> None:
    with pytest.raises(ValueError, match="Threefry or ChaCha20"):
        standard_normal(jax.random.key(0, impl="rbg"), (2,))


def test_numpys_noise_reaches_as_far_as_its_tail_algorithm() -> None:
    """The vocabulary's noise is NumPy's ziggurat in float64: beyond 3.654 it adds −log(u)/3.654, u of 53 bits.

    So it reaches 3.654 + 53·log(2)/3.654 = 13.7 standard deviations, further than any δ needs.
    """
    beyond = np.random.default_rng(0).standard_normal(10**7)
    assert 5 < np.abs(beyond).max() < 13.71
    assert stats.norm.sf(13.7) < 1e-42


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


def test_an_array_of_a_quarter_of_a_million_elements_is_drawn_by_itself() -> None:
    """Its noise does not change with the arrays before it, so that each device can draw its rows."""
    table, deviation = jnp.zeros((2**12, 2**6)), jnp.float32(1.0)
    key = jax.random.key(4)
    first, second = (add_gaussian(key, [jnp.zeros(size), table], deviation)[1] for size in (1, 8))
    np.testing.assert_array_equal(first, second)
    smaller = (add_gaussian(key, [jnp.zeros(size), table[:-1]], deviation)[1] for size in (1, 8))
    assert not np.array_equal(*smaller)
