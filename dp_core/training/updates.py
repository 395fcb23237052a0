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
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dp_core.training.averaging import averaged
from dp_core.training.method import Method
from dp_core.training.noise import add_gaussian
from dp_core.training.optimizers import SCALES, make_optimizer


class UpdateScale(NamedTuple):
    """The numbers of one step's update.

    Attributes:
        noise_key: A key that no other step uses.
        standard_deviation: Of the noise on each coordinate of the sum; None draws no noise at all.
        expected_count: Expected number of examples (or groups) in the sum. Public, unlike the actual one.
        learning_rate: The scheduled rate of this step.
        weight_decay: Share of a dense kernel that is taken away at a rate of 1.
        iterate_weight: The weight of this step's iterate in the average of iterates, if the method averages
            (``averaging.iterate_weight``).
    """

    noise_key: jax.Array
    standard_deviation: jax.Array | None
    expected_count: ArrayLike
    learning_rate: ArrayLike
    weight_decay: ArrayLike = 0.0
    iterate_weight: ArrayLike = 1.0


class UpdateRule(NamedTuple):
    """How parameters follow a gradient sum. All functions are pure and can be traced.

    Attributes:
        init: ``params -> state``.
        catch_up: ``(state, params, batches, noise_key) -> (caught, params)``, called before the forward pass over a
            step's batches: the state with what ``apply`` needs of the rows that they read, and the parameters to
            differentiate at. Those may have only these rows.
        apply: ``(caught, params, gradient_sum, scale) -> (state, params)``, with the parameters before ``catch_up``.
        settle: ``(state, params) -> params`` as they are released. With noise pending it raises ``NoisePending``.
        scales: ``state -> tree`` like the parameters, which each example's gradient is multiplied by before it is
            clipped, or None. The sum that ``apply`` takes is of such scaled gradients.
        tokens: ``(caught, categoricals) -> categoricals`` as rows of the parameters that ``catch_up`` returned.
        hold: ``params -> params`` as training holds them: tables whose rows may wait for noise have a type of their
            own.
        draw_pending: ``(state, params, noise_key) -> (state, params)``: draws all noise that is pending. The result has
            plain arrays, and ``hold`` makes of it what training goes on with.
    """

    init: Callable[[Any], Any]
    catch_up: Callable[..., tuple[Any, Any]]
    apply: Callable[[Any, Any, Any, UpdateScale], tuple[Any, Any]]
    settle: Callable[[Any, Any], Any]
    scales: Callable[[Any], Any] = lambda state: None
    tokens: Callable[[Any, Any], Any] = lambda caught, categoricals: categoricals
    hold: Callable[[Any], Any] = lambda params: params
    draw_pending: Callable[[Any, Any, jax.Array], tuple[Any, Any]] = lambda state, params, noise_key: (state, params)


def make_update_rule(method: Method) -> UpdateRule:
    """Returns the update rule of a method.

    This is the only place that chooses a rule: the trainer and the speed measurements both use it.
    """
    optimizer = make_optimizer(method.optimizer, momentum=method.momentum)
    rule = dense_update(optimizer, scales=SCALES.get(method.optimizer) if method.private else None)
    if method.private and method.bands > 1:
        from dp_core.training.correlated import with_correlated_noise

        rule = with_correlated_noise(rule, method.noise_coefficients)
    if method.lazy_tables:
        from dp_core.training.lazy_updates import with_lazy_tables

        return with_lazy_tables(rule, method)
    return rule if method.averaging == "none" else averaged(rule)


def dense_update(optimizer: optax.GradientTransformation, *, scales: Callable[[Any], Any] | None = None) -> UpdateRule:
    """Returns the rule that adds noise to every coordinate at every step (Algorithm 1 of Abadi et al., 2016).

    Args:
        optimizer: An optimiser at learning rate 1; the rule scales its update by ``scale.learning_rate``. It is given
            the standard deviation of the noise on the mean gradient as ``noise_deviation``, which most ignore.
        scales: The optimiser's ``optimizers.SCALES``, if gradients are scaled before they are clipped. The noise is
            added to the scaled sum, and the optimiser sees the mean divided by the scales again.

    Returns:
        A rule with the optimiser's state and nothing pending between steps.
    """

    optimizer = optax.with_extra_args_support(optimizer)

    def apply(state: Any, params: Any, gradient_sum: Any, scale: UpdateScale) -> tuple[Any, Any]:
        noise_deviation: ArrayLike = 0.0
        if scale.standard_deviation is not None:
            noise_deviation = scale.standard_deviation / scale.expected_count
            gradient_sum = add_gaussian(scale.noise_key, gradient_sum, scale.standard_deviation)
        # Divided by the expected count, a public number. The actual count is private.
        mean_gradient = jax.tree.map(lambda leaf: leaf / scale.expected_count, gradient_sum)
        if scales is not None:
            mean_gradient = jax.tree.map(jnp.divide, mean_gradient, scales(state))
        direction, state = optimizer.update(mean_gradient, state, params, noise_deviation=noise_deviation)
        direction = decayed(direction, params, scale.weight_decay)
        return state, optax.apply_updates(params, jax.tree.map(lambda leaf: scale.learning_rate * leaf, direction))

    return UpdateRule(
        init=optimizer.init,
        catch_up=lambda state, params, batches, noise_key=None: (state, params),
        apply=apply,
        settle=lambda state, params: params,
        scales=scales or (lambda state: None),
    )


def decayed(direction: Any, params: Any, weight_decay: ArrayLike) -> Any:
    """Returns an update's direction with decoupled weight decay (Loshchilov and Hutter, 2019): d − λ·θ.

    The kernels of dense layers decay. Biases do not, as usual. Neither do embedding tables: a row that no batch
    reads has no gradient to hold against the decay, and would forget at the pace of the schedule. The decay does not
    go through the optimiser's moments. It is a function of parameters that follow from noisy sums, so it is
    post-processing.

    Args:
        direction: The optimiser's update at learning rate 1.
        params: The parameters before the update.
        weight_decay: λ, traced; the update shrinks a kernel by the scheduled rate times λ.
    """

    def one(path: Any, step: jax.Array, value: jax.Array) -> jax.Array:
        return step - weight_decay * value if getattr(path[-1], "key", "") == "kernel" else step

    return jax.tree_util.tree_map_with_path(one, direction, params)


def without_noise(rule: UpdateRule) -> UpdateRule:
    """Returns the same rule with no noise drawn, to measure what drawing it costs. It is not private."""

    def apply(state: Any, params: Any, gradient_sum: Any, scale: UpdateScale) -> tuple[Any, Any]:
        return rule.apply(state, params, gradient_sum, scale._replace(standard_deviation=None))

    return rule._replace(apply=apply)
