"""DP-SGD, step by step (Section 2 of the paper).

A step is a pure function of (state, batch, key, numbers). The numbers that trials differ in
(learning rate, clip norm, noise multiplier…) are traced, so one compiled step serves them all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dp_core.clipping import Batch, clipped_gradient_sum, gradient_sum
from dp_core.losses import OBJECTIVES
from dp_core.noise import NoiseMechanism, dense_gaussian
from dp_core.optimizers import cosine_decay, make_optimizer


class TrainState(NamedTuple):
    """Everything that a step changes."""

    step: jax.Array
    params: Any
    optimizer_state: Any
    noise_state: Any


class Hyperparameters(NamedTuple):
    """The numbers of a run. Clip norm and noise multiplier are not looked at without privacy."""

    learning_rate: jax.Array | float
    total_steps: jax.Array | float
    expected_batch_size: jax.Array | float
    l2_clip_norm: jax.Array | float = float("inf")
    noise_multiplier: jax.Array | float = 0.0


class Trainer(NamedTuple):
    """The compiled functions of one shape of training run."""

    init: Callable[[Any], TrainState]
    step: Callable[[TrainState, Batch, jax.Array, Hyperparameters], tuple[TrainState, jax.Array]]
    predict: Callable[[TrainState, ArrayLike, ArrayLike], jax.Array]
    release: Callable[[TrainState], Any]


@functools.lru_cache(maxsize=32)
def make_trainer(model: nn.Module, *, task: str, optimizer: str, momentum: float, private: bool) -> Trainer:
    """Builds (or finds) the compiled functions. Same arguments, same compiled code."""
    update_rule = make_optimizer(optimizer, momentum=momentum)
    noise = dense_gaussian()

    def init(params: Any) -> TrainState:
        return TrainState(jnp.zeros((), jnp.int32), params, update_rule.init(params), noise.init(params))

    def predict(state: TrainState, integers: ArrayLike, categoricals: ArrayLike) -> Any:
        return model.apply({"params": release(state)}, integers, categoricals)

    def release(state: TrainState) -> Any:
        return noise.settle(state.noise_state, state.params)

    step = functools.partial(_step, model, task, update_rule, noise if private else None)
    return Trainer(jax.jit(init), jax.jit(step, donate_argnums=0), jax.jit(predict), jax.jit(release))


def _step(
    model: nn.Module,
    task: str,
    update_rule: optax.GradientTransformation,
    noise: NoiseMechanism | None,
    state: TrainState,
    batch: Batch,
    noise_key: jax.Array,
    hyper: Hyperparameters,
) -> tuple[TrainState, jax.Array]:
    """One step; returns the new state and the batch's mean loss before it (which is not private)."""
    example_loss = OBJECTIVES[task].example_loss
    noise_state = state.noise_state

    if noise is None:
        summed, losses = gradient_sum(model, state.params, batch, example_loss)
    else:
        summed, losses = clipped_gradient_sum(model, state.params, batch, example_loss, l2_clip_norm=hyper.l2_clip_norm)
        # One example moves the clipped sum by at most the clip norm, so noise of that size times
        # the multiplier is what the accountant means by the multiplier.
        standard_deviation = jnp.where(hyper.noise_multiplier > 0, hyper.noise_multiplier * hyper.l2_clip_norm, 0.0)
        step_key = jax.random.fold_in(noise_key, state.step)
        noise_state, summed = noise.add(noise_state, step_key, summed, standard_deviation)

    # Divided by the expected size, a public number. The realised size is private.
    mean_gradient = jax.tree.map(lambda leaf: leaf / hyper.expected_batch_size, summed)
    direction, optimizer_state = update_rule.update(mean_gradient, state.optimizer_state, state.params)
    rate = cosine_decay(hyper.learning_rate, state.step, hyper.total_steps)
    params = optax.apply_updates(state.params, jax.tree.map(lambda leaf: rate * leaf, direction))

    mean_loss = jnp.sum(batch.mask * losses) / jnp.maximum(jnp.sum(batch.mask), 1.0)
    return TrainState(state.step + 1, params, optimizer_state, noise_state), mean_loss


def as_traced(hyper: Hyperparameters) -> Hyperparameters:
    """The numbers as arrays of fixed type, so that a new value is not a new compilation."""
    return Hyperparameters(*(jnp.float32(value) for value in hyper))
