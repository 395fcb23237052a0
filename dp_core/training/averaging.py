"""Iterate averaging: the released model is a mean of the iterates of a run, not the last one.

DP-SGD hides every iterate, not only the last: the guarantee covers the whole sequence of noisy sums, and all iterates
follow from them. So a mean of iterates is post-processing and costs no privacy. The noise of a single step moves the
last iterate fully, but a mean of k iterates only by its share; near the end of a run, where iterates differ by noise
more than by progress, the mean is closer to the optimum (Polyak and Juditsky, 1992; Ruppert, 1988). Shejwalkar et al.,
"Recycling Scraps: Improving Private Learning by Leveraging Checkpoints" (2210.01864), report gains for DP-SGD, on a
pCVR task among others.

Both kinds are one recursion, ``average ← average + w · (iterate − average)``. With T steps, the share f and the k-th
iterate θ_k, the one after step k of 1..T:

* *tail*: the mean of the last n = max(1, round(f·T)) iterates. w = 1 / max(1, k − (T − n)); up to iterate T − n + 1 the
  average is the iterate itself.
* *exponential*: weights that decay by β = 1 − 1/τ a step, with the time constant τ = max(1, f·T), normalised to a
  sum of 1 (the bias correction of Adam): w = (1 − β) / (1 − β^k).

The weight is a function of the step's number alone, so the state is the average and nothing else, and trials with
other shares share one compiled program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

# The configuration lists the names without waiting for JAX.
if TYPE_CHECKING:
    import jax
    from jax.typing import ArrayLike

    from dp_core.clipping.signals import Batch
    from dp_core.training.updates import UpdateRule, UpdateScale

AveragingName = Literal["none", "exponential", "tail"]
AVERAGING: tuple[AveragingName, ...] = get_args(AveragingName)


class Averaged(NamedTuple):
    """The state of an averaging rule.

    Attributes:
        inner: The state of the rule that takes the steps.
        average: The average so far, a tree like the parameters; before the first step, the initial parameters.
    """

    inner: Any
    average: Any


def iterate_weight(averaging: AveragingName, step: ArrayLike, total_steps: ArrayLike, share: ArrayLike) -> jax.Array:
    """Returns the weight w of the iterate after a step, as a float32 scalar. All arguments but the first may be traced.

    >>> [float(iterate_weight("tail", step, 8, 0.5)) for step in (0, 4, 5, 7)]
    [1.0, 1.0, 0.5, 0.25]

    Args:
        averaging: The kind of average; with "none", every iterate replaces the one before.
        step: The number of steps before this one.
        total_steps: The number of steps of the run, T.
        share: The share f of the run, in (0, 1].
    """
    import jax.numpy as jnp

    taken = jnp.asarray(step, jnp.float32) + 1
    length = jnp.maximum(jnp.asarray(share, jnp.float32) * jnp.asarray(total_steps, jnp.float32), 1.0)
    if averaging == "tail":
        before = jnp.asarray(total_steps, jnp.float32) - jnp.round(length)
        return 1 / jnp.maximum(taken - before, 1.0)
    if averaging == "exponential":
        # 1 - β^k by expm1: β is so near to 1 in a long run that float32 cannot tell its power from 1.
        kept = jnp.log1p(-1 / jnp.maximum(length, 1 + 1e-6))
        return jnp.minimum(1 / length / -jnp.expm1(taken * kept), 1.0)
    return jnp.ones((), jnp.float32)


def averaged(rule: UpdateRule) -> UpdateRule:
    """Returns a rule that takes the steps of another one, and releases the average of its iterates.

    Every step that updates the parameters enters the average, and gradients are computed at the last iterate. A step
    that is refused changes neither (``step.train_step``).

    Args:
        rule: The rule that takes the steps. Its iterates are averaged as it would release them, with nothing pending.
    """
    import jax
    import jax.numpy as jnp

    def catch_up(state: Averaged, params: Any, batches: Batch, noise_key: jax.Array) -> tuple[Averaged, Any]:
        inner, params = rule.catch_up(state.inner, params, batches, noise_key)
        return state._replace(inner=inner), params

    def apply(state: Averaged, params: Any, gradient_sum: Any, scale: UpdateScale) -> tuple[Averaged, Any]:
        inner, params = rule.apply(state.inner, params, gradient_sum, scale)
        weight = scale.iterate_weight

        def add(average: jax.Array, iterate: jax.Array) -> jax.Array:
            # At weight 1 the average is the iterate to the bit.
            return jnp.where(weight == 1, iterate, average + weight * (iterate - average))

        return Averaged(inner, jax.tree.map(add, state.average, rule.settle(inner, params))), params

    return rule._replace(
        # A copy: the state is donated to the next dispatch, and a buffer can be donated only once.
        init=lambda params: Averaged(rule.init(params), jax.tree.map(jnp.array, params)),
        catch_up=catch_up,
        apply=apply,
        settle=lambda state, params: state.average,
        scales=lambda state: rule.scales(state.inner),
    )
