"""Training steps per second by batch size, without privacy and with DP-SGD (the paper's Table 4 and Figure 4b).

A step goes from a batch of examples to new parameters. It does not include drawing and loading the batch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.config.pipeline import Model
from tasks.config.sections import Count, Distinct, Finite, Section
from tasks.data.prepared import Prepared, open_prepared
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json, short_hash, write_json
from tasks.runtime.progress import format_seconds, say
from tasks.speed.child import run_child
from tasks.speed.programs import Form, MethodName
from tasks.speed.results import LargestBatches, Machine, Throughput, ThroughputRow, TimedProgram, TimedSteps
from tasks.speed.workloads import PreparedWorkload

# Part of the cache key: raise it when what is measured, or how, changes.
MEASUREMENT_VERSION = 1

_REQUESTS = "tasks.speed.requests"


class Request(Section):
    """Options of ``measure_throughput``."""

    prepared: str
    task: TaskName
    model: Model
    batch_sizes: Distinct[Count]
    methods: Distinct[MethodName] = ("non_private", "vmap", "ghost")
    rounds: Count = 5
    memory_cap_gib: Finite = 4.0
    physical_batch_size: Count | None = None

    @property
    def cap_bytes(self) -> int:
        return int(self.memory_cap_gib * 2**30)

    def workload(self) -> dict[str, Any]:
        return PreparedWorkload(self.prepared, self.task, self.model).to_json()


def measure_throughput(spec: Mapping[str, Any]) -> Throughput:
    """Measures training steps of a pipeline's model on random rows of the prepared training split.

    ``spec`` has the keys of ``Request``. The result has one row for each batch size, method, and with or without
    noise:

    - ``steps_per_second`` is the mean over the rounds, ``steps_per_second_std`` their standard deviation (None for
      one round) and ``best_steps_per_second`` the fastest turn. All programs of a batch size take turns within each
      round, so that their ratios hold on a busy machine.
    - ``noise``: DP-SGD adds noise to every parameter. On a CPU with large embedding tables, that is most of a step.
      A step without noise is not private; it shows the cost of clipping.
    - ``method``: ``ghost`` is our trainer's step, which computes ``physical_batch_size`` rows at a time.
      ``non_private`` is a plain framework step over the whole batch, or our trainer's step if that splits the batch
      and is faster. ``vmap`` holds a gradient for each example of the whole batch.
    - ``peak_memory_bytes`` is what XLA plans for a step, including parameters, optimizer and batch. If that exceeds
      the cap, or the free memory, the step is not run: ``fits`` is false and it has no speed.

    ``largest_batch_size`` is, for each method, the largest power of two for which XLA plans no more than the cap. It
    is searched without noise, since noise takes the same memory at every batch size. ``largest_batch_size_at_once``
    is the same without splitting the batch.

    The result is cached by data, ``spec``, kind of device, number of CPUs and version of JAX; ``reused`` says that it
    came from the cache. The numbers assume a machine that does nothing else, so concurrent measurements wait for each
    other. Everything is measured in child processes.
    """
    request, prepared = _checked(spec)
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(home() / "cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    machine: Machine = run_child("tasks.speed.machine:describe_machine", environment)
    described = request.model_dump(mode="json", exclude={"prepared"}) | {"data_fingerprint": prepared.fingerprint}
    path = home() / "measurements" / f"{short_hash([MEASUREMENT_VERSION, described, machine])}.json"
    with _alone():
        if path.exists():
            say(f"{_title(request, prepared)}: measured before, {path}")
            return read_json(path, alone=True) | {"reused": True}
        began = time.monotonic()
        rows, parameters = _measure(request, environment, _title(request, prepared))
        result: Throughput = {
            "rows": rows,
            **_largest_batch_sizes(request, environment),
            "parameters": parameters,
            "memory_cap_bytes": request.cap_bytes,
            **machine,
            "devices": 1,
            "seconds": time.monotonic() - began,
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
            "spec": described,
            "reused": False,
        }
        write_json(path, result)
    say(f"{_title(request, prepared)}: measured in {format_seconds(result['seconds'])}")
    return result


def _checked(spec: Mapping[str, Any]) -> tuple[Request, Prepared]:
    try:
        # Validated as JSON, where a list is accepted for a tuple.
        request = Request.model_validate_json(json.dumps(dict(spec)))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()]
        raise UserError("cannot measure throughput: " + "; ".join(problems)) from None
    prepared = open_prepared(Path(request.prepared))
    rows = len(prepared.split("train", request.task))
    largest = max(request.batch_sizes)
    if largest > rows:
        raise UserError(
            f"cannot measure throughput at batch size {largest:,}: the training split of {prepared.dataset!r} has only "
            f"{rows:,} rows"
        )
    return request, prepared


def _title(request: Request, prepared: Prepared) -> str:
    return f"throughput of {TASK_TITLES[request.task]} on {prepared.dataset}"


def _measure(request: Request, environment: Mapping[str, str], title: str) -> tuple[list[ThroughputRow], int]:
    """Returns the rows, and the model's number of parameters."""
    rows: list[ThroughputRow] = []
    parameters = 0
    # Noise without clipping gives no privacy, so non_private runs without.
    steps: list[tuple[MethodName, bool]] = [
        (method, noise)
        for method in request.methods
        for noise in ((False,) if method == "non_private" else (False, True))
    ]
    for number, batch_size in enumerate(request.batch_sizes, 1):
        say(f"{title}: batch size {batch_size:,}, {number} of {len(request.batch_sizes)}")
        timed: TimedSteps = run_child(
            f"{_REQUESTS}:time_steps",
            environment,
            workload=request.workload(),
            steps=steps,
            batch_size=batch_size,
            physical_batch_size=request.physical_batch_size,
            rounds=request.rounds,
            uncut_baseline=False,
            until_settled=False,
            cap_bytes=request.cap_bytes,
        )
        parameters = timed["parameters"]
        rows += [_row(method, noise, batch_size, timed["timings"]) for method, noise in steps]
    say(f"{title}: looking for the largest batch that fits into {request.memory_cap_gib:g} GiB")
    return rows, parameters


