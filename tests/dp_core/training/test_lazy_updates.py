"""Lazy tables: the distribution of the dense rule, and nothing that still owes noise gets out."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict
from scipy import stats

from dp_core.clipping.microbatches import make_microbatches
from dp_core.clipping.signals import Batch
from dp_core.models.spec import CategoricalFeature
from dp_core.training.generators import chacha_key
from dp_core.training.lazy_updates import NoisePending, PendingTable, distinct_rows, lazy_tables, with_lazy_tables
from dp_core.training.method import Method
from dp_core.training.noise import normal_of_rows, standard_normal
from dp_core.training.step import Hyperparameters, TrainState, as_traced, make_trainer
from dp_core.training.updates import UpdateScale, dense_update, make_update_rule
from tests.dp_core.training.test_step import as_steps, flat
from tests.support.gradients import QUICKLY
from tests.support.models import make_batch, make_model, make_parameters

# --- The joint distribution of a small linear problem. Every column of the table is a sample of its own. ---

SAMPLES, ROWS, STEPS, TAU = 24_000, 5, 11, 0.7
# Row 0 is never read, row 1 once, row 2 at every second step, row 3 by two pieces of a step and more than once in one,
# row 4 in the first and the last step. Two pieces of three tokens; -1 reads nothing.
READS = [
    [[4, 2, -1], [-1, -1, -1]],
    [[3, 3, 2], [3, -1, -1]],
    [[2, -1, -1], [-1, -1, -1]],
    [[-1, -1, -1], [-1, -1, -1]],
    [[2, 1, 2], [2, -1, -1]],
    [[-1, -1, -1], [-1, -1, -1]],
    [[3, 2, -1], [3, 3, -1]],
    [[-1, -1, -1], [-1, -1, -1]],
    [[2, -1, -1], [-1, -1, -1]],
    [[3, -1, -1], [2, -1, -1]],
    [[2, 4, 4], [4, -1, -1]],
]
RATES = {"constant": np.full(STEPS, 0.3), "cosine": 0.15 * (1 + np.cos(np.pi * np.arange(STEPS) / STEPS))}
FEATURE = CategoricalFeature(ROWS, SAMPLES, slots=3)
START = np.linspace(-1, 1, ROWS)
# The gradient of the rows that a step reads is COUPLING · (their weights) + SLOPE, times how often each is read.
COUPLING = 0.4 * np.eye(ROWS) + 0.1 * np.random.default_rng(3).normal(size=(ROWS, ROWS))
SLOPE = np.linspace(0.5, -0.5, ROWS)


def counts_of(step: int) -> np.ndarray:
    tokens = np.ravel(READS[step])
    return np.bincount(tokens[tokens >= 0], minlength=ROWS).astype(np.float64)


def scale_of(step: int, rates: np.ndarray, key: jax.Array) -> UpdateScale:
    return UpdateScale(key, jnp.float32(4 * TAU), jnp.float32(4), jnp.float32(rates[step]))


@functools.cache
def lazy_samples(momentum: float, schedule: str, *, settle_at: int = -1, seed: int = 1) -> np.ndarray:
    """Velocities and weights after the steps, of shape (samples, 2 · rows); at momentum 0 weights only."""
    method = Method(make_model(features=(FEATURE,)), "pctr", "sgd", momentum, True, lazy_tables=("embedding_0",))
    # A history of four steps runs out twice.
    rule = with_lazy_tables(dense_update(optax.sgd(1.0, momentum=momentum or None)), method, history_steps=4)
    table = jnp.asarray(np.tile(START[:, None], SAMPLES), jnp.float32)
    params = {"embedding_0": {"table": table}, "other": {"kernel": jnp.zeros((2, 2))}}
    state, params = rule.init(params), rule.hold(params)
    coupling, slope = jnp.asarray(COUPLING, jnp.float32), jnp.asarray(SLOPE, jnp.float32)

    @jax.jit
    def one(state: Any, params: Any, tokens: jax.Array, scale: UpdateScale, key: jax.Array) -> Any:
        batch = Batch(None, tokens, None, jnp.ones(tokens.shape[:-1]))
        caught, view = rule.catch_up(state, params, batch, key)
        places = rule.tokens(caught, tokens).ravel()
        compact = view["embedding_0"]["table"]
        # A sum over the tokens, each with its own gradient.
        read = places >= 0
        own = jnp.where(read, places, compact.shape[0])
        ids = jnp.where(read, tokens.ravel(), 0)
        distinct = jnp.zeros(ROWS).at[jnp.where(read, ids, ROWS)].set(1.0, mode="drop")
        whole = jnp.zeros((ROWS, SAMPLES)).at[jnp.where(read, ids, ROWS)].set(compact[places], mode="drop")
        gradients = jnp.matmul(coupling * distinct, whole, precision="highest") + slope[:, None]
        summed = jnp.zeros_like(compact).at[own].add(4 * gradients[ids], mode="drop")
        total = {"embedding_0": {"table": summed}, "other": {"kernel": jnp.zeros((2, 2))}}
        return rule.apply(caught, params, total, scale)

    for step in range(STEPS):
        key, other = jax.random.split(jax.random.fold_in(jax.random.key(seed), step))
        state, params = one(
            state, params, jnp.asarray(READS[step], jnp.int32), scale_of(step, RATES[schedule], key), other
        )
        if step == settle_at:
            state, settled = jax.jit(rule.draw_pending)(state, params, jax.random.fold_in(other, 9))
            params = rule.hold(settled)
    state, settled = jax.jit(rule.draw_pending)(state, params, jax.random.key(seed + 100))
    arrays = [state.velocities["embedding_0"]["table"]] if momentum else []
    return np.concatenate([np.float64(part) for part in (*arrays, settled["embedding_0"]["table"])]).T


def dense_samples(momentum: float, schedule: str) -> np.ndarray:
    """The same by the dense rule."""
    rule = dense_update(optax.sgd(1.0, momentum=momentum))
    params = {"table": jnp.asarray(np.tile(START[:, None], SAMPLES), jnp.float32)}
    state = rule.init(params)
    for step in range(STEPS):
        counts = counts_of(step)
        gradients = (COUPLING * (counts > 0)) @ np.float64(params["table"]) + SLOPE[:, None]
        total = {"table": jnp.asarray(4 * counts[:, None] * gradients, jnp.float32)}
        key = jax.random.fold_in(jax.random.key(5), step)
        state, params = jax.jit(rule.apply)(state, params, total, scale_of(step, RATES[schedule], key))
    return np.concatenate([np.float64(state[0].trace["table"]), np.float64(params["table"])]).T


def exact_moments(momentum: float, schedule: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (velocities, weights) with dense noise, by the recursion of the whole vector."""
    mean, covariance = np.concatenate([np.zeros(ROWS), START]), np.zeros((2 * ROWS, 2 * ROWS))
    for step, rate in enumerate(RATES[schedule]):
        counts = counts_of(step)
        velocity = np.hstack([momentum * np.eye(ROWS), counts[:, None] * COUPLING * (counts > 0)])
        turn = np.vstack([velocity, np.hstack([np.zeros((ROWS, ROWS)), np.eye(ROWS)]) - rate * velocity])
        onto = np.vstack([np.eye(ROWS), -rate * np.eye(ROWS)])
        mean = turn @ mean + onto @ (counts * SLOPE)
        covariance = turn @ covariance @ turn.T + TAU**2 * onto @ onto.T
    first = 0 if momentum else ROWS
    return mean[first:], covariance[first:, first:]


