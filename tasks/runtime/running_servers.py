"""The servers that ``make up`` runs on the home folder: whether they run, and where.

``make up`` holds a lock on ``up.lock`` while it runs, and writes its addresses to ``up.json``. The operating system
releases the lock when the process ends, however it ends, so an old ``up.json`` misleads nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json, write_json

# A reader holds the lock for a moment, and the addresses are written a moment after the lock is taken.
_MOMENT_SECONDS = 1.0


class Addresses(NamedTuple):
    """The process of ``make up``, the addresses of its servers, and the configuration that their DAGs are made of."""

    pid: int
    reports: str
    airflow: str
    mlflow: str
    config: str


def running_servers() -> Addresses | None:
    """Returns the addresses of the servers that run on this home folder; None if none run.

    They may still be starting, and not answer yet.
    """
    deadline = time.monotonic() + _MOMENT_SECONDS
    while _is_locked():
        with contextlib.suppress(OSError, UserError, TypeError):
            return Addresses(**read_json(_file("up.json")))
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    return None


@contextlib.contextmanager
def as_the_running_servers(addresses: Addresses) -> Iterator[None]:
    """Holds the home folder's lock during the block, and tells the addresses to ``running_servers``.

    Raises a ``UserError`` that says what is running, and where, if another process holds the lock.
    """
    home().mkdir(parents=True, exist_ok=True)
    descriptor = os.open(_file("up.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor)
        write_json(_file("up.json"), addresses._asdict())
        try:
            yield
        finally:
            _file("up.json").unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + _MOMENT_SECONDS
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            raise UserError(_already_running())
        time.sleep(0.05)


def _already_running() -> str:
    found = running_servers()
    if found is None:
        return f"`make up` is already starting or stopping on {home()}"
    return (
        f"`make up` already runs on {home()} (process {found.pid}): reports {found.reports}, Airflow {found.airflow}, "
        f"MLflow {found.mlflow}. Use it, stop it with `kill {found.pid}`, or choose another folder with DP_ADS_HOME"
    )


def _is_locked() -> bool:
    try:
        descriptor = os.open(_file("up.lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _file(name: str) -> Path:
    return home() / name
