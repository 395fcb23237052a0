"""Tidies up after processes that were killed, at the start of the next run: only what is provably nobody's.

Half-written files and folders whose writer holds no lock any more are deleted, processes of a killed run are ended, and
its runs in the embedded MLflow store, which would be shown as running for ever, are marked as killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.owners.held import is_nobodys
from tasks.owners.locks import is_taken
from tasks.owners.runs import RUN, has_ended, run_folders
from tasks.runtime.home import home
from tasks.runtime.progress import say

# The tags of MLflow runs: the run that they belong to, and the trial.
OWNER, TRIAL = "owner", "trial"
# The names that `tempfile` gives files and folders of ours that are not whole yet.
_UNFINISHED = re.compile(r"^\..+\.[a-z0-9_]{8}$")
# A link that is about to be renamed: the process in its name has no lock.
_LINK = re.compile(r"^\..+\.\d+$")
# A file has no lock yet in the moment after it was created.
_MOMENT_SECONDS = 2.0
# Folders of other programs.
_NOT_OURS = {"airflow", "artifacts", "logs"}
_PATIENCE_SECONDS = 5.0


def sweep() -> None:
    """Deletes, ends and marks what killed processes left in the home folder, and says so in one line."""
    runs = [folder for folder in _folders(run_folders()) if folder.name != "logs" and _is_left(folder)]
    ended = sum(end_processes(RUN, value=folder.name, tell=False) for folder in runs)
    files = sum(_delete(path) for path in [*runs, *_unfinished()]) - len(runs)
    killed = mark_killed()
    found = {
        ("folder of a run deleted", "folders of runs deleted"): len(runs),
        ("process ended", "processes ended"): ended,
        ("half-written file deleted", "half-written files deleted"): files,
        ("MLflow run marked as killed", "MLflow runs marked as killed"): killed,
    }
    told = [f"{number} {one if number == 1 else many}" for (one, many), number in found.items() if number]
    if told:
        say(f"tidied up after processes that were killed: {', '.join(told)}")


def end_processes(variable: str, whose: str = "", *, value: str | None = None, tell: bool = True) -> int:
    """Ends the processes of this home folder whose environment has a variable. Returns how many there were.

    The caller knows that nobody waits for them any more.

    Args:
        variable: The environment variable.
        whose: Whose processes they are, for the line that says so.
        value: The variable's value; any, if None.
        tell: Whether to say it.
    """
    found = list(_processes(variable, value))
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        until = time.monotonic() + _PATIENCE_SECONDS
        while any(_is_living(process) for process in found) and time.monotonic() < until:
            time.sleep(0.05)
        if not any(_is_living(process) for process in found):
            break
    if found and tell:
        say(f"ended {len(found)} processes {whose}")
    return len(found)


def mark_killed(owner: str | None = None) -> int:
    """Marks runs in the embedded MLflow store as killed if the run that they belong to has ended; returns how many.

    Args:
        owner: The run whose end is certain, because the caller is its last process; None for all that have ended.
    """
    database = home() / "mlflow" / "mlflow.db"
    if not database.exists():
        return 0
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        rows = connection.execute(
            "SELECT runs.run_uuid, owner.value, trial.value FROM runs "
            "JOIN tags AS owner ON owner.run_uuid = runs.run_uuid AND owner.key = ? "
            "LEFT JOIN tags AS trial ON trial.run_uuid = runs.run_uuid AND trial.key = ? WHERE runs.status = 'RUNNING'",
            (OWNER, TRIAL),
        ).fetchall()
        ended = {one: one == owner if owner is not None else has_ended(one) for one in {row[1] for row in rows}}
        # Another run may go on with a trial.
        left = [run for run, whose, trial in rows if ended[whose] and not (trial and is_taken(f"trial {trial}"))]
        now = int(time.time() * 1000)
        with connection:
            for run in left:
                connection.execute(
                    "UPDATE runs SET status = 'KILLED', end_time = ? WHERE run_uuid = ? AND status = 'RUNNING'",
                    (now, run),
                )
        return len(left)
    return 0


def _unfinished() -> Iterator[Path]:
    """Yields the half-written files and folders of the home folder that nobody works on."""
    for below, folders, files in os.walk(home()):
        hidden = [name for name in folders if _UNFINISHED.match(name)]
        folders[:] = [name for name in folders if name not in hidden and name not in _NOT_OURS]
        for name in [*hidden, *(name for name in files if _UNFINISHED.match(name))]:
            if _is_left(Path(below, name)):
                yield Path(below, name)
        for name in [*folders, *files]:
            path = Path(below, name)
            if _LINK.match(name) and path.is_symlink() and _is_old(path):
                yield path


def _is_left(path: Path) -> bool:
    return _is_old(path) and is_nobodys(path)


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_ctime > _MOMENT_SECONDS
    except OSError:
        return False


def _delete(path: Path) -> bool:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:  # another process has been faster, or the disk is read-only
        return False
    return True


def _folders(below: Path) -> list[Path]:
    try:
        return [path for path in below.iterdir() if path.is_dir()]
    except OSError:
        return []


def _processes(variable: str, value: str | None) -> Iterator[int]:
    """Yields the processes of this user, except this one, that belong to this home folder and have a variable."""
    ours = os.fsencode(f"DP_ADS_HOME={home()}")
    wanted = os.fsencode(f"{variable}={'' if value is None else value}")
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (folder / "environ").read_bytes().split(b"\0")
            has = any(one == wanted if value is not None else one.startswith(wanted) for one in variables)
            if has and ours in variables and int(folder.name) != os.getpid():
                yield int(folder.name)


def _is_living(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
