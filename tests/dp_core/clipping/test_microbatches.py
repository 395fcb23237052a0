"""Groups are clipped by the norm of their mean gradient, even if their members nearly cancel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from scipy import stats

from dp_core.clipping import microbatches as microbatches_module
from dp_core.clipping.factors import clip_factor
from dp_core.clipping.microbatches import Microbatches, make_microbatches
from dp_core.clipping.signals import Batch, backward
from dp_core.training.losses import binary_cross_entropy
from tests.support.gradients import AS_TRAINING, clipped_sum, example_gradients, norm
from tests.support.models import make_batch, make_model, make_parameters, rows_of

pytestmark = pytest.mark.usefixtures("strict_types")

ROUNDING = 1e-5
LINEAR = make_model(features=(), hidden_layers=())
# Largest group for a nominal size of 4, which most tests use.
LARGEST = 12


@functools.cache
def group_norms(model: nn.Module, microbatches: Microbatches) -> Callable[..., np.ndarray]:
    """(params, batch) -> the norm of each row's group, compiled as training compiles it."""

    @functools.partial(jax.jit, compiler_options=AS_TRAINING)
    def norms(params: Any, batch: Batch) -> jax.Array:
        signals, _ = backward(model, params, batch, binary_cross_entropy)
        return microbatches_module.group_norms(signals, jax.numpy.asarray(batch.groups), microbatches)

    return lambda params, batch: np.asarray(norms(params, batch))


def true_group_norms(gradients: np.ndarray, batch: Batch, size: int) -> np.ndarray:
    """The norm of each row's group mean, in float64."""
    sums = np.zeros_like(gradients)
    np.add.at(sums, batch.groups, gradients)
    return np.linalg.norm(sums, axis=1)[batch.groups] / size


def with_groups(integers: np.ndarray, labels: np.ndarray, group_size: int) -> Batch:
    """Examples without tokens, in groups of equal size."""
    rows = np.arange(len(labels), dtype=np.int32)
    ones = np.ones(len(rows), np.float32)
    no_tokens = np.zeros((len(rows), 0), np.int32)
    return Batch(
        integers.astype(np.float32), no_tokens, labels.astype(np.float32), ones, rows // group_size * group_size
    )


def zero_parameters(inputs: int) -> Any:
    """Zeros for the linear model: every logit is 0, so an example's gradient is ±½ (x, 1)."""
    return {"output": {"kernel": np.zeros((2 * inputs, 1), np.float32), "bias": np.zeros(1, np.float32)}}


def test_sizes() -> None:
    assert make_microbatches(1) is None
    assert make_microbatches(4) == Microbatches(4, LARGEST)
    with pytest.raises(ValueError, match="microbatch_size must be at least 1, got 0"):
        make_microbatches(0)
    for size in (2, 4, 8, 100):
        microbatches = make_microbatches(size)
        assert microbatches is not None
        assert microbatches.size == size < microbatches.largest
        # One group in a thousand is larger; the next smaller multiple of four would not be enough.
        assert stats.poisson.sf(microbatches.largest, size) <= 1e-3 < stats.poisson.sf(microbatches.largest - 4, size)


def test_norms_do_not_depend_on_where_a_group_stands() -> None:
    """Groups of the largest size, before, after and across tile borders."""
    model, microbatches = make_model(), Microbatches(size=4, largest=8)
    norms = group_norms(model, microbatches)
    batch = make_batch(model, 35, seed=1)._replace(mask=np.ones(35, np.float32))
    params = make_parameters(model, batch)
    gradients = example_gradients(model, params, batch)
    for offset in range(8):
        groups = np.arange(35, dtype=np.int32)
        groups[offset:] -= (groups[offset:] - offset) % 8
        groups[:offset] = 0
        placed = batch._replace(groups=groups)
        np.testing.assert_allclose(norms(params, placed), true_group_norms(gradients, placed, 4), rtol=1e-4)


