"""Lazy tables on a small linear problem: weights and velocities have the joint distribution of dense noise."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from dp_core.clipping.signals import Batch
from dp_core.models.spec import CategoricalFeature
from dp_core.training.lazy_updates import with_lazy_tables
from dp_core.training.method import Method
from dp_core.training.updates import UpdateScale, dense_update
from tests.support.models import make_model

# Every column of the table is a sample of its own.
SAMPLES, ROWS, STEPS, TAU = 24_000, 5, 11, 0.7
# Row 0 is never read, row 1 once, row 2 at every second step, row 3 by two pieces of a step and more than once in one,
# row 4 in the first and the last step. Two pieces of three tokens; -1 reads nothing.
READS = [
    [[4, 2, -1], [-1, -1, -1]],
    [[3, 3, 2], [3, -1, -1]],
    [[2, -1, -1], [-1, -1, -1]],
    [[-1, -1, -1], [-1, -1, -1]],
    [[2, 1, 2], [2, -1, -1]],
    [[-1, -1, -1], [-1, -1, -1]],
    [[3, 2, -1], [3, 3, -1]],
    [[-1, -1, -1], [-1, -1, -1]],
    [[2, -1, -1], [-1, -1, -1]],
    [[3, -1, -1], [2, -1, -1]],
    [[2, 4, 4], [4, -1, -1]],
]
RATES = {"constant": np.full(STEPS, 0.3), "cosine": 0.15 * (1 + np.cos(np.pi * np.arange(STEPS) / STEPS))}
FEATURE = CategoricalFeature(ROWS, SAMPLES, slots=3)
START = np.linspace(-1, 1, ROWS)
# The gradient of the rows that a step reads is COUPLING · (their weights) + SLOPE, times how often each is read.
COUPLING = 0.4 * np.eye(ROWS) + 0.1 * np.random.default_rng(3).normal(size=(ROWS, ROWS))
SLOPE = np.linspace(0.5, -0.5, ROWS)


def counts_of(step: int) -> np.ndarray:
    tokens = np.ravel(READS[step])
    return np.bincount(tokens[tokens >= 0], minlength=ROWS).astype(np.float64)


def scale_of(step: int, rates: np.ndarray, key: jax.Array) -> UpdateScale:
    return UpdateScale(key, jnp.float32(4 * TAU), jnp.float32(4), jnp.float32(rates[step]))


@functools.cache
def lazy_samples(momentum: float, schedule: str, *, settle_at: int = -1, seed: int = 1) -> np.ndarray:
    """Velocities and weights after the steps, of shape (samples, 2 · rows); at momentum 0 weights only."""
    method = Method(make_model(features=(FEATURE,)), "pctr", "sgd", momentum, True, lazy_tables=("embedding_0",))
    # A history of four steps runs out twice.
    rule = with_lazy_tables(dense_update(optax.sgd(1.0, momentum=momentum or None)), method, history_steps=4)
    table = jnp.asarray(np.tile(START[:, None], SAMPLES), jnp.float32)
    params = {"embedding_0": {"table": table}, "other": {"kernel": jnp.zeros((2, 2))}}
    state, params = rule.init(params), rule.hold(params)
    coupling, slope = jnp.asarray(COUPLING, jnp.float32), jnp.asarray(SLOPE, jnp.float32)

    @jax.jit
    def one(state: Any, params: Any, tokens: jax.Array, scale: UpdateScale, key: jax.Array) -> Any:
        batch = Batch(None, tokens, None, jnp.ones(tokens.shape[:-1]))
        caught, view = rule.catch_up(state, params, batch, key)
        places = rule.tokens(caught, tokens).ravel()
        compact = view["embedding_0"]["table"]
        # A sum over the tokens, each with its own gradient.
        read = places >= 0
        own = jnp.where(read, places, compact.shape[0])
        ids = jnp.where(read, tokens.ravel(), 0)
        distinct = jnp.zeros(ROWS).at[jnp.where(read, ids, ROWS)].set(1.0, mode="drop")
        whole = jnp.zeros((ROWS, SAMPLES)).at[jnp.where(read, ids, ROWS)].set(compact[places], mode="drop")
        gradients = jnp.matmul(coupling * distinct, whole, precision="highest") + slope[:, None]
        summed = jnp.zeros_like(compact).at[own].add(4 * gradients[ids], mode="drop")
        total = {"embedding_0": {"table": summed}, "other": {"kernel": jnp.zeros((2, 2))}}
        return rule.apply(caught, params, total, scale)

    for step in range(STEPS):
        key, other = jax.random.split(jax.random.fold_in(jax.random.key(seed), step))
        state, params = one(
            state, params, jnp.asarray(READS[step], jnp.int32), scale_of(step, RATES[schedule], key), other
        )
        if step == settle_at:
            state, settled = jax.jit(rule.draw_pending)(state, params, jax.random.fold_in(other, 9))
            params = rule.hold(settled)
    state, settled = jax.jit(rule.draw_pending)(state, params, jax.random.key(seed + 100))
    arrays = [state.velocities["embedding_0"]["table"]] if momentum else []
    return np.concatenate([np.float64(part) for part in (*arrays, settled["embedding_0"]["table"])]).T


def dense_samples(momentum: float, schedule: str) -> np.ndarray:
    """The same by the dense rule."""
    rule = dense_update(optax.sgd(1.0, momentum=momentum))
    params = {"table": jnp.asarray(np.tile(START[:, None], SAMPLES), jnp.float32)}
    state = rule.init(params)
    for step in range(STEPS):
        counts = counts_of(step)
        gradients = (COUPLING * (counts > 0)) @ np.float64(params["table"]) + SLOPE[:, None]
        total = {"table": jnp.asarray(4 * counts[:, None] * gradients, jnp.float32)}
        key = jax.random.fold_in(jax.random.key(5), step)
        state, params = jax.jit(rule.apply)(state, params, total, scale_of(step, RATES[schedule], key))
    return np.concatenate([np.float64(state[0].trace["table"]), np.float64(params["table"])]).T


def exact_moments(momentum: float, schedule: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (velocities, weights) with dense noise, by the recursion of the whole vector."""
    mean, covariance = np.concatenate([np.zeros(ROWS), START]), np.zeros((2 * ROWS, 2 * ROWS))
    for step, rate in enumerate(RATES[schedule]):
        counts = counts_of(step)
        velocity = np.hstack([momentum * np.eye(ROWS), counts[:, None] * COUPLING * (counts > 0)])
        turn = np.vstack([velocity, np.hstack([np.zeros((ROWS, ROWS)), np.eye(ROWS)]) - rate * velocity])
        onto = np.vstack([np.eye(ROWS), -rate * np.eye(ROWS)])
        mean = turn @ mean + onto @ (counts * SLOPE)
        covariance = turn @ covariance @ turn.T + TAU**2 * onto @ onto.T
    first = 0 if momentum else ROWS
    return mean[first:], covariance[first:, first:]


