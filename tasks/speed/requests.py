"""What children are asked for: measurements with JSON in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.speed import memory
from tasks.speed.programs import Form, MethodName, parameter_count, program_from_json, programs_for
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
) -> dict[str, Any]:
    """Times each method with noise or without, in all its forms; ``how`` is for ``time_programs``.

    Unless ``uncut_baseline``, non-private training is tried through the trainer only where that cuts the batch: of
    a batch that it takes whole, a plain step tells as much.
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
    return {
        "parameters": parameter_count(made),
        "timings": [{**timing._asdict(), "program": timing.program.to_json()} for timing in timings],
    }


def measure_peak(*, program: Mapping[str, Any]) -> int | None:
    return memory.measure_peak(program_from_json(program))


def largest_batch_size(*, workload: Mapping[str, Any], method: MethodName, form: Form, **limits: Any) -> int:
    return memory.largest_batch_size(workload_from_json(workload), method, form, **limits)


def largest_batch_sizes(
    *, workload: Mapping[str, Any], searches: Sequence[tuple[MethodName, Form, Sequence[int]]], **limits: Any
) -> list[int]:
    """Several in one process: they only compile. A search is a method, its form, and sizes that are known."""
    made = workload_from_json(workload)
    return [
        memory.largest_batch_size(made, method, form, known_sizes=known, **limits) for method, form, known in searches
    ]