@pytest.mark.parametrize("group_size", [2, LARGEST])
@pytest.mark.parametrize("scale", [1.0, 1e8])
def test_a_group_whose_gradients_almost_cancel_adds_at_most_the_clip_norm(scale: float, group_size: int) -> None:
    """The sum of long, nearly opposite gradients can be smaller than their rounding errors."""
    model, microbatches = make_model(), make_microbatches(4)
    assert microbatches is not None
    norms = group_norms(model, microbatches)
    rng = np.random.default_rng(0)
    worst = 0.0
    for seed in range(10):
        batch = make_batch(model, 48, seed=seed)
        params = make_parameters(model, batch)
        # The members of a group are copies of one example, slightly perturbed, with alternating labels.
        groups = np.arange(48, dtype=np.int32) // group_size * group_size
        apart = 1 + 10.0 ** rng.uniform(-7, -1, (48, 1)) * rng.normal(size=(48, 1))
        batch = Batch(
            (scale * batch.integers[groups] * apart).astype(np.float32),
            batch.categoricals[groups],
            np.arange(48, dtype=np.float32) % 2,
            np.ones(48, np.float32),
            groups,
        )
        true = true_group_norms(example_gradients(model, params, batch), batch, 4)
        factors = np.asarray(clip_factor("fixed").traced(norms(params, batch), 1e-3), np.float64)
        worst = max(worst, float(np.max(true * factors)))
    assert 0.9 * 1e-3 < worst <= 1e-3 * (1 + ROUNDING)


@pytest.mark.parametrize("inputs", [4, 100, 600, 2000])
def test_wide_inputs_that_almost_cancel_add_at_most_the_clip_norm(inputs: int) -> None:
    """Equal inputs are the worst case: the rounding errors of their inner products all have the same sign."""
    microbatches = make_microbatches(4)
    assert microbatches is not None
    norms = group_norms(LINEAR, microbatches)
    rng = np.random.default_rng(0)
    function = clipped_sum(LINEAR, microbatch_size=4)
    worst = 0.0
    for _ in range(10):
        lengths = 10.0 ** rng.uniform(-1, 3, 64)
        apart = 1 + 10.0 ** rng.uniform(-3.5, -1.5, 64) * rng.choice([-1, 1], 64)
        values = np.stack([lengths, lengths * apart], axis=1).reshape(-1, 1)
        batch = with_groups(np.repeat(values, inputs, axis=1), np.tile([0, 1], 64), 2)
        gradients = (0.5 - np.asarray(batch.labels, np.float64))[:, None] * np.asarray(batch.integers, np.float64)
        true = true_group_norms(gradients, batch, 4)
        worst = max(worst, float(np.max(true / norms(zero_parameters(inputs), batch))))
        for first in range(0, 128, 16):
            alone = function(zero_parameters(inputs), rows_of(batch, slice(first, first + 2)), 1e-3)
            worst = max(worst, norm(alone.gradients) / 1e-3)
    assert worst <= 1 + ROUNDING


@pytest.mark.parametrize("group_size", [2, 6, LARGEST])
def test_rounding_of_the_sum_itself_stays_within_the_clip_norm(group_size: int) -> None:
    """The computed sum, not only the norm: members are scaled up in float32 before they cancel."""
    rng = np.random.default_rng(0)
    function = clipped_sum(LINEAR, microbatch_size=4)
    added = []
    for _ in range(300):
        direction = rng.normal(size=(1, 4)) * 10.0 ** rng.uniform(-1, 4)
        apart = 1 + 10.0 ** rng.uniform(-7, -2) * rng.normal(size=(group_size, 1))
        batch = with_groups(direction * apart, np.arange(group_size) % 2, group_size)
        added.append(norm(function(zero_parameters(4), batch, 1e-3).gradients) / 1e-3)
    assert 0.9 < np.max(added) <= 1 + ROUNDING


def test_gradients_that_cancel_exactly_add_nothing() -> None:
    batch = with_groups(np.full((8, 4), 1e6), np.tile([0, 1], 4), 2)
    for clipping in ("fixed", "automatic"):
        summed = clipped_sum(LINEAR, microbatch_size=4, clipping=clipping)(zero_parameters(4), batch, 1.0)
        assert norm(summed.gradients) <= 1e-6
        assert int(summed.not_finite) == 0


