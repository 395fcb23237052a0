"""What a run of the probe begins with and is fed: states, and batches of a few distinct examples.

Batches are laid out here and not by the code that lays out training batches.

Most optimisers begin as a training does. One that scales gradients before they are clipped has scales of 1 there, at
which a program that forgets to scale would not show. So its runs begin with scales that differ by coordinate, and one
update before they are refreshed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from dp_core.audit.step_oracle import Compiled, Fill
from dp_core.clipping.microbatches import make_microbatches
from dp_core.clipping.signals import Batch
from dp_core.training.averaging import Averaged
from dp_core.training.lazy_updates import LazyState
from dp_core.training.method import Method
from dp_core.training.optimizers import OptimizerOracle
from dp_core.training.pending_noise import room
from dp_core.training.physical_batches import PhysicalShape
from dp_core.training.placement import Placement
from dp_core.training.step import Steps, TrainState

# Training examples in a probe, and examples that are made of them to have long gradients.
TAKEN, MADE = 6, 4
_LARGE_COUNT = 50.0
# The scales that runs start with.
_SCALES = (0.2, 1.0)


class Examples(NamedTuple):
    """Distinct examples, one row each."""

    integers: np.ndarray
    categoricals: np.ndarray
    labels: np.ndarray


def probe_examples(data: tuple[np.ndarray, ...], task: str, rng: np.random.Generator, *, stretch: float) -> Examples:
    """Returns some of the given examples, and more with long gradients.

    The latter have the opposite label, or a large count, and the features of some are multiplied by ``stretch``. A
    model that has saturated still has gradients there.
    """
    integers, categoricals, labels = (np.asarray(part) for part in data)
    taken = rng.choice(len(labels), min(TAKEN, len(labels)), replace=False)
    made = rng.choice(len(labels), MADE)
    others = (
        np.where(labels[made] > 0, 0.0, 1.0)
        if np.max(labels) <= 1 and task != "pconvs"
        else labels[made] + _LARGE_COUNT
    )
    stretched = integers[made] * np.where(np.arange(MADE) % 2, stretch, 1.0)[:, None]
    return Examples(
        np.concatenate([integers[taken], stretched]).astype(np.float32),
        np.concatenate([categoricals[taken], categoricals[made]]),
        np.concatenate([labels[taken], others]).astype(np.float32),
    )


def unusual_first(categoricals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns an order of examples: in turn the one with the rarest token and a random one."""
    rarity = np.full(len(categoricals), len(categoricals))
    for tokens in np.asarray(categoricals).T:
        _, number, counts = np.unique(tokens, return_inverse=True, return_counts=True)
        rarity = np.minimum(rarity, counts[number])
    shuffled = rng.permutation(len(rarity))
    rare = shuffled[np.argsort(rarity[shuffled], kind="stable")]
    order = np.stack([rare, rng.permutation(len(rarity))], axis=1).ravel()
    _, first = np.unique(order, return_index=True)
    return order[np.sort(first)]


def empty(shape: PhysicalShape, microbatch_size: int) -> Fill:
    """Returns a batch without examples."""
    examples = np.full(shape, -1)
    return Fill(examples, None if microbatch_size == 1 else np.tile(np.arange(shape.rows), (shape.pieces, 1)))


def full(
    shape: PhysicalShape, microbatch_size: int, examples: int, rng: np.random.Generator, *, share: float = 1.0
) -> Fill:
    """Returns a batch with an example in every row of the first ``share`` of the pieces and rows.

    With microbatches, groups of every size up to the largest follow each other.
    """
    rows = rng.integers(examples, size=shape)
    if shape.pieces > 1:
        rows[max(1, round(share * shape.pieces)) :] = -1
    else:
        rows[:, max(1, round(share * shape.rows)) :] = -1
    return grouped(Fill(rows, None), microbatch_size, rng)


def sparse(shape: PhysicalShape, microbatch_size: int, examples: int, rng: np.random.Generator) -> Fill:
    """Returns a batch with a few examples: in the first and last row of every piece, and in random rows.

    With microbatches they are runs of rows, so that groups have several members.
    """
    rows = np.full(shape, -1)
    for piece in range(shape.pieces):
        for _ in range(3):
            start, length = rng.integers(shape.rows), 1 if microbatch_size == 1 else 1 + rng.integers(microbatch_size)
            rows[piece, start : start + length] = rng.integers(examples)
        rows[piece, [0, -1]] = rng.integers(examples, size=2)
    return grouped(Fill(rows, None), microbatch_size, rng)


