"""Canaries: made-up examples for the audit. A fair coin decides for each whether it is in the training data.

Each canary has a token of its own, in a row of its own at the end of an embedding table. That is the worst case in ad
data: an identifier that only one person has. Its other features are missing, so it copies no real example. Training
treats it like any example. A canary that is left out keeps its slot, which is sampled like any other but is empty.
After training, the attack guesses from the table's rows which canaries were in: it scores how far each row has moved in
the direction that its canary would have moved it. The audit turns the attack's success into a lower bound on ε.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dp_core.models.mlp import AdModel
from dp_core.training.losses import OBJECTIVES
from tasks.data.prepared import Prepared, Split
from tasks.runtime.errors import UserError

_ARRAYS = ("integers", "categoricals", "labels")


class CanaryTokens(NamedTuple):
    """The canaries' tokens: ``number`` ids from ``first`` on, of the categorical column with index ``column``."""

    column: int
    first: int
    number: int


class Appended:
    """An array on disk followed by a few rows in memory, read like one array."""

    def __init__(self, rows: np.ndarray, more: np.ndarray) -> None:
        self._rows, self._more = rows, more
        self.dtype = rows.dtype
        self.shape = (len(rows) + len(more), *rows.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, indices: Any) -> np.ndarray:
        indices = np.asarray(indices)
        values = np.empty((*indices.shape, *self.shape[1:]), self.dtype)
        more = indices >= len(self._rows)
        values[~more] = self._rows[indices[~more]]
        values[more] = self._more[indices[more] - len(self._rows)]
        return values


class Canaries(NamedTuple):
    """The canaries of a run: their tokens, their rows, and which of them are in the training data."""

    tokens: CanaryTokens
    rows: Split
    included: np.ndarray


def canary_tokens(prepared: Prepared, count: int) -> CanaryTokens | None:
    """Returns tokens for ``count`` canaries, in the column with the widest embedding, which has the most to move."""
    if count == 0:
        return None
    columns = prepared.categorical_columns
    if not columns:
        raise UserError(f"canaries need a categorical column, but dataset {prepared.dataset!r} has none")
    widest = max(range(len(columns)), key=lambda column: columns[column].embedding_dimension)
    return CanaryTokens(widest, columns[widest].vocabulary_size, count)


def make_canaries(tokens: CanaryTokens, data: Split) -> Split:
    """Returns the canaries' rows: a token each, a label of 1, everything else missing."""
    categoricals = np.zeros((tokens.number, data.categoricals.shape[1]), np.int32)
    categoricals[:, tokens.column] = tokens.first + np.arange(tokens.number)
    integers = np.full((tokens.number, data.integers.shape[1]), np.nan, np.float32)
    return Split(integers, categoricals, np.ones(tokens.number, np.float32))


def with_canaries(data: Split, canaries: Split, included: np.ndarray) -> Split:
    """Returns the training examples followed by the canaries' slots, filled or empty."""
    arrays: dict[str, Any] = {name: Appended(getattr(data, name), getattr(canaries, name)) for name in _ARRAYS}
    return Split(**arrays, empty=len(data) + np.flatnonzero(~included))


def attacks(model: AdModel, task: str, canaries: Canaries, before: Any, after: Any) -> dict[str, np.ndarray]:
    """Returns every canary's score in each attack, from the parameters ``before`` and ``after`` training.

    ``slope`` is how far the canary's row has moved against the gradient of its loss at the trained model. ``distance``
    is how far it has moved at all, in case that gradient has changed its direction.
    """
    tokens, examples, _ = canaries
    example_loss = OBJECTIVES[task].example_loss
    table = list(model.vocabulary_sizes)[tokens.column]

    def total_loss(params: Any) -> jax.Array:
        logits: Any = model.apply({"params": params}, examples.integers, examples.categoricals)
        return jnp.sum(example_loss(logits, jnp.asarray(examples.labels)))

    rows = slice(tokens.first, tokens.first + tokens.number)
    # No two canaries share a row, so the gradient of the summed loss has each canary's own gradient in its row.
    slope = np.asarray(jax.grad(total_loss)(after)[table]["table"], np.float64)[rows]
    moved = np.asarray(after[table]["table"], np.float64)[rows] - np.asarray(before[table]["table"], np.float64)[rows]
    return {"slope": -np.sum(slope * moved, axis=1), "distance": np.sum(moved**2, axis=1)}
