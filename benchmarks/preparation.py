"""Speed and memory of the preparation of raw logs: ``python -m benchmarks.preparation``.

Compares our preparation with Polars doing the same work and with itself on a larger log, and times reading the rows of
a batch back. The logs are generated, in the layout of Criteo's Kaggle challenge. Each preparation has its own process
and home folder, and they take turns, so that ratios hold on a busy machine. Each process prepares a small log first,
since libraries load parts of themselves on first use; only the work is timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.command import Bar, positive, run_benchmark
from tasks.config.loading import load_config
from tasks.data.prepared import open_prepared
from tasks.logs.synthetic import MIN_ROWS, generate
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, short_hash
from tasks.runtime.progress import say
from tasks.speed.child import run_child

DATASET, TASK, MIN_COUNT, SEED = "criteo_kaggle", "pctr", 10, 0

LEAST_SPEED_RATIO = 1.0
MOST_MEMORY_RATIO = 1.3
# Times the ratio of the logs' rows.
MOST_TIME_RATIO = 1.1
READ_ROWS = 65_536
MOST_READING_SECONDS = 0.040

_DRAWS = 10


class Preparation(TypedDict):
    """One preparation of a log."""

    seconds: float
    peak_memory_bytes: int
    folder: str


class BestPreparation(TypedDict):
    """The best of several preparations of the same log."""

    who: str
    rows: int
    seconds: float
    rows_per_second: float
    peak_memory_bytes: int
    seconds_of_rounds: list[float]


class Reading(TypedDict):
    """Seconds to read a batch of random rows: best, median and first draw."""

    rows: int
    of_rows: int
    seconds: float
    median_seconds: float
    first_seconds: float


class Result(TypedDict):
    """``runs`` are ours, Polars, Polars tuned, and ours on the larger log."""

    rounds: int
    runs: list[BestPreparation]
    reading: Reading


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes ``bench/preparation.json`` in the home folder and prints tables."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.large_rows <= options.rows:
        parser.error(f"--large-rows must be more than --rows, got {options.large_rows:,} and {options.rows:,}")
    work = partial(measure, options.rows, options.large_rows, options.rounds)
    return run_benchmark("preparation", work, print_report, bars, check=options.check)


def measure(rows: int, large_rows: int, rounds: int) -> Result:
    """Returns the best of each measurement. Raises a ``UserError`` if Polars and ours give different results."""
    if importlib.util.find_spec("polars") is None:
        raise UserError("Polars, which this compares with, is not installed: run `pip install polars`")
    from benchmarks.polars_preparation import first_difference

    raws = {size: str(generate("display", size, SEED)) for size in (MIN_ROWS, rows, large_rows)}
    runs: dict[tuple[str, int], list[Preparation]] = {
        ("ours", rows): [],
        ("polars", rows): [],
        ("polars_tuned", rows): [],
    }
    runs["ours", large_rows] = []
    readings = []
    (home() / "bench").mkdir(parents=True, exist_ok=True)
    for number in range(1, rounds + 1):
        with tempfile.TemporaryDirectory(dir=home() / "bench", prefix=".preparation.") as scratch:
            for (who, size), results in runs.items():
                say(f"round {number} of {rounds}: {who}, {size:,} rows")
                environment = os.environ | {"DP_ADS_HOME": f"{scratch}/{who}_{size}"}
                request = {"who": who, "raw": raws[size], "small_raw": raws[MIN_ROWS]}
                results.append(run_child("benchmarks.preparation:prepare_rows", environment, **request))
            ours, *peers, large = (Path(results[-1]["folder"]) for results in runs.values())
            for peer in peers:
                difference = first_difference(ours, peer)
                if difference:
                    raise UserError(f"Polars and ours did different work: {difference}")
            readings.append(read_rows(large))
    return {
        "rounds": rounds,
        "runs": [_best(who, size, results) for (who, size), results in runs.items()],
        "reading": min(readings, key=lambda reading: reading["seconds"]),
    }


def prepare_rows(*, who: str, raw: str, small_raw: str) -> Preparation:
    """Prepares a raw log in this process's home. Returns its time, the process's peak memory and the folder."""
    dataset = load_config().dataset(DATASET)

    # Local imports, so that a process loads only the library that it measures.
    def with_polars(log: str) -> Path:
        from benchmarks.polars_preparation import prepare_plainly, prepare_tuned

        peer = prepare_tuned if who == "polars_tuned" else prepare_plainly
        return peer(dataset, Path(log), home() / short_hash(log), min_count=MIN_COUNT)

    def with_ours(log: str) -> Path:
        from tasks.data.preparation import prepare

        return prepare(DATASET, dataset, Path(log), min_count=MIN_COUNT)

    work = with_ours if who == "ours" else with_polars
    work(small_raw)
    started = time.perf_counter()
    folder = work(raw)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_memory_bytes": _peak_memory_bytes(), "folder": str(folder)}


def read_rows(prepared: Path) -> Reading:
    """Times reading a batch of random training rows, drawn as the Poisson sampler does.

    Each draw is of other rows. After the first draws, the files are in the page cache, as during most of a training.
    """
    split, rng = open_prepared(prepared).split("train", TASK), np.random.default_rng(SEED)
    rows, seconds = min(READ_ROWS, len(split)), []
    for _ in range(_DRAWS):
        indices = rng.choice(len(split), rows, replace=False, shuffle=False)
        started = time.perf_counter()
        split.take(indices)
        seconds.append(time.perf_counter() - started)
    return {
        "rows": rows,
        "of_rows": len(split),
        "seconds": min(seconds),
        "median_seconds": statistics.median(seconds),
        "first_seconds": seconds[0],
    }


def bars(result: Result) -> list[Bar]:
    """Returns the claims that the benchmark checks, with the measured numbers."""
    ours, polars, tuned, large = result["runs"]
    reading, growth = result["reading"], large["rows"] / ours["rows"]
    speed, of_tuned = (ours["rows_per_second"] / peer["rows_per_second"] for peer in (polars, tuned))
    memory = large["peak_memory_bytes"] / ours["peak_memory_bytes"]
    seconds = large["seconds"] / ours["seconds"]
    more = f"{growth:.3g} times the rows"
    return [
        Bar(
            f"ours at {ours['rows']:,} rows: {speed:.2f} of the rows per second of Polars, plainly written "
            f"(bar: at least {LEAST_SPEED_RATIO:.2f}); {of_tuned:.2f} of Polars, tuned",
            speed >= LEAST_SPEED_RATIO,
        ),
        Bar(f"{more}: {memory:.2f} of the memory (bar: at most {MOST_MEMORY_RATIO})", memory <= MOST_MEMORY_RATIO),
        Bar(
            f"{more}: {seconds:.2f} of the time (bar: at most {MOST_TIME_RATIO * growth:.2f})",
            seconds <= MOST_TIME_RATIO * growth,
        ),
        Bar(
            f"{reading['rows']:,} of {reading['of_rows']:,} training rows read in {1e3 * reading['seconds']:.1f} ms "
            f"(bar: at most {1e3 * MOST_READING_SECONDS:.0f} ms)",
            reading["seconds"] <= MOST_READING_SECONDS,
        ),
    ]


def print_report(result: Result) -> None:
    ours, polars, tuned, large = result["runs"]
    console = Console()
    of_rounds = f"best of {result['rounds']} rounds"
    console.print(
        _table(
            f"Preparing {ours['rows']:,} rows, {of_rounds}",
            polars,
            {"Polars": polars, "Polars, tuned": tuned, "ours": ours},
        )
    )
    sizes = {f"{run['rows']:,} rows": run for run in (ours, large)}
    console.print(_table(f"Ours on a larger log, {of_rounds}", ours, sizes))
    reading = result["reading"]
    table = Table(title=f"Reading {reading['rows']:,} random rows of {reading['of_rows']:,}", box=SIMPLE_HEAD)
    for title in ("best", "median", "first"):
        table.add_column(title, justify="right")
    times = (reading["seconds"], reading["median_seconds"], reading["first_seconds"])
    table.add_row(*(f"{1e3 * seconds:.1f} ms" for seconds in times))
    console.print(table)
    for bar in bars(result):
        text = f"✓ {bar.text}: holds" if bar.holds else f"✗ {bar.text}: does not hold"
        console.print(text, highlight=False, soft_wrap=True)


def _table(title: str, base: BestPreparation, runs: dict[str, BestPreparation]) -> Table:
    """Returns a table of runs with their ratios to ``base``."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("", "time", "ratio", "rows/s", "ratio", "peak memory", "ratio"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, run in runs.items():
        table.add_row(
            name,
            f"{run['seconds']:,.2f} s",
            f"{run['seconds'] / base['seconds']:.2f}",
            f"{run['rows_per_second']:,.0f}",
            f"{run['rows_per_second'] / base['rows_per_second']:.2f}",
            f"{run['peak_memory_bytes'] / 2**20:,.0f} MiB",
            f"{run['peak_memory_bytes'] / base['peak_memory_bytes']:.2f}",
        )
    return table