def assert_moments(samples: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> None:
    """Fails for one seed in 10⁴, for the mean and for the covariance; the seeds are fixed."""
    number, size = samples.shape
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), (samples - mean).T)
    assert stats.chi2.sf(number * np.sum(np.mean(whitened, axis=1) ** 2), size) > 1e-4
    # Every variance and covariance of the whitened samples, which are independent of each other.
    scores = (whitened @ whitened.T / number - np.eye(size)) * np.sqrt(number / (1 + np.eye(size)))
    upper = scores[np.triu_indices(size)]
    assert stats.chi2.sf(np.sum(upper**2), len(upper)) > 1e-4
    assert np.abs(upper).max() < stats.norm.isf(0.5e-4 / len(upper))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_weights_and_velocities_have_the_distribution_of_dense_noise(momentum: float, schedule: str) -> None:
    assert_moments(lazy_samples(momentum, schedule), *exact_moments(momentum, schedule))


def test_the_dense_rule_has_that_distribution_too() -> None:
    """So what lazy noise is compared with is the rule, not only its formula."""
    assert_moments(dense_samples(0.9, "cosine"), *exact_moments(0.9, "cosine"))


def test_settling_in_the_middle_changes_no_distribution() -> None:
    assert_moments(lazy_samples(0.9, "constant", settle_at=6), *exact_moments(0.9, "constant"))


