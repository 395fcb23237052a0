"""Batches for training, read while the device computes.

A dispatch holds the batches of several steps in arrays of shape (steps, physical batches, rows, …). A reader thread
samples the next dispatch, reads it from the memory-mapped files and sends it to the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dp_core.clipping.microbatches import make_microbatches
from dp_core.clipping.signals import Batch
from dp_core.sampling import SampledBatch, Sampler
from dp_core.training.physical_batches import PhysicalShape, lay_out
from dp_core.training.placement import Placement
from dp_core.training.step import Steps
from tasks.data.prepared import Split

# A dispatch has about this many multiplications with parameters, so that the cost of starting one is negligible,
# and at most this many steps, so that progress shows.
_WORK_PER_DISPATCH = 4e9
_MOST_STEPS_PER_DISPATCH = 16

_T = TypeVar("_T")


class Dispatch(NamedTuple):
    """Steps on the device: the number of the first, their batches, and what each step sampled."""

    first: int
    steps: Steps
    sampled: tuple[SampledBatch, ...]


def steps_per_dispatch(shape: PhysicalShape, dense_parameters: int) -> int:
    """Returns how many steps to send to the device at a time."""
    work = shape.pieces * shape.rows * dense_parameters
    return int(min(max(_WORK_PER_DISPATCH // work, 1), _MOST_STEPS_PER_DISPATCH))


def spans(first: int, last: int, boundaries: Iterable[int], longest: int) -> Iterator[tuple[int, int]]:
    """Cuts steps ``first`` to ``last`` into ranges of at most ``longest`` steps; a range ends at every boundary.

    >>> list(spans(0, 10, [6], 4))
    [(0, 4), (4, 6), (6, 10)]
    """
    ends = sorted({last, *(boundary for boundary in boundaries if first < boundary < last)})
    for end in ends:
        while first < end:
            stop = min(first + longest, end)
            yield first, stop
            first = stop


def read_dispatches(
    data: Split,
    sampler: Sampler,
    shape: PhysicalShape,
    placement: Placement,
    ranges: Iterable[tuple[int, int]],
    longest: int,
) -> Iterator[Dispatch]:
    """Yields a dispatch for each range of steps, padded to ``longest`` steps and read one ahead."""
    return _ahead(_dispatch(data, sampler, shape, placement, range(*steps), longest) for steps in ranges)


def _dispatch(
    data: Split, sampler: Sampler, shape: PhysicalShape, placement: Placement, steps: range, longest: int
) -> Dispatch:
    microbatches = make_microbatches(sampler.microbatch_size)
    sampled = [sampler.batch(step) for step in steps]
    laid = [lay_out(_present(batch, data), shape, microbatches) for batch in sampled]
    whole = (longest, *shape)
    indices, mask = np.zeros(whole, np.int64), np.zeros(whole, np.float32)
    groups = None if microbatches is None else np.zeros(whole, np.int32)
    for number, batch in enumerate(laid):
        indices[number], mask[number] = batch.indices, batch.mask
        if groups is not None and batch.groups is not None:
            groups[number] = batch.groups

    def place(source: np.ndarray) -> Any:
        # Padding rows are zeros: no value of an example that was not sampled enters the computation, and
        # everything computed is finite.
        def fetch(index: Any) -> np.ndarray:
            sampled_rows = mask[index[:3]] > 0
            values = np.zeros((*sampled_rows.shape, *source.shape[1:]), source.dtype)
            values[sampled_rows] = source[indices[index[:3]][sampled_rows]]
            return values

        return placement.batches((*whole, *source.shape[1:]), fetch)

    def place_rows(values: np.ndarray) -> Any:
        return placement.batches(whole, lambda index: values[index])

    batches = Batch(
        integers=place(data.integers),
        categoricals=place(data.categoricals),
        labels=place(data.labels),
        mask=place_rows(mask),
        groups=None if groups is None else place_rows(groups),
    )
    pieces = np.zeros(longest, np.int32)
    pieces[: len(laid)] = [batch.used for batch in laid]
    active = np.asarray(len(steps), np.int32)
    return Dispatch(steps.start, Steps(batches, placement.copied(pieces), placement.copied(active)), tuple(sampled))


def _present(batch: SampledBatch, data: Split) -> SampledBatch:
    """Returns the batch without the empty slots."""
    kept = data.present(batch.indices)
    return SampledBatch(batch.indices[kept], None if batch.groups is None else batch.groups[kept])


def _ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Yields the same items; a thread makes the next one while the caller works on this one."""
    with ThreadPoolExecutor(1, thread_name_prefix="reading") as reader:
        pending = reader.submit(next, items, None)
        while (item := pending.result()) is not None:
            pending = reader.submit(next, items, None)
            yield item
