"""Trials side by side: bit-identical models, one compilation, and all stop when one fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tasks.train
import tasks.training.setup
import tasks.training.side_by_side
from dp_core.models.spec import MLPSpec
from dp_core.training.step import make_trainer
from tasks.config.loading import Hardware
from tasks.data.prepared import Prepared
from tasks.runtime.errors import Stopped
from tasks.runtime.home import home
from tasks.train import train
from tasks.training.loop import run_trial
from tasks.training.side_by_side import first_alone, side_by_side, trials_at_once
from tasks.training.trial import Trial
from tests.support.trials import TIMES, label_trial, make_prepared, make_trial, parameters_of, record_of

SECONDS = 30.0  # longer than any of these takes, unless something hangs


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


@pytest.fixture
def unlogged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Replaces logging to MLflow; collects the number of each logged trial and whether it was reused."""
    logged: list[tuple[int, bool]] = []

    def log(item: dict[str, Any], *, reused: bool) -> dict[str, Any]:
        assert (Trial.model_validate(item["trial"]).folder / "record.json").exists()
        logged.append((item["number"], reused))
        return {"trial": Trial.model_validate(item["trial"]).key, "name": item["name"]}

    monkeypatch.setattr(tasks.train, "log_finished", log)
    return logged


def at_once(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.train, "trials_at_once", lambda hardware: number)


def group_of(trials: list[Trial], prepared: Prepared) -> dict[str, Any]:
    items = [
        {
            "number": number,
            "name": t.label(),
            "trial": t.model_dump(mode="json"),
            "prepared": str(prepared.path),
            "run": str(prepared.path.parent / "run"),
        }
        for number, t in enumerate(trials, 1)
    ]
    return {"name": "a group", "items": items}


def results_of(trial: Trial) -> tuple[Any, dict[str, np.ndarray]]:
    timeless = {key: value for key, value in record_of(trial).items() if key not in TIMES}
    return timeless, parameters_of(trial)


def test_side_by_side_is_one_after_the_other_to_the_last_bit(
    prepared: Prepared, unlogged: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [
        make_trial(prepared),
        make_trial(prepared, seed=1, l2_clip_norm=0.3),
        make_trial(prepared, learning_rate=0.03, noise_multiplier=0.5),
        label_trial(prepared, debias=True),
    ]
    group = group_of(trials, prepared)
    make_trainer.cache_clear()
    at_once(1, monkeypatch)
    returned = train(group)
    in_turn = [results_of(trial) for trial in trials]
    (home() / "trials").rename(home() / "in turn")

    make_trainer.cache_clear()
    at_once(4, monkeypatch)
    assert train(group) == returned
    assert [one["trial"] for one in returned or ()] == [trial.key for trial in trials], "in the order of the group"
    for trial, (record, parameters) in zip(trials, in_turn, strict=True):
        found, arrays = results_of(trial)
        assert found == record
        assert set(arrays) == set(parameters)
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, parameters[name])
    assert sorted(unlogged) == sorted([(number, False) for number in range(1, 5)] * 2)


