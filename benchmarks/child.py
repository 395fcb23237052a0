"""Measurements in processes of their own: ``run_child`` here, ``python -m benchmarks.child`` there.

What is measured in one process leaves threads, arenas and compiled programs behind that the next
measurement should not find.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tasks.errors import UserError
from tasks.home import CHECKOUT

_KILLED = -9


def run_child(task: str, environment: Mapping[str, str], **request: Any) -> Any:
    """Calls a function of ``_TASKS`` in a new process; its progress goes to our standard error."""
    command = [sys.executable, "-m", "benchmarks.child", task, json.dumps(request)]
    child = subprocess.run(command, cwd=CHECKOUT, env=dict(environment), stdout=subprocess.PIPE, text=True)
    if child.returncode == _KILLED:
        raise UserError(f"measuring {request} was killed: most likely the machine ran out of memory")
    if child.returncode:
        raise UserError(f"measuring {request} failed, see above")
    return json.loads(child.stdout)


def _time(*, workload: str, methods: list[str], batch_size: int, physical_batch_size: int | None, rounds: int) -> Any:
    import jax

    from benchmarks.programs import parameter_shapes, programs_for
    from benchmarks.timing import time_programs
    from benchmarks.workloads import WORKLOADS

    programs = [
        program
        for method in methods
        for noise in ((False, True) if method.endswith("ghost") else (False,))
        for program in programs_for(
            workload,
            method,  # type: ignore[arg-type]  # checked by the parser
            noise=noise,
            batch_size=batch_size,
            physical_batch_size=physical_batch_size,
        )
    ]
    timings = time_programs(programs, rounds=rounds)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(WORKLOADS[workload])))
    return {
        "parameters": parameters,
        "timings": [timing._asdict() | {"program": timing.program._asdict()} for timing in timings],
    }


def _measure_peak(*, program: dict[str, Any]) -> Any:
    from benchmarks.memory import measure_peak
    from benchmarks.programs import Program

    return measure_peak(Program(**program))


def _largest_batch_size(**arguments: Any) -> Any:
    from benchmarks.memory import largest_batch_size

    return largest_batch_size(**arguments)


def _prepare_rows(**arguments: Any) -> Any:
    from benchmarks.preparation import prepare_rows

    return prepare_rows(**arguments)


_TASKS: dict[str, Callable[..., Any]] = {
    "time": _time,
    "measure_peak": _measure_peak,
    "largest_batch_size": _largest_batch_size,
    "prepare_rows": _prepare_rows,
}


def _main() -> int:
    try:
        # Standard output is for the result alone.
        with contextlib.redirect_stdout(sys.stderr):
            result = _TASKS[sys.argv[1]](**json.loads(sys.argv[2]))
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
