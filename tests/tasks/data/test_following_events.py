"""Counts of following events equal those of the obvious algorithm for any blocks, in the memory of one group."""

from __future__ import annotations

import itertools
import math
import os
import sys
import tempfile
import threading
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import dask
import distributed
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.data.following_events import count_following, write_events, write_rows

LAST = 2**63 - 1


class Log(NamedTuple):
    """Rows as (key, time), events as (key, id, time), and the dtype of times."""

    rows: list[tuple[int, Any]]
    events: list[tuple[int, int, Any]]
    time_type: type = np.int64


def compute(tasks: list[Any]) -> list[Any]:
    return list(dask.compute(*tasks, scheduler="sync"))


def slowly(log: Log, window: float) -> list[int]:
    """Counts with Python's exact numbers, also for the comparison with the window."""
    exact = int if log.time_type is np.int64 else Fraction
    earliest: dict[int, dict[int, Any]] = defaultdict(dict)
    for key, event, time in log.events:
        earliest[key][event] = min(exact(time), earliest[key].get(event, exact(time)))
    return [sum(0 <= event - exact(time) <= window for event in earliest[key].values()) for key, time in log.rows]


def blocks(items: list[Any], cuts: Sequence[int]) -> list[list[Any]]:
    return [items[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(items)])]


def counted(
    log: Log,
    window: float,
    folder: Path,
    *,
    row_cuts: Sequence[int] = (),
    event_cuts: Sequence[int] = (),
    group_size: int = 1_000_000,
    compute: Callable[[list[Any]], list[Any]] = compute,
) -> list[int]:
    rows, events, counts = ([folder / f"{kind}{i}" for i in range(len(row_cuts) + 1)] for kind in "rec")
    for path, block in zip(rows, blocks(log.rows, row_cuts), strict=True):
        keys, times = [key for key, _ in block], [time for _, time in block]
        write_rows(path, np.array(keys, np.uint64), np.array(times, log.time_type))
    for path, carried in zip(events, blocks(log.events, event_cuts), strict=True):
        columns = zip(*carried, strict=True) if carried else ([], [], [])
        keys, ids, moments = map(list, columns)
        write_events(path, np.array(keys, np.uint64), np.array(ids, np.uint64), np.array(moments, log.time_type))
    count_following(rows, events, counts, window=window, scratch=folder, compute=compute, group_size=group_size)
    found = [np.load(path) for path in counts]
    assert [len(block) for block in found] == [len(block) for block in blocks(log.rows, row_cuts)]
    assert {block.dtype for block in found} == {np.dtype(np.float32)}
    assert {path.name for path in folder.iterdir()} == {path.name for path in [*rows, *events, *counts]}
    return np.concatenate(found).astype(int).tolist()


