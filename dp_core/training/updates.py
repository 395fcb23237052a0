"""Update rules: from a sum of (clipped) gradients to new parameters.

A rule adds the noise, divides by the expected count and applies the optimiser. It decides which noise
is drawn, when, and for which rows. The dense rule draws all of it at every step. A lazy rule can leave
the rows of a large table alone until they are read again, and keep what is still to be drawn in its
state: ``catch_up`` draws for the rows that a batch is about to read, and ``settle`` for all rows before
a model is evaluated or released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax.typing import ArrayLike

from dp_core.clipping.signals import Batch
from dp_core.training.method import Method
from dp_core.training.noise import add_gaussian
from dp_core.training.optimizers import make_optimizer


class UpdateScale(NamedTuple):
    """The numbers of one step's update.

    Attributes:
        noise_key: A key that no other step uses.
        standard_deviation: Of the noise on each coordinate of the sum; None draws no noise at all.
        expected_count: Expected number of examples (or groups) in the sum. Public, unlike the actual one.
        learning_rate: The scheduled rate of this step.
    """

    noise_key: jax.Array
    standard_deviation: jax.Array | None
    expected_count: ArrayLike
    learning_rate: ArrayLike


class UpdateRule(NamedTuple):
    """How parameters follow a gradient sum. All functions are pure and can be traced.

    Attributes:
        init: ``params -> state``.
        catch_up: ``(state, params, batches) -> (state, params)``, called before the forward pass over a
            step's batches.
        apply: ``(state, params, gradient_sum, scale) -> (state, params)``.
        settle: ``(state, params) -> params`` with no noise pending.
    """

    init: Callable[[Any], Any]
    catch_up: Callable[[Any, Any, Batch], tuple[Any, Any]]
    apply: Callable[[Any, Any, Any, UpdateScale], tuple[Any, Any]]
    settle: Callable[[Any, Any], Any]


def make_update_rule(method: Method) -> UpdateRule:
    """Returns the update rule of a method.

    This is the only place that chooses a rule: the trainer and the speed measurements both use it.
    """
    return dense_update(make_optimizer(method.optimizer, momentum=method.momentum))


def dense_update(optimizer: optax.GradientTransformation) -> UpdateRule:
    """Returns the rule that adds noise to every coordinate at every step (Algorithm 1 of Abadi et al., 2016).

    Args:
        optimizer: An optimiser at learning rate 1; the rule scales its update by ``scale.learning_rate``.

    Returns:
        A rule with the optimiser's state and nothing pending between steps.
    """

    def apply(state: Any, params: Any, gradient_sum: Any, scale: UpdateScale) -> tuple[Any, Any]:
        if scale.standard_deviation is not None:
            gradient_sum = add_gaussian(scale.noise_key, gradient_sum, scale.standard_deviation)
        # Divided by the expected count, a public number. The actual count is private.
        mean_gradient = jax.tree.map(lambda leaf: leaf / scale.expected_count, gradient_sum)
        direction, state = optimizer.update(mean_gradient, state, params)
        return state, optax.apply_updates(params, jax.tree.map(lambda leaf: scale.learning_rate * leaf, direction))

    return UpdateRule(
        init=optimizer.init,
        catch_up=lambda state, params, batches: (state, params),
        apply=apply,
        settle=lambda state, params: params,
    )


def without_noise(rule: UpdateRule) -> UpdateRule:
    """Returns the same rule with no noise drawn, to measure what drawing it costs. It is not private."""

    def apply(state: Any, params: Any, gradient_sum: Any, scale: UpdateScale) -> tuple[Any, Any]:
        return rule.apply(state, params, gradient_sum, scale._replace(standard_deviation=None))

    return rule._replace(apply=apply)
