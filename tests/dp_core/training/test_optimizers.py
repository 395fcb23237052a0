"""Optimisers at learning rate 1, their registry and the schedule."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dp_core.training.optimizers import OPTIMIZERS, cosine_decay, make_optimizer, register_optimizer

STEPS = 6
OURS = ("sgd", "yogi", "adagrad", "adam", "adamw", "adam_corrected", "adam_scaled")


@pytest.mark.parametrize("optimizer", OURS)
def test_a_scaled_update_equals_optaxs_schedule(optimizer: str) -> None:
    """An update at rate 1 times the scheduled rate is the update of Optax's optimiser with that schedule."""
    schedule = optax.cosine_decay_schedule(0.05, STEPS)
    reference = {
        "sgd": optax.sgd(schedule, momentum=0.9),
        "yogi": optax.yogi(schedule),
        "adagrad": optax.adagrad(schedule),
        "adam": optax.adam(schedule),
        "adamw": optax.adamw(schedule),
        # Without noise they are Adam.
        "adam_corrected": optax.adam(schedule),
        "adam_scaled": optax.adam(schedule),
    }[optimizer]
    ours = make_optimizer(optimizer, momentum=0.9)
    params = {"w": jnp.linspace(-1, 1, 7)}
    expected, actual = params, params
    reference_state, our_state = reference.init(params), ours.init(params)
    for step in range(STEPS):
        gradient = {"w": jnp.sin(jnp.arange(7, dtype=jnp.float32) + step)}
        update, reference_state = reference.update(gradient, reference_state, expected)
        expected = optax.apply_updates(expected, update)
        update, our_state = ours.update(gradient, our_state, actual)
        rate = cosine_decay(jnp.float32(0.05), jnp.float32(step), jnp.float32(STEPS))
        actual = optax.apply_updates(actual, jax.tree.map(lambda leaf, rate=rate: rate * leaf, update))
    np.testing.assert_allclose(actual["w"], expected["w"], rtol=1e-5, atol=1e-7)


def test_every_registered_optimizer_is_compared_with_optax() -> None:
    assert tuple(OPTIMIZERS) == OURS


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_the_schedule_is_optaxs(step: int) -> None:
    expected = optax.cosine_decay_schedule(0.05, STEPS)(step)
    assert float(cosine_decay(0.05, step, STEPS)) == pytest.approx(float(expected), abs=1e-8)


@pytest.fixture
def toy() -> Iterator[str]:
    """The name of an optimiser that is registered during one test."""
    register_optimizer("signs", lambda momentum: optax.sign_sgd(1.0))
    yield "signs"
    del OPTIMIZERS["signs"]


def test_an_optimizer_can_be_registered_from_outside(toy: str) -> None:
    optimizer = make_optimizer(toy, momentum=0.0)
    params = {"w": jnp.zeros(2)}
    update, _ = optimizer.update({"w": jnp.float32([-3.0, 0.5])}, optimizer.init(params), params)
    np.testing.assert_array_equal(update["w"], [1.0, -1.0])


@pytest.mark.parametrize(
    ("name", "words"), [("sgd", "'sgd' is registered already"), ("two words", "must be an identifier")]
)
def test_a_bad_registration_is_refused(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        register_optimizer(name, lambda momentum: optax.sgd(1.0))
    assert tuple(OPTIMIZERS) == OURS


def test_an_unknown_optimizer_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown optimizer 'sdg'; registered: sgd, yogi, adagrad, adam, adamw"):
        make_optimizer("sdg", momentum=0.9)


def test_names_are_listed_without_jax() -> None:
    program = "import sys; from dp_core.training.optimizers import OPTIMIZERS as o; print(*o, 'jax' in sys.modules)"
    listed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert listed.strip() == " ".join([*OURS, "False"])
