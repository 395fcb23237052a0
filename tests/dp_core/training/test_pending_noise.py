"""Pending noise: the numbers of a gap against sums in 64 bits over its steps, written out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dp_core.training.pending_noise import History, advanced, gap_factors, new_history, room, touched_slot

pytestmark = pytest.mark.usefixtures("strict_types")


def cosine(steps: int) -> np.ndarray:
    return 0.05 * (1 + np.cos(np.pi * np.arange(steps) / steps))


def history_of(rates: np.ndarray, deviations: np.ndarray, momentum: float) -> History:
    @jax.jit
    def run(rates: jax.Array, deviations: jax.Array) -> History:
        def one(index: jax.Array, history: History) -> History:
            return advanced(history, momentum=momentum, learning_rate=rates[index], deviation=deviations[index])

        return jax.lax.fori_loop(0, len(rates), one, new_history(len(rates)))

    return run(jnp.asarray(rates, jnp.float32), jnp.asarray(deviations, jnp.float32))


def by_sums(rates: np.ndarray, deviations: np.ndarray, momentum: float) -> tuple[float, ...]:
    """a, b, Var(x), Cov(x, y) and Var(y) of a gap: every step's noise is followed to the end by itself."""
    steps = len(rates)
    powers = momentum ** np.arange(steps + 1.0)
    # By how much a unit of step k's noise has moved the velocity and the weight at the end.
    on_velocity = powers[:steps][::-1]
    on_weight = np.zeros(steps)
    reach = 0.0
    for step in range(steps - 1, -1, -1):
        reach = rates[step] + momentum * reach
        on_weight[step] = -reach
    variances = deviations**2
    return (
        powers[steps],
        momentum * reach,
        float(np.sum(variances * on_velocity**2)),
        float(np.sum(variances * on_velocity * on_weight)),
        float(np.sum(variances * on_weight**2)),
    )


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_every_gap_has_the_moments_of_the_sums_over_its_steps(momentum: float, schedule: str) -> None:
    steps = 40
    rates = cosine(steps) if schedule == "cosine" else np.full(steps, 0.05)
    rates, deviations = (np.float32(part).astype(np.float64) for part in (rates, np.linspace(0.5, 2.0, steps)))
    history = history_of(rates, deviations, momentum)
    assert int(history.taken) == room(history) == steps
    assert int(touched_slot(history)) == steps + 1
    for slot in range(steps + 1):
        first = max(slot - 1, 0)
        decay, drift, _, _, _ = by_sums(rates[slot:], deviations[slot:], momentum)
        _, _, velocity, both, weight = by_sums(rates[first:], deviations[first:], momentum)
        found = gap_factors(history, jnp.int32(slot))
        np.testing.assert_allclose(found.decay, decay, rtol=1e-5, atol=1e-30)
        np.testing.assert_allclose(found.drift, drift, rtol=1e-5)
        np.testing.assert_allclose(found.velocity**2, velocity, rtol=1e-5)
        np.testing.assert_allclose(-found.velocity * found.shared, both, rtol=1e-5)
        np.testing.assert_allclose(found.shared**2 + found.weight**2, weight, rtol=1e-5)


def test_a_gap_of_one_step_has_one_noise() -> None:
    """Velocity and weight move together, so given one the other is known."""
    found = gap_factors(history_of(np.full(1, 0.1), np.full(1, 3.0), 0.9), jnp.arange(2, dtype=jnp.int32))
    np.testing.assert_array_equal(found.weight, 0)
    np.testing.assert_allclose(found.velocity, 3.0)
    np.testing.assert_allclose(found.shared, 0.3, rtol=1e-6)
    np.testing.assert_allclose(found.decay, [0.9, 1.0])
    np.testing.assert_allclose(found.drift, [0.09, 0.0], rtol=1e-6)


def test_slots_of_later_steps_owe_nothing() -> None:
    history = new_history(5)
    for _ in range(2):
        history = advanced(history, momentum=0.9, learning_rate=jnp.float32(0.1), deviation=jnp.float32(1.0))
    later = gap_factors(history, jnp.arange(3, 6, dtype=jnp.int32))
    np.testing.assert_array_equal(later.decay, 1)
    for name in ("drift", "velocity", "shared", "weight"):
        np.testing.assert_array_equal(getattr(later, name), 0)


def test_without_noise_nothing_is_owed() -> None:
    found = gap_factors(history_of(np.full(7, 0.1), np.zeros(7), 0.9), jnp.arange(8, dtype=jnp.int32))
    for name in ("velocity", "shared", "weight"):
        np.testing.assert_array_equal(getattr(found, name), 0)


@pytest.mark.parametrize("gap", [84_000, 100, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gaps_in_a_run_of_84_000_steps_keep_the_small_eigenvalue(momentum: float, gap: int) -> None:
    """The variance of the weight given the velocity, over the whole run and over its last steps, where the rate is a
    billionth of the first."""
    rates = np.float32(cosine(84_000)[-gap:])

    @jax.jit
    def run(history: History) -> History:
        def one(index: jax.Array, history: History) -> History:
            rate = jnp.asarray(rates)[index]
            return advanced(history, momentum=momentum, learning_rate=rate, deviation=jnp.float32(1e-4))

        return jax.lax.fori_loop(0, gap, one, history)

    # One slot is enough, that of rows that no step touches.
    found = jax.tree.map(np.float64, gap_factors(run(new_history(0)), jnp.int32(0)))
    _, _, velocity, both, weight = by_sums(np.float64(rates), np.full(gap, np.float64(np.float32(1e-4))), momentum)
    np.testing.assert_allclose(found.weight**2, weight - both**2 / velocity, rtol=3e-6)
    np.testing.assert_allclose(found.shared**2 + found.weight**2, weight, rtol=3e-6)
