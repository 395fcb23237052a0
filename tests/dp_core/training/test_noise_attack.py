"""An attack on the support of the noise: it succeeds on ``jax.random.normal``, and fails on ours.

The attacker knows all examples but one, and sees one coordinate of the noisy sum of a step. The one example, if it took
part, adds a whole clip norm to that coordinate. The attacker claims that it did if the noisy sum is above the largest
value that is possible without it. If that ever happens and the claim is always right, no finite ε holds with a δ below
the probability of the event.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dp_core.accounting.epsilon import epsilon_bound
from dp_core.accounting.events import gaussian_event
from dp_core.accounting.noise_tails import NoiseTails
from dp_core.training import noise
from dp_core.training.generators import chacha_key
from dp_core.training.noise import add_gaussian, noise_support

# The noise of the run at ε = 10, and the end of the support of ``jax.random.normal``.
NOISE_MULTIPLIER, CLIP_NORM, OLD_END = 0.75, 8.0, 5.2202
RUNS = 2**20


def noisy_sums(key: jax.Array, contribution: float) -> np.ndarray:
    """Returns the coordinate's noisy sum in many runs of a step, through the code that training uses."""
    sums = {"kernel": jnp.full(RUNS, contribution, jnp.float32)}
    deviation = jnp.float32(NOISE_MULTIPLIER * CLIP_NORM)
    # A new function each time: JAX would reuse what it traced with the other noise.
    return np.asarray(jax.jit(lambda *given: add_gaussian(*given))(key, sums, deviation)["kernel"])


def claims(key: jax.Array, contribution: float) -> int:
    return int(np.sum(noisy_sums(key, contribution) > OLD_END * NOISE_MULTIPLIER * CLIP_NORM))


@pytest.fixture
def old_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "standard_normal", jax.random.normal)


@pytest.mark.usefixtures("old_noise")
def test_the_attack_succeeds_on_the_old_noise() -> None:
    """It never claims wrongly, for any key: 23 bits have only 2²³ values, and none of them is above the limit."""
    assert sum(claims(jax.random.key(seed), 0.0) for seed in range(4)) == 0
    expected = RUNS * stats.norm.sf(OLD_END - 1 / NOISE_MULTIPLIER)
    assert abs(claims(jax.random.key(0), CLIP_NORM) - expected) < 5 * math.sqrt(expected)
    # Every value that the old noise can have: uniform numbers in [−1 + 2⁻²⁴, 1) of 23 bits.
    uniform = np.nextafter(np.float32(-1), np.float32(0)) + 2 * np.arange(2**23 - 64, 2**23, dtype=np.float32) / 2**23
    assert math.sqrt(2) * float(jnp.max(jax.lax.erf_inv(jnp.asarray(uniform, jnp.float32)))) < OLD_END


def test_the_attack_fails_on_the_new_noise() -> None:
    """With this key the attacker claims wrongly: the event is possible without the example."""
    assert claims(jax.random.key(9), 0.0) > 0
    expected = RUNS * stats.norm.sf(OLD_END - 1 / NOISE_MULTIPLIER)
    for key in (jax.random.key(0), chacha_key(np.arange(8, dtype=np.uint32))):
        assert abs(claims(key, CLIP_NORM) - expected) < 5 * math.sqrt(expected)


def test_no_limit_gives_the_attacker_more_than_the_stated_delta() -> None:
    """For every limit that a claim could have, P(claim | with) ≤ e^ε·P(claim | without) + δ, for one step.

    The probabilities are those of a normal draw that ends at the support. Without the charge for the tails, the last
    limits would give more.
    """
    shift, support = 1 / NOISE_MULTIPLIER, noise_support()

    def above(limit: np.ndarray, centre: float) -> np.ndarray:
        tail: Callable[[np.ndarray], np.ndarray] = stats.norm.sf
        inside = tail(np.clip(limit - centre, -support, support)) - tail(np.float64(support))
        return inside / (1 - 2 * stats.norm.sf(support))

    limits = np.linspace(0, support + shift + 0.1, 20_001)
    charge = NoiseTails(coordinates=1, support=support, summands=1).participation_delta(shift)
    for delta in (1e-6, 1e-9, 1e-13):
        event = gaussian_event(noise_multiplier=NOISE_MULTIPLIER, releases=1)
        bound = epsilon_bound(event, delta).epsilon
        gained = above(limits, shift) - math.exp(bound) * above(limits, 0.0)
        assert gained.max() <= delta + charge
    assert above(np.array([support]), shift)[0] > 0.1 * charge
