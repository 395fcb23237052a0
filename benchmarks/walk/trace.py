"""Runs the five steps of a smoke run and records which of our modules call each other.

The module uses the standard library alone, so it can also trace an older checkout: run it as a script with that
checkout as the current folder.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import multiprocessing
import os
import pkgutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypedDict

PACKAGES = ("tasks", "dp_core")
STEPS = {
    "prepare": "tasks.prepare:prepare_datasets",
    "plan": "tasks.plan:plan",
    "train": "tasks.train:train",
    "audit": "tasks.audit:audit_group",
    "report": "tasks.report:report",
}
SHARED_FILES = ("pipelines.yaml", "schema.json", "plan.json", "record.json", "evidence.json", "audit.json")
SELECTION = {"pipeline": "relative_loss", "profile": "smoke"}


class Trace(TypedDict):
    """``calls``: step, modules on the stack, count; ``reads``: step, file name, count."""

    calls: list[list[Any]]
    reads: list[list[Any]]


Call = tuple[str, ...]
"""A step, then the modules on the call stack, outermost first; adjacent repetitions are collapsed."""


class Recorder:
    """Records calls across module borders, in order of first occurrence.

    Args:
        checkout: the folder that holds the packages.
    """

    def __init__(self, checkout: Path) -> None:
        self.calls: dict[Call, int] = {}
        self.reads: Counter[tuple[str, str]] = Counter()
        self._checkout = str(checkout.resolve())
        self._modules: dict[CodeType, str | None] = {}
        self._step: Call = ()
        self._local = threading.local()
        self._main: list[str] = []
        sys.addaudithook(self._opened)

    def run(self, step: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a step's function and returns its result, recording in this thread and in those that it starts."""
        self._step = (step,)
        self._local.stack = self._main = []
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        try:
            return function(*arguments)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            self._step = ()

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        module = self._modules[code] if code in self._modules else self._modules.setdefault(code, self._module(code))
        if module is None:
            return
        stack = self._stack()
        if event == "return":
            if stack:
                stack.pop()
            return
        crosses = not stack or stack[-1] != module
        stack.append(module)
        if crosses:
            call = self._step + tuple(
                name for name, before in zip(stack, [None, *stack], strict=False) if name != before
            )
            self.calls[call] = self.calls.get(call, 0) + 1

    def _opened(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Counts how often a step opens the files that steps share, for reading."""
        if event == "open" and self._step and str(arguments[1]).startswith("r"):
            name = os.path.basename(os.fsdecode(arguments[0])) if not isinstance(arguments[0], int) else ""
            if name in SHARED_FILES:
                self.reads[self._step[0], name] += 1

    def _stack(self) -> list[str]:
        """Returns the stack of the current thread; a new thread's starts with what the main thread waits in."""
        if not hasattr(self._local, "stack"):
            self._local.stack = list(self._main)
        return self._local.stack

    def _module(self, code: CodeType) -> str | None:
        """Returns the module of a function of ours; None for code of others and for bodies of modules and classes."""
        is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.endswith(".py")
        if not is_function or not code.co_filename.startswith(self._checkout + os.sep):
            return None
        parts = Path(code.co_filename).relative_to(self._checkout).with_suffix("").parts
        return ".".join(parts) if parts[0] in PACKAGES else None


def trace_step(checkout: Path, step: str, place: str, calls: Sequence[Sequence[Any]]) -> tuple[list[Any], Trace]:
    """Calls the function of a step, once per tuple of arguments, and returns its results and what was recorded.

    Every module is imported before the trace starts, because importing is not a row's path.
    """
    for package in PACKAGES:
        for found in pkgutil.walk_packages([str(checkout / package)], f"{package}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    module, name = place.split(":")
    function = getattr(importlib.import_module(module), name)
    recorder = Recorder(checkout)
    results = [recorder.run(step, function, *arguments) for arguments in calls]
    trace: Trace = {
        "calls": [[*call, count] for call, count in recorder.calls.items()],
        "reads": [[*read, count] for read, count in recorder.reads.items()],
    }
    return results, trace


def trace_smoke_run(checkout: Path, steps: Mapping[str, str] = STEPS) -> Trace:
    """Traces prepare, plan, train, audit and report of a smoke run, each in a process of its own, as Airflow runs them.

    Everything generated goes to a temporary home folder: where there is an earlier run, work is found instead of done.
    """
    whole: Trace = {"calls": [], "reads": []}

    def run(step: str, *calls: Sequence[Any]) -> list[Any]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            results, trace = pool.apply(trace_step, (checkout, step, steps[step], calls))
        whole["calls"] += trace["calls"]
        whole["reads"] += trace["reads"]
        return results

    with tempfile.TemporaryDirectory() as home:
        os.environ["DP_ADS_HOME"] = home
        [prepared] = run("prepare", (SELECTION,))
        [planned] = run("plan", (SELECTION, prepared))
        trained = run("train", *((group,) for group in planned["groups"]))
        audited = run("audit", *((group,) for group in trained))
        run("report", (planned["run"], [one for group in audited for one in group]))
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="where to write the trace, as JSON")
    parser.add_argument("--step", action="append", default=[], help="step=module:function, for an older checkout")
    options = parser.parse_args(arguments)
    checkout = Path.cwd()
    sys.path.insert(0, str(checkout))
    trace = trace_smoke_run(checkout, STEPS | dict(step.split("=", 1) for step in options.step))
    options.output.write_text(json.dumps(trace, indent=0) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
