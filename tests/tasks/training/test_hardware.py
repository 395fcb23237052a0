"""The number of rows computed at once follows the free memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from dp_core.clipping.layers import initial_parameters
from dp_core.models.mlp import AdModel
from dp_core.models.spec import CategoricalFeature
from tasks.training.hardware import bytes_per_row, rows_at_once

COLUMNS = {"integers": 13, "categoricals": 2}


def make(width: int) -> tuple[AdModel, Any]:
    model = AdModel((CategoricalFeature(50, 4), CategoricalFeature(9, 3)), (width, width))
    inputs = np.zeros((1, 13), np.float32), np.zeros((1, 2), np.int32)
    return model, initial_parameters(model, np.random.default_rng(0), *inputs)


def test_a_row_takes_the_inputs_and_outputs_of_its_layers() -> None:
    inputs = 1 + 1 + 33 + 20 + 20  # two tokens, the first layer's input, and two hidden layers
    outputs = 4 + 3 + 20 + 20 + 1
    loss = 1
    assert bytes_per_row(*make(20), **COLUMNS) == 4 * (inputs + outputs + loss)


def test_more_memory_and_narrower_models_take_more_rows() -> None:
    wide, narrow = make(512), make(16)
    assert rows_at_once(*wide, **COLUMNS, available=2**34) < rows_at_once(*narrow, **COLUMNS, available=2**34)
    assert rows_at_once(*wide, **COLUMNS, available=2**23) < rows_at_once(*wide, **COLUMNS, available=2**34)
    assert rows_at_once(*wide, **COLUMNS, available=0) == 64
