"""The step oracle: its optimisers are Optax's, and its clipped sums those of materialised gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dp_core.audit.probe_batches import Examples, full, sparse, to_steps
from dp_core.audit.step_oracle import clipped_weights, per_example_gradients
from dp_core.clipping import oracle
from dp_core.clipping.layers import initial_parameters
from dp_core.clipping.microbatches import make_microbatches
from dp_core.clipping.one_pass import zero_sum
from dp_core.models.mlp import AdModel
from dp_core.models.spec import CategoricalFeature
from dp_core.training.losses import OBJECTIVES
from dp_core.training.method import Method
from dp_core.training.optimizers import OPTIMIZERS, ORACLES, make_optimizer
from dp_core.training.physical_batches import PhysicalShape

MODEL = AdModel((CategoricalFeature(9, 4),), (8,))


def test_every_optimiser_of_ours_has_an_oracle() -> None:
    assert set(ORACLES) == set(OPTIMIZERS)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ORACLES)
def test_the_oracle_of_an_optimiser_is_optax(name: str, momentum: float) -> None:
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        optimizer, own = optax.with_extra_args_support(make_optimizer(name, momentum=momentum)), ORACLES[name](momentum)
        params = rng.normal(size=200)
        state = optimizer.init(jnp.asarray(params))
        moments = np.tile(np.array(own.initial).reshape(-1, 1), (1, 200))
        noise = 1e-3
        for step in range(1, 26):
            gradient = rng.normal(size=200) * 10.0 ** rng.integers(-9, 2, 200)
            expected, state = optimizer.update(jnp.asarray(gradient), state, jnp.asarray(params), noise_deviation=noise)
            moments, direction = own.update(moments, gradient, params, step, noise)
            np.testing.assert_allclose(direction, np.asarray(expected), rtol=1e-6, atol=1e-12)
            params = params + 0.1 * direction
        arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(state) if leaf.ndim]
        np.testing.assert_allclose(moments.ravel(), np.concatenate([[], *arrays]), rtol=1e-9)


@pytest.mark.parametrize("clipping", ["fixed", "automatic"])
@pytest.mark.parametrize("microbatch_size", [1, 3])
@pytest.mark.parametrize("fill", [full, sparse])
def test_the_weighted_gradients_are_the_clipped_sum(fill: object, microbatch_size: int, clipping: str) -> None:
    rng = np.random.default_rng(2)
    examples = Examples(
        rng.normal(size=(5, 2)).astype(np.float32), rng.integers(0, 9, (5, 1)).astype(np.int32), np.ones(5, np.float32)
    )
    method = Method(MODEL, "pctr", "sgd", 0.0, True, clipping, microbatch_size)
    params = initial_parameters(MODEL, rng, examples.integers[:1], examples.categoricals[:1])
    shape = PhysicalShape(1, 24)
    rows = fill(shape, microbatch_size, 5, rng)  # type: ignore[operator]
    gradients = per_example_gradients(method, params, examples)
    clip_norm = 0.7 * float(np.median(np.linalg.norm(gradients, axis=1)))
    weights, too_long = clipped_weights(
        rows, gradients, l2_clip_norm=clip_norm, clipping=clipping, microbatch_size=microbatch_size
    )
    batch = jax.tree.map(lambda leaf: leaf[0, 0], to_steps(method, shape, 1, examples, [rows]).batches)
    expected = oracle.add_clipped_gradients(
        zero_sum(params),
        MODEL,
        params,
        batch,
        OBJECTIVES["pctr"].example_loss,
        l2_clip_norm=clip_norm,
        clipping=clipping,
        microbatches=make_microbatches(microbatch_size),
    )
    flat = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(expected.gradients)])
    np.testing.assert_allclose(weights @ gradients, flat, rtol=1e-4, atol=1e-5)
    assert too_long == int(expected.too_long)
