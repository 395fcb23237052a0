"""Measurements that run in a child process, with JSON-able arguments and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.speed import step_memory
from tasks.speed.programs import Form, MethodName, parameter_count, program_from_json, programs_for
from tasks.speed.results import ProgramDescription, TimedSteps
from tasks.speed.timing import time_programs
from tasks.speed.workloads import workload_from_json


def time_steps(
    *,
    workload: Mapping[str, Any],
    steps: Sequence[tuple[MethodName, bool]],
    batch_size: int,
    physical_batch_size: int | None,
    uncut_baseline: bool = True,
    **how: Any,
) -> TimedSteps:
    """Times each (method, noise) of ``steps`` in all its forms. ``how`` is passed on to ``time_programs``.

    Without ``uncut_baseline``, the trainer's non-private step is skipped at batch sizes that it computes whole, where
    it does the same as the plain step.
    """
    made = workload_from_json(workload)
    programs = [
        program
        for method, noise in steps
        for program in programs_for(
            made, method, noise=noise, batch_size=batch_size, physical_batch_size=physical_batch_size
        )
        if uncut_baseline or (program.method, program.form, program.pieces) != ("non_private", "pieces", 1)
    ]
    timings = time_programs(programs, **how)
    return {"parameters": parameter_count(made), "timings": [timing.to_json() for timing in timings]}


def measure_peak(*, program: ProgramDescription) -> int | None:
    return step_memory.measure_peak(program_from_json(program))


def largest_batch_size(*, workload: Mapping[str, Any], method: MethodName, form: Form, **limits: Any) -> int:
    return step_memory.largest_batch_size(workload_from_json(workload), method, form, **limits)


def largest_batch_sizes(
    *, workload: Mapping[str, Any], searches: Sequence[tuple[MethodName, Form, Sequence[int]]], **limits: Any
) -> list[int]:
    """Searches for several methods in one process, since it only compiles. A search is (method, form, known sizes)."""
    made = workload_from_json(workload)
    return [
        step_memory.largest_batch_size(made, method, form, known_sizes=known, **limits)
        for method, form, known in searches
    ]
