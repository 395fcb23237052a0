"""DP-SGD, step by step (Section 2 of the paper).

A step is a pure function of (state, batches, key, numbers). The numbers that trials differ in
(learning rate, clip norm, noise multiplier…) are traced, so one compiled program serves them all.
A step's batch comes as one or more physical batches, whose sums are added up before anything is
done with them, and one dispatch runs several steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dp_core.adaptive_clipping import next_clip_norm
from dp_core.clipping import GradientSum, add_clipped_gradients, add_gradients, zero_sum
from dp_core.losses import OBJECTIVES
from dp_core.microbatches import make_microbatches
from dp_core.models import AdModel
from dp_core.optimizers import cosine_decay, make_optimizer
from dp_core.placement import Placement
from dp_core.signals import Batch
from dp_core.updates import UpdateRule, UpdateScale, dense_update

# The two uses of a step's key.
_GRADIENT_NOISE, _COUNT_NOISE = 0, 1


class TrainState(NamedTuple):
    """Everything that a step changes.

    ``not_finite`` is the number of rows without a finite gradient in a step that was refused for
    them. From then on the state stays as it was before that step.
    """

    step: jax.Array
    params: Any
    update_state: Any
    l2_clip_norm: jax.Array
    not_finite: jax.Array


class Hyperparameters(NamedTuple):
    """The numbers of a run. Those below the first three are not looked at without privacy.

    ``sensitivity`` is how far one example can move the clipped sum, in clip norms.
    ``count_noise_multiplier`` and ``clip_quantile`` are for an adaptive clip norm.
    """

    learning_rate: jax.Array | float
    total_steps: jax.Array | float
    expected_batch_size: jax.Array | float
    l2_clip_norm: jax.Array | float = float("inf")
    noise_multiplier: jax.Array | float = 0.0
    sensitivity: jax.Array | float = 1.0
    count_noise_multiplier: jax.Array | float = 0.0
    clip_quantile: jax.Array | float = 0.5


class Method(NamedTuple):
    """What is compiled: everything about a run but its numbers and its data."""

    model: AdModel
    task: str
    optimizer: str
    momentum: float
    private: bool
    clipping: str = "fixed"
    microbatch_size: int = 1
    placement: Placement = Placement()


class Steps(NamedTuple):
    """The batches of a dispatch.

    ``batches`` has leading axes (step, physical batch); the first ``pieces[step]`` physical batches
    of a step hold its examples, and the first ``active`` steps are run.
    """

    batches: Batch
    pieces: ArrayLike
    active: ArrayLike


class Trainer(NamedTuple):
    """The compiled functions of one method."""

    init: Callable[[Any, Hyperparameters], TrainState]
    run: Callable[[TrainState, Steps, jax.Array, Hyperparameters], tuple[TrainState, jax.Array]]
    predict: Callable[[TrainState, ArrayLike, ArrayLike], jax.Array]
    release: Callable[[TrainState], Any]


@functools.lru_cache(maxsize=32)
def make_trainer(method: Method) -> Trainer:
    """Builds (or finds) the compiled functions. The same method is the same compiled code."""
    model, placement = method.model, method.placement
    update = dense_update(make_optimizer(method.optimizer, momentum=method.momentum))

    def init(params: Any, hyper: Hyperparameters) -> TrainState:
        none = jnp.zeros((), jnp.int32)
        return TrainState(none, params, update.init(params), jnp.asarray(hyper.l2_clip_norm, jnp.float32), none)

    def release(state: TrainState) -> Any:
        return update.settle(state.update_state, state.params)

    def predict(state: TrainState, integers: ArrayLike, categoricals: ArrayLike) -> Any:
        return model.apply({"params": release(state)}, integers, categoricals)

    def run(
        state: TrainState, steps: Steps, noise_key: jax.Array, hyper: Hyperparameters
    ) -> tuple[TrainState, jax.Array]:
        """Runs the steps; returns the new state and each step's mean loss before it, which is not private.

        A step that was refused, and every one after it, has a loss of NaN.
        """

        def one(index: jax.Array, carry: tuple[TrainState, jax.Array]) -> tuple[TrainState, jax.Array]:
            state, losses = carry
            batches = jax.tree.map(lambda leaf: leaf[index], steps.batches)
            state, loss = step(state, batches, jnp.asarray(steps.pieces)[index], noise_key, hyper)
            return state, losses.at[index].set(loss)

        losses = jnp.zeros(jnp.shape(steps.pieces), jnp.float32)
        state, losses = jax.lax.fori_loop(0, steps.active, one, (state, losses))
        return placement.keep(state), losses

    step = functools.partial(_step, method, update)
    compiled_release = placement.jit(release)
    return Trainer(
        init=lambda params, hyper: placement.init(init, placement.pad_tables(params), hyper),
        run=jax.jit(run, donate_argnums=0),
        predict=placement.jit(predict),
        release=lambda state: placement.trim_tables(compiled_release(state), model.vocabulary_sizes),
    )


def _step(
    method: Method,
    update: UpdateRule,
    state: TrainState,
    batches: Batch,
    pieces: jax.Array,
    noise_key: jax.Array,
    hyper: Hyperparameters,
) -> tuple[TrainState, jax.Array]:
    """One step and its mean loss; no step, and a loss of NaN, if an example has no finite gradient."""
    update_state, params = update.catch_up(state.update_state, state.params, batches)
    state = state._replace(update_state=update_state, params=params)
    summed = _sum_over_pieces(method, state, batches, pieces)
    taken = functools.partial(_take_step, method, update, state, summed.gradients, summed.too_long, noise_key, hyper)
    # Once a step was refused, so are all that follow.
    not_finite = jnp.maximum(state.not_finite, summed.not_finite)
    state = jax.lax.cond(not_finite == 0, taken, lambda: state._replace(not_finite=not_finite))
    mean_loss = summed.loss / jnp.maximum(jnp.sum(batches.mask), 1.0)
    return state, jnp.where(not_finite == 0, mean_loss, jnp.nan)


def _sum_over_pieces(method: Method, state: TrainState, batches: Batch, pieces: jax.Array) -> GradientSum:
    """The sum of (clipped) gradients over a step's physical batches."""
    add: Callable[..., GradientSum] = add_gradients
    if method.private:
        add = functools.partial(
            add_clipped_gradients,
            l2_clip_norm=state.l2_clip_norm,
            clipping=method.clipping,
            microbatches=make_microbatches(method.microbatch_size),
        )
    example_loss = OBJECTIVES[method.task].example_loss

    def add_piece(index: ArrayLike, total: GradientSum) -> GradientSum:
        piece = jax.tree.map(lambda leaf: leaf[index], batches)
        return add(total, method.model, state.params, piece, example_loss)

    total = zero_sum(state.params)
    if jnp.shape(batches.mask)[0] == 1:
        return add_piece(0, total)
    return jax.lax.fori_loop(0, pieces, add_piece, total)


