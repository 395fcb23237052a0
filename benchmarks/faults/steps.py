"""A small run of all steps, in a process of its own, and the tables that it makes."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tasks.runtime.errors import UserError

OPTIONS: dict[str, Any] = {
    "pipeline": "relative_loss",
    "profile": "smoke",
    "tasks": ["pctr"],
    "epsilons": [1.0],
    "seeds": 1,
}
_MOST_SECONDS = 600

Tables = Mapping[str, str]


def run_all_steps(*, save_always: bool = False) -> Tables:
    """Runs the steps of the pipeline, as its DAG does, and returns the tables.

    ``save_always`` makes trainings save a checkpoint after each dispatch.
    """
    from tasks import train
    from tasks.check import check
    from tasks.next_round import next_round
    from tasks.plan import plan
    from tasks.prepare import prepare_datasets
    from tasks.report import report
    from tasks.training.loop import run_trial

    if save_always:
        train.run_trial = functools.partial(run_trial, checkpoint_seconds=0.0)
    check(OPTIONS)
    planned = plan(OPTIONS, prepare_datasets(OPTIONS))
    for group in planned["groups"]:
        train.train(group)
    rounds = 2
    while (groups := next_round(planned["run"], rounds)) is not None:
        for group in groups:
            train.train(group)
        rounds += 1
    return tables_of(Path(report(planned["run"])["page"]).parent)


def tables_of(report: Path) -> Tables:
    """Returns the tables of a report by their names, without how long trainings took and the ids of runs."""
    return {path.name: path.read_text() for path in sorted(report.glob("*.csv")) if path.name != "trials.csv"}


def in_a_process(folder: Path, work: Callable[[], Any]) -> tuple[Any, str]:
    """Calls a function in a process that is forked from this one.

    Args:
        folder: Where what it returns and prints is kept.
        work: Returns what JSON can hold.

    Returns:
        What it returned, or None if it failed, was killed or did not end; and what it printed.
    """
    output, answer = folder / "output", folder / "answer"
    answer.unlink(missing_ok=True)
    output.write_text("")
    child = os.fork()
    if child == 0:
        _answer(output, answer, work)
    until = time.monotonic() + _MOST_SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None, f"did not end within {_MOST_SECONDS} s\n{output.read_text(errors='replace')}"
        time.sleep(0.01)
    printed = output.read_text(errors="replace")
    if os.WIFSIGNALED(status):
        return None, f"{printed}killed by signal {os.WTERMSIG(status)}"
    return (json.loads(answer.read_text()) if answer.exists() else None), printed


def _answer(output: Path, answer: Path, work: Callable[[], Any]) -> None:
    try:
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            answer.write_text(json.dumps(work()))
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def import_steps() -> None:
    """Imports what the forked processes would each import. None of it starts a thread or the device."""
    import tasks.audit
    import tasks.next_round
    import tasks.report
    import tasks.train
    import tasks.verify  # noqa: F401


def whole_or_refused(result: Any, printed: str) -> None:
    """Raises ``UserError`` if a run failed in which nothing was damaged."""
    if result is None:
        raise UserError(f"the run fails already before anything is damaged:\n{printed}")