def test_the_samples_would_show_a_small_mistake() -> None:
    """A deviation of the noise that is wrong by 2 % in one row."""
    mean, covariance = exact_moments(0.9, "constant")
    wrong = np.ones(2 * ROWS)
    wrong[[0, ROWS]] = 1.02
    with pytest.raises(AssertionError):
        assert_moments(lazy_samples(0.9, "constant"), mean, covariance * np.outer(wrong, wrong))


# --- The whole step. ---

FEATURES = (CategoricalFeature(301, 4), CategoricalFeature(97, 6, slots=3), CategoricalFeature(11, 3))
MODEL = make_model(features=FEATURES, hidden_layers=(8,))
LAZY = Method(MODEL, "pctr", "sgd", 0.9, True, lazy_tables=("embedding_0", "embedding_1"))
BATCHES = [[make_batch(MODEL, 16, seed=2 * step + piece) for piece in range(2)] for step in range(3)]
PARAMS = make_parameters(MODEL, BATCHES[0][0])
HYPER = as_traced(Hyperparameters(0.3, 20, 20, l2_clip_norm=0.5, noise_multiplier=0.5))
KEY = jax.random.key(4)


_PROGRAMS: dict[Any, Any] = {}


def quickly(function: Any, *arguments: Any) -> Any:
    """Calls a compiled function, compiled without optimisations."""
    name = function, *(jnp.shape(leaf) for leaf in jax.tree.leaves(arguments)), str(arguments[-2].dtype)
    if name not in _PROGRAMS:
        _PROGRAMS[name] = function.lower(*arguments).compile(compiler_options=QUICKLY)
    return _PROGRAMS[name](*arguments)


def trained(method: Method, hyper: Hyperparameters = HYPER, batches: Any = BATCHES, key: Any = KEY) -> TrainState:
    trainer = make_trainer(method)
    state, _ = quickly(trainer.run, trainer.init(PARAMS, hyper), as_steps(batches), key, hyper)
    return state


def released(method: Method, state: TrainState, hyper: Hyperparameters = HYPER, key: Any = KEY) -> np.ndarray:
    trainer = make_trainer(method)
    return flat(trainer.release(trainer.settle(state, key, hyper)[0]))


@pytest.mark.parametrize(
    "change", [{}, {"momentum": 0.0}, {"private": False}, {"clipping": "adaptive"}, {"microbatch_size": 4}]
)
def test_without_noise_lazy_is_dense(change: dict[str, Any]) -> None:
    method = dataclasses.replace(LAZY, **change)
    dense = dataclasses.replace(method, lazy_tables=())
    quiet = HYPER._replace(noise_multiplier=jnp.float32(0), count_noise_multiplier=jnp.float32(0))
    groups = make_microbatches(method.microbatch_size)
    batches = [[make_batch(MODEL, 16, seed=2 * i + j, microbatches=groups) for j in range(2)] for i in range(3)]
    found = released(method, trained(method, quiet, batches), quiet)
    expected = released(dense, trained(dense, quiet, batches), quiet)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(expected - flat(PARAMS)).max() > 1e-3


