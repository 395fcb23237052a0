"""From a sum of gradients to new parameters: noise, division by the expected size, optimiser.

This is the seam that decides what noise is drawn, when, and for which rows. The dense rule draws it
all at every step. A rule that leaves the rows of a large table alone until they are read again keeps
in its state what is still to be drawn: ``catch_up`` brings the rows up to date that a batch is about
to read, and ``settle`` draws everything before a model is evaluated or released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax.typing import ArrayLike

from dp_core.noise import add_gaussian
from dp_core.signals import Batch


class UpdateScale(NamedTuple):
    """The numbers of one step's update. No noise at all is a standard deviation of None."""

    noise_key: jax.Array
    standard_deviation: jax.Array | None
    expected_count: ArrayLike
    learning_rate: ArrayLike


class UpdateRule(NamedTuple):
    """How parameters follow a gradient sum.

    init(params) -> state
    catch_up(state, params, batches) -> (state, params), before the forward pass over a step's batches
    apply(state, params, gradient_sum, scale) -> (state, params)
    settle(state, params) -> params with nothing pending
    """

    init: Callable[[Any], Any]
    catch_up: Callable[[Any, Any, Batch], tuple[Any, Any]]
    apply: Callable[[Any, Any, Any, UpdateScale], tuple[Any, Any]]
    settle: Callable[[Any, Any], Any]


def dense_update(optimizer: optax.GradientTransformation) -> UpdateRule:
    """Noise on every coordinate at every step, then ``optimizer``, which has a learning rate of 1."""

    def apply(state: Any, params: Any, gradient_sum: Any, scale: UpdateScale) -> tuple[Any, Any]:
        if scale.standard_deviation is not None:
            gradient_sum = add_gaussian(scale.noise_key, gradient_sum, scale.standard_deviation)
        # Divided by the expected count, a public number. The realised count is private.
        mean_gradient = jax.tree.map(lambda leaf: leaf / scale.expected_count, gradient_sum)
        direction, state = optimizer.update(mean_gradient, state, params)
        return state, optax.apply_updates(params, jax.tree.map(lambda leaf: scale.learning_rate * leaf, direction))

    return UpdateRule(
        init=optimizer.init,
        catch_up=lambda state, params, batches: (state, params),
        apply=apply,
        settle=lambda state, params: params,
    )
