"""Pending noise: what SGD with momentum owes to a row of a table that no batch has read for a while.

A coordinate of a row has a velocity v and a weight w. Step k, with the rate η and the momentum m, does

    v ← m·v + g + z,    w ← w − η·v,    z ~ N(0, τ²),

where g is the coordinate's mean gradient and τ the deviation of the noise on it. Both η and τ may change from step to
step. The rule is linear in (v, w, g, z), so a row without gradients is Gaussian given its value before: while no batch
reads it, its noise need not be drawn. Over the steps of a gap it has

    v' = a·v + x,    w' = w − b·v + y,    (x, y) ~ N(0, V),

and the numbers a, b and V depend on the gap only: they are the same for every coordinate of every row that waited
over the same steps. One more step (η, τ) takes the gap's numbers to

    a ← m·a,                                   b ← b + η·a          (with the new a),
    x ← m·x + z,                               y ← y − η·x          (with the new x).

V is kept as its Cholesky factor, so that nothing cancels. With R = Var(x), K = −Cov(x, y), E = Var(y | x), and a step

    R' = m²·R + τ²,    K' = m·K + η·R',    Var(y') = Var(y) + 2η·m·K + η²·R'.

Var(y) = E + K²/R, so

    E' = Var(y') − K'²/R' = E + K²/R + 2η·m·K + η²·R' − (m·K + η·R')²/R' = E + K²/R − m²·K²/R'
       = E + K²·(R' − m²·R)/(R·R') = E + τ²·K²/(R·R').

All three only add numbers that are not negative. E, which is the small eigenvalue of V, therefore keeps its digits in
float32 however long the gap is; its sum is compensated (Kahan, 1965), for it has as many terms as the gap has steps. A
draw takes two standard normals p and q for a coordinate:

    x = √R·p,    y = −(K/√R)·p + √E·q.

At momentum 0 the velocity is not kept and a draw takes one: y has the variance K²/R + E, which is Σ η²·τ².

*Deferring.* The noise of the step that touched a row is independent of all that the row is then, so it waits with the
rest: the step adds g only, and the gap's noise begins with that step, its factors a and b one step later.

*Slots.* Rows that waited over the same steps share a slot. Slot 0 is for rows that were up to date when the history
began, slot j + 1 for rows that step j of the history touched. Each step advances all slots at once, as one vector. A
history has a fixed number of slots; before they run out all rows are brought up to date, and it begins again. So it
takes the same memory in a run of any length, and what is drawn has the same distribution.

Nesterov's momentum and decay of tables are linear too, but no optimiser here has them: ``decayed`` spares tables, and
``sgd`` is without Nesterov's. An optimiser that is not linear (Adam, Yogi, Adagrad) has no such numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike


class History(NamedTuple):
    """The numbers of all gaps that end before the next step, one element for each slot, float32.

    Attributes:
        taken: Number of steps since the history began, int32.
        decay: The factor a of the velocity.
        drift: The factor b: by how many velocities the weight moved.
        velocity_variance: R.
        covariance: K, the covariance of velocity and weight with the sign changed.
        weight_variance: E, the variance of the weight given the velocity.
        lost: The compensation of the sum E.
    """

    taken: jax.Array
    decay: jax.Array
    drift: jax.Array
    velocity_variance: jax.Array
    covariance: jax.Array
    weight_variance: jax.Array
    lost: jax.Array


class GapFactors(NamedTuple):
    """What brings rows up to date, in the notation of the module: a, b, √R, K/√R and √E."""

    decay: jax.Array
    drift: jax.Array
    velocity: jax.Array
    shared: jax.Array
    weight: jax.Array


def new_history(steps: int) -> History:
    """Returns the history of no steps, with room for ``steps``."""
    zeros = np.zeros(steps + 1, np.float32)
    # A buffer for each: the state is donated, and a buffer can be donated only once.
    return History(jnp.zeros((), jnp.int32), jnp.ones_like(zeros), *(jnp.array(zeros) for _ in range(5)))


def room(history: History) -> int:
    """Returns how many steps fit into a history."""
    return int(history.decay.shape[0]) - 1


def touched_slot(history: History) -> jax.Array:
    """Returns the slot of rows that the next step touches."""
    return history.taken + 1


def advanced(history: History, *, momentum: float, learning_rate: ArrayLike, deviation: ArrayLike) -> History:
    """Returns the history after one more step. It must have room for it.

    Args:
        history: The history before the step.
        momentum: The factor m of the velocity, in [0, 1).
        learning_rate: The step's rate η, not negative.
        deviation: The standard deviation τ of the noise on a coordinate of the mean gradient.
    """
    slots = jnp.arange(history.decay.shape[0], dtype=jnp.int32)
    # The rows that this step touches have its noise before them, and its gradient behind them.
    owes, waits = slots <= touched_slot(history), slots < touched_slot(history)
    m, rate = jnp.float32(momentum), jnp.asarray(learning_rate, jnp.float32)
    square = jnp.square(jnp.asarray(deviation, jnp.float32))
    decay = m * history.decay
    variance = m * m * history.velocity_variance + square
    # Rates near the end of a schedule are so small that K² would underflow, and the quotients do not.
    noisy = history.velocity_variance > 0
    before, after = (jnp.where(noisy, one, 1.0) for one in (history.velocity_variance, variance))
    added = jnp.where(noisy, (history.covariance / before) * (history.covariance / after) * square, 0.0) - history.lost
    total = history.weight_variance + added

    def where(slot: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(slot, new, old)

    return History(
        history.taken + 1,
        where(waits, decay, history.decay),
        where(waits, history.drift + rate * decay, history.drift),
        where(owes, variance, history.velocity_variance),
        where(owes, m * history.covariance + rate * variance, history.covariance),
        where(owes, total, history.weight_variance),
        where(owes, (total - history.weight_variance) - added, history.lost),
    )


def gap_factors(history: History, slots: jax.Array) -> GapFactors:
    """Returns the factors of rows in the given slots; each of the slots' shape."""
    root = jnp.sqrt(history.velocity_variance)
    shared = jnp.where(root > 0, history.covariance / jnp.where(root > 0, root, 1.0), 0.0)
    factors = GapFactors(history.decay, history.drift, root, shared, jnp.sqrt(history.weight_variance))
    return GapFactors(*(factor[slots] for factor in factors))