def test_pieces_are_the_batch_at_once() -> None:
    whole = [[Batch(*(np.concatenate(part) for part in zip(*(b[:4] for b in step), strict=True)))] for step in BATCHES]
    found, expected = (released(LAZY, trained(LAZY, batches=batches)) for batches in (BATCHES, whole))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_only_rows_of_the_batch_change() -> None:
    state = trained(LAZY)
    for column, name in enumerate(LAZY.lazy_tables):
        first, last = (column, column + FEATURES[column].slots)
        masks = np.concatenate([b.mask for step in BATCHES for b in step]) > 0
        tokens = np.concatenate([b.categoricals[:, first:last] for step in BATCHES for b in step])[masks]
        read = np.isin(np.arange(FEATURES[column].vocabulary_size), tokens)
        moved = np.any(np.asarray(state.params[name]["table"].weights) != PARAMS[name]["table"], axis=1)
        np.testing.assert_array_equal(moved, read)
        np.testing.assert_array_equal(np.asarray(state.update_state.slots[name]["slot"]) > 0, read)


def test_a_refused_step_changes_nothing() -> None:
    batches = [[b._replace(labels=np.full_like(b.labels, np.nan)) for b in BATCHES[0]], *BATCHES[1:]]
    before = make_trainer(LAZY).init(PARAMS, HYPER)
    before = jax.tree.map(np.array, before)
    after = trained(LAZY, batches=batches)
    assert int(after.not_finite) > 0
    jax.tree.map(np.testing.assert_array_equal, before._replace(not_finite=after.not_finite), after)


def test_steps_of_one_dispatch_are_the_same_one_at_a_time() -> None:
    trainer = make_trainer(LAZY)
    state = trainer.init(PARAMS, HYPER)
    for first in range(3):
        # As a checkpoint would hold it.
        state = LAZY.placement.put(LAZY.placement.whole(state))
        state, _ = quickly(trainer.run, state, as_steps(BATCHES[first:] + BATCHES[:first], active=1), KEY, HYPER)
    jax.tree.map(np.testing.assert_array_equal, state, trained(LAZY))


def test_looking_at_a_settled_state_changes_nothing() -> None:
    trainer, finals = make_trainer(LAZY), []
    for look in (False, True):
        state, report = trainer.settle(trained(LAZY), KEY, HYPER)
        assert report is not None
        if look:
            trainer.predict(state, BATCHES[0][0].integers, BATCHES[0][0].categoricals)
            trainer.release(state)
        state, _ = quickly(trainer.run, trainer.resume(state), as_steps(BATCHES), KEY, HYPER)
        finals.append(released(LAZY, state))
    np.testing.assert_array_equal(*finals)


def test_secret_noise_is_drawn_lazily_too() -> None:
    key = chacha_key(np.arange(8, dtype=np.uint32))
    found = released(LAZY, trained(LAZY, key=key), key=key)
    threefry = released(LAZY, trained(LAZY))
    assert np.mean(np.abs(found - threefry) > 1e-4) > 0.95
    # Most rows were never read. Their movement is three steps' noise of momentum.
    rows = (np.asarray(found) - flat(PARAMS))[: 301 * 4]
    assert 0.5 < np.std(rows) / np.std((threefry - flat(PARAMS))[: 301 * 4]) < 2


@pytest.mark.parametrize("key", [jax.random.key(3), chacha_key(np.arange(8, dtype=np.uint32))])
def test_noise_of_rows_is_the_noise_of_the_table(key: jax.Array) -> None:
    rows = jnp.asarray([4, 0, 4, 8], jnp.int32)
    np.testing.assert_array_equal(normal_of_rows(key, rows, 7), standard_normal(key, (9, 7))[rows])


