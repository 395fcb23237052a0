"""Step oracle: the DP-SGD step written again, slowly and obviously, in NumPy and 64 bits.

It shares nothing with the compiled step but the registered oracles of the clip factor and the optimiser: per-example
gradients come from ``vmap`` of ``grad``, one example is clipped at a time, and all coordinates lie in one flat array.
The probe runs the same batches through both and compares parameters, average, optimiser state and clip norm.

A batch of the probe holds a few distinct examples in any number of rows. The clipped sum over a full batch is then a
weighted sum of a few gradients, and so is cheap.

The compiled step rounds to float32. The oracle carries an upper bound on what rounding can do to each coordinate of
the gradient, and follows it through the optimiser by running it at both ends of the interval.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dp_core.clipping.factors import clip_factor
from dp_core.training.losses import OBJECTIVES
from dp_core.training.method import Method
from dp_core.training.optimizers import ORACLES, OptimizerOracle, make_optimizer
from dp_core.training.physical_batches import PhysicalShape
from dp_core.training.step import Hyperparameters
from dp_core.training.witness import quick_compilation

# Rounding of a gradient in float32, relative to the sum of the absolute contributions to a coordinate. Sums over
# thousands of rows in any order, through several layers, stay far below it.
GRADIENT_ROUNDING = 3e-4
_LOGIT_ROUNDING, _CANCELLATION = 2e-7, 3e-6
# Rounding of the noise, and of the arithmetic of an optimiser, relative to the numbers themselves.
NOISE_ROUNDING, UPDATE_ROUNDING = 1e-5, 2e-4
# Rounding of draws near 0, in standard deviations.
SMALL_NOISE_ROUNDING = 1e-6
_FLOAT32 = 2.0**-23


class Fill(NamedTuple):
    """The rows of one step's batch.

    Attributes:
        examples: The number of the example in each row, or -1 for padding; shape (pieces, rows).
        groups: The index of the first row of each row's group; None without microbatches.
    """

    examples: np.ndarray
    groups: np.ndarray | None


class Compiled(NamedTuple):
    """Identifies a compiled program: a method's step in dispatches of a given shape.

    Attributes:
        method: The method that trained.
        shape: The physical batches of one step.
        steps: Number of steps in a dispatch.
    """

    method: Method
    shape: PhysicalShape
    steps: int


class Comparison(NamedTuple):
    """A run of the probe against the oracle.

    Attributes:
        run: "sparse", "full", "noise" or "whole".
        excess: Largest deviation of a coordinate of the parameters, the optimiser's state or the model that would be
            released, divided by what rounding explains. Above 1 the program is not the oracle.
        parameter: The parameter that it is in, or "what is released".
        scale: The program's movement as a multiple of the oracle's, by least squares.
        residual: What is left of the movement after scaling, relative to it.
        clip_norm: The clip norm after the run, as a multiple of the oracle's.
        steps: Number of steps.
        examples: Number of rows with examples, over all steps.
    """

    run: str
    excess: float
    parameter: str
    scale: float
    residual: float
    clip_norm: float
    steps: int
    examples: int


class OracleState(NamedTuple):
    """Parameters and moments at the lower end, the middle and the upper end of the rounding interval.

    Attributes:
        params: Shape (3, coordinates).
        average: The average of the iterates, which is what a method with averaging releases; shape (3, coordinates).
            Without averaging, the parameters.
        moments: Shape (3, moments, coordinates).
        l2_clip_norm: The clip norm of the next step.
        step: The number of the next step.
        updates: How many updates the optimiser has seen.
    """

    params: np.ndarray
    average: np.ndarray
    moments: np.ndarray
    l2_clip_norm: float
    step: int
    updates: int = 0


def rate_share(hyper: Hyperparameters, step: int) -> float:
    """Returns the scheduled rate of a step, relative to ``learning_rate``: a linear rise, then half a cosine to 0."""
    total = float(hyper.total_steps)
    rising = _rounded_share(hyper.warmup, hyper.total_steps)
    if step < rising:
        # The cosine begins after the rise.
        return (step + 1) / (rising + 1)
    return 0.5 * (1 + float(np.cos(np.pi * (step - rising) / max(total - rising, 1.0))))


def iterate_weight(method: Method, hyper: Hyperparameters, step: int) -> float:
    """Returns the weight of the iterate after a step in the average: that of the newest of all that it has seen."""
    total, share = float(hyper.total_steps), float(hyper.averaging_share)
    if method.averaging == "tail":
        seen = step + 1 - (total - max(_rounded_share(hyper.averaging_share, hyper.total_steps), 1.0))
        return 1 / max(seen, 1.0)
    if method.averaging == "exponential":
        kept = (1 - 1 / max(share * total, 1.0)) ** np.arange(step + 1)
        return float(1 / np.sum(kept))
    return 1.0


def _rounded_share(share: Any, total: Any) -> float:
    # The product is rounded to float32 first, as the program does: 0.1 of 25 steps is 2.5 there, and 2 after rounding.
    return float(np.round(np.float32(share) * np.float32(total)))


def per_example_gradients(method: Method, params: Any, examples: tuple[np.ndarray, ...]) -> np.ndarray:
    """Returns each example's gradient, float64 of shape (examples, coordinates)."""
    gradients = _gradients(method)(params, *examples)
    return np.concatenate(
        [np.asarray(leaf, np.float64).reshape(len(examples[-1]), -1) for leaf in jax.tree.leaves(gradients)], axis=1
    )