def assert_moments(samples: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> None:
    """Fails for one seed in 10⁴, for the mean and for the covariance; the seeds are fixed."""
    number, size = samples.shape
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), (samples - mean).T)
    assert stats.chi2.sf(number * np.sum(np.mean(whitened, axis=1) ** 2), size) > 1e-4
    # Every variance and covariance of the whitened samples, which are independent of each other.
    scores = (whitened @ whitened.T / number - np.eye(size)) * np.sqrt(number / (1 + np.eye(size)))
    upper = scores[np.triu_indices(size)]
    assert stats.chi2.sf(np.sum(upper**2), len(upper)) > 1e-4
    assert np.abs(upper).max() < stats.norm.isf(0.5e-4 / len(upper))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_weights_and_velocities_have_the_distribution_of_dense_noise(momentum: float, schedule: str) -> None:
    assert_moments(lazy_samples(momentum, schedule), *exact_moments(momentum, schedule))


def test_the_dense_rule_has_that_distribution_too() -> None:
    """So what lazy noise is compared with is the rule, not only its formula."""
    assert_moments(dense_samples(0.9, "cosine"), *exact_moments(0.9, "cosine"))


def test_settling_in_the_middle_changes_no_distribution() -> None:
    assert_moments(lazy_samples(0.9, "constant", settle_at=6), *exact_moments(0.9, "constant"))


def test_the_samples_would_show_a_small_mistake() -> None:
    """A deviation of the noise that is wrong by 2 % in one row."""
    mean, covariance = exact_moments(0.9, "constant")
    wrong = np.ones(2 * ROWS)
    wrong[[0, ROWS]] = 1.02
    with pytest.raises(AssertionError):
        assert_moments(lazy_samples(0.9, "constant"), mean, covariance * np.outer(wrong, wrong))
