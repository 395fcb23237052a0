"""Cuts in the chronological order agree with sorting everything."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.data.chronology import cut_after, cut_at, is_in_order, time_at

TIMES = st.one_of(st.integers(-5, 5), st.integers(-(2**62), 2**62))
BLOCKS = st.lists(st.lists(TIMES, min_size=1, max_size=30), min_size=1, max_size=8)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(BLOCKS, st.booleans(), st.data())
def test_positions_equal_those_after_sorting(drawn: list[list[int]], real: bool, data: st.DataObject) -> None:
    kind = np.float64 if real else np.int64
    blocks = [np.sort(np.array(times, kind)) for times in drawn]
    everything = np.sort(np.concatenate(blocks))
    rank = data.draw(st.integers(0, len(everything) - 1))
    assert time_at(blocks, rank) == everything[rank]

    # A cut follows the order of (time, block, place in the block).
    keys = sorted((time, number) for number, times in enumerate(blocks) for time in times)
    before = [number for _, number in keys[:rank]]
    assert cut_at(blocks, rank).tolist() == [before.count(number) for number in range(len(blocks))]
    assert cut_at(blocks, len(everything)).tolist() == [len(times) for times in blocks]
    after = cut_after(blocks, time_at(blocks, rank))
    assert after.tolist() == [int(np.sum(times <= everything[rank])) for times in blocks]
    assert is_in_order(blocks) == bool(np.all(np.diff(np.concatenate(blocks)) >= 0))


def test_many_equal_times_end_the_search() -> None:
    blocks = [np.zeros(1000, np.int64), np.zeros(10, np.int64), np.array([-1, 0, 1])]
    assert time_at(blocks, 500) == 0
    assert cut_at(blocks, 1005).tolist() == [1000, 4, 1]
