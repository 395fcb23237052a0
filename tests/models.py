"""Small models and batches for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dp_core.clipping import Batch
from dp_core.layers import initial_parameters
from dp_core.model import AdModel


def make_model(vocabularies: Sequence[int] = (30, 5, 100), hidden_layers: Sequence[int] = (16, 8)) -> AdModel:
    return AdModel(tuple((v, int(2 * v**0.25)) for v in vocabularies), tuple(hidden_layers))


def make_batch(model: AdModel, rows: int, *, integers: int = 4, seed: int = 0, counts: bool = False) -> Batch:
    """Random examples with missing integers and, at the end, a few rows of padding."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(rows, integers), scale=3).astype(np.float32)
    numbers[rng.random(numbers.shape) < 0.2] = np.nan
    tokens = [rng.integers(0, v, rows) for v, _ in model.embeddings]
    categoricals = np.stack(tokens, axis=1).astype(np.int32) if tokens else np.zeros((rows, 0), np.int32)
    labels = rng.poisson(0.5, rows) if counts else rng.random(rows) < 0.25
    mask = np.ones(rows, np.float32)
    mask[rows - rows // 8 :] = 0
    return Batch(numbers, categoricals, labels.astype(np.float32), mask)


def make_parameters(model: AdModel, batch: Batch, seed: int = 0) -> Any:
    return initial_parameters(model, np.random.default_rng(seed), batch.integers, batch.categoricals)