def test_trials_of_one_program_compile_it_once(
    prepared: Prepared, unlogged: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if all four need it at the same time."""
    trials = [
        make_trial(prepared, seed=seed, optimizer="adagrad", model=MLPSpec(hidden_layers=(7,))) for seed in range(4)
    ]
    compiling = [0]
    truly = tasks.training.setup.make_trainer

    def watched(method: Any) -> Any:
        trainer = truly(method)

        def run(*arguments: Any) -> Any:
            before = trainer.run._cache_size()  # type: ignore[attr-defined]
            found = trainer.run(*arguments)
            if trainer.run._cache_size() > before:  # type: ignore[attr-defined]
                compiling[0] += 1
            return found

        return trainer._replace(run=run)

    monkeypatch.setattr(tasks.training.setup, "make_trainer", watched)
    at_once(4, monkeypatch)
    train(group_of(trials, prepared))
    assert compiling == [1]


def test_the_first_call_is_alone_and_later_ones_are_not() -> None:
    inside, most_first, most_later = [0], [0], [0]
    lock, program = threading.Lock(), ("a program of this test", time.monotonic())

    def call(most: list[int]) -> None:
        with first_alone(*program):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.05)
            with lock:
                inside[0] -= 1

    side_by_side(lambda item, should_stop: call(most_first), range(4), at_once=4)
    assert most_first == [1]
    side_by_side(lambda item, should_stop: call(most_later), range(4), at_once=4)
    assert most_later[0] > 1


def test_a_compilation_that_fails_is_tried_again() -> None:
    program = ("a program that fails", time.monotonic())
    for _ in range(2):
        with pytest.raises(ValueError, match="no"), first_alone(*program):
            raise ValueError("no")
        assert program not in tasks.training.side_by_side._compiled
    with first_alone(*program):
        pass
    assert program in tasks.training.side_by_side._compiled


def test_an_error_stops_the_others_and_is_raised(
    prepared: Prepared, unlogged: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of three fails while the others train: those stop midway, and the fourth does not start. A trial that
    was finished before stays finished, and the next attempt finds it."""
    done = make_trial(prepared, seed=9)
    run_trial(done, prepared)
    first, second, third, fourth = (make_trial(prepared, seed=seed, epochs=40) for seed in range(4))
    begun = {trial.key: threading.Event() for trial in (second, third)}
    stopped: list[str] = []
    truly = tasks.train.run_trial

    def failing(
        trial: Trial, data: Prepared, *, hardware: Hardware, should_stop: Callable[[], bool], watch: Any
    ) -> None:
        if trial == first:
            assert all(event.wait(SECONDS) for event in begun.values())
            raise RuntimeError("the first one failed")
        if trial.key in begun:
            begun[trial.key].set()
            while not should_stop():  # until the other has failed
                time.sleep(0.01)
        assert trial != fourth, "nothing begins after an error"
        try:
            truly(trial, data, hardware=hardware, should_stop=should_stop, watch=watch)
        except Stopped:
            stopped.append(trial.key)
            raise

    with monkeypatch.context() as patch:
        at_once(3, patch)
        patch.setattr(tasks.train, "run_trial", failing)
        group = group_of([done, first, second, third, fourth], prepared)
        with pytest.raises(RuntimeError, match="the first one failed"):
            train(group)
    assert sorted(stopped) == sorted([second.key, third.key])
    assert unlogged == []
    assert done.folder.exists()
    assert not any(trial.folder.exists() for trial in (first, second, third, fourth))

    before = (done.folder / "record.json").stat().st_mtime_ns
    at_once(2, monkeypatch)
    assert len(train(group) or ()) == 5
    assert sorted(unlogged) == [(1, True), (2, False), (3, False), (4, False), (5, False)]
    assert (done.folder / "record.json").stat().st_mtime_ns == before


def test_what_was_finished_beside_a_failure_is_kept(
    prepared: Prepared, unlogged: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = make_trial(prepared), make_trial(prepared, seed=1)
    truly = tasks.train.run_trial

    def failing(
        trial: Trial, data: Prepared, *, hardware: Hardware, should_stop: Callable[[], bool], watch: Any
    ) -> None:
        if trial == bad:
            deadline = time.monotonic() + SECONDS
            while not good.folder.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            raise RuntimeError("bad")
        truly(trial, data, hardware=hardware, should_stop=should_stop, watch=watch)

    at_once(2, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(tasks.train, "run_trial", failing)
        with pytest.raises(RuntimeError, match="bad"):
            train(group_of([bad, good], prepared))
    expected = results_of(good)
    train(group_of([bad, good], prepared))
    assert results_of(good)[0] == expected[0]
    assert (2, False) in unlogged
    assert (1, False) in unlogged


def test_one_in_turn_that_fails_leaves_the_next_alone() -> None:
    begun: list[int] = []

    def failing(number: int, should_stop: Callable[[], bool]) -> None:
        begun.append(number)
        assert not should_stop()
        if number == 1:
            raise RuntimeError("one")

    with pytest.raises(RuntimeError, match="one"):
        side_by_side(failing, range(4), at_once=1)
    assert begun == [0, 1]


def test_ctrl_c_begins_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt reaches the waiting thread. Running calls are asked to stop and waited for; others never start."""
    begun, ended, running = list[int](), list[int](), threading.Semaphore(0)

    def call(number: int, should_stop: Callable[[], bool]) -> None:
        begun.append(number)
        running.release()
        deadline = time.monotonic() + SECONDS
        while not should_stop():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ended.append(number)
        raise Stopped("told to")

    def interrupted(calls: Any) -> None:
        assert running.acquire(timeout=SECONDS)
        assert running.acquire(timeout=SECONDS)
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks.training.side_by_side, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side(call, range(8), at_once=2)
    assert sorted(begun) == sorted(ended) == [0, 1]


def test_nothing_to_do_is_fine() -> None:
    side_by_side(lambda item, should_stop: pytest.fail("called"), [], at_once=2)


def test_how_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One trial per core on a CPU, one trial at a time on anything else, unless configured otherwise."""
    jax = tasks.training.side_by_side.jax
    monkeypatch.setattr(tasks.training.side_by_side.os, "sched_getaffinity", lambda process: {0, 1, 5})
    monkeypatch.setattr(jax, "devices", lambda: ["one"])
    assert trials_at_once(Hardware()) == 3
    assert trials_at_once(Hardware(trials_at_once=7)) == 7
    monkeypatch.setattr(jax, "devices", lambda: ["one", "two"])
    assert trials_at_once(Hardware()) == 1
    monkeypatch.setattr(jax, "devices", lambda: ["one"])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert trials_at_once(Hardware()) == 1
    assert trials_at_once(Hardware(trials_at_once=2)) == 2
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert trials_at_once(Hardware(trials_at_once=2)) == 1, "processes must train the same trial at the same time"