def _row(method: MethodName, noise: bool, batch_size: int, timings: list[TimedProgram]) -> ThroughputRow:
    """Returns the result of a method's faster form; if neither was run, of the one that takes less memory."""
    wanted = method, noise
    forms = [timing for timing in timings if (timing["program"]["method"], timing["program"]["noise"]) == wanted]
    best = max(forms, key=lambda timing: (_mean(timing) or 0, -timing["planned_bytes"]))
    mean, speeds = _mean(best), best["steps_per_second_of_rounds"]
    return {
        "method": method,
        "noise": noise,
        "batch_size": batch_size,
        "steps_per_second": mean,
        "steps_per_second_std": statistics.stdev(speeds) if len(speeds) > 1 else None,
        "best_steps_per_second": best["steps_per_second"],
        "examples_per_second": None if mean is None else mean * batch_size,
        "peak_memory_bytes": best["planned_bytes"],
        "fits": mean is not None,
        "physical_batch_size": best["program"]["rows"],
    }


def _mean(timing: TimedProgram) -> float | None:
    speeds = timing["steps_per_second_of_rounds"]
    return statistics.fmean(speeds) if speeds else None


def _largest_batch_sizes(request: Request, environment: Mapping[str, str]) -> LargestBatches:
    # Methods that were timed over the whole batch are in the compilation cache at these two sizes.
    known = sorted(request.batch_sizes)[-2:] if len(request.batch_sizes) > 1 else []
    methods = request.methods
    Search = tuple[MethodName, Form, list[int]]
    whole: list[Search] = [(name, "whole", known if name in ("non_private", "vmap") else []) for name in methods]
    pieces: list[Search] = [(name, "pieces", []) for name in methods if name != "vmap"]
    found: list[int] = run_child(
        f"{_REQUESTS}:largest_batch_sizes",
        environment,
        workload=request.workload(),
        searches=[*whole, *pieces],
        cap_bytes=request.cap_bytes,
        physical_batch_size=request.physical_batch_size,
    )
    at_once = dict(zip(methods, found[: len(whole)], strict=True))
    cut = {method: size for (method, _, _), size in zip(pieces, found[len(whole) :], strict=True)}
    return {
        "largest_batch_size": {method: max(size, cut.get(method, 0)) for method, size in at_once.items()},
        "largest_batch_size_at_once": at_once,
    }


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Holds a lock, so that measurements with the same home folder do not slow each other down."""
    path = home() / "measurements" / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another measurement on this machine")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
