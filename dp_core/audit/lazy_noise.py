"""The oracle of lazy tables: for every step a noise that does to each row what the program's pending noise does.

The step oracle adds noise to every coordinate at every step. A program with lazy tables draws for several steps at
once (``dp_core.training.lazy_updates``), and two numbers of the draw matter: by how much it moves the velocity and the
weight of a row until the row is read. With u steps in a gap these are two linear functions of the u noises of the
steps. So there are noises ζ that make the dense oracle move the row by just as much, and the shortest are

    ζ = Aᵀ C⁻ᵀ (p, q),   where row 0 of A has the effect of each step's noise on the velocity at the end of the gap and
    row 1 that on the weight, C is the Cholesky factor of A Aᵀ, and p and q are the two normals of the draw.

A is written out from the rates of the steps, in NumPy and 64 bits; nothing of the program's recurrence is used. A row
that is read too early, noise that is not drawn, drawn twice or with another covariance, all leave the row elsewhere.
Which rows are read follows from the batches that the probe made. The run of the probe ends with ``Trainer.settle``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import ArrayLike

from dp_core.audit.probe_batches import Examples
from dp_core.audit.step_oracle import Fill, rate_share
from dp_core.training.method import Method
from dp_core.training.noise import add_gaussian, normal_of_rows, standard_normal
from dp_core.training.step import Hyperparameters

# How a step's key is folded: for the rows of its batch, for all rows before it, and for all rows after it when the
# history has run out (then after the fold of the noise on gradients).
_OF_BATCH, _OF_ALL = 2**31, 2**31 + 1
_GRADIENTS, _CATCH_UP, _SETTLE = 0, 2, 3


class LazyTable(NamedTuple):
    """A lazy table: its number among them, its place in the flat coordinates, and the columns of its tokens."""

    number: int
    start: int
    rows: int
    width: int
    columns: slice


def without_lazy_tables(method: Method, tree: Any) -> Any:
    """Returns a tree like the parameters without the lazy tables."""
    return unflatten_dict(
        {path: leaf for path, leaf in flatten_dict(tree).items() if path[0] not in method.lazy_tables}
    )


class StepNoise:
    """The noise of each step in standard deviations, flat, as drawn from the step's key outside of the program."""

    def __init__(self, method: Method, padded: Any, key: jax.Array) -> None:
        self.method, self.key, self.tables = method, key, lazy_places(method, padded)
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), padded)
        self._zeros = without_lazy_tables(method, zeros)
        leaves = jax.tree_util.tree_flatten_with_path(padded)[0]
        self._is_dense = np.concatenate(
            [np.full(leaf.size, path[0].key not in method.lazy_tables) for path, leaf in leaves]
        )
        self._alone: dict[int, np.ndarray] = {}
        self._of_run: dict[int, np.ndarray] = {}

    def of(self, step: int) -> np.ndarray:
        """Returns the noise of a step of the run that ``set_run`` described, else of a run of this step alone."""
        if step in self._of_run:
            return self._of_run[step]
        if step not in self._alone:
            self._alone[step] = self.drawn(self.key, step)
        return self._alone[step]

    def drawn(self, key: jax.Array, step: int) -> np.ndarray:
        """Returns the noise of a run of one step, with any key."""
        lazy = equivalent_noises(self.method, self.tables, key, first=step, rates=[1.0])
        return self._joined(key, step, [noises[0] for noises in lazy])

    def set_run(
        self,
        hyper: Hyperparameters,
        step: int,
        batches: tuple[Examples, Sequence[Fill]],
        room_after: int | None = None,
    ) -> None:
        """Sets the steps that are run before the state is settled, if the program has lazy tables."""
        steps = range(len(batches[1]) if self.tables else 0)
        rates = [float(hyper.learning_rate) * rate_share(hyper, step + number) for number in steps]
        lazy = equivalent_noises(
            self.method, self.tables, self.key, first=step, rates=rates, batches=batches, room_after=room_after
        )
        self._of_run = {
            step + number: self._joined(self.key, step + number, [noises[number] for noises in lazy])
            for number in steps
        }

    def forget_run(self) -> None:
        """Ends the run that ``set_run`` described."""
        self._of_run = {}

    def _joined(self, key: jax.Array, step: int, lazy: list[np.ndarray]) -> np.ndarray:
        noise = np.zeros(len(self._is_dense))
        noise[self._is_dense] = np.asarray(draw_noise(key, self._zeros, np.int32(step)), np.float64)
        for table, own in zip(self.tables, lazy, strict=True):
            noise[table.start : table.start + own.size] = own
        return noise