def _best(who: str, rows: int, results: list[Preparation]) -> BestPreparation:
    seconds = [result["seconds"] for result in results]
    return {
        "who": who,
        "rows": rows,
        "seconds": min(seconds),
        "rows_per_second": rows / min(seconds),
        "peak_memory_bytes": min(result["peak_memory_bytes"] for result in results),
        "seconds_of_rounds": seconds,
    }


def _peak_memory_bytes() -> int:
    """Returns this process's peak memory. (``ru_maxrss`` would include the peak of the process that started it.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.preparation",
        description="Measures the preparation of raw logs: rows per second against Polars doing the same work, time "
        "and peak memory on a small and a large log, and the time to read a batch of random rows back. Prints tables "
        "and writes bench/preparation.json to var/ (or DP_ADS_HOME). About 3 minutes on 2 cores, and 4 GB of disk, "
        "of which 1.2 GB of raw logs are kept for the next time.",
    )
    parser.add_argument(
        "--rows", type=positive(int), default=1_000_000, metavar="N", help="rows of the log (default: 1000000)"
    )
    parser.add_argument(
        "--large-rows",
        type=positive(int),
        default=4_000_000,
        metavar="N",
        help="rows of the larger log (default: 4000000)",
    )
    parser.add_argument(
        "--rounds",
        type=positive(int),
        default=3,
        metavar="N",
        help="rounds of measurements, the best one counts (default: 3)",
    )
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a bar does not hold")
    return parser


if __name__ == "__main__":
    sys.exit(main())