@functools.lru_cache(maxsize=32)
def _gradients(method: Method) -> Any:
    example_loss = OBJECTIVES[method.task].example_loss

    def loss(params: Any, integers: jax.Array, categoricals: jax.Array, label: jax.Array) -> jax.Array:
        logits: Any = method.model.apply({"params": params}, integers[None], categoricals[None])
        return example_loss(logits, label[None])[0]

    return jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0, 0)), compiler_options=quick_compilation())


def gradient_rounding(gradients: np.ndarray) -> np.ndarray:
    """Returns a bound on the rounding of each coordinate of each example's gradient; of the shape of ``gradients``.

    Relative to the coordinate, and to the example's largest one: a coordinate is a sum of terms that may cancel.
    Relative also to the longest gradient: a gradient is the derivative of the loss by the logit times that of the logit
    by the parameters. The first is a difference such as p - y, rounded to about 1e-7 however small it is, so the
    gradient of an example that the model predicts well is known to fewer digits.
    """
    sizes = np.abs(gradients)
    norms = np.sqrt(np.sum(sizes.astype(np.float64) ** 2, axis=1, keepdims=True))
    longest = float(np.max(norms, initial=0.0, where=np.isfinite(norms)))
    relative = GRADIENT_ROUNDING + _LOGIT_ROUNDING * longest / np.maximum(norms, 1e-30)
    return relative * sizes + _CANCELLATION * np.max(sizes, axis=1, keepdims=True)


def clipped_weights(
    fill: Fill, gradients: np.ndarray, *, l2_clip_norm: float, clipping: str, microbatch_size: int
) -> tuple[np.ndarray, int]:
    """Returns the weight of each example's gradient in the clipped sum, and how many units are longer than C.

    Args:
        fill: The batch.
        gradients: Each distinct example's gradient, of shape (examples, coordinates).
        l2_clip_norm: The clip norm C.
        clipping: The name of the clip factor, whose oracle is used.
        microbatch_size: The nominal size of a group, 1 for none.
    """
    inner_products = gradients @ gradients.T
    counts = _units(fill, len(gradients))
    norms = np.sqrt(np.maximum(np.sum((counts @ inner_products) * counts, axis=1), 0.0)) / microbatch_size
    factors = clip_factor(clipping).oracle(norms, l2_clip_norm)
    return factors @ counts / microbatch_size, int(np.sum(norms > l2_clip_norm))


def _units(fill: Fill, examples: int) -> np.ndarray:
    """Returns how often each example is in each clipping unit, of shape (units, examples)."""
    pieces, rows = np.nonzero(fill.examples >= 0)
    first = rows if fill.groups is None else fill.groups[pieces, rows]
    _, unit = np.unique(pieces * fill.examples.shape[1] + first, return_inverse=True)
    counts = np.zeros((unit.max(initial=-1) + 1, examples))
    np.add.at(counts, (unit, fill.examples[pieces, rows]), 1)
    return counts


def optimizer_oracle(method: Method, params: Any) -> OptimizerOracle:
    """Returns the optimiser's registered oracle, or the optimiser itself in 64 bits if there is none."""
    if method.optimizer in ORACLES:
        return ORACLES[method.optimizer](method.momentum)
    return _itself(method, params)