def lazy_places(method: Method, padded: Any) -> list[LazyTable]:
    """Returns the lazy tables of a method, in the order in which their keys are numbered."""
    leaves = jax.tree_util.tree_flatten_with_path(padded)[0]
    ends = np.cumsum([leaf.size for _, leaf in leaves])
    starts = {
        path[0].key: int(end) - leaf.size for (path, leaf), end in zip(leaves, ends, strict=True) if len(path) > 1
    }
    columns, column = {}, 0
    for name, feature in zip(method.model.vocabulary_sizes, method.model.features, strict=True):
        columns[name] = slice(column, column + feature.slots)
        column += feature.slots
    return [
        LazyTable(number, starts[name], len(padded[name]["table"]), padded[name]["table"].shape[1], columns[name])
        for number, name in enumerate(method.lazy_tables)
    ]


def equivalent_noises(
    method: Method,
    tables: Sequence[LazyTable],
    key: jax.Array,
    *,
    first: int,
    rates: Sequence[float],
    batches: tuple[Examples, Sequence[Fill]] | None = None,
    room_after: int | None = None,
) -> list[list[np.ndarray]]:
    """Returns for every table and step the noise on all of its coordinates, in standard deviations.

    Args:
        method: The method.
        tables: ``lazy_places``.
        key: The run's noise key.
        first: The number of the first step.
        rates: The rate of each step.
        batches: The distinct examples, and the batch of each step; None if no row is read.
        room_after: After how many of the steps the history runs out; None if it does not.
    """
    found = []
    reads = [np.zeros((0, 0), int)] * len(rates)
    if batches is not None:
        examples, fills = batches
        reads = [np.asarray(examples.categoricals)[fill.examples[fill.examples >= 0]] for fill in fills]
    for table in tables:
        noises = [np.zeros((table.rows, table.width)) for _ in rates]
        since = np.zeros(table.rows, int)
        everything = np.arange(table.rows)
        for number, read in enumerate(reads):
            tokens = np.unique(read[:, table.columns])
            own = _folded(key, first + number, _CATCH_UP, _OF_BATCH, table.number)
            _draw(method, own, tokens[tokens >= 0], since, number, rates, noises)
            since[tokens[tokens >= 0]] = number
            if number + 1 == room_after:
                own = _folded(key, first + number, _GRADIENTS, _OF_ALL, table.number)
                _draw(method, own, everything, since, number + 1, rates, noises)
                since[:] = number + 1
        own = _folded(key, first + len(rates), _SETTLE, _OF_ALL, table.number)
        _draw(method, own, everything, since, len(rates), rates, noises)
        found.append([noise.ravel() for noise in noises])
    return found


def _draw(
    method: Method,
    key: jax.Array,
    rows: np.ndarray,
    since: np.ndarray,
    until: int,
    rates: Sequence[float],
    noises: list[np.ndarray],
) -> None:
    """Adds the noises of the gaps of some rows that end before step ``until``."""
    if not len(rows):
        return
    width = noises[0].shape[1]
    drawn = np.asarray(normal_of_rows(key, jnp.asarray(rows, jnp.int32), 2 * width if method.momentum else width))
    for start in np.unique(since[rows]):
        if start == until:
            continue
        here = since[rows] == start
        parts = _shortest(method.momentum, np.asarray(rates[start:until], np.float64))
        normals = np.float64(drawn[here]).reshape(int(np.sum(here)), -1, width)
        for step, weights in zip(range(start, until), parts, strict=True):
            noises[step][rows[here]] = np.einsum("n,rnw->rw", weights, normals)


def _shortest(momentum: float, rates: np.ndarray) -> np.ndarray:
    """Returns Aᵀ C⁻ᵀ of a gap with these rates, of shape (steps, normals of a draw)."""
    steps = len(rates)
    on_weight, reach = np.zeros(steps), 0.0
    for step in range(steps - 1, -1, -1):
        reach = rates[step] + momentum * reach
        on_weight[step] = -reach
    # Whatever unit the weight has, the noises are the same.
    on_weight = on_weight / max(np.max(np.abs(on_weight)), 1e-300)
    if not momentum:
        return (on_weight / np.linalg.norm(on_weight))[:, None]
    if steps == 1:
        return np.array([[1.0, 0.0]])
    effect = np.stack([momentum ** np.arange(steps - 1.0, -1.0, -1.0), on_weight])
    return effect.T @ np.linalg.inv(np.linalg.cholesky(effect @ effect.T)).T


@jax.jit
def draw_count(key: jax.Array, step: ArrayLike) -> jax.Array:
    """Returns the noise on a step's count: from the run's key, folded with the step and with 1."""
    return standard_normal(jax.random.fold_in(jax.random.fold_in(key, step), 1))


@jax.jit
def draw_noise(key: jax.Array, zeros: Any, step: ArrayLike) -> jax.Array:
    """Returns the flat noise of a step at standard deviation 1: from the run's key, folded with the step and with 0."""
    step_key = jax.random.fold_in(jax.random.fold_in(key, step), 0)
    noise = add_gaussian(step_key, zeros, jnp.float32(1.0))
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(noise)])


def _folded(key: jax.Array, *numbers: int) -> jax.Array:
    for number in numbers:
        key = jax.random.fold_in(key, np.uint32(number))
    return key
