"""What a person is told when the machine fails: a full disk, too little memory, a damaged file, no MLflow server.

Libraries wrap such errors in classes of their own, so they are recognized by the errors that they were raised from, and
by the words of the system.
"""

from __future__ import annotations

import collections
import os
import re
import resource
import shutil
import signal
from pathlib import Path

from tasks.outages.limits import limits
from tasks.runtime.errors import UserError, causes_of, disk_is_full, out_of_memory, says_full_disk, says_no_memory
from tasks.runtime.home import home

_AGAIN = "Prepared data, finished trials and checkpoints are kept: the same command continues from them"
_BROKEN_DATABASE = re.compile(
    r"file is not a database|database disk image is malformed|malformed database schema|disk I/O error"
    r"|unable to open database file|attempt to write a readonly database|no such (table|column)|has no column named"
    r"|Can't locate revision|already exists"
)
_OF_ANOTHER_DATABASE = re.compile(r"No Experiment with id|Run with id=\S+ not found|Could not find experiment")
# Of a log, for words of the system.
_LAST_LINES = 200
_OF_MLFLOW = ("mlflow", "sqlalchemy", "sqlite3", "alembic", "requests")


def said_as(error: BaseException) -> str | None:
    """Returns what a person is told about an error, in one sentence or two; None if the error is a bug of ours."""
    if isinstance(error, UserError):
        return str(error)
    if disk_is_full(error):
        return full_disk(_file_of(error))
    if out_of_memory(error):
        return too_little_memory(_first_line(error))
    if any(type(cause).__module__.split(".")[0] in _OF_MLFLOW for cause in causes_of(error)):
        return _about_mlflow(error)
    file = _file_of(error)
    if file is not None and file.is_absolute() and isinstance(error, OSError):
        return f"cannot use {file}: {error.strerror}"
    return None


def full_disk(file: Path | None = None) -> str:
    """Returns what is said when a disk is full; ``file`` is what could not be written, if that is known."""
    place = home() if file is None else file
    while not place.exists():
        place = place.parent
    named = home() if place.is_relative_to(home()) else place
    free = shutil.disk_usage(place).free / 1e6
    return f"no space left on the disk of {named} ({free:,.1f} MB are free): free some and run again. {_AGAIN}"


def too_little_memory(reason: str) -> str:
    """Returns what is said when there was too little memory; ``reason`` is what the system or a library said."""
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1e3
    limited = limits()
    limit = f", under a limit of {' and '.join(limited)}" if limited else ""
    return (
        f"not enough memory ({reason}): at its peak the run used {peak:,.0f} MB{limit}. Give it more, or set "
        f"`trials_at_once: 1` and a smaller `physical_batch_size` in the section `hardware` of pipelines.yaml. {_AGAIN}"
    )


def ended_with(status: int, log: Path) -> str:
    """Returns what is said of a program that ended with a status, and without saying why in words of ours."""
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = collections.deque(file, maxlen=_LAST_LINES)
    except OSError:
        lines = collections.deque()
    for line in reversed(lines):
        if says_full_disk(line):
            return full_disk()
        if says_no_memory(line):
            return too_little_memory(line.strip()[:300])
    if status == -signal.SIGKILL:
        return too_little_memory("the system killed the run, as it does when memory is used up")
    if status < 0:
        return f"the run was ended by signal {-status}, {signal.strsignal(-status)}"
    return "a task failed unexpectedly"


def _about_mlflow(error: BaseException) -> str | None:
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri:
        return f"MLflow at {without_password(uri)} failed: {_first_line(error)}"
    store = home() / "mlflow" / "mlflow.db"
    if any(_OF_ANOTHER_DATABASE.search(str(cause)) for cause in causes_of(error)):
        return (
            f"MLflow's database {store} has not got what this run logged there ({_first_line(error)}): it was replaced "
            f"since the run was planned. Run its pipeline again. {_AGAIN}"
        )
    if any(_BROKEN_DATABASE.search(str(cause)) for cause in causes_of(error)):
        return (
            f"MLflow's database {store} is damaged or cannot be written ({_first_line(error)}). If it is damaged, move "
            f"it away and run again: a new one is made. {_AGAIN}"
        )
    return None


def without_password(uri: str) -> str:
    """Returns an address without the user and password that it may have.

    >>> without_password("https://me:secret@host:5000/x")
    'https://host:5000/x'
    """
    return re.sub(r"//[^/@]*@", "//", uri)


def _file_of(error: BaseException) -> Path | None:
    names = [cause.filename for cause in causes_of(error) if isinstance(cause, OSError)]
    return next((Path(os.fsdecode(name)) for name in names if isinstance(name, str | bytes)), None)


def _first_line(error: BaseException) -> str:
    """Returns the first line of what an error says, or its kind, without addresses that may hold a password."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return without_password(line[:300])
