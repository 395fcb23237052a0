"""The networks in NumPy compute what the Flax modules compute."""

from __future__ import annotations

import numpy as np
import pytest

from dp_core.models.plain import NETWORKS, predict_logits
from dp_core.models.spec import MODELS, CategoricalFeature, as_model_spec
from tasks.training.finished import flat_parameters
from tests.support.models import make_batch, make_parameters

FEATURES = (CategoricalFeature(30, 4), CategoricalFeature(100, 6), CategoricalFeature(7, 3))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_logits_are_those_of_the_flax_module(name: str, rows: int) -> None:
    spec = as_model_spec({"name": name, "hidden_layers": (16, 8)})
    model = spec.build(FEATURES)
    batch = make_batch(model, max(rows, 1))
    params = make_parameters(model, batch)
    integers, tokens = np.asarray(batch.integers)[:rows], np.asarray(batch.categoricals)[:rows]
    found = predict_logits(spec.model_dump(mode="json"), flat_parameters(params), integers, tokens)
    assert found.dtype == np.float32
    assert found.shape == (rows,)
    if rows:
        expected = np.asarray(model.apply({"params": params}, integers, tokens))
        # Cross layers multiply inputs of both signs, so that logits are small differences of large numbers.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-5 if name == "dcn_v2" else 2e-6)


def test_every_network_of_ours_is_there() -> None:
    assert set(NETWORKS) == {"mlp", "piecewise_mlp", "dcn_v2", "dlrm"} <= set(MODELS)
    with pytest.raises(ValueError, match="no network is called 'wide'; known: mlp"):
        predict_logits({"name": "wide"}, {}, np.zeros((1, 1)), np.zeros((1, 1)))
