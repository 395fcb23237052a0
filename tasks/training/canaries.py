"""Canaries: examples made up for the audit, each in the training data or not by the toss of a coin.

A canary has a token that nobody else has, in a row of its own at the end of an embedding table: the
worst case of ad data, an identifier that only one person has. Its other features are missing, so that
it copies no real example. Training treats it like any example; a canary that lost its toss has a place
that is sampled like the others and is empty. After training, the rows of the table tell whether they
have moved the way their canary would have moved them: that is the attack whose success the audit turns
into a lower bound on ε.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dp_core.losses import OBJECTIVES
from dp_core.models import AdModel
from tasks.encoded import Prepared, Split
from tasks.errors import UserError

_ARRAYS = ("integers", "categoricals", "labels")


class CanaryTokens(NamedTuple):
    """Where the canaries' tokens are: ``number`` rows from ``first`` on, in the table of a categorical column."""

    column: int
    first: int
    number: int


class Appended:
    """Rows of a file, followed by a few more that are in memory."""

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


def canary_tokens(prepared: Prepared, count: int) -> CanaryTokens | None:
    """Tokens for so many canaries, in the column with the widest embedding: there is the most to move."""
    if count == 0:
        return None
    columns = prepared.categorical_columns
    if not columns:
        raise UserError(f"canaries need a categorical column, and dataset {prepared.dataset!r} has none")
    widest = max(range(len(columns)), key=lambda column: columns[column].embedding_dimension)
    return CanaryTokens(widest, columns[widest].vocabulary_size, count)


def make_canaries(tokens: CanaryTokens, data: Split) -> Split:
    """The canaries' rows: a label of 1, a token each, everything else missing."""
    categoricals = np.zeros((tokens.number, data.categoricals.shape[1]), np.int32)
    categoricals[:, tokens.column] = tokens.first + np.arange(tokens.number)
    integers = np.full((tokens.number, data.integers.shape[1]), np.nan, np.float32)
    return Split(integers, categoricals, np.ones(tokens.number, np.float32))


def with_canaries(data: Split, canaries: Split, included: np.ndarray) -> Split:
    """Training examples, followed by the places of the canaries, taken or empty."""
    arrays: dict[str, Any] = {name: Appended(getattr(data, name), getattr(canaries, name)) for name in _ARRAYS}
    return Split(**arrays, empty=len(data) + np.flatnonzero(~included))


def attacks(
    model: AdModel, task: str, tokens: CanaryTokens, canaries: Split, before: Any, after: Any
) -> dict[str, np.ndarray]:
    """For each attack every canary's score, from the parameters at the beginning and as released.

    ``slope``: how far the canary's row has moved down the slope of its own loss, as the trained model
    sees it. ``distance``: how far it has moved at all, for a slope that has turned since.
    """
    example_loss = OBJECTIVES[task].example_loss
    table = list(model.vocabulary_sizes)[tokens.column]

    def total_loss(params: Any) -> jax.Array:
        logits: Any = model.apply({"params": params}, canaries.integers, canaries.categoricals)
        return jnp.sum(example_loss(logits, jnp.asarray(canaries.labels)))

    rows = slice(tokens.first, tokens.first + tokens.number)
    # No two canaries share a row, so the slope of the sum is each one's own.
    slope = np.asarray(jax.grad(total_loss)(after)[table]["table"], np.float64)[rows]
    moved = np.asarray(after[table]["table"], np.float64)[rows] - np.asarray(before[table]["table"], np.float64)[rows]
    return {"slope": -np.sum(slope * moved, axis=1), "distance": np.sum(moved**2, axis=1)}
