"""The networks, against the same written out in numpy."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from dp_core.clipping.layers import NO_TOKEN
from dp_core.clipping.signals import Batch
from dp_core.models.piecewise import knots
from dp_core.models.spec import PiecewiseMLPSpec
from tests.support.models import make_batch, make_model, make_parameters

pytestmark = pytest.mark.usefixtures("strict_types")

KINDS = ("mlp", "piecewise_mlp", "dcn_v2", "dlrm")


def dense(params: Any, name: str, x: np.ndarray) -> np.ndarray:
    return x @ params[name]["kernel"] + params[name].get("bias", 0)


def hidden(params: Any, x: np.ndarray) -> np.ndarray:
    for name in sorted(name for name in params if name.startswith("hidden_")):
        x = np.maximum(dense(params, name, x), 0)
    return x


def embedded(params: Any, categoricals: np.ndarray) -> list[np.ndarray]:
    """The tests' features: a token, and a bag of four whose present tokens are averaged."""
    bags = [[token for token in bag if token != NO_TOKEN] for bag in categoricals[:, 1:5]]
    table = params["embedding_1"]["table"]
    means = np.stack([table[bag].mean(axis=0) if bag else np.zeros(table.shape[1]) for bag in bags])
    return [params["embedding_0"]["table"][categoricals[:, 0]], means]


def numbers(integers: np.ndarray) -> np.ndarray:
    return np.concatenate([np.nan_to_num(integers), np.isnan(integers)], axis=1)


def mlp(params: Any, batch: Batch) -> np.ndarray:
    inputs = np.concatenate([numbers(batch.integers), *embedded(params, batch.categoricals)], axis=1)
    return dense(params, "output", hidden(params, inputs))[:, 0]


def piecewise_mlp(params: Any, batch: Batch) -> np.ndarray:
    knots = np.linspace(-1.5, 15, 12)
    values = np.asarray(batch.integers)
    # Interpolating the rows of the identity at the knots gives the weights of the two knots around a value.
    bases = [np.interp(values, knots, row) * ~np.isnan(values) for row in np.eye(12)]
    hats = np.nan_to_num(np.stack(bases, axis=-1)).reshape(len(values), -1)
    inputs = np.concatenate([hats, np.isnan(values), *embedded(params, batch.categoricals)], axis=1)
    return dense(params, "output", hidden(params, inputs))[:, 0]


def dcn_v2(params: Any, batch: Batch) -> np.ndarray:
    first = np.concatenate([numbers(batch.integers), *embedded(params, batch.categoricals)], axis=1)
    crossed = first
    for layer in ("cross_0", "cross_1"):
        crossed = first * dense(params, layer, crossed) + crossed
    return dense(params, "output", np.concatenate([crossed, hidden(params, first)], axis=1))[:, 0]


def dlrm(params: Any, batch: Batch) -> np.ndarray:
    bottom = np.maximum(dense(params, "bottom", numbers(batch.integers)), 0)
    tables = embedded(params, batch.categoricals)
    vectors = [bottom, *(dense(params, f"projection_{index}", vector) for index, vector in enumerate(tables))]
    pairs = [np.sum(vectors[i] * vectors[j], axis=1) for i in range(len(vectors)) for j in range(i)]
    return dense(params, "output", hidden(params, np.concatenate([bottom, np.stack(pairs, axis=1)], axis=1)))[:, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_what_its_paper_says(kind: str) -> None:
    model = make_model(kind)
    batch = make_batch(model, 16)
    params = make_parameters(model, batch)
    rng = np.random.default_rng(5)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape, scale=0.5).astype(np.float32), params)
    logits = jax.jit(model.apply)({"params": params}, batch.integers, batch.categoricals)
    expected = {"mlp": mlp, "piecewise_mlp": piecewise_mlp, "dcn_v2": dcn_v2, "dlrm": dlrm}[kind](params, batch)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_found_by_the_names_of_their_layers(kind: str) -> None:
    model = make_model(kind)
    params = make_parameters(model, make_batch(model, 1))
    tables = {name: len(layer["table"]) for name, layer in params.items() if "table" in layer}
    assert tables == model.vocabulary_sizes == {"embedding_0": 30, "embedding_1": 100}


@pytest.mark.parametrize("kind", ["mlp", "piecewise_mlp"])
def test_a_missing_integer_is_not_a_zero(kind: str) -> None:
    model = make_model(kind)
    batch = make_batch(model, 8)
    params = make_parameters(model, batch)
    predict = jax.jit(model.apply)
    integers = np.zeros_like(batch.integers)
    missing = integers.copy()
    missing[:, 1] = np.nan
    zeros, ones = (predict({"params": params}, values, batch.categoricals) for values in (integers, missing))
    assert np.all(np.isfinite(ones))
    assert np.all(zeros != ones)


@pytest.mark.parametrize("spacing", [0.7, 1.5, 4.0])
def test_a_piecewise_basis_has_a_norm_near_one_for_any_integer(spacing: float) -> None:
    model = PiecewiseMLPSpec(hidden_layers=(4,), spacing=spacing).build([])
    values = np.concatenate([np.linspace(-40, 40, 4001), [-1.5, 15]]).astype(np.float32)[:, None]
    inputs = model.apply({}, values, np.zeros((len(values), 0), np.int32), method="inputs")
    hats, missing = np.asarray(inputs[:, :-1]), np.asarray(inputs[:, -1])
    np.testing.assert_allclose(hats.sum(axis=1), 1, atol=1e-5)
    assert (hats >= 0).all()
    assert (np.count_nonzero(hats > 1e-5, axis=1) <= 2).all()
    assert not missing.any()
    # The basis interpolates: weighted by the knots it is the value again, within their range.
    np.testing.assert_allclose(hats @ knots(spacing), np.clip(values[:, 0], -1.5, 15), atol=1e-4)
