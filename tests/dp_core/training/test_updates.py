"""Update rules: from a gradient sum to new parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dp_core.training.method import Method
from dp_core.training.updates import UpdateScale, decayed, dense_update, make_update_rule, without_noise
from tests.support.models import make_model

pytestmark = pytest.mark.usefixtures("strict_types")

PARAMS = {"layer": {"kernel": jnp.ones((40, 50)), "bias": jnp.zeros(50)}}
SUM = jax.tree.map(lambda leaf: 6 + 0 * leaf, PARAMS)


def scale(deviation: float | None) -> UpdateScale:
    return UpdateScale(
        noise_key=jax.random.key(0),
        standard_deviation=None if deviation is None else jnp.float32(deviation),
        expected_count=jnp.float32(12),
        learning_rate=jnp.float32(0.25),
    )


@pytest.mark.parametrize("deviation", [None, 0.0])
def test_without_noise_parameters_move_by_the_mean_gradient(deviation: float | None) -> None:
    update = dense_update(optax.sgd(1.0))
    _, params = update.apply(update.init(PARAMS), PARAMS, SUM, scale(deviation))
    np.testing.assert_allclose(params["layer"]["kernel"], 1 - 0.25 * 6 / 12, rtol=1e-6)
    np.testing.assert_allclose(params["layer"]["bias"], -0.25 * 6 / 12, rtol=1e-6)


def test_only_dense_kernels_decay() -> None:
    tree = {"layer": {"kernel": jnp.ones(3), "bias": jnp.ones(3)}, "embedding": {"table": jnp.ones(3)}}
    moved = decayed(jax.tree.map(jnp.zeros_like, tree), tree, jnp.float32(0.5))
    np.testing.assert_allclose(moved["layer"]["kernel"], -0.5)
    np.testing.assert_array_equal(moved["layer"]["bias"], 0)
    np.testing.assert_array_equal(moved["embedding"]["table"], 0)


def test_by_default_nothing_decays_and_an_iterate_replaces_the_one_before() -> None:
    assert (scale(None).weight_decay, scale(None).iterate_weight) == (0.0, 1.0)


def test_noise_is_of_the_sum_and_divided_with_it() -> None:
    """2,050 draws: mean and deviation within five standard errors; about one seed in a million fails (fixed here)."""
    update = dense_update(optax.sgd(1.0, momentum=0.9))
    _, params = update.apply(update.init(PARAMS), PARAMS, SUM, scale(3.0))
    moved = jax.tree.map(lambda old, new: (old - new) * 12 / 0.25, PARAMS, params)
    sums = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(moved)])
    assert abs(np.mean(sums) - 6) < 5 * 3 / len(sums) ** 0.5
    assert abs(np.std(sums) / 3 - 1) < 5 / (2 * len(sums)) ** 0.5


def test_the_dense_rule_has_nothing_pending() -> None:
    update = dense_update(optax.sgd(1.0))
    state = update.init(PARAMS)
    caught_up, params = update.catch_up(state, PARAMS, None)  # type: ignore[arg-type]
    assert caught_up is state
    assert params is PARAMS
    assert update.settle(state, PARAMS) is PARAMS


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_rule_of_a_method_is_the_dense_rule_of_its_optimizer(momentum: float) -> None:
    rule = make_update_rule(Method(make_model(), "pctr", "sgd", momentum, private=True))
    reference = dense_update(optax.sgd(1.0, momentum=momentum or None))
    actual, expected = rule.init(PARAMS), reference.init(PARAMS)
    params = wanted = PARAMS
    for _ in range(2):
        actual, params = rule.apply(actual, params, SUM, scale(3.0))
        expected, wanted = reference.apply(expected, wanted, SUM, scale(3.0))
    jax.tree.map(np.testing.assert_array_equal, (actual, params), (expected, wanted))


def test_a_rule_without_noise_draws_none() -> None:
    rule = dense_update(optax.sgd(1.0))
    silent = without_noise(rule)
    with_noise = str(jax.make_jaxpr(rule.apply)(rule.init(PARAMS), PARAMS, SUM, scale(3.0)))
    without = str(jax.make_jaxpr(silent.apply)(rule.init(PARAMS), PARAMS, SUM, scale(3.0)))
    assert "threefry2x32" in with_noise
    assert "threefry2x32" not in without
    _, params = silent.apply(silent.init(PARAMS), PARAMS, SUM, scale(3.0))
    _, expected = rule.apply(rule.init(PARAMS), PARAMS, SUM, scale(None))
    jax.tree.map(np.testing.assert_array_equal, params, expected)