def _take_step(
    method: Method,
    update: UpdateRule,
    state: TrainState,
    gradient_sum: Any,
    too_long: jax.Array,
    noise_key: jax.Array,
    hyper: Hyperparameters,
) -> TrainState:
    step_key = jax.random.fold_in(noise_key, state.step)
    expected_count = hyper.expected_batch_size / method.microbatch_size
    standard_deviation, l2_clip_norm = None, state.l2_clip_norm
    if method.private:
        # One example moves the clipped sum by at most the sensitivity, so noise of that size times
        # the multiplier is what the accountant means by the multiplier.
        deviation = hyper.noise_multiplier * hyper.sensitivity * state.l2_clip_norm
        standard_deviation = jnp.where(hyper.noise_multiplier > 0, deviation, 0.0)
    if method.clipping == "adaptive":
        l2_clip_norm = next_clip_norm(
            l2_clip_norm,
            too_long,
            jax.random.fold_in(step_key, _COUNT_NOISE),
            count_noise_multiplier=hyper.count_noise_multiplier,
            expected_count=expected_count,
            quantile=hyper.clip_quantile,
        )
    scale = UpdateScale(
        noise_key=jax.random.fold_in(step_key, _GRADIENT_NOISE),
        standard_deviation=standard_deviation,
        expected_count=expected_count,
        learning_rate=cosine_decay(hyper.learning_rate, state.step, hyper.total_steps),
    )
    update_state, params = update.apply(state.update_state, state.params, gradient_sum, scale)
    return TrainState(state.step + 1, params, update_state, l2_clip_norm, state.not_finite)


def as_traced(hyper: Hyperparameters) -> Hyperparameters:
    """The numbers as arrays of fixed type, so that a new value is not a new compilation."""
    return Hyperparameters(*(jnp.float32(value) for value in hyper))