@pytest.mark.parametrize("clipping", ["fixed", "automatic"])
def test_no_group_adds_more_than_the_clip_norm(clipping: str) -> None:
    """With huge inputs and repeated tokens. Automatic clipping scales every long mean to the clip norm."""
    model, microbatches = make_model(), make_microbatches(4)
    function = clipped_sum(model, microbatch_size=4, clipping=clipping)
    added, lengths = [], []
    for seed, scale in enumerate((1, 1e2, 1e5, 1e9)):
        batch = make_batch(model, 48, seed=seed, microbatches=microbatches)
        params = make_parameters(model, batch)
        batch.integers[:] *= np.float32(scale)
        batch.categoricals[::2, 1:] = 7
        true = true_group_norms(example_gradients(model, params, batch), batch, 4)
        for first in np.unique(batch.groups[batch.mask > 0]):
            # All other rows are masked out, which keeps one shape for all groups.
            summed = function(params, batch._replace(mask=(batch.groups == first).astype(np.float32)), 0.7)
            assert int(summed.not_finite) == 0
            added.append(norm(summed.gradients))
            lengths.append(true[first])
    assert np.max(added) <= 0.7 * (1 + ROUNDING)
    long = np.array(lengths) > (0.1 if clipping == "automatic" else 0.7)
    assert np.min(np.array(added)[long]) >= 0.9 * 0.7
    assert np.sum(long) > 10


def test_a_group_with_one_example_that_is_not_a_number_is_counted() -> None:
    model = make_model()
    batch = make_batch(model, 48, microbatches=make_microbatches(4))
    params = make_parameters(model, batch)
    first = batch.groups[20]
    batch.labels[20] = np.nan
    summed = clipped_sum(model, microbatch_size=4)(params, batch, 0.7)
    assert int(summed.not_finite) == np.sum(batch.groups == first)


def without(batch: Batch, row: int) -> Batch:
    """The batch without one example, in the same shape: later rows move up."""
    groups = np.asarray(batch.groups)
    names = np.append(np.delete(groups, row), -1)
    first = np.searchsorted(names[:-1], names[:-1]).astype(np.int32)
    parts = [np.concatenate([np.delete(part, row, axis=0), part[-1:]]) for part in batch[:3]]
    mask = np.append(np.delete(batch.mask, row), np.float32(0))
    return Batch(*parts, mask, np.append(first, np.int32(len(groups) - 1)))


def test_one_example_moves_the_sum_by_at_most_twice_the_clip_norm() -> None:
    model = make_model()
    function = clipped_sum(model, microbatch_size=4)
    for seed in range(2):
        batch = make_batch(model, 48, seed=seed, microbatches=make_microbatches(4))
        params = make_parameters(model, batch)
        with_all = function(params, batch, 0.7).gradients
        for row in np.flatnonzero(batch.mask):
            moved = jax.tree.map(np.subtract, with_all, function(params, without(batch, row), 0.7).gradients)
            assert norm(moved) <= 2 * 0.7 * (1 + 1e-4)


def test_twice_the_clip_norm_is_needed() -> None:
    """An example that flips the sign of its group's mean moves the sum by almost two clip norms."""
    direction = np.random.default_rng(0).normal(size=(1, 4))
    batch = with_groups(np.concatenate([1e3 * direction, 1e4 * direction]), np.array([0, 1]), 2)
    function = clipped_sum(LINEAR, microbatch_size=4)
    both = function(zero_parameters(4), batch, 0.7).gradients
    one = function(zero_parameters(4), without(batch, 1), 0.7).gradients
    moved = norm(jax.tree.map(np.subtract, both, one))
    assert 1.9 * 0.7 < moved <= 2 * 0.7 * (1 + 1e-4)


def test_a_group_of_one_is_clipped_by_its_share_of_the_nominal_size() -> None:
    batch = with_groups(np.full((1, 4), 100.0), np.zeros(1), 1)
    summed = clipped_sum(LINEAR, microbatch_size=4)(zero_parameters(4), batch, 1e6)
    length = norm(summed.gradients)
    np.testing.assert_allclose(length, np.linalg.norm([50, 50, 50, 50, 0.5]) / 4, rtol=1e-5)
