"""The DP-SGD step: with no bound and no noise it is plain SGD, and with them it is what is stated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dp_core import oracle
from dp_core.clipping import Batch
from dp_core.losses import OBJECTIVES
from dp_core.optimizers import cosine_decay, make_optimizer
from dp_core.training import Hyperparameters, Trainer, as_traced, make_trainer
from tests.models import make_batch, make_model, make_parameters

OPTIMIZERS = ("sgd", "yogi", "adagrad", "adam", "adamw")
STEPS = 6


def train(trainer: Trainer, params: Any, batches: list[Batch], hyper: Hyperparameters) -> Any:
    state = trainer.init(jax.tree.map(jnp.array, params))
    for batch in batches:
        state, _ = trainer.step(state, batch, jax.random.key(9), as_traced(hyper))
    return trainer.release(state)


@pytest.mark.parametrize("task", ["pctr", "pconvs"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_bound_and_no_noise_is_non_private_training(task: str, optimizer: str) -> None:
    model = make_model()
    batches = [make_batch(model, 32, seed=seed, counts=task == "pconvs") for seed in range(STEPS)]
    params = make_parameters(model, batches[0])
    hyper = Hyperparameters(learning_rate=0.05, total_steps=STEPS, expected_batch_size=28)
    private, plain = (
        train(
            make_trainer(model, task=task, optimizer=optimizer, momentum=0.9, private=private), params, batches, hyper
        )
        for private in (True, False)
    )
    for left, right in zip(jax.tree.leaves(private), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_rate_outside_the_optimizer_is_the_rate_inside(optimizer: str) -> None:
    """Scaling the update of an optimiser of rate 1 is optax's own optimiser with the cosine schedule."""
    schedule = optax.cosine_decay_schedule(0.05, STEPS)
    reference = {
        "sgd": optax.sgd(schedule, momentum=0.9),
        "yogi": optax.yogi(schedule),
        "adagrad": optax.adagrad(schedule),
        "adam": optax.adam(schedule),
        "adamw": optax.adamw(schedule),
    }[optimizer]
    ours = make_optimizer(optimizer, momentum=0.9)
    params = {"w": jnp.linspace(-1, 1, 7)}
    expected, actual = params, params
    reference_state, our_state = reference.init(params), ours.init(params)
    for step in range(STEPS):
        gradient = {"w": jnp.sin(jnp.arange(7, dtype=jnp.float32) + step)}
        update, reference_state = reference.update(gradient, reference_state, expected)
        expected = optax.apply_updates(expected, update)
        update, our_state = ours.update(gradient, our_state, actual)
        rate = cosine_decay(jnp.float32(0.05), jnp.float32(step), jnp.float32(STEPS))
        actual = optax.apply_updates(actual, jax.tree.map(lambda leaf, rate=rate: rate * leaf, update))
    np.testing.assert_allclose(actual["w"], expected["w"], rtol=1e-5, atol=1e-7)


def test_one_private_step_is_the_noised_clipped_sum_over_the_expected_size() -> None:
    """Many steps from one state: their mean is the oracle's clipped sum over the *expected* batch
    size, and their spread is σ·C over that size. Five standard errors; the seeds are fixed."""
    model = make_model((7,), (4,))
    batch = make_batch(model, 16)
    params = make_parameters(model, batch)
    hyper = Hyperparameters(
        learning_rate=1.0, total_steps=10**6, expected_batch_size=50, l2_clip_norm=0.5, noise_multiplier=3.0
    )
    trainer = make_trainer(model, task="pctr", optimizer="sgd", momentum=0.0, private=True)
    draws, repeats = [], 400
    for seed in range(repeats):
        state, _ = trainer.step(
            trainer.init(jax.tree.map(jnp.array, params)), batch, jax.random.key(seed), as_traced(hyper)
        )
        moved = jax.tree.map(lambda old, new: (old - new) * 50, params, state.params)
        draws.append(np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(moved)]))
    summed = oracle.clipped_gradient_sum(model, params, batch, OBJECTIVES["pctr"].example_loss, l2_clip_norm=0.5)
    expected = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(summed.gradients)])
    deviation = 3.0 * 0.5
    errors = (np.mean(draws, axis=0) - expected) / (deviation / repeats**0.5)
    assert np.abs(errors).max() < 5
    spread = np.std(np.asarray(draws) - expected) / deviation
    assert abs(spread - 1) < 5 / (2 * np.size(draws)) ** 0.5 + 1e-3


def test_noise_differs_from_step_to_step_and_follows_the_key() -> None:
    model = make_model((7,), (4,))
    batch = make_batch(model, 16)
    params = make_parameters(model, batch)
    hyper = Hyperparameters(0.1, 10, 16, l2_clip_norm=1.0, noise_multiplier=1.0)
    trainer = make_trainer(model, task="pctr", optimizer="sgd", momentum=0.0, private=True)

    def moves(key: int) -> list[np.ndarray]:
        state, seen = trainer.init(jax.tree.map(jnp.array, params)), []
        for _ in range(2):
            before = np.asarray(state.params["output"]["kernel"])
            state, _ = trainer.step(state, batch, jax.random.key(key), as_traced(hyper))
            seen.append(np.asarray(state.params["output"]["kernel"]) - before)
        return seen

    first, second = moves(0)
    assert not np.allclose(first, second, atol=1e-3)
    np.testing.assert_array_equal(moves(0)[1], second)
    assert not np.allclose(moves(1)[0], first, atol=1e-3)


def test_numbers_do_not_recompile() -> None:
    model = make_model((11,), (4,))
    batch = make_batch(model, 16)
    params = make_parameters(model, batch)
    trainer = make_trainer(model, task="pctr", optimizer="sgd", momentum=0.9, private=True)
    for rate, clip, noise in ((0.1, 1.0, 1.0), (0.2, 3.0, 0.5), (0.3, 1.0, 7.0)):
        train(trainer, params, [batch], Hyperparameters(rate, 10, 16, clip, noise))
    assert trainer.step._cache_size() == 1  # type: ignore[attr-defined]
    assert make_trainer(model, task="pctr", optimizer="sgd", momentum=0.9, private=True) is trainer
