"""The DP-SGD step: plain SGD without clipping and noise, and the stated mechanism with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dp_core.clipping.microbatches import make_microbatches
from dp_core.clipping.signals import Batch
from dp_core.models.spec import CategoricalFeature
from dp_core.training.method import Method
from dp_core.training.optimizers import OPTIMIZERS
from dp_core.training.step import Hyperparameters, Steps, Trainer, TrainState, as_traced, make_trainer, sum_gradients
from tests.support.gradients import QUICKLY, example_gradients, oracle_sum
from tests.support.models import make_batch, make_model, make_parameters, rows_of

STEPS = 6
MODEL = make_model(features=(CategoricalFeature(7, 2, slots=2),), hidden_layers=(4,))
METHOD = Method(MODEL, task="pctr", optimizer="sgd", momentum=0.9, private=True)


def as_steps(steps: Sequence[Sequence[Batch]], *, pieces: Sequence[int] = (), active: int | None = None) -> Steps:
    """A dispatch of steps, given the physical batches of each."""
    flat = [batch for batches in steps for batch in batches]
    shape = len(steps), len(steps[0])
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves).reshape(*shape, *leaves[0].shape), *flat)
    filled = np.array(pieces or [shape[1]] * shape[0], np.int32)
    return Steps(stacked, filled, np.int32(shape[0] if active is None else active))


_PROGRAMS: dict[Any, Any] = {}


def run(
    trainer: Trainer, state: TrainState, steps: Steps, hyper: Hyperparameters, key: int = 9
) -> tuple[TrainState, np.ndarray]:
    """``trainer.run``, compiled without optimisations."""
    arguments = state, steps, jax.random.key(key), as_traced(hyper)
    name = trainer, steps.batches.mask.shape
    if name not in _PROGRAMS:
        lowered = trainer.run.lower(*arguments)  # type: ignore[attr-defined]
        _PROGRAMS[name] = lowered.compile(compiler_options=QUICKLY)
    state, reports = _PROGRAMS[name](*arguments)
    return state, np.asarray(reports.loss)


def start(trainer: Trainer, params: Any, hyper: Hyperparameters) -> TrainState:
    return trainer.init(params, as_traced(hyper))


def flat(params: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(params)])


def assert_same(left: Any, right: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_a_run_that_says_nothing_about_privacy_neither_clips_nor_adds_noise() -> None:
    hyper = Hyperparameters(0.1, 10, 5)
    assert hyper == Hyperparameters(0.1, 10, 5, float("inf"), 0.0, 1.0, 0.0, 0.5)


@pytest.mark.parametrize(("optimizer", "task"), [*((name, "pctr") for name in OPTIMIZERS), ("sgd", "pconvs")])
def test_no_bound_and_no_noise_is_non_private_training(optimizer: str, task: str) -> None:
    batches = [make_batch(MODEL, 32, seed=seed, counts=task == "pconvs") for seed in range(STEPS)]
    params = make_parameters(MODEL, batches[0])
    hyper = Hyperparameters(learning_rate=0.05, total_steps=STEPS, expected_batch_size=28)
    released, losses = [], []
    for private in (True, False):
        trainer = make_trainer(Method(MODEL, task, optimizer, 0.9, private))
        state, loss = run(trainer, start(trainer, params, hyper), as_steps([[batch] for batch in batches]), hyper)
        released.append(trainer.release(state))
        losses.append(loss)
    for left, right in zip(*map(jax.tree.leaves, released), strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert not np.allclose(flat(released[0]), flat(params), atol=1e-3)


@pytest.mark.usefixtures("strict_types")
@pytest.mark.parametrize(("microbatch_size", "sensitivity"), [(1, 1.0), (4, 2.0)])
def test_one_private_step_is_the_noised_clipped_sum_over_the_expected_count(
    microbatch_size: int, sensitivity: float
) -> None:
    """Many steps from one state: their mean is the oracle's clipped sum divided by the *expected* number of
    examples or groups, and their deviation is σ · C · sensitivity divided by that number.
    Five standard errors in a hundred coordinates; about one seed in 10⁴ fails (fixed here)."""
    microbatches = make_microbatches(microbatch_size)
    batch = make_batch(MODEL, 16, microbatches=microbatches)
    params = make_parameters(MODEL, batch)
    hyper = Hyperparameters(
        learning_rate=1.0,
        total_steps=10**6,
        expected_batch_size=50,
        l2_clip_norm=0.5,
        noise_multiplier=3.0,
        sensitivity=sensitivity,
    )
    trainer = make_trainer(dataclasses.replace(METHOD, microbatch_size=microbatch_size))
    steps = as_steps([[batch]])
    draws, repeats, count = [], 300, 50 / microbatch_size
    for seed in range(repeats):
        state, _ = run(trainer, start(trainer, params, hyper), steps, hyper, key=seed)
        draws.append((flat(params) - flat(state.params)) * count)
    summed = oracle_sum(MODEL, microbatch_size=microbatch_size)(params, batch, 0.5)
    deviation = 3.0 * 0.5 * sensitivity
    errors = (np.mean(draws, axis=0) - flat(summed.gradients)) / (deviation / repeats**0.5)
    assert np.abs(errors).max() < 5
    spread = np.std(np.asarray(draws) - flat(summed.gradients)) / deviation
    assert abs(spread - 1) < 5 / (2 * np.size(draws)) ** 0.5 + 1e-3


@pytest.mark.usefixtures("strict_types")
def test_noise_differs_from_step_to_step_and_follows_the_key() -> None:
    """Without examples or momentum, and at a constant rate, a step consists of its noise."""
    batch = make_batch(MODEL, 16)
    params = make_parameters(MODEL, batch)
    nothing = as_steps([[batch._replace(mask=np.zeros(16, np.float32))]])
    hyper = Hyperparameters(0.1, 10**6, 16, l2_clip_norm=1.0, noise_multiplier=1.0)
    trainer = make_trainer(dataclasses.replace(METHOD, momentum=0.0))

    def moves(key: int) -> list[np.ndarray]:
        state, seen = start(trainer, params, hyper), []
        for _ in range(3):
            before = flat(state.params)
            state, losses = run(trainer, state, nothing, hyper, key)
            assert losses.tolist() == [0.0]
            seen.append(flat(state.params) - before)
        return seen

    first, again, other = moves(0), moves(0), moves(1)
    np.testing.assert_array_equal(first, again)
    # The noise has deviation 0.1/16; few coordinates of two draws agree to a thousandth of that.
    for left, right in ((first[0], first[1]), (first[1], first[2]), (first[0], other[0]), (first[1], other[0])):
        assert np.mean(np.abs(left - right) > 1e-3 * 0.1 / 16) > 0.95


# The tests below share one dispatch: three steps of up to three physical batches.
HYPER = Hyperparameters(
    0.3,
    20,
    20,
    l2_clip_norm=0.5,
    noise_multiplier=0.5,
    sensitivity=2.0,
    count_noise_multiplier=0.5,
    clip_quantile=0.4,
)


def adaptive(microbatch_size: int) -> tuple[Trainer, Any, list[list[Batch]]]:
    """A trainer with an adaptive clip norm and momentum, its parameters and its batches."""
    trainer = make_trainer(dataclasses.replace(METHOD, clipping="adaptive", microbatch_size=microbatch_size))
    microbatches = make_microbatches(microbatch_size)
    steps = [[make_batch(MODEL, 8, seed=3 * i + j, microbatches=microbatches) for j in range(3)] for i in range(3)]
    return trainer, make_parameters(MODEL, steps[0][0]), steps


def joined(batches: Sequence[Batch]) -> Batch:
    """Concatenates physical batches; padding stays in place."""
    parts = [np.concatenate(part) for part in zip(*(batch[:4] for batch in batches), strict=True)]
    if batches[0].groups is None:
        return Batch(*parts)
    groups = np.concatenate([batch.groups + 8 * number for number, batch in enumerate(batches)])
    return Batch(*parts, groups.astype(np.int32))


@pytest.mark.usefixtures("strict_types")
@pytest.mark.parametrize("microbatch_size", [1, 4])
def test_physical_batches_are_the_batch_at_once(microbatch_size: int) -> None:
    trainer, params, steps = adaptive(microbatch_size)
    cut, losses = run(trainer, start(trainer, params, HYPER), as_steps(steps), HYPER)
    at_once = as_steps([[joined(batches)] for batches in steps])
    whole, expected = run(trainer, start(trainer, params, HYPER), at_once, HYPER)
    np.testing.assert_allclose(flat(cut.params), flat(whole.params), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(flat(cut.update_state), flat(whole.update_state), rtol=1e-6, atol=1e-6)
    assert (cut.step, cut.l2_clip_norm, cut.not_finite) == (whole.step, whole.l2_clip_norm, 0)
    assert int(cut.step) == 3
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.usefixtures("strict_types")
def test_physical_batches_may_have_a_single_row() -> None:
    _, params, steps = adaptive(1)
    state = start(make_trainer(METHOD), params, HYPER)
    rows = [rows_of(steps[0][0], slice(row, row + 1)) for row in range(3)]
    cut, _ = sum_gradients(METHOD, state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows), jnp.int32(3))
    whole = jax.tree.map(lambda leaf: leaf[None], rows_of(steps[0][0], slice(0, 3)))
    expected, _ = sum_gradients(METHOD, state, whole, jnp.int32(1))
    np.testing.assert_allclose(flat(cut.gradients), flat(expected.gradients), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("strict_types")
def test_steps_of_one_dispatch_are_the_same_one_at_a_time() -> None:
    trainer, params, steps = adaptive(1)
    at_once, losses = run(trainer, start(trainer, params, HYPER), as_steps(steps), HYPER)
    state, seen = start(trainer, params, HYPER), []
    for first in range(3):
        state, loss = run(trainer, state, as_steps(steps[first:] + steps[:first], active=1), HYPER)
        seen.append(loss[0])
    assert_same(state, at_once)
    np.testing.assert_array_equal(seen, losses)


@pytest.mark.usefixtures("strict_types")
def test_only_the_first_pieces_and_the_active_steps_are_used() -> None:
    trainer, params, steps = adaptive(1)
    expected, _ = run(trainer, start(trainer, params, HYPER), as_steps(steps, pieces=(2, 1, 3), active=2), HYPER)
    nothing = steps[0][0]._replace(labels=np.full(8, np.nan, np.float32))
    others = [[*steps[0][:2], nothing], [steps[1][0], nothing, nothing], [nothing] * 3]
    actual, losses = run(trainer, start(trainer, params, HYPER), as_steps(others, pieces=(2, 1, 3), active=2), HYPER)
    assert_same(actual, expected)
    assert int(actual.step) == 2
    assert losses[2] == 0
    # The used pieces do matter.
    all_pieces, _ = run(trainer, start(trainer, params, HYPER), as_steps(steps, active=2), HYPER)
    assert not np.allclose(flat(all_pieces.params), flat(actual.params), atol=1e-4)


@pytest.mark.usefixtures("strict_types")
@pytest.mark.parametrize("microbatch_size", [1, 4])
@pytest.mark.parametrize("value", ["label", "integer"])
def test_a_step_with_an_example_that_is_not_a_number_is_refused(microbatch_size: int, value: str) -> None:
    """Neither it nor any later step, in this dispatch or another, updates anything."""
    trainer, params, steps = adaptive(microbatch_size)
    good, _ = run(trainer, start(trainer, params, HYPER), as_steps(steps, active=1), HYPER)
    good = jax.tree.map(np.asarray, good)
    if value == "label":
        steps[1][1].labels[2] = np.nan
    else:
        steps[1][1].integers[2, 0] = -np.inf
    state, losses = run(trainer, start(trainer, params, HYPER), as_steps(steps), HYPER)
    assert int(state.not_finite) > 0
    assert_same(state._replace(not_finite=good.not_finite), good)
    assert np.isnan(losses).tolist() == [False, True, True]
    _, _, fine = adaptive(microbatch_size)
    state, losses = run(trainer, state, as_steps(fine), HYPER)
    assert int(state.not_finite) > 0
    assert_same(state._replace(not_finite=good.not_finite), good)
    assert np.all(np.isnan(losses))
    assert_same(trainer.release(state), good.params)


@pytest.mark.usefixtures("strict_types")
@pytest.mark.parametrize("quantile", [0.5, 0.8])
@pytest.mark.parametrize("first", [1e-2, 1e3])
def test_an_adaptive_clip_norm_finds_the_quantile_of_the_gradient_norms(quantile: float, first: float) -> None:
    """Repeats one batch at a learning rate of zero."""
    batch = rows_of(make_batch(MODEL, 256, seed=2), slice(0, 256))
    params = make_parameters(MODEL, batch)
    lengths = np.linalg.norm(example_gradients(MODEL, params, batch), axis=1)
    hyper = Hyperparameters(0.0, 10, 256, first, 0.5, 1.0, 0.5, quantile)
    trainer = make_trainer(dataclasses.replace(METHOD, clipping="adaptive"))
    state, steps = start(trainer, params, hyper), as_steps([[batch]] * 10)
    for _ in range(40):
        state, _ = run(trainer, state, steps, hyper)
    np.testing.assert_array_equal(flat(state.params), flat(params))
    assert float(state.l2_clip_norm) == pytest.approx(np.quantile(lengths, quantile), rel=0.04)


@pytest.mark.usefixtures("strict_types")
def test_the_count_of_a_step_has_noise_of_its_own() -> None:
    """200 steps: the deviation of the noisy count is within five standard errors (seeds are fixed), and the
    count is uncorrelated with the gradient's noise."""
    trainer, params, steps = adaptive(1)
    hyper = HYPER._replace(count_noise_multiplier=3.0, learning_rate=1.0, total_steps=10**6)
    counts, first_noise = [], []
    dispatch = as_steps(steps, active=1)
    for seed in range(200):
        state, _ = run(trainer, start(trainer, params, hyper), dispatch, hyper, key=seed)
        counts.append(20 * np.log(float(state.l2_clip_norm) / 0.5) / 0.2)
        first_noise.append(flat(state.params))
    assert abs(np.std(counts) / 3 - 1) < 5 / (2 * 200) ** 0.5
    correlations = [np.corrcoef(counts, noise)[0, 1] for noise in np.transpose(first_noise)]
    assert np.max(np.abs(correlations)) < 5 / 200**0.5


