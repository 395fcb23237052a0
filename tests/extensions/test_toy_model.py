"""A model that is registered from outside works everywhere: configuration, training, audit, report, benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import PositiveInt

from dp_core.clipping.layers import Dense
from dp_core.models.mlp import AdModel
from dp_core.models.spec import MODELS, CategoricalFeature, ModelSpec, register_model
from tasks.data.prepared import open_prepared
from tasks.speed.workloads import PreparedWorkload, workload_from_json
from tasks.training.model_size import model_size
from tasks.training.trial import Trial
from tests.support.gradients import assert_close_by_layer, clipped_sum, oracle_sum
from tests.support.models import FEATURES, make_batch, make_parameters
from tests.support.reports import configure, planned, report_home, run
from tests.support.yaml_files import DP_SGD, SMALL, edit, loader, mistakes

FACTORS = 3


class Gated(AdModel):
    """The paper's network, with its inputs gated through a bottleneck of ``factors`` units."""

    factors: int = 2

    @nn.compact
    def __call__(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        first = self.inputs(integers, categoricals)
        gate = Dense(first.shape[-1], name="gate_up")(Dense(self.factors, name="gate_down")(first))
        return self.output(self.hidden(first * jnp.tanh(gate)))


class GatedSpec(ModelSpec):
    name: Literal["gated"] = "gated"
    factors: PositiveInt = 2

    def build(self, features: Sequence[CategoricalFeature]) -> AdModel:
        return Gated(tuple(features), self.layers, factors=self.factors)


@pytest.fixture
def gated() -> Iterator[GatedSpec]:
    register_model(GatedSpec)
    yield GatedSpec(hidden_layers=(8,), factors=FACTORS)
    del MODELS["gated"]


@pytest.mark.usefixtures("strict_types")
def test_its_clipped_sum_equals_the_oracles(gated: GatedSpec) -> None:
    model = gated.build(FEATURES)
    batch = make_batch(model, 24)
    params = make_parameters(model, batch)
    actual, expected = (make(model)(params, batch, 0.3) for make in (clipped_sum, oracle_sum))
    assert_close_by_layer(actual.gradients, expected.gradients)


def test_the_configuration_takes_its_name_and_numbers(tmp_path: Path, gated: GatedSpec) -> None:
    load = loader(tmp_path)
    old = "              optimizer: sgd\n"
    for given, label in (("gated", "gated"), ("{name: gated, factors: 3}", "gated (factors 3)")):
        config = load(edit(SMALL, old, f"{old}              model: {given}\n"))
        grid = config.grids("sweep", "tiny").tasks["pctr"].dp_sgd
        assert grid is not None
        assert [model.label for model in grid.model] == [label]
    for given, message in (
        ("gate", "no model is called 'gate' (did you mean 'gated'?); known: mlp, piecewise_mlp, dcn_v2, dlrm, gated"),
        ("{name: gated, factor: 3}", "model 'gated' has no factor; it has: name, hidden_layers, factors"),
        ("{name: gated, factors: 0}", "factors: input should be greater than 0, got 0"),
    ):
        [found] = mistakes(load, edit(SMALL, old, f"{old}              model: {given}\n"))
        assert found.endswith(f"{DP_SGD}.model: {message}"), found


def test_a_pipeline_trains_audits_and_reports_it(tmp_path: Path, gated: GatedSpec) -> None:
    with report_home(tmp_path) as here:
        configure(
            here, "l2_clip_norm: [1, 3]}", f"l2_clip_norm: 1, model: [mlp, {{name: gated, factors: {FACTORS}}}]}}"
        )
        trials = [
            Trial.model_validate(item["trial"])
            for group in planned("losses", epsilons=[8], seeds=1)["groups"]
            for item in group["items"]
        ]
        trial = next(trial for trial in trials if trial.model.name == "gated")
        assert trial.model == gated
        assert "gated (factors 3)" in trial.label()
        ran = run("losses", epsilons=[8], seeds=1)
        assert ran.trained == len(trials) == 3
        with np.load(trial.folder / "parameters.npz") as released:
            assert released["gate_down/kernel"].shape[-1] == FACTORS
            size = sum(array.size for array in released.values())
        prepared = open_prepared(Path(ran.plan["prepared"]["tiny_clicks"]))
        assert model_size(trial.model, prepared) == size
        workload = PreparedWorkload(str(prepared.path), "pcvr", trial.model)
        assert workload_from_json(json.loads(json.dumps(workload.to_json()))) == workload
        assert trial.flat_settings()["factors"] == FACTORS
