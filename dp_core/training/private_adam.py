"""Adam for noisy gradients: a second moment without the noise's share, and scaling before the noise.

Plain Adam on noisy gradients divides by the root of v̂ = g² + φ², where φ = σC/B is the standard deviation of the noise
on a coordinate of the mean gradient. Where φ is larger than the gradient, all coordinates are divided by about φ, and
Adam is SGD with another learning rate (Tang, Shpilevskiy and Lécuyer, "DP-AdamBC: Your DP-Adam Is Actually DP-SGD
(Unless You Apply Bias Correction)", AAAI 2024). φ is public, and both variants use it. They see noisy sums only, so
they are post-processing; the factors that ``adam_scaled`` applies before clipping follow from earlier sums.

**adam_corrected** subtracts the noise's share from the bias-corrected second moment, v̂ − φ², with a floor. The paper's
floor is a constant to be tuned. Here it is the standard error of v̂ under noise alone, below which an estimate of g²
cannot be told from 0: φ²·√(2·Σwᵢ²), where wᵢ are the weights that the moving average gives to past squares. It follows
the scale of the gradients, is √2·φ² at the first step (where plain Adam's divisor is about φ) and falls to 0.03 φ².

**adam_scaled** multiplies every example's gradient by scales s, one for each coordinate, before it is clipped, and
divides the noisy sum by them: the coordinates with large gradients no longer use up the clip norm, and small ones get
less noise. This is *scale-then-privatise* (Ganesh, McMahan and Thakurta, "On Design Principles for Private Adaptive
Optimizers", 2507.01129) with scales that are refreshed every few steps (as the delayed preconditioners of Li et al.,
2023). Let ĝ² = max(v̂ − φ²/s², 0) estimate a coordinate's squared gradient, where φ/s is the noise that it had. Then

    s = φ / √(ĝ² + φ²)

is in (0, 1]: it is 1 where nothing but noise is seen, and about φ/|g| for coordinates that stand out of the noise. The
stability constant of the preconditioner is φ, and scaled gradients are never longer than the gradients themselves, so a
clip norm means much the same as without scales. The divided mean goes through Adam as it is. Until the first refresh
all scales are 1. The noise's share of v̂ is computed with the present scales, though older squares had other ones; this
concerns how well scales are chosen, not privacy.

Sensitivity: given the scales, one example adds c·(s ⊙ g) to the sum with ‖c·(s ⊙ g)‖ ≤ C, as without them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

FIRST_DECAY, SECOND_DECAY, STABILITY = 0.9, 0.999, 1e-8
# Steps between two refreshes of the scales. Public.
REFRESHED_EVERY = 20


class ScaledAdamState(NamedTuple):
    """The state of ``adam_scaled``: Adam's, and the scales that the next step's gradients are multiplied by."""

    updates: jax.Array
    mu: Any
    nu: Any
    scales: Any


def adam_corrected(momentum: float) -> optax.GradientTransformationExtraArgs:
    """Returns Adam with the noise's variance taken out of the second moment; without noise it is Adam."""
    adam = optax.scale_by_adam(FIRST_DECAY, SECOND_DECAY, STABILITY)

    def update(
        gradient: Any,
        state: optax.ScaleByAdamState,
        params: Any = None,
        *,
        noise_deviation: ArrayLike = 0.0,
        **others: Any,
    ) -> tuple[Any, optax.ScaleByAdamState]:
        # Optax moves the moments; its direction is not used.
        _, moved = adam.update(gradient, state, params)
        assert isinstance(moved, optax.ScaleByAdamState)
        count = moved.count.astype(jnp.result_type(float))
        variance = jnp.square(jnp.asarray(noise_deviation, jnp.result_type(float)))
        floor = variance * standard_error(count)

        def direction(mu: jax.Array, nu: jax.Array) -> jax.Array:
            mean, square = _unbiased(mu, FIRST_DECAY, count), _unbiased(nu, SECOND_DECAY, count)
            square = jnp.maximum(square - variance.astype(square.dtype), floor.astype(square.dtype))
            return -mean / (jnp.sqrt(square) + STABILITY)

        return jax.tree.map(direction, moved.mu, moved.nu), moved

    return optax.GradientTransformationExtraArgs(adam.init, update)


def standard_error(count: jax.Array) -> jax.Array:
    """Returns the standard error of Adam's bias-corrected second moment after ``count`` draws of N(0, 1).

    The squares have variance 2 and the weights wᵢ ∝ β^(t−i), so it is √(2·Σwᵢ²) with
    Σwᵢ² = (1 − β)/(1 + β) · (1 + β^t)/(1 − β^t).

    >>> [round(float(standard_error(jnp.float32(t))), 3) for t in (1, 100, 100_000)]
    [1.414, 0.141, 0.032]
    """
    gone = _forgotten(SECOND_DECAY, count)
    return jnp.sqrt(2 * (1 - SECOND_DECAY) / (1 + SECOND_DECAY) * (2 - gone) / gone)


def adam_scaled(momentum: float) -> optax.GradientTransformationExtraArgs:
    """Returns Adam that keeps the scales of scale-then-privatise; without noise the scales are 1 and it is Adam."""
    adam = optax.scale_by_adam(FIRST_DECAY, SECOND_DECAY, STABILITY)

    def init(params: Any) -> ScaledAdamState:
        return ScaledAdamState(
            jnp.zeros((), jnp.int32),
            jax.tree.map(jnp.zeros_like, params),
            jax.tree.map(jnp.zeros_like, params),
            jax.tree.map(jnp.ones_like, params),
        )

    def update(
        gradient: Any, state: ScaledAdamState, params: Any = None, *, noise_deviation: ArrayLike = 0.0, **others: Any
    ) -> tuple[Any, ScaledAdamState]:
        direction, moved = adam.update(gradient, optax.ScaleByAdamState(*state[:3]), params)
        assert isinstance(moved, optax.ScaleByAdamState)
        count = moved.count.astype(jnp.result_type(float))
        due = moved.count % REFRESHED_EVERY == 0

        def refreshed(nu: jax.Array, scale: jax.Array) -> jax.Array:
            variance = jnp.square(jnp.asarray(noise_deviation, nu.dtype))
            signal = jnp.maximum(_unbiased(nu, SECOND_DECAY, count) - variance / jnp.square(scale), 0.0)
            # In units of the noise, and 1 without noise.
            relative = jnp.where(variance > 0, signal / jnp.where(variance > 0, variance, 1.0), 0.0)
            return jnp.where(due, jax.lax.rsqrt(1 + relative), scale)

        scales = jax.tree.map(refreshed, moved.nu, state.scales)
        return jax.tree.map(jnp.negative, direction), ScaledAdamState(moved.count, moved.mu, moved.nu, scales)

    return optax.GradientTransformationExtraArgs(init, update)


def _unbiased(moment: jax.Array, decay: float, count: jax.Array) -> jax.Array:
    return moment / _forgotten(decay, count).astype(moment.dtype)


def _forgotten(decay: float, count: jax.Array) -> jax.Array:
    """Returns 1 − β^t, exact in float32 also where β^t is near 1."""
    return -jnp.expm1(count * math.log(decay))
