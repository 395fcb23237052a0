"""One-pass clipped sums equal the oracle's, and adversarial examples cannot break the bound."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dp_core.clipping.layers import Dense
from dp_core.clipping.microbatches import make_microbatches
from dp_core.clipping.one_pass import GradientSum, add_clipped_gradients, add_gradients, zero_sum
from dp_core.clipping.signals import Batch
from dp_core.models.mlp import AdModel
from dp_core.models.spec import CategoricalFeature
from dp_core.training.losses import binary_cross_entropy
from tests.support.gradients import (
    QUICKLY,
    TASKS,
    assert_close_by_layer,
    clipped_sum,
    example_gradients,
    norm,
    oracle_sum,
)
from tests.support.models import make_batch, make_model, make_parameters, rows_of

pytestmark = pytest.mark.usefixtures("strict_types")

KINDS: tuple[str, ...] = ("mlp", "dcn_v2", "dlrm")
MICROBATCH_SIZES = (1, 4, 8)
CLIP_NORMS = (0.01, 1.0, 30.0, float("inf"))
# Relative excess over the clip norm that float32 rounding may cause.
ROUNDING = 1e-5


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("microbatch_size", MICROBATCH_SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_clipped_sum_equals_the_oracle(kind: str, microbatch_size: int, task: str) -> None:
    model = make_model(kind)
    batch = make_batch(model, 56, counts=task == "pconvs", microbatches=make_microbatches(microbatch_size))
    params = make_parameters(model, batch)
    ours = clipped_sum(model, microbatch_size=microbatch_size, as_training=True)
    theirs = oracle_sum(model, microbatch_size=microbatch_size)
    for l2_clip_norm in CLIP_NORMS:
        actual, expected = (function(params, batch, l2_clip_norm, task) for function in (ours, theirs))
        assert_close_by_layer(actual.gradients, expected.gradients)
        np.testing.assert_allclose(actual.loss, expected.loss, rtol=1e-5)
        assert (actual.too_long, actual.not_finite) == (expected.too_long, 0)


@pytest.mark.parametrize("microbatch_size", MICROBATCH_SIZES)
def test_automatic_clipping_equals_the_oracle(microbatch_size: int) -> None:
    model = make_model()
    batch = make_batch(model, 56, seed=1, microbatches=make_microbatches(microbatch_size))
    params = make_parameters(model, batch)
    options = {"microbatch_size": microbatch_size, "clipping": "automatic"}
    actual = clipped_sum(model, **options)(params, batch, 2.0)
    expected = oracle_sum(model, **options)(params, batch, 2.0)
    assert_close_by_layer(actual.gradients, expected.gradients)


# Sizes 1 and larger, one slot and several: shapes at which a broadcast in a rule could go wrong.
FEATURES = st.builds(
    CategoricalFeature, st.sampled_from([1, 2, 50]), st.sampled_from([1, 5]), st.sampled_from([1, 2, 7])
)


# No shrinking: every new shape compiles a program.
@settings(max_examples=10, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    kind=st.sampled_from(KINDS),
    features=st.lists(FEATURES, max_size=3),
    hidden_layers=st.lists(st.sampled_from([1, 3, 12]), max_size=2),
    rows=st.sampled_from([1, 7, 25, 60]),
    integers=st.integers(1, 4),
    microbatch_size=st.sampled_from(MICROBATCH_SIZES),
    l2_clip_norm=st.floats(0.01, 10),
    task=st.sampled_from(TASKS),
    seed=st.integers(0, 2**16),
)
def test_the_clipped_sum_equals_the_oracle_for_any_shape(
    kind: str,
    features: list[CategoricalFeature],
    hidden_layers: list[int],
    rows: int,
    integers: int,
    microbatch_size: int,
    l2_clip_norm: float,
    task: str,
    seed: int,
) -> None:
    model = make_model(kind, features, hidden_layers)
    microbatches = make_microbatches(microbatch_size)
    batch = make_batch(model, rows, integers=integers, seed=seed, counts=task == "pconvs", microbatches=microbatches)
    params = make_parameters(model, batch, seed)
    actual = clipped_sum(model, microbatch_size=microbatch_size)(params, batch, l2_clip_norm, task)
    theirs = oracle_sum(model, microbatch_size=microbatch_size)
    assert_close_by_layer(actual.gradients, theirs(params, batch, l2_clip_norm, task).gradients)


SCALES = 10.0 ** np.arange(0, 38, 2)


def examples_against(model: AdModel) -> Batch:
    """Adversarial rows with long gradients: enormous integers, and bags that repeat one token."""
    batch = make_batch(model, 6 * len(SCALES), seed=3)
    integers = (np.nan_to_num(batch.integers) * np.repeat(SCALES, 6)[:, None]).astype(np.float32)
    categoricals = np.array(batch.categoricals)
    categoricals[::2, 1:] = 7
    labels = np.tile(np.float32([0, 1, 1, 0, 1000, 1e20]), len(SCALES))
    return Batch(integers, categoricals, labels, np.ones(len(labels), np.float32))


@pytest.mark.parametrize("clipping", ["fixed", "automatic"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_example_adds_more_than_the_clip_norm(kind: str, clipping: str) -> None:
    """Unless it is counted as non-finite, in which case the sum is not used."""
    model = make_model(kind)
    examples = examples_against(model)
    params = make_parameters(model, examples)
    function = clipped_sum(model, clipping=clipping)
    within, refused = [], []
    for row in range(len(examples.mask)):
        for task in ("pctr", "pconvs"):
            summed = function(params, rows_of(examples, slice(row, row + 1)), 0.7, task)
            if not summed.not_finite:
                within.append(norm(summed.gradients))
            elif task == "pctr" and row % 6 < 5:
                refused.append(SCALES[row // 6])
    assert np.max(within) <= 0.7 * (1 + ROUNDING)
    # Most of these gradients are clipped, and only rows with enormous integers (or labels) are refused.
    assert np.mean(np.array(within) > 0.7 * 0.99) > 0.5
    assert np.min(refused) >= (1e4 if kind == "dcn_v2" else 1e12)


LINEAR = make_model(features=(), hidden_layers=())


def linear_parameters(inputs: int, bias: float) -> Any:
    """Parameters of a linear model that predicts ``bias`` for every input, so its output gradient is known."""
    return {"output": {"kernel": np.zeros((2 * inputs, 1), np.float32), "bias": np.float32([bias])}}


@pytest.mark.parametrize("l2_clip_norm", [1e-3, 1.0])
def test_a_tiny_output_gradient_of_an_enormous_input_is_clipped_or_refused(l2_clip_norm: float) -> None:
    """The square of the output gradient underflows in float32, but its product with the input can be large."""
    function = clipped_sum(LINEAR)
    refused = 0
    for exponent in range(38):
        batch = rows_of(make_batch(LINEAR, 1, integers=3), slice(0, 1))
        batch = batch._replace(integers=np.full((1, 3), 10.0**exponent, np.float32), labels=np.zeros(1, np.float32))
        for bias in np.linspace(-5, -100, 40):
            summed = function(linear_parameters(3, bias), batch, l2_clip_norm)
            refused += int(summed.not_finite)
            assert summed.not_finite or norm(summed.gradients) <= l2_clip_norm * (1 + ROUNDING)
            assert exponent >= 12 or not summed.not_finite
    assert refused > 0


def test_a_gradient_of_zero_adds_nothing() -> None:
    """The output gradient is exactly zero when the model is certain and right."""
    batch = make_batch(LINEAR, 4)._replace(labels=np.float32([1, 1, 1, 0]), mask=np.ones(4, np.float32))
    for clipping in ("fixed", "automatic"):
        function = clipped_sum(LINEAR, clipping=clipping)
        sure = function(linear_parameters(4, 200.0), batch._replace(mask=np.float32([1, 1, 1, 0])), 0.7)
        assert norm(sure.gradients) == 0
        assert (int(sure.too_long), int(sure.not_finite)) == (0, 0)
        wrong = function(linear_parameters(4, 200.0), batch, 0.7)
        assert 0.9 * 0.7 <= norm(wrong.gradients) <= 0.7 * (1 + ROUNDING)


@pytest.mark.parametrize("kind", KINDS)
def test_automatic_clipping_brings_every_long_gradient_to_the_clip_norm(kind: str) -> None:
    model = make_model(kind)
    batch = make_batch(model, 24, seed=2)
    params = make_parameters(model, batch)
    function = clipped_sum(model, clipping="automatic")
    lengths = np.linalg.norm(example_gradients(model, params, batch), axis=1)
    for row in np.flatnonzero(lengths > 0.1):
        example = rows_of(batch, slice(row, row + 1))
        assert 0.9 * 3.0 <= norm(function(params, example, 3.0).gradients) <= 3.0 * (1 + ROUNDING)


@pytest.mark.parametrize("how", ["label is NaN", "integer is infinite", "count is infinite"])
def test_an_example_that_is_not_a_number_is_counted(how: str) -> None:
    model = make_model()
    batch = make_batch(model, 24)
    params = make_parameters(model, batch)
    if how == "integer is infinite":
        batch.integers[5] = np.inf
    else:
        batch.labels[5] = np.nan if how == "label is NaN" else np.inf
    assert int(clipped_sum(model)(params, batch, 0.7, "pconvs").not_finite) == 1


def test_one_example_moves_the_sum_by_at_most_the_clip_norm() -> None:
    """The noise is scaled to this sensitivity. Includes huge and repeated inputs."""
    model = make_model()
    batch = make_batch(model, 24)
    params = make_parameters(model, batch)
    huge = batch._replace(integers=np.asarray(batch.integers) * np.float32(1e4))
    repeated = Batch(*(np.repeat(part[:1], 24, axis=0) for part in batch[:3]), np.ones(24, np.float32))
    function = clipped_sum(model)
    for examples in (batch, huge, repeated):
        with_all = function(params, examples, 0.7).gradients
        for example in range(0, 21, 5):
            mask = np.asarray(examples.mask).copy()
            mask[example] = 0
            without = function(params, examples._replace(mask=mask), 0.7).gradients
            # The sums are of order 10, so their difference carries a rounding error of that scale.
            assert norm(jax.tree.map(jnp.subtract, with_all, without)) <= 0.7 * (1 + 1e-4)


@pytest.mark.parametrize("padding", ["like examples", "not finite"])
@pytest.mark.parametrize("private", [True, False])
def test_padding_adds_nothing(private: bool, padding: str) -> None:
    model = make_model()
    batch = make_batch(model, 24)
    params = make_parameters(model, batch)
    kept = int(np.sum(batch.mask))
    short = rows_of(batch, slice(0, kept))
    if padding == "not finite":
        batch.integers[kept:] = np.inf
        batch.labels[kept:] = np.nan
    function = clipped_sum(model) if private else plain_sum(model)
    padded, alone = function(params, batch, 1.0), function(params, short, 1.0)
    assert_close_by_layer(padded.gradients, alone.gradients, 1e-6)
    np.testing.assert_allclose(padded.loss, alone.loss, rtol=1e-6)
    assert int(padded.not_finite) == 0


@functools.cache
def plain_sum(model: nn.Module) -> Any:
    def add(params: Any, batch: Batch, _: Any) -> GradientSum:
        return add_gradients(zero_sum(params), model, params, batch, binary_cross_entropy)

    return jax.jit(add, compiler_options=QUICKLY)


def test_without_a_bound_the_sum_is_the_plain_gradient() -> None:
    model = make_model()
    batch = make_batch(model, 24)
    params = make_parameters(model, batch)
    ghost, plain = clipped_sum(model)(params, batch, float("inf")), plain_sum(model)(params, batch, None)
    assert_close_by_layer(ghost.gradients, plain.gradients)
    np.testing.assert_allclose(ghost.loss, plain.loss, rtol=1e-6)


def test_sums_are_added_to_a_total() -> None:
    model = make_model()
    batch = make_batch(model, 24)
    params = make_parameters(model, batch)
    once = clipped_sum(model)(params, batch, 1.0)
    twice = clipped_sum(model)(params, batch, 1.0, total=once)
    assert_close_by_layer(twice.gradients, jax.tree.map(lambda leaf: 2 * leaf, once.gradients), 1e-6)
    assert (twice.loss, twice.too_long) == (2 * once.loss, 2 * once.too_long)
    assert int(once.too_long) > 0


class _WithForeignLayer(nn.Module):
    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        return Dense(1)(nn.LayerNorm(name="foreign")(jnp.nan_to_num(integers)))[:, 0]


def test_a_layer_without_a_rule_is_named() -> None:
    batch = make_batch(make_model(), 8)
    model = _WithForeignLayer()
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch.integers, batch.categoricals)["params"]
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    with pytest.raises(ValueError, match=r"foreign/.* no rule"):
        add_clipped_gradients(zero_sum(params), model, params, batch, binary_cross_entropy, l2_clip_norm=1.0)


class _CalledTwice(nn.Module):
    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        layer = Dense(integers.shape[1])
        return jnp.sum(layer(layer(jnp.nan_to_num(integers))), axis=-1)


def test_a_layer_that_is_called_twice_is_refused() -> None:
    """A rule sees one call only. The true norm would be larger, and the guarantee wrong."""
    batch = make_batch(make_model(), 8)
    model = _CalledTwice()
    params = {"Dense_0": {"kernel": jnp.eye(4), "bias": jnp.zeros(4)}}
    with pytest.raises(ValueError, match="called twice"):
        add_clipped_gradients(zero_sum(params), model, params, batch, binary_cross_entropy, l2_clip_norm=1.0)
