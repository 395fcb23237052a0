"""Model specs: validation, the registry, and the number of parameters."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np
import pytest
from pydantic import ValidationError

from dp_core.models.mlp import AdModel
from dp_core.models.spec import (
    MODELS,
    CategoricalFeature,
    DCNv2Spec,
    DLRMSpec,
    MLPSpec,
    ModelSpec,
    as_model_spec,
    register_model,
)
from tests.support.models import make_batch, make_parameters

FEATURES = (CategoricalFeature(30, 4), CategoricalFeature(100, 6, slots=4))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_found_by_its_name_and_survives_json(name: str) -> None:
    spec = as_model_spec(name)
    assert spec == as_model_spec({"name": name})
    assert as_model_spec(spec.with_layers((4,)).model_dump(mode="json")) == spec.with_layers((4,))
    assert hash(spec) == hash(as_model_spec(name))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("transformer", "no model is called 'transformer'; known: mlp, piecewise_mlp, dcn_v2, dlrm"),
        ("dcn_v3", "no model is called 'dcn_v3' (did you mean 'dcn_v2'?); known: mlp, piecewise_mlp, dcn_v2, dlrm"),
        ({"name": "mlp", "hidden_layers": 4}, "hidden_layers: should be a list, got 4"),
        ({"cross_layers": 2}, "should be a model's name, or {name: …} with the model's own numbers"),
        (3, "should be a model's name"),
        ({"name": "mlp", "cross_layers": 2}, "model 'mlp' has no cross_layers; it has: name, hidden_layers"),
        ({"name": "dcn_v2", "cross_layers": 0}, "cross_layers: input should be greater than 0, got 0"),
        ({"name": "dcn_v2", "cross_layers": "two"}, "cross_layers: input should be a valid integer, got 'two'"),
        ({"name": "mlp", "hidden_layers": [4, -1]}, "hidden_layers.1: input should be greater than 0, got -1"),
    ],
)
def test_a_wrong_model_is_named(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        as_model_spec(value)


def test_layers_are_the_specs_own_or_the_default() -> None:
    assert MLPSpec().with_layers((4, 2)).layers == (4, 2)
    assert MLPSpec(hidden_layers=(8,)).with_layers((4, 2)).layers == (8,)
    with pytest.raises(ValueError, match="the hidden layers of model 'mlp' are not set"):
        MLPSpec().build(FEATURES)


@pytest.mark.parametrize("spec", [MLPSpec(), DCNv2Spec(cross_layers=2), DLRMSpec(interaction_dimension=5)])
def test_the_parameter_count_is_that_of_the_initialised_network(spec: ModelSpec) -> None:
    spec = spec.with_layers((8, 4))
    model = spec.build(FEATURES)
    params = make_parameters(model, make_batch(model, 2, integers=3))
    assert spec.parameter_count(FEATURES, 3) == sum(np.size(leaf) for leaf in jax.tree.leaves(params))


def test_the_mlp_has_the_number_of_parameters_of_the_paper() -> None:
    """By hand: tables, then (inputs + 1) · width for each dense layer, with an indicator for each integer."""
    tables = 30 * 4 + 100 * 6
    inputs = 4 + 6 + 2 * 3
    dense = (inputs + 1) * 8 + (8 + 1) * 4 + (4 + 1) * 1
    assert MLPSpec(hidden_layers=(8, 4)).parameter_count(FEATURES, 3) == tables + dense


def test_specs_need_no_jax() -> None:
    code = (
        "import sys; from dp_core.models.spec import as_model_spec; as_model_spec('dlrm').with_layers((4,)); "
        "sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_registration_is_checked() -> None:
    class Nameless(ModelSpec):
        pass

    class Again(ModelSpec):
        name: Literal["mlp"] = "mlp"

        def build(self, features: Sequence[CategoricalFeature]) -> AdModel:
            raise AssertionError

    class Unbuilt(ModelSpec):
        name: Literal["unbuilt"] = "unbuilt"

    for spec, message in (
        (Nameless, "needs a default name"),
        (Again, "a model is already registered as 'mlp'"),
        (Unbuilt, "must implement `build`"),
    ):
        with pytest.raises(ValueError, match=message):
            register_model(spec)
    assert set(MODELS) == {"mlp", "piecewise_mlp", "dcn_v2", "dlrm"}


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        MLPSpec().hidden_layers = (3,)  # type: ignore[misc]
