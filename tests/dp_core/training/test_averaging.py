"""Averages of iterates, against their definitions on a quadratic, and by every way that gives the model away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dp_core.models.spec import CategoricalFeature
from dp_core.training.averaging import AVERAGING, Averaged, AveragingName, averaged, iterate_weight
from dp_core.training.method import Method
from dp_core.training.step import Hyperparameters, Steps, TrainState, as_traced, make_trainer
from dp_core.training.updates import UpdateRule, UpdateScale, dense_update
from tests.support.models import make_batch, make_model, make_parameters

pytestmark = pytest.mark.usefixtures("strict_types")

STEPS, RATE = 40, 0.1
CURVATURE = np.array([0.5, 1.0, 3.0])
START = np.array([2.0, -1.0, 0.5])


def of_definition(iterates: np.ndarray, averaging: AveragingName, share: float) -> np.ndarray:
    """The average of all iterates of a run, written as its definition has it."""
    count = len(iterates)
    if averaging == "tail":
        return np.mean(iterates[-max(1, round(share * count)) :], axis=0)
    weights = (1 - 1 / max(1.0, share * count)) ** np.arange(count)[::-1]
    return np.sum(weights[:, None] * iterates, axis=0) / np.sum(weights)


def descend(rule: UpdateRule, averaging: AveragingName, share: float) -> Any:
    """Minimises ½ Σ hᵢ θᵢ² by gradient descent at a constant rate, without noise."""
    params = {"kernel": jnp.asarray(START, jnp.float32)}
    state = rule.init(params)
    for step in range(STEPS):
        scale = UpdateScale(
            noise_key=jax.random.key(0),
            standard_deviation=None,
            expected_count=jnp.float32(1),
            learning_rate=jnp.float32(RATE),
            weight_decay=jnp.float32(0),
            iterate_weight=iterate_weight(averaging, step, STEPS, share),
        )
        gradient = {"kernel": jnp.asarray(CURVATURE, jnp.float32) * params["kernel"]}
        state, params = rule.apply(state, params, gradient, scale)
    return rule.settle(state, params)["kernel"]


@pytest.mark.parametrize("share", [1.0, 0.5, 0.11, 0.001])
@pytest.mark.parametrize("averaging", ["tail", "exponential"])
def test_on_a_quadratic_the_average_is_the_closed_form(averaging: AveragingName, share: float) -> None:
    """Without noise the k-th iterate is (1 − η·h)ᵏ·θ₀, and its mean a geometric sum."""
    factors = 1 - RATE * CURVATURE
    iterates = START * factors ** np.arange(1, STEPS + 1)[:, None]
    expected = of_definition(iterates, averaging, share)
    if averaging == "tail":
        first = STEPS - max(1, round(share * STEPS))
        geometric = (factors ** (first + 1) - factors ** (STEPS + 1)) / (1 - factors) / (STEPS - first)
        np.testing.assert_allclose(expected, START * geometric, rtol=1e-12)
    rule = averaged(dense_update(optax.sgd(1.0)))
    np.testing.assert_allclose(descend(rule, averaging, share), expected, rtol=2e-5)


def test_weights_of_a_long_run_are_as_exact_as_those_of_a_short_one() -> None:
    """A million steps: 1 − β^k would be rounding error if it were computed as written."""
    for step in (0, 1, 999, 999_999):
        kept = 1 - 1 / 500_000
        exact = (1 - kept) / -np.expm1((step + 1) * np.log1p(-1 / 500_000))
        assert float(iterate_weight("exponential", step, 1e6, 0.5)) == pytest.approx(exact, rel=1e-5)
        assert float(iterate_weight("tail", step, 1e6, 0.5)) == pytest.approx(1 / max(1, step + 1 - 5e5), rel=1e-6)
    assert float(iterate_weight("none", 7, 10, 0.5)) == 1


MODEL = make_model(features=(CategoricalFeature(7, 2),), hidden_layers=(4,))
BATCHES = [make_batch(MODEL, 16, seed=seed) for seed in range(6)]
HYPER = as_traced(Hyperparameters(0.5, len(BATCHES), 14, l2_clip_norm=1.0, noise_multiplier=0.5, averaging_share=0.5))


def steps_of(batches: Any) -> Steps:
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves)[:, None], *batches)
    return Steps(stacked, np.ones(len(batches), np.int32), np.int32(len(batches)))


def method_of(averaging: AveragingName) -> Method:
    return Method(MODEL, "pctr", "sgd", 0.9, private=True, averaging=averaging)


@pytest.fixture(scope="module")
def iterates() -> list[Any]:
    """The iterates of a private run, released after each step of the same run without averaging."""
    trainer = make_trainer(method_of("none"))
    state = trainer.init(make_parameters(MODEL, BATCHES[0]), HYPER)
    found = []
    for batch in BATCHES:
        state, _ = trainer.run(state, steps_of([batch]), jax.random.key(5), HYPER)
        found.append(jax.tree.map(np.asarray, trainer.release(state)))
    return found


def trained(averaging: AveragingName) -> tuple[Any, TrainState]:
    trainer = make_trainer(method_of(averaging))
    state = trainer.init(make_parameters(MODEL, BATCHES[0]), HYPER)
    for batch in BATCHES:
        state, _ = trainer.run(state, steps_of([batch]), jax.random.key(5), HYPER)
    return trainer, state


@pytest.mark.parametrize("averaging", ["tail", "exponential"])
def test_the_average_of_private_iterates_is_released_and_predicted_with(
    averaging: AveragingName, iterates: list[Any]
) -> None:
    trainer, state = trained(averaging)
    expected = jax.tree.map(
        lambda *leaves: of_definition(
            np.stack(leaves).reshape(len(leaves), -1).astype(np.float64), averaging, 0.5
        ).reshape(leaves[0].shape),
        *iterates,
    )
    close: Callable[[Any, Any], None] = lambda found, right: np.testing.assert_allclose(  # noqa: E731
        found, right, rtol=1e-4, atol=1e-6
    )
    released = trainer.release(state)
    jax.tree.map(close, released, expected)
    # Gradients are computed at the last iterate, so averaging changes no step.
    jax.tree.map(np.testing.assert_array_equal, state.params, iterates[-1])
    batch = BATCHES[0]
    logits = MODEL.apply({"params": released}, batch.integers, batch.categoricals)
    close(trainer.predict(state, batch.integers, batch.categoricals), logits)
    assert not np.allclose(
        logits, np.asarray(MODEL.apply({"params": iterates[-1]}, batch.integers, batch.categoricals)), atol=1e-3
    )


def test_a_refused_step_changes_no_average() -> None:
    trainer, state = trained("tail")
    before = jax.tree.map(np.array, state.update_state)
    bad = BATCHES[0]._replace(integers=np.full_like(BATCHES[0].integers, np.inf))
    state, _ = trainer.run(state, steps_of([bad]), jax.random.key(5), HYPER)
    state, _ = trainer.run(state, steps_of([BATCHES[1]]), jax.random.key(5), HYPER)
    assert int(state.not_finite) > 0
    assert isinstance(state.update_state, Averaged)
    jax.tree.map(np.testing.assert_array_equal, state.update_state, before)


def test_an_unknown_average_is_refused() -> None:
    assert AVERAGING == ("none", "exponential", "tail")
    with pytest.raises(ValueError, match="unknown averaging 'ema'; known: none, exponential, tail"):
        dataclasses.replace(method_of("none"), averaging="ema")  # type: ignore[arg-type]
