"""The clipping benchmark, run for real on a small model."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks import clipping
from benchmarks.clipping_report import bars, print_report
from benchmarks.workloads import WORKLOADS
from tasks.speed import timing
from tasks.speed.child import run_child
from tasks.speed.programs import (
    Program,
    compile_step,
    hyperparameters,
    initial_state,
    parameter_count,
    planned_bytes,
    program_from_json,
    programs_for,
)
from tasks.speed.step_memory import largest_batch_size
from tasks.speed.timing import relative_distance
from tests.conftest import QUICK_COMPILATION

SMALL = WORKLOADS["small"]
METHODS = ("non_private", "vmap", "two_pass_ghost", "ghost")


def small_program(method: Any, batch_size: int, *, noise: bool = False) -> Program:
    """Returns the program in its last form: if there are two, the trainer's."""
    return programs_for(SMALL, method, noise=noise, batch_size=batch_size, physical_batch_size=32)[-1]


def first_gradients(program: Program, l2_clip_norm: float) -> Any:
    """Returns the mean gradient of a program's first step, which is the optimizer's velocity after it."""
    workload = program.workload
    state = jax.jit(lambda: initial_state(program))()._replace(l2_clip_norm=np.float32(l2_clip_norm))
    batches = workload.random_batch(program.batch_size, program.pieces, program.rows)
    numbers = hyperparameters(program.batch_size)
    state, _ = compile_step(program)(state, batches, np.int32(program.pieces), jax.random.key(0), numbers)
    return jax.tree.map(np.array, state.update_state)


def test_every_method_computes_the_same_sum() -> None:
    """100 examples in physical batches of 32, the last one padded; some examples are clipped and some are not."""
    clipped = {method: first_gradients(small_program(method, 100), 0.5) for method in METHODS[1:]}
    for one, other in itertools.pairwise(clipped.values()):
        assert relative_distance(one, other) < 1e-5
    plain = [
        first_gradients(program, 0.5) for program in programs_for(SMALL, "non_private", noise=False, batch_size=100)
    ]
    assert relative_distance(*plain) < 1e-5
    assert relative_distance(clipped["vmap"], plain[0]) > 0.1
    unclipped = first_gradients(small_program("ghost", 100), 1e6)
    assert relative_distance(unclipped, plain[0]) < 1e-5


def test_a_program_survives_its_description() -> None:
    program = small_program("vmap", 64)
    assert program_from_json(json.loads(json.dumps(program.to_json()))) == program


def test_measured_memory_is_near_what_is_planned() -> None:
    program = small_program("vmap", 1024)
    # In a new process: this one reuses memory that earlier tests freed, and grows less.
    measured = run_child("tasks.speed.requests:measure_peak", os.environ, program=program.to_json())
    planned = planned_bytes(compile_step(program))
    if measured is None:
        pytest.skip("this kernel does not report a process's peak")
    assert planned > 32 * 2**20
    assert 0.8 < measured / planned < 3


