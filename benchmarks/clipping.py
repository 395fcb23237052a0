"""Speed and memory of a training step by clipping method: ``python -m benchmarks.clipping``.

A step goes from a batch of examples to new parameters, as in the paper's Table 4. It does not include drawing and
loading the batch.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.clipping_report import Row, bars, print_report
from benchmarks.command import positive, run_benchmark
from tasks.runtime.progress import say
from tasks.speed.child import run_child
from tasks.speed.results import ProgramDescription, TimedProgram, TimedSteps

if TYPE_CHECKING:
    from tasks.speed.programs import MethodName

METHODS = ("non_private", "vmap", "two_pass_ghost", "ghost", "lazy_non_private", "lazy")
# Whether the steps of a method are timed without noise, with it, or both.
_NOISES = {"non_private": (False,), "vmap": (False,), "lazy_non_private": (False,)}
MODELS = {
    "paper": "the paper's model, 10.9M parameters",
    "large": "the same with larger vocabularies, 72.6M parameters",
    "small": "a few thousand parameters, to try the benchmark",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes ``bench/clipping.json`` in the home folder and prints tables."""
    options = _parser().parse_args(arguments)
    return run_benchmark("clipping", partial(measure, options), print_report, bars, check=options.check)


def measure(options: argparse.Namespace) -> list[Row]:
    """Returns one row for each batch size and method, with and without noise."""
    rows: list[Row] = []
    programs: list[ProgramDescription] = []
    with tempfile.TemporaryDirectory() as cache:
        # A program is compiled in one process and measured in another.
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        for batch_size in options.batch_sizes:
            timed: TimedSteps = run_child(
                "tasks.speed.requests:time_steps",
                environment,
                workload=_described(options.model),
                steps=[(method, noise) for method in options.methods for noise in _NOISES.get(method, (False, True))],
                batch_size=batch_size,
                physical_batch_size=options.physical_batch_size,
                rounds=options.rounds,
            )
            for row, program in _rows(options.model, timed):
                rows.append(row)
                programs.append(program)
        if not options.no_memory:
            # Two at a time: unlike speed, the memory of a process does not depend on the others.
            with ThreadPoolExecutor(max_workers=2) as pool:
                start = {
                    name: partial(pool.submit, run_child, f"tasks.speed.requests:{name}", environment)
                    for name in ("measure_peak", "largest_batch_size")
                }
                _add_resident_memory(rows, programs, start["measure_peak"])
                _add_largest_batches(rows, options, start["largest_batch_size"])
    return rows


def _described(model: str) -> dict[str, Any]:
    # Imports JAX, which the command line itself does not need.
    from benchmarks.workloads import WORKLOADS

    return WORKLOADS[model].to_json()


def _rows(model: str, timed: TimedSteps) -> Iterator[tuple[Row, ProgramDescription]]:
    """Yields a row for each method, with the program of its faster form. All forms are under ``forms``."""
    by_method: dict[tuple[MethodName, bool], list[TimedProgram]] = {}
    for timing in timed["timings"]:
        by_method.setdefault((timing["program"]["method"], timing["program"]["noise"]), []).append(timing)
    for (method, noise), forms in by_method.items():
        best = max(forms, key=lambda timing: timing["steps_per_second"] or 0)
        row: Row = {
            "method": method,
            "noise": noise,
            "parameters": timed["parameters"],
            "batch_size": best["program"]["batch_size"],
            "steps_per_second": best["steps_per_second"],
            "peak_memory_bytes": best["planned_bytes"],
            "median_steps_per_second": best["median_steps_per_second"],
            "resident_memory_bytes": None,
            "fits": best["steps_per_second"] is not None,
            "model": model,
            "form": best["program"]["form"],
            "forms": {
                timing["program"]["form"]: {
                    "steps_per_second": timing["steps_per_second"],
                    "peak_memory_bytes": timing["planned_bytes"],
                    "rows_at_once": timing["program"]["rows"],
                }
                for timing in forms
            },
        }
        yield row, best["program"]


def _add_resident_memory(
    rows: list[Row], programs: list[ProgramDescription], start: Callable[..., Future[Any]]
) -> None:
    say("measuring the memory of each program in a process of its own")
    started = [(row, start(program=program)) for row, program in zip(rows, programs, strict=True) if row["fits"]]
    for row, measured in started:
        row["resident_memory_bytes"] = measured.result()


def _add_largest_batches(rows: list[Row], options: argparse.Namespace, start: Callable[..., Future[Any]]) -> None:
    """Adds the largest batch that fits to each form without noise; noise takes the same memory at every batch size."""
    say(f"looking for the largest batch that fits into {options.memory_cap:g} GiB")
    cap_bytes = int(options.memory_cap * 2**30)
    started = {
        (method, form): start(
            workload=_described(options.model),
            method=method,
            form=form,
            cap_bytes=cap_bytes,
            physical_batch_size=options.physical_batch_size,
        )
        for method, form in dict.fromkeys((row["method"], form) for row in rows for form in row["forms"])
    }
    for (method, form), found in started.items():
        for row in rows:
            if row["method"] == method and not row["noise"]:
                row["forms"][form]["largest_batch_size"] = found.result()
                row["forms"][form]["memory_cap_bytes"] = cap_bytes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clipping",
        description="Measures steps per second and peak memory of training without privacy (non_private) and of "
        "DP-SGD with three ways of clipping per-example gradients: materialized (vmap), the paper's ghost clipping in "
        "two passes (two_pass_ghost), and the one-pass ghost clipping that this project trains with (ghost). Prints "
        "tables and writes bench/clipping.json to var/ (or DP_ADS_HOME). About 8 minutes on 2 cores.",
    )
    parser.add_argument(
        "--batch-sizes",
        type=_sizes,
        default=[64, 1024, 8192],
        metavar="N,N,…",
        help="batch sizes to measure (default: 64,1024,8192)",
    )
    parser.add_argument(
        "--methods",
        type=_methods,
        default=list(METHODS),
        metavar="NAME,…",
        help=f"some of {', '.join(METHODS)} (default: all)",
    )
    parser.add_argument(
        "--rounds",
        type=positive(int),
        default=10,
        metavar="N",
        help="rounds of timing, the best one counts; up to 3 times as many on a busy machine (default: 10)",
    )
    parser.add_argument(
        "--memory-cap",
        type=positive(float),
        default=4.0,
        metavar="GiB",
        help="memory cap for the search of the largest batch (default: 4)",
    )
    parser.add_argument(
        "--no-memory",
        action="store_true",
        help="do not measure memory or search for the largest batch; still report what the compiler plans",
    )
    parser.add_argument(
        "--physical-batch-size",
        type=positive(int),
        metavar="ROWS",
        help="rows that ghost clipping computes at once (default: the trainer's choice on this machine)",
    )
    parser.add_argument(
        "--model",
        choices=MODELS,
        default="paper",
        help="; ".join(f"{name}: {text}" for name, text in MODELS.items()) + " (default: paper)",
    )
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a bar does not hold")
    return parser


def _sizes(text: str) -> list[int]:
    return sorted({positive(int)(part) for part in text.split(",")})


def _methods(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in METHODS:
            raise argparse.ArgumentTypeError(f"unknown method {name!r}; known: {', '.join(METHODS)}")
    return [method for method in METHODS if method in names]


if __name__ == "__main__":
    sys.exit(main())