def test_distinct_rows() -> None:
    tokens = jnp.asarray([[[5, 2], [5, -1]], [[0, 9], [7, 2]]], jnp.int32)
    used = jnp.asarray([[True, True], [False, True]])[..., None]
    rows, places = distinct_rows(tokens, used, 10)
    assert rows[:3].tolist() == [2, 5, 7]
    assert np.all(np.asarray(rows[3:]) >= 10)
    assert len(set(rows.tolist())) == 8
    assert places.tolist() == [[[1, 0], [1, -1]], [[0, 0], [2, 0]]]


def test_tables_are_lazy_by_their_size_against_the_batch() -> None:
    features = {"small": (1000, 8, 1), "large": (100_000, 8, 1), "sets": (100_000, 8, 40)}
    assert lazy_tables("auto", features, 1024) == ("large",)
    assert lazy_tables("auto", features, 64) == ("small", "large", "sets")
    assert lazy_tables("lazy", features, 1024) == tuple(features)
    assert lazy_tables("dense", features, 1024) == ()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_no_table_is_copied_and_no_gradient_is_as_large(momentum: float) -> None:
    """In the compiled program: arrays with as many rows as a table are the table, its velocity and its slots, and all
    of them are updated in place."""
    model = make_model(features=(CategoricalFeature(100_003, 4), CategoricalFeature(11, 3)), hidden_layers=(8,))
    batches = [[make_batch(model, 16, seed=2 * step + piece) for piece in range(2)] for step in range(2)]
    params = make_parameters(model, batches[0][0])
    trainer = make_trainer(Method(model, "pctr", "sgd", momentum, True, lazy_tables=("embedding_0",)))
    arguments = trainer.init(params, HYPER), as_steps(batches), KEY, HYPER
    compiled = trainer.run.lower(*arguments).compile()  # type: ignore[attr-defined]
    made = re.findall(r"= (\w+\[100003[^\]]*\])\S* ([\w-]+)\(", compiled.as_text())
    assert made
    in_place = {"parameter", "get-tuple-element", "scatter", "dynamic-update-slice", "fusion"}
    assert {operation for _, operation in made} <= in_place


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"optimizer": "adam"}, "optimizer adam"),
        ({"averaging": "tail"}, "tail averaging"),
        ({"noise_coefficients": (0.8, 0.6)}, "correlated noise"),
        ({"lazy_tables": ("embedding_9",)}, "embedding_9"),
    ],
)
def test_what_is_not_linear_or_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(LAZY, **change)


def test_noise_that_is_pending_cannot_leave() -> None:
    trainer, state = make_trainer(LAZY), trained(LAZY)
    batch = BATCHES[0][0]
    for attempt in (
        lambda: trainer.release(state),
        lambda: trainer.predict(state, batch.integers, batch.categoricals),
        lambda: np.asarray(state.params["embedding_0"]["table"]),
        lambda: {path: np.asarray(value) for path, value in flatten_dict(state.params).items()},
        lambda: state.params["embedding_0"]["table"][0],
        lambda: LAZY.placement.trim_tables(state.params, MODEL.vocabulary_sizes),
    ):
        with pytest.raises(NoisePending, match="wait for their noise"):
            attempt()
    with pytest.raises(TypeError):
        MODEL.apply({"params": state.params}, batch.integers, batch.categoricals)
    # What was settled does not train on as it is, so that no step can take it for up to date.
    settled, _ = trainer.settle(state, KEY, HYPER)
    with pytest.raises(TypeError, match="resume"):
        trainer.run(settled, as_steps(BATCHES), KEY, HYPER)
    assert isinstance(trainer.resume(settled).params["embedding_0"]["table"], PendingTable)


def test_the_rule_of_a_method_with_lazy_tables() -> None:
    rule = make_update_rule(LAZY)
    state = rule.init(PARAMS)
    assert set(state.slots) == set(state.velocities) == {"embedding_0", "embedding_1"}
    assert not make_update_rule(dataclasses.replace(LAZY, momentum=0.0)).init(PARAMS).velocities
