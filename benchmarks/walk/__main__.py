"""``make walk``: traces a smoke run, and writes the figure and the numbers into ``docs/``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from benchmarks.walk.figure import draw
from benchmarks.walk.trace import trace_smoke_run
from benchmarks.walk.visits import Walk, is_service, walk

CHECKOUT = Path(__file__).resolve().parent.parent.parent
DOCS = CHECKOUT / "docs"


class Numbers(TypedDict):
    """What ``docs/walk.json`` keeps of a walk."""

    steps: dict[str, list[str]]
    modules: int
    services: int
    entered_again: dict[str, list[str]]
    without_need: dict[str, list[str]]
    shared_in_a_step: list[str]
    reads: dict[str, int]


def numbers(found: Walk) -> Numbers:
    """Returns what is kept of a walk, as JSON-able values."""
    return {
        "steps": {step: list(modules) for step, modules in found.steps.items()},
        "modules": sum(not is_service(module) for module in found.modules),
        "services": sum(is_service(module) for module in found.modules),
        "entered_again": found.entered_again,
        "without_need": found.without_need,
        "shared_in_a_step": found.shared_in_a_step,
        "reads": dict(sorted(found.reads.items())),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description=__doc__)
    parser.add_argument("--trace", type=Path, help="use this trace instead of running the steps")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder for walk.svg and walk.json (default: docs)")
    options = parser.parse_args(arguments)
    trace = json.loads(options.trace.read_text()) if options.trace else trace_smoke_run(CHECKOUT)
    found = walk([call[:-1] for call in trace["calls"]], trace["reads"])
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "walk.svg").write_text(draw(found), encoding="utf-8")
    (options.output / "walk.json").write_text(json.dumps(numbers(found), indent=1) + "\n", encoding="utf-8")
    kept = numbers(found)
    print(f"{kept['modules']} modules, {len(kept['entered_again'])} entered again by a later step")
    for module, steps in kept["without_need"].items():
        print(f"entered again without need: {module} by {', '.join(steps)}")
    return 1 if found.without_need else 0


if __name__ == "__main__":
    sys.exit(main())
