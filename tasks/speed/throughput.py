"""Training steps per second by batch size, without privacy and with two ways of DP-SGD (Table 4, Figure 4b).

A step is what training does with one batch: from its examples to new parameters. Drawing and loading the
batch are not in it.
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
from typing import Any, Literal

from pydantic import ValidationError

from tasks.descriptions import TaskName
from tasks.encoded import Prepared, open_prepared
from tasks.errors import UserError
from tasks.grids import ModelName
from tasks.home import home, read_json, short_hash, write_json
from tasks.progress import format_seconds, say
from tasks.sections import Count, Distinct, Finite, Items, Section
from tasks.speed.child import run_child
from tasks.speed.workloads import PreparedWorkload

# Raised when what is measured, or how, changes, so that old measurements are not found.
MEASUREMENT_VERSION = 1

MethodName = Literal["non_private", "vmap", "ghost", "two_pass_ghost"]
# What each is called among the programs. Ghost clipping is the paper's idea; this project trains with it
# in one backward pass, the paper's two are for comparison.
_PROGRAMS = {
    "non_private": "non_private",
    "vmap": "vmap",
    "ghost": "one_pass_ghost",
    "two_pass_ghost": "two_pass_ghost",
}
_REQUESTS = "tasks.speed.requests"


class Request(Section):
    """What ``measure_throughput`` is asked for."""

    prepared: str
    task: TaskName
    model: ModelName = "mlp"
    hidden_layers: Items[Count]
    cross_layers: Count | None = None
    interaction_dimension: Count | None = None
    batch_sizes: Distinct[Count]
    methods: Distinct[MethodName] = ("non_private", "vmap", "ghost")
    rounds: Count = 5
    memory_cap_gib: Finite = 4.0
    physical_batch_size: Count | None = None

    @property
    def cap_bytes(self) -> int:
        return int(self.memory_cap_gib * 2**30)

    def workload(self) -> dict[str, Any]:
        numbers = {"cross_layers": self.cross_layers, "interaction_dimension": self.interaction_dimension}
        return PreparedWorkload(self.prepared, self.task, self.model, self.hidden_layers, **numbers).to_json()


def measure_throughput(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Measures the steps of the model that trials on prepared data train, on random rows of its training part.

    ``spec`` has the keys of ``Request``. The result's ``rows`` are one for each batch size, method, and noise or
    none:

    - ``steps_per_second`` is the mean over the rounds and ``steps_per_second_std`` their standard deviation (None
      of one round). All of a batch size take turns in every round, so that ratios hold on a machine that is not
      quiet. ``best_steps_per_second`` is that of the fastest moment.
    - ``noise``: DP-SGD adds it to every parameter, so on a CPU with large embedding tables it is most of a step.
      Without it a step shows what clipping alone costs; it is not private.
    - ``ghost`` is our trainer's step, which computes ``physical_batch_size`` rows at a time. ``non_private`` is a
      plain framework step over the whole batch, or our trainer's where that cuts the batch and is faster. ``vmap``
      holds a gradient for each example of the whole batch.
    - ``peak_memory_bytes`` is what XLA plans for a step, with parameters, optimiser and batch. A step for which it
      plans more than the cap (or than this machine has free) is not run: ``fits`` is false, and it has no speed.

    ``largest_batch_size`` is, for each method, the largest power of two for which XLA plans no more than the cap
    for a step without noise, whose memory does not grow with the batch; ``largest_batch_size_at_once`` is the
    same if no method may cut its batch into pieces.

    A measurement is of one machine: it is remembered for this data, ``spec``, kind of device, number of CPUs and
    version of JAX, and then returned with ``reused``. It is true of a moment in which the machine did nothing
    else; of several measurements one waits for the other. Everything runs in processes of their own.
    """
    request, prepared = _checked(spec)
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(home() / "cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    machine = run_child("tasks.speed.machine:describe_machine", environment)
    described = request.model_dump(mode="json", exclude={"prepared"}) | {"data_fingerprint": prepared.fingerprint}
    path = home() / "measurements" / f"{short_hash([MEASUREMENT_VERSION, described, machine])}.json"
    with _alone():
        if path.exists():
            say(f"{_title(request, prepared)}: measured before, {path}")
            return read_json(path) | {"reused": True}
        began = time.monotonic()
        result = _measure(request, environment, _title(request, prepared))
        result |= {
            "memory_cap_bytes": request.cap_bytes,
            **machine,
            "devices": 1,
            "seconds": time.monotonic() - began,
            "measured": datetime.now(UTC).isoformat(timespec="seconds"),
            "spec": described,
        }
        write_json(path, result)
    say(f"{_title(request, prepared)}: measured in {format_seconds(result['seconds'])}")
    return result | {"reused": False}


def _checked(spec: Mapping[str, Any]) -> tuple[Request, Prepared]:
    try:
        # As JSON, in which a list may stand for a tuple.
        request = Request.model_validate_json(json.dumps(dict(spec)))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()]
        raise UserError("throughput cannot be measured: " + "; ".join(problems)) from None
    prepared = open_prepared(Path(request.prepared))
    rows = len(prepared.split("train", request.task))
    largest = max(request.batch_sizes)
    if largest > rows:
        raise UserError(
            f"throughput cannot be measured at batch size {largest:,}: the training part of {prepared.dataset!r} "
            f"has {rows:,} rows"
        )
    return request, prepared


def _title(request: Request, prepared: Prepared) -> str:
    return f"throughput of {request.task} on {prepared.dataset}"


def _measure(request: Request, environment: Mapping[str, str], title: str) -> dict[str, Any]:
    rows, parameters = [], 0
    # Without clipping there is nothing that noise could make private.
    steps = [
        (method, noise)
        for method in request.methods
        for noise in ((False,) if method == "non_private" else (False, True))
    ]
    for number, batch_size in enumerate(request.batch_sizes, 1):
        say(f"{title}: batch size {batch_size:,}, {number} of {len(request.batch_sizes)}")
        timed = run_child(
            f"{_REQUESTS}:time_steps",
            environment,
            workload=request.workload(),
            steps=[(_PROGRAMS[method], noise) for method, noise in steps],
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
    return {"rows": rows, **_largest_batch_sizes(request, environment), "parameters": parameters}


def _row(method: MethodName, noise: bool, batch_size: int, timings: list[dict[str, Any]]) -> dict[str, Any]:
    """The faster form of a method, or the smaller one if none was run."""
    wanted = _PROGRAMS[method], noise
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


def _mean(timing: Mapping[str, Any]) -> float | None:
    speeds = timing["steps_per_second_of_rounds"]
    return statistics.fmean(speeds) if speeds else None


def _largest_batch_sizes(request: Request, environment: Mapping[str, str]) -> dict[str, dict[str, int]]:
    # Two sizes of what is timed whole were compiled there.
    known = sorted(request.batch_sizes)[-2:] if len(request.batch_sizes) > 1 else []
    methods: list[str] = list(request.methods)
    whole = [(method, "whole", known if method in ("non_private", "vmap") else []) for method in methods]
    pieces: list[tuple[str, str, list[int]]] = [(method, "pieces", []) for method in methods if method != "vmap"]
    found: list[int] = run_child(
        f"{_REQUESTS}:largest_batch_sizes",
        environment,
        workload=request.workload(),
        searches=[(_PROGRAMS[method], form, sizes) for method, form, sizes in [*whole, *pieces]],
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
    """Until the end of the block, no other measurement below this home runs: they would slow each other down."""
    path = home() / "measurements" / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another measurement on this machine")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