@pytest.mark.usefixtures("strict_types")
def test_predictions_are_the_models() -> None:
    trainer, params, steps = adaptive(1)
    batch = steps[0][0]
    state = start(trainer, params, HYPER)
    assert_same(trainer.release(state), params)
    expected = MODEL.apply({"params": params}, batch.integers, batch.categoricals)
    np.testing.assert_allclose(trainer.predict(state, batch.integers, batch.categoricals), expected, rtol=1e-5)


@pytest.mark.usefixtures("strict_types")
def test_numbers_do_not_recompile() -> None:
    method = dataclasses.replace(METHOD, momentum=0.5, clipping="adaptive")
    trainer = make_trainer(method)
    _, params, steps = adaptive(1)
    params = jax.tree.map(jnp.asarray, params)
    for number, (rate, clip, noise) in enumerate(((0.1, 1.0, 1.0), (0.2, 3.0, 0.5), (0.3, 1.0, 7.0))):
        hyper = HYPER._replace(learning_rate=rate, l2_clip_norm=clip, noise_multiplier=noise)
        dispatch = as_steps(steps, pieces=(number + 1, 1, 2), active=number + 1)
        traced = as_traced(hyper)
        # A run donates the state's memory, but not the parameters that the state was made from.
        state = trainer.init(params, traced)
        for _ in range(2):
            state, _ = trainer.run(state, dispatch, jax.random.key(number), traced)
    assert trainer.run._cache_size() == 1  # type: ignore[attr-defined]
    assert make_trainer(method) is trainer
