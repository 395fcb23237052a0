"""How many rows go at once follows the memory there is."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np

from dp_core.layers import initial_parameters
from dp_core.memory import available_memory, bytes_per_row, keep_freed_memory, rows_at_once
from dp_core.models import AdModel, CategoricalFeature

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


def test_a_limit_of_the_process_is_seen() -> None:
    limit = 6 * 2**30
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_DATA, ({limit}, {limit}))
from dp_core.memory import available_memory
print(available_memory())
"""
    free = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0 < int(free.stdout) < limit
    assert available_memory() > 0


def test_keeping_freed_memory_is_harmless() -> None:
    keep_freed_memory()
    keep_freed_memory()