def random_log(seed: int, *, keys: int, time: Callable[[int], Any], time_type: type = np.int64) -> Log:
    """About half of the events occur more than once, at different times; keys share ids."""
    rng = np.random.default_rng(seed)
    pool = [0, 2**64 - 1, *rng.integers(0, 2**64, keys, dtype=np.uint64).tolist()]
    rows = [(pool[rng.integers(len(pool))], time(int(rng.integers(60)))) for _ in range(300)]
    events = [
        (pool[rng.integers(len(pool))], int(rng.integers(40)) * (2**64 // 40), time(int(rng.integers(60))))
        for _ in range(150)
    ]
    return Log(rows, events, time_type)


TIMES: dict[str, tuple[Callable[[int], Any], type, list[float]]] = {
    "small": (lambda step: step, np.int64, [0, 7.99, math.inf]),
    "negative": (lambda step: step - 45, np.int64, [12]),
    "too large for float64": (lambda step: 2**60 + step, np.int64, [5, 5.5]),
    "the largest": (lambda step: LAST - step, np.int64, [9, 2**63, 1e30]),
    "the smallest": (lambda step: step - 2**63, np.int64, [9, LAST]),
    "the whole range": (lambda step: (step - 30) * (2**63 // 30), np.int64, [2**60 * 3, LAST]),
    "tenths": (lambda step: step / 10 - 2, np.float64, [0, 0.3, 0.7]),
    "thirds at different scales": (lambda step: (-3.0) ** (step - 30) / 3, np.float64, [1 / 3, math.inf]),
}


# Equal cuts, and a cut at the start, give blocks without rows or events.
ROW_CUTS, EVENT_CUTS = (0, 50, 50, 299), (15, 100, 149, 149)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize(("seed", "keys"), [(0, 1), (1, 20), (2, 60)])
def test_counts_are_those_of_the_slow_way(seed: int, keys: int, times: str, tmp_path: Path) -> None:
    time, time_type, windows = TIMES[times]
    log = random_log(seed, keys=keys, time=time, time_type=time_type)
    for window in windows:
        expected = slowly(log, window)
        assert sum(expected) > 0
        found = counted(log, window, tmp_path, row_cuts=ROW_CUTS, event_cuts=EVENT_CUTS, group_size=150)
        assert found == expected


@pytest.mark.parametrize("group_size", [10_000, 449, 70, 12])
@pytest.mark.parametrize("cuts", [((), ()), (ROW_CUTS, EVENT_CUTS), (range(20, 300, 20), range(10, 150, 10))])
def test_counts_depend_neither_on_blocks_nor_on_groups(
    cuts: tuple[Sequence[int], Sequence[int]], group_size: int, tmp_path: Path
) -> None:
    log = random_log(3, keys=40, time=lambda step: step)
    found = counted(log, 9, tmp_path, row_cuts=cuts[0], event_cuts=cuts[1], group_size=group_size)
    assert found == slowly(log, 9)


WHOLE = st.one_of(st.integers(-4, 4), st.integers(2**60, 2**60 + 4), st.integers(-(2**63), LAST))
OTHER = st.one_of(st.integers(-9, 9).map(lambda step: step / 10), st.floats(allow_nan=False, allow_infinity=False))
KEYS = st.sampled_from([0, 1, 2**63, 2**64 - 1])


@st.composite
def logs(draw: st.DrawFn) -> Log:
    time, time_type = draw(st.sampled_from([(WHOLE, np.int64), (OTHER, np.float64)]))
    rows = draw(st.lists(st.tuples(KEYS, time), max_size=12))
    return Log(rows, draw(st.lists(st.tuples(KEYS, st.integers(0, 3), time), max_size=12)), time_type)


@given(
    log=logs(),
    window=st.one_of(
        st.integers(0, 3), st.sampled_from([0.1, 0.7, math.inf]), st.floats(0, 1e308), st.integers(0, 2**64)
    ),
    cuts=st.tuples(*[st.lists(st.integers(0, 12), min_size=2, max_size=2).map(sorted)] * 2),
    group_size=st.integers(3, 30),
)
@settings(max_examples=60, deadline=None)
def test_any_small_log_is_counted_as_the_slow_way_does(
    log: Log, window: float, cuts: tuple[list[int], list[int]], group_size: int
) -> None:
    row_cuts, event_cuts = [min(cut, len(log.rows)) for cut in cuts[0]], [min(cut, len(log.events)) for cut in cuts[1]]
    if log.time_type is np.float64:
        window = float(window)
    with tempfile.TemporaryDirectory() as folder:
        found = counted(log, window, Path(folder), row_cuts=row_cuts, event_cuts=event_cuts, group_size=group_size)
    assert found == slowly(log, window)


@pytest.mark.parametrize(
    ("time", "window", "event", "followed"),
    [
        (10, 5, 10, True),
        (10, 5, 9, False),
        (10, 5, 15, True),
        (10, 5, 16, False),
        (10, 5.9, 16, False),
        (2**60 + 1, 2, 2**60, False),
        (2**60 + 1, 2, 2**60 + 3, True),
        (2**60 + 1, 2, 2**60 + 4, False),
        (LAST - 1, 5, LAST, True),
        (LAST, 0, -(2**63), False),
        (-(2**63), math.inf, LAST, True),
        (-(2**63), 2**64 - 2, LAST, False),
        (0.1, 0.2, 0.3, True),
        # 1 + 2**-53 lies between two floats and would be rounded down to 1; 1 + 3 * 2**-53 would be rounded up.
        (1.0, 2.0**-53, 1.0 + 2.0**-52, False),
        (1.0, 3 * 2.0**-53, 1.0 + 2.0**-52, True),
        (1.0, 3 * 2.0**-53, 1.0 + 2.0**-51, False),
        (1e308, 1e308, 1.7e308, True),
        (-sys.float_info.max, 0.0, 0.0, False),
    ],
)
def test_both_ends_of_the_window_are_exact(
    time: float, window: float, event: float, followed: bool, tmp_path: Path
) -> None:
    log = Log([(7, time)], [(7, 1, event)], np.int64 if isinstance(time, int) else np.float64)
    assert counted(log, window, tmp_path) == [int(followed)] == slowly(log, window)


def test_an_event_counts_once_by_its_earliest_time_wherever_it_comes_again(tmp_path: Path) -> None:
    carried = [(7, 1, 30), (7, 1, 20), (7, 2, 20), (8, 1, 30)]
    rows = [(7, 20), (7, 21), (8, 21), (9, 0)]
    assert counted(Log(rows, carried), 100, tmp_path, row_cuts=[1, 2], event_cuts=[1, 3]) == [2, 0, 1, 0]


def test_there_may_be_no_rows_no_events_or_no_blocks(tmp_path: Path) -> None:
    assert counted(Log([], []), 5, tmp_path, row_cuts=[0], event_cuts=[0]) == []
    assert counted(Log([], [(7, 1, 3)]), 5, tmp_path, row_cuts=[0], event_cuts=[0], group_size=1) == []
    assert counted(Log([(7, 1), (8, 1)], []), 5, tmp_path, row_cuts=[1], event_cuts=[0], group_size=1) == [0, 0]
    count_following([], [], [], window=5, scratch=tmp_path, compute=compute)


def test_tasks_may_run_twice_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_have_written, replace = threading.Barrier(2, timeout=10), os.replace

    def replace_together(*names: Any) -> None:
        both_have_written.wait()
        replace(*names)

    def twice(tasks: list[Any]) -> list[Any]:
        with monkeypatch.context() as patch, ThreadPoolExecutor(2) as pool:
            patch.setattr(os, "replace", replace_together)
            return [list(pool.map(lambda task: task.compute(scheduler="sync"), [task, task])) for task in tasks]

    log = random_log(0, keys=50, time=lambda step: step)
    found = counted(log, 9, tmp_path, row_cuts=ROW_CUTS, event_cuts=EVENT_CUTS, group_size=50, compute=twice)
    assert found == slowly(log, 9)


def test_what_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    write_rows(tmp_path / "rows", np.zeros(1, np.uint64), np.zeros(1, np.int64))
    write_events(tmp_path / "events", np.zeros(1, np.uint64), np.zeros(1, np.uint64), np.zeros(1, np.int64))
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_rows(tmp_path / "rows", np.zeros(1, np.uint64), np.ones(1, np.int64))
    paths = [[tmp_path / name] for name in ("rows", "events", "counts")]
    with pytest.raises(OSError, match="no space left"):
        count_following(*paths, window=1, scratch=tmp_path, compute=compute)
    assert set(tmp_path.iterdir()) == before


def test_an_event_that_many_rows_of_a_block_carry_takes_the_room_of_one(tmp_path: Path) -> None:
    for repeats in (1, 5000):
        keys, ids = np.full(repeats, 7, np.uint64), np.full(repeats, 1, np.uint64)
        write_events(tmp_path / str(repeats), keys, ids, np.arange(repeats))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "5000").read_bytes()


def test_tasks_may_run_in_other_processes(tmp_path: Path) -> None:
    log = random_log(0, keys=50, time=lambda step: step)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):

        def on_workers(tasks: list[Any]) -> list[Any]:
            return client.gather(client.compute(tasks))

        assert counted(
            log, 9, tmp_path, row_cuts=ROW_CUTS, event_cuts=EVENT_CUTS, group_size=50, compute=on_workers
        ) == slowly(log, 9)


def peak_memory(folder: Path, *, blocks: int, group_size: int) -> int:
    """Returns the peak of allocated bytes while counting, in blocks of 2,000 rows and 500 events."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows, events, counts = ([folder / f"{kind}{i}" for i in range(blocks)] for kind in "rec")
    for block in range(blocks):
        keys, ids, times = rng.integers(0, 2**64, 2000, np.uint64), rng.integers(0, 9, 500, np.uint64), np.arange(2000)
        write_rows(rows[block], keys, times)
        write_events(events[block], keys[:500], ids, times[:500])
    tracemalloc.start()
    count_following(rows, events, counts, window=5, scratch=folder, compute=compute, group_size=group_size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_is_that_of_a_group_and_not_of_the_log(tmp_path: Path) -> None:
    a_group = peak_memory(tmp_path / "short", blocks=10, group_size=12_500)
    assert peak_memory(tmp_path / "long", blocks=40, group_size=12_500) < 1.5 * a_group
    assert peak_memory(tmp_path / "one group", blocks=40, group_size=100_000) > 4 * a_group


@pytest.mark.parametrize(
    ("keys", "events", "times", "message"),
    [
        (np.zeros(1, np.int64), np.zeros(1, np.uint64), np.zeros(1, np.int64), "keys must be uint64, not int64"),
        (np.zeros(1, np.uint64), np.zeros(1, np.int64), np.zeros(1, np.int64), "events must be uint64, not int64"),
        (np.zeros(1, np.uint64), np.zeros(1, np.uint64), np.zeros(1, np.int32), "times must be int64 or float64"),
        (np.zeros(1, np.uint64), np.zeros(1, np.uint64), np.array([np.nan]), "a time is not finite"),
    ],
)
def test_what_cannot_be_compared_is_not_written(
    keys: np.ndarray, events: np.ndarray, times: np.ndarray, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        write_events(tmp_path / "events", keys, events, times)
    if events.dtype == np.uint64:
        with pytest.raises(ValueError, match=message):
            write_rows(tmp_path / "rows", keys, times)
    assert not list(tmp_path.iterdir())


def test_times_are_of_one_type_and_windows_not_negative(tmp_path: Path) -> None:
    rows, events, counts = [tmp_path / "rows"], [tmp_path / "events"], [tmp_path / "counts"]
    write_rows(rows[0], np.zeros(1, np.uint64), np.zeros(1, np.int64))
    write_events(events[0], np.zeros(1, np.uint64), np.zeros(1, np.uint64), np.zeros(1))
    with pytest.raises(ValueError, match=r"rows has int64, .*events has double"):
        count_following(rows, events, counts, window=1, scratch=tmp_path, compute=compute)
    for window in (-1, math.nan):
        with pytest.raises(ValueError, match="the window must be 0 or more"):
            count_following(rows, events, counts, window=window, scratch=tmp_path, compute=compute)
    with pytest.raises(ValueError, match="1 files of rows, 1 of events and 0 of counts"):
        count_following(rows, events, [], window=1, scratch=tmp_path, compute=compute)
