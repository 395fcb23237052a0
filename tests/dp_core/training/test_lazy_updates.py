"""Lazy tables in the whole step: the dense step without noise, in place, and nothing that still owes noise gets out."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from dp_core.clipping.microbatches import make_microbatches
from dp_core.clipping.signals import Batch
from dp_core.models.spec import CategoricalFeature
from dp_core.training.generators import chacha_key
from dp_core.training.lazy_updates import NoisePending, PendingTable, lazy_tables
from dp_core.training.method import Method
from dp_core.training.noise import normal_of_rows, standard_normal
from dp_core.training.placement import Placement
from dp_core.training.read_rows import distinct_rows
from dp_core.training.step import Hyperparameters, TrainState, as_traced, make_trainer
from dp_core.training.updates import make_update_rule
from tests.dp_core.training.test_step import as_steps, flat
from tests.support.gradients import QUICKLY
from tests.support.models import make_batch, make_model, make_parameters

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


@pytest.mark.parametrize("change", [{}, {"momentum": 0.0}, {"private": False}, {"microbatch_size": 4}])
@pytest.mark.lazy
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


@pytest.mark.lazy
def test_pieces_are_the_batch_at_once() -> None:
    whole = [[Batch(*(np.concatenate(part) for part in zip(*(b[:4] for b in step), strict=True)))] for step in BATCHES]
    found, expected = (released(LAZY, trained(LAZY, batches=batches)) for batches in (BATCHES, whole))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.lazy
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


@pytest.mark.lazy
def test_a_refused_step_changes_nothing() -> None:
    batches = [[b._replace(labels=np.full_like(b.labels, np.nan)) for b in BATCHES[0]], *BATCHES[1:]]
    before = make_trainer(LAZY).init(PARAMS, HYPER)
    before = jax.tree.map(np.array, before)
    after = trained(LAZY, batches=batches)
    assert int(after.not_finite) > 0
    jax.tree.map(np.testing.assert_array_equal, before._replace(not_finite=after.not_finite), after)


@pytest.mark.lazy
def test_steps_of_one_dispatch_are_the_same_one_at_a_time() -> None:
    trainer = make_trainer(LAZY)
    state = trainer.init(PARAMS, HYPER)
    for first in range(3):
        # As a checkpoint would hold it.
        state = LAZY.placement.put(LAZY.placement.whole(state))
        state, _ = quickly(trainer.run, state, as_steps(BATCHES[first:] + BATCHES[:first], active=1), KEY, HYPER)
    jax.tree.map(np.testing.assert_array_equal, state, trained(LAZY))


@pytest.mark.lazy
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


@pytest.mark.lazy
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
        ({"placement": Placement(2)}, "several devices"),
        ({"clipping": "adaptive"}, "an adaptive clip norm"),
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
