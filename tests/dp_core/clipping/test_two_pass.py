"""The paper's two-pass clipping and our one-pass clipping agree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from dp_core.clipping import one_pass as clipping
from dp_core.clipping import two_pass
from dp_core.clipping.one_pass import GradientSum, zero_sum
from dp_core.training.losses import binary_cross_entropy, poisson_log_loss
from tests.support.models import make_batch, make_model, make_parameters


@pytest.mark.usefixtures("strict_types")
@pytest.mark.parametrize(("kind", "counts"), [("mlp", False), ("dcn_v2", True), ("dlrm", False)])
def test_two_passes_equal_one(kind: str, counts: bool) -> None:
    model = make_model(kind)
    batch = make_batch(model, 48, counts=counts)
    params = make_parameters(model, batch)
    example_loss = poisson_log_loss if counts else binary_cross_entropy

    def add_twice(add: Callable[..., GradientSum]) -> GradientSum:
        # A clip norm in the middle of the gradient norms clips some examples and not others.
        add = partial(add, l2_clip_norm=np.float32(3.0))
        compiled = jax.jit(lambda total, params: add(total, model, params, batch, example_loss))
        return compiled(compiled(zero_sum(params), params), params)

    one, two = add_twice(clipping.add_clipped_gradients), add_twice(two_pass.add_clipped_gradients)
    assert 0 < int(one.too_long) < 2 * np.sum(batch.mask)
    assert (two.too_long, two.not_finite) == (one.too_long, one.not_finite)
    np.testing.assert_allclose(two.loss, one.loss, rtol=1e-6)
    expected = flatten_dict(one.gradients)
    for path, leaf in flatten_dict(two.gradients).items():
        difference = np.linalg.norm(leaf - expected[path])
        assert difference <= 1e-5 * np.linalg.norm(expected[path]), path


def test_a_gradient_that_is_not_finite_is_counted() -> None:
    model = make_model()
    batch = make_batch(model, 16)
    params = make_parameters(model, batch)
    batch.integers[3] = np.inf
    add = partial(two_pass.add_clipped_gradients, l2_clip_norm=np.float32(1.0))
    summed = jax.jit(lambda total: add(total, model, params, batch, binary_cross_entropy))(zero_sum(params))
    assert int(summed.not_finite) == 1
