"""Layout of logical batches: every example once, no group split across pieces, room for the largest batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_core.clipping.microbatches import Microbatches, make_microbatches
from dp_core.sampling import PoissonSampler, SampledBatch
from dp_core.training.physical_batches import lay_out, physical_shape


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    max_batch_size=st.integers(1, 5000),
    largest_rows=st.integers(1, 3000),
    microbatch_size=st.sampled_from([1, 2, 4, 8]),
    devices=st.sampled_from([1, 2, 3, 8, 12]),
    seed=st.integers(0, 2**16),
)
def test_every_example_is_in_one_row_and_groups_stay_together(
    max_batch_size: int, largest_rows: int, microbatch_size: int, devices: int, seed: int
) -> None:
    microbatches = make_microbatches(microbatch_size)
    shape = physical_shape(max_batch_size, largest_rows=largest_rows, microbatches=microbatches, devices=devices)
    assert shape.rows % devices == 0
    rng = np.random.default_rng(seed)
    # The largest batch, with groups of random sizes.
    groups = np.sort(rng.integers(0, max(1, max_batch_size // microbatch_size), max_batch_size))
    sampled = SampledBatch(rng.permutation(max_batch_size), groups if microbatches else None)
    laid = lay_out(sampled, shape, microbatches)

    assert laid.indices.shape == laid.mask.shape == shape
    assert laid.used <= shape.pieces
    assert not laid.mask[laid.used :].any()
    seen = laid.indices[laid.mask > 0]
    expected = sampled.indices
    if microbatches is not None:
        position = np.arange(max_batch_size) - np.searchsorted(groups, groups)
        expected = sampled.indices[position < microbatches.largest]
    np.testing.assert_array_equal(seen, expected)

    if microbatches is None:
        assert laid.groups is None
        return
    assert laid.groups is not None
    group_of = dict(zip(sampled.indices.tolist(), groups.tolist(), strict=True))
    places: dict[int, set[tuple[int, int]]] = {}
    for piece, row in zip(*np.nonzero(laid.mask), strict=True):
        place = (int(piece), int(laid.groups[piece, row]))
        places.setdefault(group_of[int(laid.indices[piece, row])], set()).add(place)
    # Each group is in one place, and no two groups share one.
    assert all(len(found) == 1 for found in places.values())
    assert len({next(iter(found)) for found in places.values()}) == len(places)
    for piece in range(shape.pieces):
        assert np.all(np.diff(laid.groups[piece]) >= 0)
        padding = np.nonzero(laid.mask[piece] == 0)[0]
        np.testing.assert_array_equal(laid.groups[piece][padding], padding)


def test_pieces_are_filled_evenly() -> None:
    shape = physical_shape(70_000, largest_rows=1024)
    assert shape.pieces == 69
    assert shape.pieces * shape.rows - 70_000 < 69 * 8


def test_too_large_groups_lose_their_last_members_alone() -> None:
    """A full group drops its own last members; other groups are unaffected."""
    groups = np.array([0] * 2 + [1] * 7 + [2] * 3)
    laid = lay_out(SampledBatch(np.arange(12), groups), physical_shape(12, largest_rows=64), Microbatches(2, 4))
    assert laid.indices[laid.mask > 0].tolist() == [0, 1, 2, 3, 4, 5, 9, 10, 11]


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32])
def test_full_groups_drop_hardly_any_example(size: int) -> None:
    microbatches = make_microbatches(size)
    assert microbatches is not None
    sampler = PoissonSampler(20_000, 2048, 20_000, (1,), microbatch_size=size)
    counts = np.concatenate([np.bincount(batch.groups) for batch in map(sampler.batch, range(50))])  # type: ignore[arg-type]
    assert np.maximum(counts - microbatches.largest, 0).sum() < 5e-4 * counts.sum()
    assert size < microbatches.largest <= 4 * size