def test_the_largest_batch_is_the_last_power_of_two_that_fits() -> None:
    cap = 16 * 2**20
    size = largest_batch_size(SMALL, "vmap", "whole", cap_bytes=cap)
    fits, too_large = (planned_bytes(compile_step(small_program("vmap", n))) for n in (size, 2 * size))
    assert fits <= cap < too_large
    assert largest_batch_size(SMALL, "vmap", "whole", cap_bytes=cap, known_sizes=(size // 2, size)) == size


@pytest.fixture
def quick_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick compilation in the benchmark's child processes, too."""
    monkeypatch.setenv("XLA_FLAGS", QUICK_COMPILATION)


def run(*arguments: str) -> int:
    return clipping.main(["--model", "small", "--physical-batch-size", "32", "--rounds", "1", *arguments])


@pytest.mark.usefixtures("quick_compilation")
def test_the_benchmark_runs(own_home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--batch-sizes", "128,32", "--no-memory", "--check") == 0
    rows = json.loads((own_home / "bench" / "clipping.json").read_text())
    kinds = [(row["batch_size"], row["method"], row["noise"]) for row in rows]
    methods = [
        *((method, False) for method in (*METHODS, "lazy_non_private", "lazy")),
        *((method, True) for method in ("two_pass_ghost", "ghost", "lazy")),
    ]
    assert sorted(kinds) == sorted((size, *method) for size in (32, 128) for method in methods)
    for row in rows:
        assert row["parameters"] == parameter_count(SMALL)
        assert row["steps_per_second"] >= row["median_steps_per_second"] > 0
        assert row["peak_memory_bytes"] > 4 * row["parameters"]
    memory = {kind: row["peak_memory_bytes"] for kind, row in zip(kinds, rows, strict=True)}
    assert memory[128, "vmap", False] > 2 * memory[32, "vmap", False]
    assert memory[128, "ghost", False] < 1.2 * memory[32, "ghost", False]

    shown = capfd.readouterr()
    assert "one-pass ghost + noise" in shown.out
    assert "…" not in shown.out, "a column is cut off at 80 characters"
    assert "compiling vmap" in shown.err


@pytest.mark.usefixtures("quick_compilation")
def test_the_benchmark_measures_memory(own_home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--batch-sizes", "32", "--methods", "ghost", "--memory-cap", "0.01") == 0
    plain, noisy = json.loads((own_home / "bench" / "clipping.json").read_text())
    assert plain["resident_memory_bytes"] > 0
    assert noisy["resident_memory_bytes"] > 0
    assert plain["forms"]["pieces"]["largest_batch_size"] > 1000
    assert f"{plain['forms']['pieces']['largest_batch_size']:,}" in capfd.readouterr().out


def test_a_program_that_does_not_fit_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "available_memory", lambda: 10**6)
    programs = [small_program("vmap", 256), small_program("ghost", 256)]
    vmap, ghost = timing.time_programs(programs, rounds=1)
    assert vmap.steps_per_second is None
    assert vmap.planned_bytes > 10**6
    assert ghost.steps_per_second is not None


def some_rows(speed: float, memory: int, *, vmap_memory: int) -> list[dict[str, Any]]:
    def row(method: str, batch_size: int, speed: float | None, memory: int) -> dict[str, Any]:
        return {
            "method": method,
            "noise": False,
            "model": "paper",
            "batch_size": batch_size,
            "steps_per_second": speed,
            "median_steps_per_second": speed,
            "peak_memory_bytes": memory * 2**20,
            "resident_memory_bytes": None,
            "fits": speed is not None,
            "parameters": 10_908_057,
            "forms": {},
        }

    rows = [row("non_private", size, 10.0, 100) for size in (64, 1024, 8192)]
    rows += [row("ghost", size, speed, memory) for size in (64, 1024, 8192)]
    return [*rows, row("vmap", 8192, None if vmap_memory > 10_000 else 0.1, vmap_memory)]


def test_bars() -> None:
    assert [bar.holds for bar in bars(some_rows(9.0, 130, vmap_memory=2000))] == [True] * 5
    assert [bar.holds for bar in bars(some_rows(8.9, 131, vmap_memory=1999))] == [False] * 5
    assert bars(some_rows(9.0, 130, vmap_memory=20_000))[-1].holds
    assert not bars([row | {"model": "small"} for row in some_rows(9.0, 130, vmap_memory=2000)])


def test_large_numbers_fit_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = some_rows(1000.0, 1023, vmap_memory=400 * 1024)
    print_report([*rows, *(row | {"noise": True, "resident_memory_bytes": 2**30 - 1} for row in rows)])
    assert "…" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-sizes", "64,0"], "must be positive"),
        (["--batch-sizes", "many"], "'many' is not a whole number"),
        (["--methods", "magic"], "unknown method 'magic'; known: non_private, vmap"),
        (["--memory-cap", "-1"], "must be positive"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        clipping.main(arguments)
    assert message in capsys.readouterr().err