def _itself(method: Method, like: Any) -> OptimizerOracle:
    """Wraps the optimiser. Its moments are all gradients so far, which it is given again at every step."""
    optimizer = optax.with_extra_args_support(make_optimizer(method.optimizer, momentum=method.momentum))
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def tree(flat: np.ndarray) -> Any:
        parts = np.split(flat, ends)
        return jax.tree.unflatten(
            structure, [jnp.asarray(part.reshape(leaf.shape)) for part, leaf in zip(parts, leaves, strict=True)]
        )

    def update(
        moments: np.ndarray, gradient: np.ndarray, params: np.ndarray, step: int, noise_deviation: float
    ) -> tuple[np.ndarray, np.ndarray]:
        moments = np.concatenate([moments, gradient[None]])
        with jax.enable_x64(True):
            state: Any = optimizer.init(tree(params))
            for past in moments:
                direction, state = optimizer.update(tree(past), state, tree(params), noise_deviation=noise_deviation)
            return moments, np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(direction)])

    return OptimizerOracle((), update)


class OracleStep(NamedTuple):
    """The numbers of one step of the oracle.

    Attributes:
        clipped_sum: The gradients times their clip factors, of shape (coordinates,). The factors are those of the
            scaled gradients, the gradients themselves are not scaled.
        rounding: Upper bound on the rounding error of each coordinate of the sum.
        noise: The noise that is added to the sum of scaled gradients.
        noise_deviation: The standard deviation of the noise on the mean.
        scales: What each coordinate is multiplied by before clipping and divided by after the noise.
        expected_count: What the noisy sum is divided by.
        learning_rate: The scheduled rate of this step.
        next_clip_norm: The clip norm of the next step.
        weight_decay: By how much each coordinate decays at a rate of 1.
        iterate_weight: The weight of this step's iterate in the average.
    """

    clipped_sum: np.ndarray
    rounding: np.ndarray
    noise: np.ndarray
    noise_deviation: float
    scales: np.ndarray
    expected_count: float
    learning_rate: float
    next_clip_norm: float
    weight_decay: np.ndarray
    iterate_weight: float


def mean_gradient(step: OracleStep) -> np.ndarray:
    """Returns (s · clipped sum + noise) / s / expected count, which the optimiser sees."""
    return (step.clipped_sum + step.noise / step.scales) / step.expected_count


def take_step(optimizer: OptimizerOracle, state: OracleState, step: OracleStep) -> OracleState:
    """Returns the state after (clipped sum + noise) / expected count went through the optimiser."""
    # Draws near 0 have an error of about 1e-7 standard deviations, which depends on how the program was compiled.
    scale = float(np.sqrt(np.mean(step.noise**2)))
    error = step.rounding + (NOISE_ROUNDING * np.abs(step.noise) + SMALL_NOISE_ROUNDING * scale) / step.scales
    params, averages, moments = [], [], []
    for sign, own_params, average, own_moments in zip(
        (-1, 0, 1), state.params, state.average, state.moments, strict=True
    ):
        gradient = mean_gradient(step) + sign * error / step.expected_count
        own_moments, direction = optimizer.update(
            own_moments, gradient, own_params, state.updates + 1, step.noise_deviation
        )
        iterate = own_params + step.learning_rate * (direction - step.weight_decay * own_params)
        params.append(iterate)
        averages.append((1 - step.iterate_weight) * average + step.iterate_weight * iterate)
        moments.append(own_moments)
    return OracleState(
        np.stack(params),
        np.stack(averages),
        np.stack(moments),
        step.next_clip_norm,
        state.step + 1,
        state.updates + 1,
    )


def excess(found: np.ndarray, expected: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Returns the deviation of each coordinate from the oracle's, divided by what rounding explains.

    Args:
        found: The compiled step's numbers.
        expected: The oracle's at the lower end, in the middle and at the upper end; shape (3, coordinates).
        moved: The length of the way that each coordinate moved, which bounds the rounding of the updates.
    """
    low, middle, high = expected
    allowed = np.abs(high - middle) + np.abs(low - middle) + UPDATE_ROUNDING * moved
    allowed += 8 * _FLOAT32 * np.maximum(np.abs(middle), moved) + 1e-30
    deviation = np.abs(found - middle)
    return np.where(np.isfinite(deviation), deviation / allowed, np.inf)
