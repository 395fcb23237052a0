"""Reading batches: exactly the sampled rows, in order, one dispatch ahead of the device."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from dp_core.sampling import PoissonSampler
from dp_core.training.physical_batches import physical_shape
from dp_core.training.placement import Placement
from tasks.data.prepared import Split
from tasks.training.batches import _ahead, read_dispatches, spans, steps_per_dispatch


def make_split(rows: int) -> Split:
    rng = np.random.default_rng(0)
    integers = rng.normal(size=(rows, 3)).astype(np.float32)
    integers[0] = np.inf  # in no batch that does not sample it
    return Split(integers, rng.integers(1, 9, (rows, 2)).astype(np.int32), np.ones(rows, np.float32))


@pytest.mark.parametrize("microbatch_size", [1, 4])
def test_a_dispatch_holds_the_sampled_rows_and_blanks(microbatch_size: int) -> None:
    data = make_split(500)
    sampler = PoissonSampler(500, 60, 120, (0,), microbatch_size)
    shape = physical_shape(120, largest_rows=80)
    dispatches = list(read_dispatches(data, sampler, shape, Placement(), [(0, 3), (3, 5)], 3))
    assert [dispatch.first for dispatch in dispatches] == [0, 3]
    assert [int(dispatch.steps.active) for dispatch in dispatches] == [3, 2]
    for dispatch in dispatches:
        batches = dispatch.steps.batches
        assert batches.mask.shape == (3, *shape)
        for number, drawn in enumerate(dispatch.sampled):
            sampled = sampler.batch(dispatch.first + number)
            size = sampled.size
            np.testing.assert_array_equal(drawn.indices, sampled.indices)
            mask = np.asarray(batches.mask[number]) > 0
            np.testing.assert_array_equal(np.asarray(batches.integers[number])[mask], data.integers[sampled.indices])
            np.testing.assert_array_equal(
                np.asarray(batches.categoricals[number])[mask], data.categoricals[sampled.indices]
            )
            assert mask.sum() == np.asarray(batches.labels[number]).sum() == size
            assert not np.asarray(batches.integers[number])[~mask].any()
            assert not np.asarray(batches.categoricals[number])[~mask].any()


def test_an_empty_place_is_sampled_and_holds_nothing() -> None:
    """The sampler draws slots. Which of them are empty must not change its draws."""
    data = dataclasses.replace(make_split(50), empty=np.arange(40, 50))
    sampler = PoissonSampler(50, 50, 50)
    shape = physical_shape(50, largest_rows=80)
    (dispatch,) = read_dispatches(data, sampler, shape, Placement(), [(0, 1)], 1)
    assert dispatch.sampled[0].size == 50
    assert np.asarray(dispatch.steps.batches.mask).sum() == 40
    assert np.asarray(dispatch.steps.batches.labels).sum() == 40


def test_spans_end_where_they_must() -> None:
    assert list(spans(3, 20, {5, 10, 20, 40, 2}, 4)) == [(3, 5), (5, 9), (9, 10), (10, 14), (14, 18), (18, 20)]
    assert list(spans(7, 7, {7}, 4)) == []


def test_small_steps_go_together_and_large_ones_alone() -> None:
    assert steps_per_dispatch(physical_shape(2400, largest_rows=8192), 10_000) == 16
    assert steps_per_dispatch(physical_shape(66_000, largest_rows=1024), 1_500_000) == 1


def test_the_next_item_is_made_while_this_one_is_worked_on() -> None:
    started = [threading.Event() for _ in range(3)]

    def make() -> Iterator[int]:
        for number in range(3):
            started[number].set()
            yield number

    items = _ahead(make())
    assert next(items) == 0
    assert started[1].wait(10)
    assert not started[2].is_set()
    assert list(items) == [1, 2]


def test_an_error_while_reading_is_raised_to_the_trainer() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    items = _ahead(make())
    assert next(items) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(items)
