"""Lazy tables: SGD that leaves the rows of large tables alone until a batch reads them.

Most rows of a large table are in no example of a batch, and yet the dense rule draws noise for all of them at every
step, which takes longer than everything else. Here a row's noise waits until the row is read, or until the model is
evaluated or released, and is then drawn for all steps at once, with the distribution that it has in the dense rule
(``pending_noise``). A step reads and writes only the rows of its batch:

1. ``catch_up`` finds the distinct rows of the batch, draws what they owe, and hands the forward pass small tables with
   just these rows. The gradients of lazy tables have that shape too: none is as large as a table.
2. ``apply`` adds the gradients, and writes the rows back. The noise of the step itself waits with the rest.

Both happen or neither: a step that is refused has written nothing.

Everything else (dense layers, small tables) is updated by the dense rule.

*What may leave.* The tables that training holds are ``PendingTable``s. They are no arrays, and everything that exports
or evaluates a model wants arrays. Only ``draw_pending`` turns one into the other. It changes the run for good: a second
draw of the same noise would be a second look at the same gradients, and the accounting counts one. So a run settles at
steps that are fixed before it starts, whether someone then looks at the model or not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from dp_core.training.method import Method
from dp_core.training.noise import LARGE_ARRAY, normal_of_rows
from dp_core.training.pending_noise import (
    GapFactors,
    History,
    advanced,
    gap_factors,
    new_history,
    room,
    touched_slot,
)
from dp_core.training.read_rows import distinct_rows
from dp_core.training.updates import UpdateRule, UpdateScale

# Steps between two times that all rows are brought up to date, for the history to have a fixed size. One costs about
# as much as two dense steps.
HISTORY_STEPS = 4096
# A key of a step is folded with this for the rows that its batch reads, and with the other for all rows. Neither is the
# number of an array, which ``add_gaussian`` folds the same key with.
_OF_BATCH, _OF_ALL = 2**31, 2**31 + 1


class NoisePending(TypeError):
    """Something that needs a finished model was given tables with noise that is still to be drawn."""


@jax.tree_util.register_pytree_with_keys_class
class PendingTable:
    """The weights of a table, some rows of which wait for noise. It cannot be used as an array."""

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def tree_flatten_with_keys(self) -> tuple[Any, None]:
        # The name of the parameter, so that the placement treats it as the table that it is.
        return ((jax.tree_util.DictKey("table"), self.weights),), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, ...]) -> PendingTable:
        return cls(*children)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise NoisePending(
            "this table has rows that wait for their noise, so it must not be evaluated or released: draw it first, "
            "with Trainer.settle"
        )

    __getitem__ = __len__ = __array__


class LazyState(NamedTuple):
    """The state of a rule with lazy tables.

    Attributes:
        dense: The state of the rule that updates everything else.
        history: The numbers of all gaps.
        velocities: The velocity of each lazy table; none at momentum 0.
        slots: For each lazy table, the slot of the history that each row is in, int32.
    """

    dense: Any
    history: History
    velocities: dict[str, dict[str, jax.Array]]
    slots: dict[str, dict[str, jax.Array]]


class CaughtRows(NamedTuple):
    """The rows of a table that a step's batches read, up to date.

    Attributes:
        rows: The numbers of the distinct rows; behind them, numbers that no row has.
        places: For each token, which of these rows it is, of the shape of the tokens.
        weights: The rows' weights.
        velocity: Their velocities, or None at momentum 0.
    """

    rows: jax.Array
    places: jax.Array
    weights: jax.Array
    velocity: jax.Array | None


class Caught(NamedTuple):
    """A state, and the rows that its step reads."""

    state: LazyState
    tables: dict[str, CaughtRows]


def lazy_tables(setting: str, features: Mapping[str, tuple[int, int, int]], batch_size: float) -> tuple[str, ...]:
    """Returns the layers of tables that are updated lazily.

    Args:
        setting: "dense" for none, "lazy" for all, "auto" for those that are large against the batch.
        features: (vocabulary size, dimension, slots) of each table, by the name of its layer.
        batch_size: The expected number of examples in a batch.

    >>> lazy_tables("auto", {"small": (1000, 8, 1), "large": (100_000, 8, 1)}, 1024)
    ('large',)
    """
    chosen = {
        "dense": lambda rows, slots: False,
        "lazy": lambda rows, slots: True,
        "auto": lambda rows, slots: rows > AUTO_RATIO * slots * batch_size,
    }[setting]
    return tuple(name for name, (rows, _, slots) in features.items() if chosen(rows, slots))


# A row that is caught up costs as much as this many rows of a dense update, or less.
AUTO_RATIO = 3.0


def with_lazy_tables(rule: UpdateRule, method: Method, *, history_steps: int = HISTORY_STEPS) -> UpdateRule:
    """Returns the rule with lazy tables, for SGD with or without momentum.

    Args:
        rule: The dense rule, which updates the rest.
        method: The method; ``lazy_tables`` names the layers.
        history_steps: Steps between two times that all rows are brought up to date.
    """
    names, momentum, columns = method.lazy_tables, method.momentum, _columns(method)
    caught_up = functools.partial(_caught_up, momentum=momentum, noisy=method.private)

    hold = functools.partial(_held, names)

    def catch_up(state: LazyState, params: Any, batches: Any, noise_key: jax.Array) -> tuple[Caught, Any]:
        tables, view = {}, dict(params)
        key = jax.random.fold_in(noise_key, _OF_BATCH)
        for number, name in enumerate(names):
            table, velocity = _pending(params, name), _velocity(state, name)
            tokens = batches.categoricals[..., columns[name]]
            rows, places = distinct_rows(tokens, jnp.asarray(batches.mask)[..., None] > 0, table.shape[0])
            own = jnp.minimum(rows, table.shape[0] - 1)
            factors = gap_factors(state.history, state.slots[name]["slot"][own])
            weights, velocity = caught_up(
                jax.random.fold_in(key, number), own, table[own], None if velocity is None else velocity[own], factors
            )
            tables[name] = CaughtRows(rows, places, weights, velocity)
            view[name] = {"table": weights}
        return Caught(state, tables), view

    def apply(caught: Caught, params: Any, gradient_sum: Any, scale: UpdateScale) -> tuple[LazyState, Any]:
        state = caught.state
        dense, rest = rule.apply(state.dense, _without(params, names), _without(gradient_sum, names), scale)
        slot, velocities, slots = touched_slot(state.history), dict(state.velocities), dict(state.slots)
        params = {**params, **rest}
        for name, own in caught.tables.items():
            step = gradient_sum[name]["table"] / scale.expected_count
            if own.velocity is not None:
                step = momentum * own.velocity + step
                velocities[name] = {"table": _written(velocities[name]["table"], own.rows, step)}
            table = _written(_pending(params, name), own.rows, own.weights - scale.learning_rate * step)
            params[name] = {"table": PendingTable(table)}
            slots[name] = {"slot": _written(slots[name]["slot"], own.rows, slot)}
        deviation = 0.0 if scale.standard_deviation is None else scale.standard_deviation / scale.expected_count
        history = advanced(state.history, momentum=momentum, learning_rate=scale.learning_rate, deviation=deviation)
        state = LazyState(dense, history, velocities, slots)

        def make_room() -> tuple[LazyState, Any]:
            settled, plain = draw_pending(state, params, scale.noise_key)
            return settled, hold(plain)

        return jax.lax.cond(history.taken >= room(history), make_room, lambda: (state, params))

    def draw_pending(state: LazyState, params: Any, noise_key: jax.Array) -> tuple[LazyState, Any]:
        key = jax.random.fold_in(noise_key, _OF_ALL)
        velocities, slots, params = dict(state.velocities), dict(state.slots), dict(params)
        for number, name in enumerate(names):
            table, velocity = _pending(params, name), _velocity(state, name)
            table, velocity, slot = _all_caught_up(
                functools.partial(caught_up, jax.random.fold_in(key, number)),
                table,
                velocity,
                state.slots[name]["slot"],
                state.history,
                whole=not method.placement.alone,
            )
            params[name], slots[name] = {"table": table}, {"slot": slot}
            if velocity is not None:
                velocities[name] = {"table": velocity}
        return LazyState(state.dense, new_history(history_steps), velocities, slots), params

    return UpdateRule(
        init=functools.partial(_init, rule, method, history_steps),
        catch_up=catch_up,
        apply=apply,
        settle=lambda state, params: _without_pending(names, params),
        tokens=functools.partial(_places, columns),
        hold=hold,
        draw_pending=draw_pending,
    )


def _init(rule: UpdateRule, method: Method, history_steps: int, params: Any) -> LazyState:
    tables = {name: _plain(params[name]["table"]) for name in method.lazy_tables}
    return LazyState(
        dense=rule.init(_without(params, method.lazy_tables)),
        history=new_history(history_steps),
        velocities={name: {"table": jnp.zeros_like(table)} for name, table in tables.items() if method.momentum},
        slots={name: {"slot": jnp.zeros(table.shape[0], jnp.int32)} for name, table in tables.items()},
    )


def _places(columns: Mapping[str, slice], caught: Caught, categoricals: jax.Array) -> jax.Array:
    for name, own in caught.tables.items():
        categoricals = categoricals.at[..., columns[name]].set(own.places)
    return categoricals


def _held(names: tuple[str, ...], params: Any) -> Any:
    return {
        name: {**own, "table": PendingTable(own["table"])} if name in names else own for name, own in params.items()
    }


def _without_pending(names: tuple[str, ...], params: Any) -> Any:
    for name in names:
        if isinstance(params[name]["table"], PendingTable):
            params[name]["table"].__array__()
    return params


def _caught_up(
    key: jax.Array,
    rows: jax.Array,
    weights: jax.Array,
    velocity: jax.Array | None,
    factors: GapFactors,
    *,
    momentum: float,
    noisy: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """Returns the weights and velocities of rows after their gaps, with the noise that they owe."""
    gap = GapFactors(*(factor[:, None] for factor in factors))
    width = weights.shape[1]
    if velocity is None:
        if noisy:
            deviation = jnp.sqrt(jnp.square(gap.shared) + jnp.square(gap.weight))
            weights = weights + deviation * normal_of_rows(key, rows, width)
        return weights, None
    weights, velocity = weights - gap.drift * velocity, gap.decay * velocity
    if noisy:
        normals = normal_of_rows(key, rows, 2 * width)
        first, second = normals[:, :width], normals[:, width:]
        velocity = velocity + gap.velocity * first
        weights = weights - gap.shared * first + gap.weight * second
    return weights, velocity


def _all_caught_up(
    catch_up: Callable[..., tuple[jax.Array, jax.Array | None]],
    table: jax.Array,
    velocity: jax.Array | None,
    slots: jax.Array,
    history: History,
    *,
    whole: bool,
) -> tuple[jax.Array, jax.Array | None, jax.Array]:
    """Brings all rows of a table up to date, a few at a time, or the whole table at once."""
    size, width = table.shape
    at_once = size if whole else min(size, max(1, LARGE_ARRAY // width))

    def some(index: Any, held: tuple[Any, ...]) -> tuple[Any, ...]:
        rows = index * at_once + jnp.arange(at_once, dtype=jnp.int32)
        table, velocity, slots = jax.tree.map(lambda one: one[jnp.minimum(rows, size - 1)], held)
        moved = catch_up(rows, table, velocity, gap_factors(history, slots))
        # Rows behind the last are not written. Every row is then in slot 0, which is computed from the slot that was
        # read: the compiler would copy the array to write before it reads.
        return jax.tree.map(lambda one, new: _written(one, rows, new), held, (*moved, slots >> 31))

    held = jax.lax.fori_loop(0, -(-size // at_once), some, (table, velocity, slots))
    table, velocity, slots = held
    return table, velocity, slots


def _written(array: jax.Array, rows: jax.Array, values: Any) -> jax.Array:
    return array.at[rows].set(values, mode="drop", unique_indices=True, indices_are_sorted=True)


def _columns(method: Method) -> dict[str, slice]:
    """Returns the columns of tokens of each lazy table."""
    ends = np.cumsum([feature.slots for feature in method.model.features]).tolist()
    return {
        name: slice(end - feature.slots, end)
        for name, feature, end in zip(method.model.vocabulary_sizes, method.model.features, ends, strict=True)
        if name in method.lazy_tables
    }


def _pending(params: Any, name: str) -> jax.Array:
    held = params[name]["table"]
    if not isinstance(held, PendingTable):
        raise TypeError(f"{name} is not held for lazy updates: use the state that Trainer.init or resume returns")
    weights: jax.Array = held.weights
    return weights


def _velocity(state: LazyState, name: str) -> jax.Array | None:
    return state.velocities[name]["table"] if name in state.velocities else None


def _plain(table: Any) -> Any:
    return table.weights if isinstance(table, PendingTable) else table


def _without(params: Any, names: tuple[str, ...]) -> Any:
    return unflatten_dict({path: value for path, value in flatten_dict(params).items() if path[0] not in names})