def grouped(fill: Fill, microbatch_size: int, rng: np.random.Generator) -> Fill:
    """Puts runs of rows with examples into groups of random sizes."""
    microbatches = make_microbatches(microbatch_size)
    if microbatches is None:
        return fill
    groups = np.tile(np.arange(fill.examples.shape[1]), (len(fill.examples), 1))
    for row_examples, own in zip(fill.examples, groups, strict=True):
        row = 0
        while row < len(own):
            end = min(row + int(rng.integers(1, microbatches.largest + 1)), len(own))
            holes = np.flatnonzero(row_examples[row:end] < 0)
            end = row + int(holes[0]) if len(holes) else end
            own[row:end] = row
            row = max(end, row + 1)
    return Fill(fill.examples, groups)


def to_dispatches(compiled: Compiled, examples: Examples, fills: Sequence[Fill]) -> Iterator[Steps]:
    """Yields dispatches of the program's own shape that together have one step for each of the batches."""
    for first in range(0, len(fills), compiled.steps):
        some = fills[first : first + compiled.steps]
        yield to_steps(compiled.method, compiled.shape, compiled.steps, examples, some)


def to_steps(
    method: Method, shape: PhysicalShape, dispatch_steps: int, examples: Examples, fills: Sequence[Fill]
) -> Steps:
    """Returns a dispatch of the program's own shape, with one step for each of the batches."""
    placement, whole = method.placement, (dispatch_steps, *shape)
    numbers, groups = (
        np.full(whole, -1),
        np.tile(np.arange(shape.rows, dtype=np.int32), (dispatch_steps, shape.pieces, 1)),
    )
    pieces = np.zeros(dispatch_steps, np.int32)
    for step, fill in enumerate(fills):
        numbers[step] = fill.examples
        used = np.flatnonzero(np.any(fill.examples >= 0, axis=1))
        pieces[step] = used[-1] + 1 if len(used) else 0
        if fill.groups is not None:
            groups[step] = fill.groups

    def place(values: np.ndarray) -> Any:
        return placement.batches(values.shape, lambda index: values[index])

    def rows_of(values: np.ndarray) -> Any:
        filled = np.zeros((*whole, *values.shape[1:]), values.dtype)
        filled[numbers >= 0] = values[numbers[numbers >= 0]]
        return place(filled)

    batches = Batch(
        integers=rows_of(examples.integers),
        categoricals=rows_of(examples.categoricals),
        labels=rows_of(examples.labels),
        mask=place((numbers >= 0).astype(np.float32)),
        groups=place(groups) if method.microbatch_size > 1 else None,
    )
    return Steps(batches, placement.copied(pieces), placement.copied(np.asarray(len(fills), np.int32)))


def first_moments(optimizer: OptimizerOracle, coordinates: int) -> np.ndarray:
    """Returns the moments that runs start with, of shape (moments, coordinates)."""
    moments = np.tile(np.array(optimizer.initial).reshape(-1, 1), (1, coordinates))
    if optimizer.scales is not None:
        drawn = np.random.default_rng(coordinates).uniform(*_SCALES, coordinates)
        moments[optimizer.scales] = drawn.astype(np.float32)
    return moments


def first_scales(optimizer: OptimizerOracle, coordinates: int) -> np.ndarray:
    """Returns what gradients are multiplied by before they are clipped, in the first step of a run."""
    if optimizer.scales is None:
        return np.ones(coordinates)
    return first_moments(optimizer, coordinates)[optimizer.scales]


def first_updates(optimizer: OptimizerOracle) -> int:
    """Returns the number of updates that the optimiser has seen when a run starts."""
    return 0 if optimizer.scales is None else optimizer.refreshed_every - 1


def of_optimizer(update_state: Any) -> Any:
    """Returns the optimiser's part of an update rule's state."""
    return update_state.inner if isinstance(update_state, Averaged) else update_state


def lazy_velocities(state: LazyState) -> list[np.ndarray]:
    """Returns the velocities of a settled state, flat, in the order of the parameters."""
    trace = flatten_dict(getattr(state.dense[0], "trace", {}))
    own = {(name, "table"): value["table"] for name, value in state.velocities.items()}
    return [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(unflatten_dict({**trace, **own}))]


def with_moments(placement: Placement, state: TrainState, updates: int, moments: Sequence[Any]) -> TrainState:
    """Returns a program's state with other moments, trees like the parameters, and another count of updates."""
    whole = placement.whole(state)
    trees = [jax.tree.map(np.float32, moment) for moment in moments]
    own = type(of_optimizer(whole.update_state))(np.asarray(updates, np.int32), *trees)
    if isinstance(whole.update_state, Averaged):
        own = whole.update_state._replace(inner=own)
    placed: TrainState = placement.put(whole._replace(update_state=own))
    return placed


def nearly_full(placement: Placement, state: TrainState, room_after: int | None) -> TrainState:
    """Returns a fresh state whose history runs out after so many steps, so that a run sees what happens then."""
    if room_after is None:
        return state
    update_state = state.update_state
    taken = placement.copied(np.asarray(room(update_state.history) - room_after, np.int32))
    return state._replace(update_state=update_state._replace(history=update_state.history._replace(taken=taken)))
