"""What the commands of the benchmarks share."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tasks.runtime.errors import UserError
from tasks.runtime.home import home, write_json
from tasks.runtime.progress import format_seconds


class Bar(NamedTuple):
    """A claim that a benchmark checks, in words with the measured number."""

    text: str
    holds: bool


def run_benchmark(
    name: str,
    measure: Callable[[], Any],
    print_report: Callable[[Any], None],
    bars: Callable[[Any], Sequence[Bar]],
    *,
    check: bool,
) -> int:
    """Measures, writes ``bench/<name>.json`` in the home folder and prints the report.

    Returns the exit status: with ``check``, 1 if a bar does not hold.
    """
    started = time.monotonic()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            result = measure()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    path = home() / "bench" / f"{name}.json"
    write_json(path, result)
    print_report(result)
    print(f"\n{path} written after {format_seconds(time.monotonic() - started)}")
    return 1 if check and not all(bar.holds for bar in bars(result)) else 0


def positive(kind: type[int] | type[float]) -> Callable[[str], Any]:
    """Returns a parser for an argument that must be a positive number."""

    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {'whole ' if kind is int else ''}number") from None
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be positive, got {text}")
        return value

    return parse
