"""The DP-SGD step and the trainer that runs it (Section 2 of the paper; Abadi et al., 2016).

``train_step`` is the algorithm, from top to bottom:

1. *Sample.* The step's batch was drawn by ``dp_core.sampling`` and cut into physical batches.
2. *Per-example gradients, clip, sum.* ``sum_gradients`` adds up the clipped gradients of all pieces.
3. *Noise, update.* ``noisy_update`` adds the noise to the sum, divides by the expected count and lets the
   optimiser move the parameters.

A step is a pure function of (state, batches, key, hyperparameters). The hyperparameters are traced, so one
compiled program serves all trials of a method, and one dispatch runs several steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dp_core.clipping.adaptive import next_clip_norm
from dp_core.clipping.factors import clip_factor
from dp_core.clipping.microbatches import make_microbatches
from dp_core.clipping.one_pass import GradientSum, add_clipped_gradients, add_gradients, zero_sum
from dp_core.clipping.signals import Batch
from dp_core.training.averaging import iterate_weight
from dp_core.training.losses import OBJECTIVES
from dp_core.training.method import Method
from dp_core.training.optimizers import cosine_decay
from dp_core.training.updates import UpdateRule, UpdateScale, make_update_rule
from dp_core.training.witness import (
    DispatchReport,
    Seen,
    StepReport,
    also_seen,
    checksum_of_given,
    checksum_of_state,
    nothing_seen,
)

# A step's key is folded with one of these for each of its noise draws: on gradients, on the count, for the rows of lazy
# tables that the step reads, and for all rows before the step.
_GRADIENT_NOISE, _COUNT_NOISE, _CATCH_UP_NOISE, _SETTLE_NOISE = 0, 1, 2, 3


class TrainState(NamedTuple):
    """Everything that a step changes.

    Attributes:
        step: Number of steps taken, int32.
        params: The model's parameters.
        update_state: The state of the update rule.
        l2_clip_norm: The clip norm of the next step; it changes only with adaptive clipping.
        not_finite: 0, or the number of rows without a finite gradient in the step that was refused for
            them. A state with a refused step no longer changes.
    """

    step: jax.Array
    params: Any
    update_state: Any
    l2_clip_norm: jax.Array
    not_finite: jax.Array


class Hyperparameters(NamedTuple):
    """The numbers of a run. Non-private training uses only the first three and the last three.

    Attributes:
        learning_rate: The largest rate, that of step 0 without warm-up; it decays to 0 along a cosine.
        total_steps: The step at which the rate reaches 0.
        expected_batch_size: Expected number of examples in a batch. Gradient sums are divided by it.
        l2_clip_norm: The clip norm C, of the first step if it adapts.
        noise_multiplier: Standard deviation of the noise on the sum, in units of ``sensitivity * C``.
        sensitivity: How far one example can move the clipped sum, in clip norms: 1, or 2 with
            microbatches (``accounting.mechanism.proven_sensitivity``).
        count_noise_multiplier: Standard deviation of the noise on the count that steers an adaptive clip
            norm.
        clip_quantile: Share of gradients that an adaptive clip norm aims to leave unclipped, in (0, 1).
        warmup: Share of the steps over which the rate rises before it decays, in [0, 1).
        weight_decay: Decoupled weight decay of dense kernels, in units of the scheduled rate.
        averaging_share: Share of the run that an average of iterates spans, in (0, 1].
    """

    learning_rate: jax.Array | float
    total_steps: jax.Array | float
    expected_batch_size: jax.Array | float
    l2_clip_norm: jax.Array | float = float("inf")
    noise_multiplier: jax.Array | float = 0.0
    sensitivity: jax.Array | float = 1.0
    count_noise_multiplier: jax.Array | float = 0.0
    clip_quantile: jax.Array | float = 0.5
    warmup: jax.Array | float = 0.0
    weight_decay: jax.Array | float = 0.0
    averaging_share: jax.Array | float = 0.5


def as_traced(hyper: Hyperparameters) -> Hyperparameters:
    """Returns the numbers as float32 arrays, so that new values do not compile a new program."""
    return Hyperparameters(*(jnp.float32(value) for value in hyper))


class Steps(NamedTuple):
    """The batches of one dispatch.

    Attributes:
        batches: Arrays with leading axes (step, physical batch, row).
        pieces: For each step, how many of its physical batches hold examples; int32 of shape (steps,).
        active: How many of the steps to run; an int32 scalar.
    """

    batches: Batch
    pieces: ArrayLike
    active: ArrayLike


class Trainer(NamedTuple):
    """The compiled functions of one method.

    Attributes:
        init: ``(params, hyper) -> state`` at step 0.
        run: ``(state, steps, noise_key, hyper) -> (state, reports)``. Donates the buffers of ``state``.
            ``reports`` has one entry per step, zero for steps that are not active.
        predict: ``(state, integers, categoricals) -> logits``, one for each row.
        release: ``state -> params``, with no noise pending and no rows added for the placement. With averaging, the
            average; ``predict`` predicts with what would be released. Both raise ``lazy_updates.NoisePending`` for a
            state with lazy tables that was not settled.
        settle: ``(state, noise_key, hyper) -> (state, report)``: draws all noise that is pending, and donates the
            buffers of ``state``. The result can be released and evaluated, and ``resume`` makes of it what ``run``
            takes. Nothing to do without lazy tables: then the state is returned as it is, and no report.
        resume: ``state -> state`` after ``settle``, without copies.
    """

    init: Callable[[Any, Hyperparameters], TrainState]
    run: Callable[[TrainState, Steps, jax.Array, Hyperparameters], tuple[TrainState, DispatchReport]]
    predict: Callable[[TrainState, ArrayLike, ArrayLike], jax.Array]
    release: Callable[[TrainState], Any]
    settle: Callable[[TrainState, jax.Array, Hyperparameters], tuple[TrainState, DispatchReport | None]]
    resume: Callable[[TrainState], TrainState]


@functools.lru_cache(maxsize=32)
def make_trainer(method: Method) -> Trainer:
    """Returns the compiled functions of a method. Equal methods get the same trainer."""
    model, placement = method.model, method.placement
    rule = make_update_rule(method)
    step = functools.partial(train_step, method, rule)

    def init(params: Any, hyper: Hyperparameters) -> TrainState:
        none = jnp.zeros((), jnp.int32)
        return TrainState(
            none, rule.hold(params), rule.init(params), jnp.asarray(hyper.l2_clip_norm, jnp.float32), none
        )

    def run(
        state: TrainState, steps: Steps, noise_key: jax.Array, hyper: Hyperparameters
    ) -> tuple[TrainState, DispatchReport]:
        def one(index: jax.Array, carry: tuple[TrainState, StepReport]) -> tuple[TrainState, StepReport]:
            state, reports = carry
            batches = jax.tree.map(lambda leaf: leaf[index], steps.batches)
            state, report = step(state, batches, jnp.asarray(steps.pieces)[index], noise_key, hyper)
            return state, jax.tree.map(lambda all_steps, own: all_steps.at[index].set(own), reports, report)

        shape = jnp.shape(steps.pieces)
        none = jnp.zeros(shape, jnp.int32)
        reports = StepReport(jnp.zeros(shape, jnp.float32), none, none, jnp.zeros(shape, jnp.uint32))
        given, before = checksum_of_given(method, noise_key, hyper), checksum_of_state(state)
        active = jnp.asarray(steps.active)
        if method.lazy_tables:
            # Adds 0, as no word has 64 bits. To take the checksum later, the compiler would copy the tables.
            active = active + (jax.lax.population_count(before) >> 6).astype(active.dtype)
        state, reports = jax.lax.fori_loop(0, active, one, (state, reports))
        return placement.keep(state), DispatchReport(
            **reports._asdict(), given=given, before=before, after=checksum_of_state(state)
        )

    def release(state: TrainState) -> Any:
        return rule.settle(state.update_state, state.params)

    def settle(state: TrainState, noise_key: jax.Array, hyper: Hyperparameters) -> tuple[TrainState, DispatchReport]:
        given, before = checksum_of_given(method, noise_key, hyper), checksum_of_state(state)
        key = jax.random.fold_in(jax.random.fold_in(noise_key, state.step), _SETTLE_NOISE)
        update_state, params = rule.draw_pending(state.update_state, state.params, key)
        state = placement.keep(state._replace(update_state=update_state, params=params))
        none, count, word = (jnp.zeros(0, dtype) for dtype in (jnp.float32, jnp.int32, jnp.uint32))
        report = DispatchReport(none, count, count, word, given, before, checksum_of_state(state))
        return state, report

    def predict(state: TrainState, integers: ArrayLike, categoricals: ArrayLike) -> Any:
        return model.apply({"params": release(state)}, integers, categoricals)

    compiled_release, compiled_settle = placement.jit(release), jax.jit(settle, donate_argnums=0)
    return Trainer(
        init=lambda params, hyper: placement.init(init, placement.pad_tables(params), hyper),
        run=jax.jit(run, donate_argnums=0),
        predict=placement.jit(predict),
        release=lambda state: placement.trim_tables(compiled_release(state), model.vocabulary_sizes),
        settle=compiled_settle if method.lazy_tables else lambda state, noise_key, hyper: (state, None),
        resume=lambda state: state._replace(params=rule.hold(state.params)),
    )


def train_step(
    method: Method,
    rule: UpdateRule,
    state: TrainState,
    batches: Batch,
    pieces: jax.Array,
    noise_key: jax.Array,
    hyper: Hyperparameters,
) -> tuple[TrainState, StepReport]:
    """Takes one step on a sampled batch.

    A step with an example that has no finite gradient is refused: nothing is updated, by it or by any later
    step. The sum of such a step has no bounded sensitivity, so nothing may be released from it.

    Args:
        method: What is trained, and how.
        rule: The update rule, usually ``make_update_rule(method)``.
        state: The state before the step.
        batches: The sampled examples, with leading axes (physical batch, row).
        pieces: How many of the physical batches hold examples.
        noise_key: The run's key. Each step folds its number into it.
        hyper: The run's numbers.

    Returns:
        The state after the step, and what the step computed with. The report is not private.
    """
    number = state.step
    caught_key = jax.random.fold_in(jax.random.fold_in(noise_key, number), _CATCH_UP_NOISE)
    caught, params = rule.catch_up(state.update_state, state.params, batches, caught_key)
    summed, seen = sum_gradients(
        method,
        state._replace(params=params),
        batches,
        pieces,
        scales=rule.scales(caught),
        tokens=functools.partial(rule.tokens, caught),
    )
    update = functools.partial(
        noisy_update, method, rule, state._replace(update_state=caught), summed, noise_key, hyper
    )
    not_finite = jnp.maximum(state.not_finite, summed.not_finite)
    state = jax.lax.cond(not_finite == 0, update, lambda: state._replace(not_finite=not_finite))
    mean_loss = summed.loss / jnp.maximum(jnp.sum(batches.mask), 1.0)
    return state, StepReport(jnp.where(not_finite == 0, mean_loss, jnp.nan), number, seen.rows, seen.checksum)


def sum_gradients(
    method: Method,
    state: TrainState,
    batches: Batch,
    pieces: jax.Array,
    *,
    scales: Any = None,
    tokens: Callable[[Any], Any] = lambda categoricals: categoricals,
) -> tuple[GradientSum, Seen]:
    """Returns the sum of the per-example gradients over a step's physical batches, clipped if private.

    Args:
        method: What is trained, and how.
        state: The parameters to differentiate at, and the clip norm.
        batches: The sampled examples, with leading axes (physical batch, row).
        pieces: How many of the physical batches hold examples.
        scales: A tree like the parameters that each example's gradient is multiplied by before it is clipped, or None.
        tokens: The tokens of the batches as rows of the state's parameters, if these are not all rows.

    Returns:
        The sum of the scaled gradients, and the rows that are in it. If private, one example moves the sum's gradients
        by at most one clip norm in L2 norm, or two with microbatches (``one_pass.add_clipped_gradients``).
    """
    add: Callable[..., GradientSum] = add_gradients
    if method.private:
        add = functools.partial(
            add_clipped_gradients,
            l2_clip_norm=state.l2_clip_norm,
            clipping=method.clipping,
            microbatches=make_microbatches(method.microbatch_size),
            scales=scales,
        )
    example_loss = OBJECTIVES[method.task].example_loss
    categoricals = tokens(batches.categoricals)

    def add_piece(index: ArrayLike, so_far: tuple[GradientSum, Seen]) -> tuple[GradientSum, Seen]:
        total, seen = so_far
        piece = jax.tree.map(lambda leaf: leaf[index], batches)
        own = piece._replace(categoricals=categoricals[index])
        return add(total, method.model, state.params, own, example_loss), also_seen(seen, piece)

    nothing = zero_sum(state.params), nothing_seen()
    one_piece = jnp.shape(batches.mask)[0] == 1
    summed, seen = add_piece(0, nothing) if one_piece else jax.lax.fori_loop(0, pieces, add_piece, nothing)
    if scales is not None:
        summed = summed._replace(gradients=jax.tree.map(jnp.multiply, summed.gradients, scales))
    return summed, seen


def noisy_update(
    method: Method,
    rule: UpdateRule,
    state: TrainState,
    summed: GradientSum,
    noise_key: jax.Array,
    hyper: Hyperparameters,
) -> TrainState:
    """Adds noise to a gradient sum and updates the parameters, and the clip norm if it adapts.

    The noise on each coordinate has standard deviation ``noise_multiplier * sensitivity * l2_clip_norm``. One
    example moves the clipped sum by at most ``sensitivity * l2_clip_norm``, so the accountant's noise
    multiplier is ``noise_multiplier``. Non-private methods draw no noise.

    Args:
        method: What is trained, and how.
        rule: The update rule.
        state: The state before the step, with what ``catch_up`` made of the update rule's state.
        summed: The sum over the whole batch.
        noise_key: The run's key.
        hyper: The run's numbers.

    Returns:
        The state after the step.
    """
    step_key = jax.random.fold_in(noise_key, state.step)
    expected_count = hyper.expected_batch_size / method.microbatch_size
    standard_deviation, l2_clip_norm = None, state.l2_clip_norm
    if method.private:
        deviation = hyper.noise_multiplier * hyper.sensitivity * state.l2_clip_norm
        # An infinite clip norm, for tests without clipping, times a multiplier of zero would be NaN.
        standard_deviation = jnp.where(hyper.noise_multiplier > 0, deviation, 0.0)
    if clip_factor(method.clipping).adaptive:
        l2_clip_norm = next_clip_norm(
            l2_clip_norm,
            summed.too_long,
            jax.random.fold_in(step_key, _COUNT_NOISE),
            count_noise_multiplier=hyper.count_noise_multiplier,
            expected_count=expected_count,
            quantile=hyper.clip_quantile,
        )
    scale = UpdateScale(
        noise_key=jax.random.fold_in(step_key, _GRADIENT_NOISE),
        standard_deviation=standard_deviation,
        expected_count=expected_count,
        learning_rate=cosine_decay(hyper.learning_rate, state.step, hyper.total_steps, hyper.warmup),
        weight_decay=hyper.weight_decay,
        iterate_weight=iterate_weight(method.averaging, state.step, hyper.total_steps, hyper.averaging_share),
    )
    update_state, params = rule.apply(state.update_state, state.params, summed.gradients, scale)
    return TrainState(state.step + 1, params, update_state, l2_clip_norm, state.not_finite)
