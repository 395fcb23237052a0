"""Small models and batches for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dp_core.clipping.layers import NO_TOKEN, initial_parameters
from dp_core.clipping.microbatches import Microbatches
from dp_core.clipping.signals import Batch
from dp_core.models.mlp import AdModel
from dp_core.models.spec import CategoricalFeature, as_model_spec

# The second is multi-valued.
FEATURES = (CategoricalFeature(30, 4), CategoricalFeature(100, 6, slots=4))


def make_model(
    kind: str = "mlp",
    features: Sequence[CategoricalFeature] = FEATURES,
    hidden_layers: Sequence[int] = (16, 8),
) -> AdModel:
    own = {"dcn_v2": {"cross_layers": 2}, "dlrm": {"interaction_dimension": 5}}.get(kind, {})
    return as_model_spec({"name": kind, "hidden_layers": tuple(hidden_layers), **own}).build(features)


def make_batch(
    model: AdModel,
    rows: int,
    *,
    integers: int = 4,
    seed: int = 0,
    counts: bool = False,
    microbatches: Microbatches | None = None,
) -> Batch:
    """Random examples with missing integers and, at the end, a few rows of padding.

    Multi-valued features have empty slots and tokens that are repeated within one example.
    """
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(rows, integers), scale=3).astype(np.float32)
    numbers[rng.random(numbers.shape) < 0.2] = np.nan
    tokens = [_tokens(rng, feature, rows) for feature in model.features]
    categoricals = np.concatenate([np.zeros((rows, 0), np.int32), *tokens], axis=1)
    labels = rng.poisson(0.5, rows) if counts else rng.random(rows) < 0.25
    mask = np.ones(rows, np.float32)
    mask[rows - rows // 8 :] = 0
    groups = None if microbatches is None else _groups(rng, mask, microbatches)
    return Batch(numbers, categoricals, labels.astype(np.float32), mask, groups)


def make_parameters(model: AdModel, batch: Batch, seed: int = 0) -> Any:
    return initial_parameters(model, np.random.default_rng(seed), batch.integers, batch.categoricals)


def rows_of(batch: Batch, rows: slice) -> Batch:
    """A batch of some rows of another, all of them unmasked."""
    parts = (np.asarray(part)[rows] for part in batch[:3])
    first = rows.start
    groups = None if batch.groups is None else np.asarray(batch.groups)[rows] - first
    return Batch(*parts, np.ones(rows.stop - first, np.float32), groups)


def _tokens(rng: np.random.Generator, feature: CategoricalFeature, rows: int) -> np.ndarray:
    tokens = rng.integers(0, feature.vocabulary_size, (rows, feature.slots), dtype=np.int32)
    if feature.slots > 1:
        repeated = rng.random(tokens.shape) < 0.3
        tokens[repeated] = np.broadcast_to(tokens[:, :1], tokens.shape)[repeated]
        tokens[rng.random(tokens.shape) < 0.3] = NO_TOKEN
        tokens[0] = NO_TOKEN
    return tokens


def _groups(rng: np.random.Generator, mask: np.ndarray, microbatches: Microbatches) -> np.ndarray:
    """Groups of random sizes: most near the nominal size, some of the largest size."""
    groups, row, examples = np.arange(len(mask), dtype=np.int32), 0, int(np.sum(mask))
    while row < examples:
        mean = microbatches.size if rng.random() < 0.75 else microbatches.largest
        size = int(np.clip(rng.poisson(mean), 1, microbatches.largest))
        groups[row : min(row + size, examples)] = row
        row += size
    return groups
