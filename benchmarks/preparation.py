"""How fast raw logs become encoded arrays, in how much memory: ``python -m benchmarks.preparation``.

Ours is measured against Polars doing the same work, against itself on a larger log, and in reading back
the rows of a batch. Logs are the generator's, in the layout of Criteo's Kaggle challenge. Each preparation
has a process and a home folder of its own, and they take turns, so that the ratios hold on a machine that
is not quiet. What is timed is the work alone: the process has prepared a small log before, for libraries
load some of their parts at first use.
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
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.command import Bar, positive, run_benchmark
from tasks.config import load_config
from tasks.encoded import open_prepared
from tasks.errors import UserError
from tasks.home import home, short_hash
from tasks.progress import say
from tasks.speed.child import run_child
from tasks.synthetic import MIN_ROWS, generate

DATASET, TASK, MIN_COUNT, SEED = "criteo_kaggle", "pctr", 10, 0

LEAST_SPEED_RATIO = 1.0
MOST_MEMORY_RATIO = 1.3
# Of what the larger log has more in rows.
MOST_TIME_RATIO = 1.1
READ_ROWS = 65_536
MOST_READING_SECONDS = 0.040

_DRAWS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes ``bench/preparation.json`` below the home folder, and prints tables."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.large_rows <= options.rows:
        parser.error(f"--large-rows must be more than --rows, got {options.large_rows:,} and {options.rows:,}")
    work = partial(measure, options.rows, options.large_rows, options.rounds)
    return run_benchmark("preparation", work, print_report, bars, check=options.check)


def measure(rows: int, large_rows: int, rounds: int) -> dict[str, Any]:
    """The best of each measurement; a ``UserError`` if Polars and ours do not come to the same."""
    if importlib.util.find_spec("polars") is None:
        raise UserError("Polars, which ours is measured against, is not installed: `pip install polars`")
    from benchmarks.polars_preparation import first_difference

    raws = {size: str(generate("display", size, SEED)) for size in (MIN_ROWS, rows, large_rows)}
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {
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


def prepare_rows(*, who: str, raw: str, small_raw: str) -> dict[str, Any]:
    """Prepares a raw log below this process's home; its time, this process's peak memory and the folder."""
    dataset = load_config().dataset(DATASET)

    # Each process loads only the one that it measures.
    def with_polars(log: str) -> Path:
        from benchmarks.polars_preparation import prepare_plainly, prepare_tuned

        peer = prepare_tuned if who == "polars_tuned" else prepare_plainly
        return peer(dataset, Path(log), home() / short_hash(log), min_count=MIN_COUNT)

    def with_ours(log: str) -> Path:
        from tasks.prepare import prepare

        return prepare(DATASET, dataset, Path(log), min_count=MIN_COUNT)

    work = with_ours if who == "ours" else with_polars
    work(small_raw)
    started = time.perf_counter()
    folder = work(raw)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_memory_bytes": _peak_memory_bytes(), "folder": str(folder)}


def read_rows(prepared: Path) -> dict[str, Any]:
    """The time to read one batch of random training rows, drawn as the Poisson sampler draws them.

    Each draw is of other rows. After the first ones the files are mapped, as they are for most of a training.
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


def bars(result: dict[str, Any]) -> list[Bar]:
    """What the benchmark is meant to show, with the measured figures."""
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


def print_report(result: dict[str, Any]) -> None:
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
    table.add_row(*(f"{1e3 * reading[name]:.1f} ms" for name in ("seconds", "median_seconds", "first_seconds")))
    console.print(table)
    for bar in bars(result):
        text = f"✓ {bar.text}: holds" if bar.holds else f"✗ {bar.text}: does not hold"
        console.print(text, highlight=False, soft_wrap=True)


def _table(title: str, base: dict[str, Any], runs: dict[str, dict[str, Any]]) -> Table:
    """Runs with their ratios to the base."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("", "time", "ratio", "rows/s", "ratio", "peak memory", "ratio"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, run in runs.items():
        cells = [name]
        for figure, text in (
            ("seconds", f"{run['seconds']:,.2f} s"),
            ("rows_per_second", f"{run['rows_per_second']:,.0f}"),
            ("peak_memory_bytes", f"{run['peak_memory_bytes'] / 2**20:,.0f} MiB"),
        ):
            cells += [text, f"{run[figure] / base[figure]:.2f}"]
        table.add_row(*cells)
    return table


def _best(who: str, rows: int, results: list[dict[str, Any]]) -> dict[str, Any]:
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
    """Of this process since it began. ``ru_maxrss`` is no less than what the process that started it had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.preparation",
        description="Measures the preparation of raw logs: rows per second against Polars doing the same work, time "
        "and peak memory on a small and a large log, and the time to read a batch of random rows back. Prints tables "
        "and writes bench/preparation.json below var/ (or DP_ADS_HOME). About 3 minutes on 2 cores, and 4 GB of disk, "
        "of which the raw logs (1.2 GB) stay for the next time.",
    )
    parser.add_argument(
        "--rows", type=positive(int), default=1_000_000, metavar="N", help="of the log (default: 1000000)"
    )
    parser.add_argument(
        "--large-rows", type=positive(int), default=4_000_000, metavar="N", help="of the larger log (default: 4000000)"
    )
    parser.add_argument(
        "--rounds",
        type=positive(int),
        default=3,
        metavar="N",
        help="measurements of each; the best counts (default: 3)",
    )
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a bar does not hold")
    return parser


if __name__ == "__main__":
    sys.exit(main())
