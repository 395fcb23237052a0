"""Speed of the generators of noise, side by side: ``python -m benchmarks.noise``.

``jax.random.normal`` is what the noise was drawn with before. It is the fastest to write and has no tails
(``dp_core.training.noise``).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.command import Bar, positive, run_benchmark

MOST_SEEDED_RATIO = 2.0
_OLD, _SEEDED, _SECRET = "jax.random.normal", "seeded", "secret"
_TITLES = {
    _OLD: "jax.random.normal (Threefry, 23 bits)",
    _SEEDED: "seeded (Threefry, 64 bits)",
    _SECRET: "secret (ChaCha20, four draws of 64 bits)",
}


class Row(TypedDict):
    """A generator's speed on arrays of one size; ``ratio`` is its time over that of ``jax.random.normal``."""

    generator: str
    size: int
    normals_per_second: float
    ratio: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes ``bench/noise.json`` in the home folder and prints a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.noise",
        description="Measures how many normal draws per second the generators of noise make. Prints a table and "
        "writes bench/noise.json to var/ (or DP_ADS_HOME). Less than a minute.",
    )
    parser.add_argument(
        "--rounds", type=positive(int), default=15, metavar="N", help="the best one counts (default: 15)"
    )
    parser.add_argument("--check", action="store_true", help="exit with status 1 if a bar does not hold")
    options = parser.parse_args(arguments)
    return run_benchmark("noise", partial(measure, options.rounds), print_report, bars, check=options.check)


def measure(rounds: int, sizes: Sequence[int] = (2**18, 2**22)) -> list[Row]:
    """Returns one row for each size and generator. They take turns, so that ratios hold on a busy machine."""
    return [row for size in sizes for row in _measure(rounds, size)]


def _measure(rounds: int, size: int) -> list[Row]:
    draws = _draws(size)
    best = dict.fromkeys(draws, float("inf"))
    for _ in range(1 + rounds):
        for name, draw in draws.items():
            started = time.perf_counter()
            draw().block_until_ready()
            best[name] = min(best[name], time.perf_counter() - started)
    return [
        {"generator": name, "size": size, "normals_per_second": size / seconds, "ratio": seconds / best[_OLD]}
        for name, seconds in best.items()
    ]


def _draws(size: int) -> dict[str, Callable[[], Any]]:
    # Imports JAX, which the command line itself does not need.
    import jax
    import numpy as np

    from dp_core.training.generators import CHACHA_KEY_WORDS, chacha_key
    from dp_core.training.noise import standard_normal

    seeded, secret = jax.random.key(0), chacha_key(np.arange(CHACHA_KEY_WORDS, dtype=np.uint32))
    old = jax.jit(lambda key: jax.random.normal(key, (size,)))
    new = jax.jit(lambda key: standard_normal(key, (size,)))
    return {_OLD: partial(old, seeded), _SEEDED: partial(new, seeded), _SECRET: partial(new, secret)}


def bars(rows: Sequence[Row]) -> list[Bar]:
    """Returns the bar on seeded noise, at each size."""
    return [
        Bar(
            f"seeded noise of {row['size']:,}: {row['ratio']:.2f} times the time of jax.random.normal "
            f"(bar: at most {MOST_SEEDED_RATIO:g})",
            row["ratio"] <= MOST_SEEDED_RATIO,
        )
        for row in rows
        if row["generator"] == _SEEDED
    ]


def print_report(rows: Sequence[Row]) -> None:
    table = Table(title="Normal draws, in millions per second", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("at once", "generator", "speed", "time"):
        table.add_column(title, justify="left" if title == "generator" else "right", no_wrap=True)
    for row in rows:
        speed = row["normals_per_second"] / 1e6
        table.add_row(f"{row['size']:,}", _TITLES[row["generator"]], f"{speed:,.1f}", f"{row['ratio']:.2f}")
    console = Console()
    console.print(table)
    for bar in bars(rows):
        console.print(f"{'✓' if bar.holds else '✗'} {bar.text}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
