"""Pipeline runs that an MLflow server has not got, or not whole, because it did not answer.

A run does not fail because a server that only shows it is away. The first call that the server does not answer, after
some seconds of trying, marks the folder of the run. From then on the steps of this run leave MLflow alone. All results
are in the home folder, so that ``tasks.log_pending`` logs the run later.

The embedded store is a file. Trouble with it is trouble with the disk, and an error like any other.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import requests
from mlflow.exceptions import MlflowException

from tasks.outages.told import said_as, without_password
from tasks.runtime.home import home, write_json
from tasks.runtime.progress import say
from tasks.runtime.tracking import remote_server

MARK = "unlogged.json"
# For how long a server is asked before a run goes on without it, and how long it may take to answer.
PATIENCE_SECONDS = 30.0
_ANSWER_SECONDS = 5
_FIRST_WAIT_SECONDS = 1.0

T = TypeVar("T")


class Away(Exception):
    """An MLflow server does not answer."""


def is_unlogged(run: str | Path) -> bool:
    """Returns whether MLflow has not got the planned run in a folder, or not whole."""
    return (Path(run) / MARK).exists()


def logged(run: str | Path, call: Callable[[], T], otherwise: T) -> T:
    """Returns what a call to MLflow returns, for the planned run in a folder.

    If the server does not answer, or fails, now or earlier in this run, the run is marked and ``otherwise`` returned.
    A night needs the registry of models, so its calls fail with the server.
    """
    if is_unlogged(run):
        return otherwise
    server = remote_server()
    if server is None or not Path(run).is_relative_to(home() / "runs"):
        return call()
    try:
        _wait_for(server)
        return call()
    except (Away, MlflowException, requests.RequestException) as error:
        reason = f"MLflow at {without_password(server)} does not answer" if isinstance(error, Away) else said_as(error)
        _answered.discard(server)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_json(Path(run) / MARK, {"since": now, "reason": reason})
        say(f"{reason}. The run goes on without it; its results are kept in {home()}")
        return otherwise


def take_up(run: str | Path) -> bool:
    """Removes the mark of a run if the server answers now. Returns whether it was marked and is not any more."""
    server = remote_server()
    if not is_unlogged(run) or (server is not None and not _answers(server)):
        return False
    (Path(run) / MARK).unlink()
    return True


def unlogged_runs() -> list[Path]:
    """Returns the folders of all planned runs that MLflow has not got, the oldest first."""
    found = (path.parent for path in (home() / "runs").glob(f"*/*/{MARK}"))
    return sorted((folder for folder in found if not folder.is_symlink()), key=lambda folder: folder.name)


# Servers that answered this process. One that stops to answer is noticed by the call.
_answered: set[str] = set()


def _wait_for(server: str) -> None:
    """Waits until a server answers. Raises ``Away`` if it does not."""
    if server in _answered:
        return
    deadline, wait = time.monotonic() + PATIENCE_SECONDS, _FIRST_WAIT_SECONDS
    while not _answers(server):
        if wait == _FIRST_WAIT_SECONDS:
            say(f"MLflow at {without_password(server)} does not answer: trying for {PATIENCE_SECONDS:g} s")
        if time.monotonic() + wait > deadline:
            raise Away
        time.sleep(wait)
        wait *= 2
    _answered.add(server)


def _answers(server: str) -> bool:
    """Returns whether a server answers at all. A proxy answers with an error of its own when the server is away."""
    try:
        return requests.get(f"{server}/health", timeout=_ANSWER_SECONDS).status_code not in (502, 503, 504)
    except requests.RequestException:
        return False
