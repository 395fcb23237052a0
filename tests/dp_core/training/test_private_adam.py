"""Adam for noisy gradients: the noise's share of the second moment, and gradients that are scaled before clipping."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dp_core.clipping import oracle
from dp_core.clipping.layers import RULES
from dp_core.clipping.microbatches import Microbatches
from dp_core.clipping.one_pass import add_clipped_gradients, zero_sum
from dp_core.clipping.signals import backward, squared_norms
from dp_core.models.spec import CategoricalFeature
from dp_core.training.losses import binary_cross_entropy
from dp_core.training.method import Method
from dp_core.training.optimizers import SCALES, make_optimizer
from dp_core.training.private_adam import REFRESHED_EVERY, adam_corrected, adam_scaled
from dp_core.training.step import TrainState, sum_gradients
from tests.support.gradients import QUICKLY
from tests.support.models import make_batch, make_model, make_parameters

FEATURES = (CategoricalFeature(9, 3), CategoricalFeature(7, 2, slots=3))


def test_the_corrected_second_moment_is_that_of_the_gradient() -> None:
    """A constant gradient under noise ten times as large: the divisor is |g| to a tenth, not the noise."""
    noise, gradients = 0.1, jnp.array([0.01, 0.03, 0.1, 1.0])
    optimizer, rng = adam_corrected(0.0), np.random.default_rng(0)
    params = jnp.zeros((4, 500))
    update, state = jax.jit(optimizer.update), optimizer.init(params)
    for _ in range(4000):
        noisy = gradients[:, None] + jnp.asarray(noise * rng.standard_normal((4, 500), np.float32))
        direction, state = update(noisy, state, params, noise_deviation=noise)
    # The direction's mean over coordinates of one gradient: g / √max(g², floor), with the floor at 0.032 noise².
    found = -np.median(np.asarray(direction), axis=1)
    expected = np.minimum(1, np.asarray(gradients) / (0.0316**0.5 * noise))
    np.testing.assert_allclose(found, expected, atol=0.12)
    plain = np.asarray(gradients) / np.sqrt(np.asarray(gradients) ** 2 + noise**2)
    assert abs(found[1] - plain[1]) > 0.2


def test_scales_leave_noise_alone_and_shrink_what_stands_out_of_it() -> None:
    """After 2,000 steps of scale-then-privatise the scales are φ/√(g² + φ²), within 10 %."""
    noise, gradients = 0.1, jnp.array([0.0, 0.1, 1.0])
    optimizer, rng = adam_scaled(0.0), np.random.default_rng(1)
    params = jnp.zeros((3, 500))
    update, state = jax.jit(optimizer.update), optimizer.init(params)
    for number in range(2000):
        drawn = jnp.asarray(noise * rng.standard_normal((3, 500), np.float32)) / SCALES["adam_scaled"](state)
        _, state = update(gradients[:, None] + drawn, state, params, noise_deviation=noise)
        if number + 1 < REFRESHED_EVERY:
            np.testing.assert_array_equal(state.scales, 1.0)
    found = np.median(np.asarray(state.scales), axis=1)
    np.testing.assert_allclose(found, [1.0, 0.5**0.5, 0.1 / 1.01**0.5], rtol=0.1)
    assert np.all((state.scales > 0) & (state.scales <= 1))


@pytest.mark.parametrize("kind", ["mlp", "dcn_v2", "dlrm"])
def test_one_pass_clips_scaled_gradients_as_the_oracle_does(kind: str) -> None:
    """Bags with repeated tokens, layers with and without bias, and scales over four orders of magnitude."""
    model = make_model(kind, features=FEATURES, hidden_layers=(5,))
    batch = make_batch(model, 24)
    params = make_parameters(model, batch)
    rng = np.random.default_rng(2)
    scales = jax.tree.map(lambda leaf: (10 ** rng.uniform(-3, 1, leaf.shape)).astype(np.float32), params)

    def both(params: Any, scales: Any) -> Any:
        arguments = zero_sum(params), model, params, batch, binary_cross_entropy
        return tuple(
            add(*arguments, l2_clip_norm=0.3, scales=scales)
            for add in (add_clipped_gradients, oracle.add_clipped_gradients)
        )

    ours, expected = jax.jit(both, compiler_options=QUICKLY)(params, scales)
    assert 0 < int(ours.too_long) < 21
    for name in ("gradients", "too_long", "not_finite"):
        jax.tree.map(
            lambda left, right: np.testing.assert_allclose(left, right, rtol=2e-4, atol=1e-6),
            getattr(ours, name),
            getattr(expected, name),
        )


def test_every_rule_has_a_scaled_square_that_is_its_square_at_scale_one() -> None:
    model = make_model("dcn_v2", features=FEATURES, hidden_layers=(5,))
    batch = make_batch(model, 16)
    params = make_parameters(model, batch)
    signals, _ = backward(model, params, batch, binary_cross_entropy)
    assert {layer.rule for layer in signals.values()} <= set(RULES.values())
    np.testing.assert_allclose(
        squared_norms(signals, jax.tree.map(jnp.ones_like, params)), squared_norms(signals), rtol=1e-5
    )


def test_one_example_adds_at_most_the_clip_norm_to_the_scaled_sum() -> None:
    """Without scaling first, the sum times the scales would be up to 30 clip norms long."""
    model = make_model(features=FEATURES, hidden_layers=(5,))
    batch = make_batch(model, 8)
    params = jax.tree.map(jnp.asarray, make_parameters(model, batch))
    method = Method(model, "pctr", "adam_scaled", 0.0, private=True)
    rng = np.random.default_rng(3)
    scales = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(10, 30, leaf.shape), jnp.float32), params)
    none = jnp.zeros((), jnp.int32)
    state = TrainState(none, params, None, jnp.float32(0.05), none)
    total = jax.jit(
        lambda mask: (
            sum_gradients(
                method,
                state,
                jax.tree.map(lambda leaf: leaf[None], batch._replace(mask=mask)),
                jnp.int32(1),
                scales=scales,
            )[0].gradients
        ),
        compiler_options=QUICKLY,
    )
    for row in range(7):
        alone = total(np.eye(8, dtype=np.float32)[row])
        length = np.sqrt(sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(alone)))
        assert length == pytest.approx(0.05, rel=1e-4)


def test_microbatches_are_refused_by_name() -> None:
    model = make_model(features=FEATURES, hidden_layers=(5,))
    with pytest.raises(ValueError, match=r"adam_scaled scales each example's gradient .* microbatch_size 1, got 4"):
        Method(model, "pctr", "adam_scaled", 0.0, private=True, microbatch_size=4)
    batch = make_batch(model, 8)
    params = make_parameters(model, batch)
    with pytest.raises(ValueError, match="scales need a microbatch size of 1"):
        add_clipped_gradients(
            zero_sum(params),
            model,
            params,
            batch,
            binary_cross_entropy,
            l2_clip_norm=1.0,
            microbatches=Microbatches(4, 12),
            scales=params,
        )
    assert make_optimizer("adam_scaled", momentum=0.0)
