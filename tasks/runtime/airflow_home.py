"""Our own Airflow in the home folder: settings, databases and pool, set up on first use.

The servers of ``make up`` have a folder with a database. Each ``make run`` without servers has one of its own, which no
scheduler and no other run reads, and which is deleted at the end: so runs never wait for each other's database, and a
killed one leaves no DAG run behind. Every path is set in the environment of each program, since Airflow writes absolute
paths into its ``airflow.cfg``, and the home folder may be moved or copied.

Airflow is run as a program and never imported, so that none of its processes starts with JAX, Dask or MLflow loaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tasks.owners.held import holding
from tasks.owners.locks import one_at_a_time
from tasks.owners.runs import RUN, run_folders
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT, home, owners_alone, short_hash, whole_file, write_text
from tasks.runtime.progress import say

# Training tasks that may run at the same time: one, since a group of trials uses the whole device.
GPU_POOL_SLOTS = 1
_NOT_IN_A_HOME = ("?", "%", "$", "#", "\n")
# A path may have 4,096 bytes on Linux, and the longest below the home folder have a few hundred.
_LONGEST_HOME = 1024
# Two commands of `airflow` in one process, since importing Airflow takes seconds.
_COMMANDS = [
    ["db", "migrate"],
    ["pools", "set", "gpu", str(GPU_POOL_SLOTS), "Training tasks that may run at the same time"],
]
_IN_ONE_PROCESS = """
import json, sys
from airflow.cli.cli_parser import get_parser
for command in json.loads(sys.argv[1]):
    options = get_parser().parse_args(command)
    options.func(options)
"""


def airflow_folder() -> Path:
    """Returns the Airflow folder of the servers."""
    return home() / "airflow"


@contextlib.contextmanager
def airflow_of_a_run(name: str) -> Iterator[Path]:
    """Yields a new Airflow folder for one run without servers, and deletes it at the end.

    The process holds the folder's lock: when that is free, the run has ended, however that came.
    """
    folder = Path(tempfile.mkdtemp(dir=owners_alone(run_folders()), prefix=f"{name}-"))
    try:
        with holding(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment_of_a_run(folder: Path) -> dict[str, str]:
    """Returns the environment of the processes of a run without servers. Logs of tasks outlive the run."""
    return airflow_environment(folder) | {
        RUN: folder.name,
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(run_folders() / "logs"),
        "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(run_folders() / "logs" / "dag_processor"),
    }


def airflow_environment(folder: Path) -> dict[str, str]:
    """Returns the environment in which ``airflow`` finds our DAGs and keeps its files in ``folder``."""
    programs = Path(sys.executable).parent
    return os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(CHECKOUT),
        "DP_ADS_HOME": str(home()),
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_database(folder)}",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(folder / "logs"),
        "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(folder / "logs" / "dag_processor"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
        # Safe mode skips files without the words "dag" and "airflow"; dags/.airflowignore names those to skip.
        "AIRFLOW__CORE__DAG_DISCOVERY_SAFE_MODE": "False",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        # Limits tasks that run at the same time: each imports JAX or MLflow, hundreds of megabytes.
        "AIRFLOW__CORE__PARALLELISM": str(max(2, os.cpu_count() or 2)),
        "AIRFLOW__CORE__MAX_MAP_LENGTH": "10000",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(CHECKOUT / "dags" / "plugins"),
        # Runs are named for what they do, such as "quick · pCTR, pCVR · ε 1, 10 · 2026-11-02 09:30:00".
        "AIRFLOW__SCHEDULER__ALLOWED_RUN_ID_PATTERN": r"^[\w.~:+, ·-]+$",
        # Else JAX says in every log that the machine has no TPU.
        "JAX_LOGGING_LEVEL": os.environ.get("JAX_LOGGING_LEVEL", "WARNING"),
        # Seconds that the scheduler waits before it looks for a next task; by default 1. At 0.1 it took about a tenth
        # of a core from training.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.4",
    }


def check_home() -> None:
    """Raises ``UserError`` if the home folder's path cannot be used, or nothing can be written there.

    SQLAlchemy reads what follows a ``?`` as options and a ``%`` as an escape, Airflow expands ``$NAME``, and ``#`` ends
    a path in an address.
    """
    folder = home()
    wrong = [character for character in _NOT_IN_A_HOME if character in str(folder)]
    if wrong:
        raise UserError(
            f"the home folder {folder} has {' and '.join(wrong)} in its path, which the databases there cannot be "
            "addressed with: choose another folder with DP_ADS_HOME"
        )
    if len(os.fsencode(folder)) > _LONGEST_HOME:
        raise UserError(
            f"the path of the home folder has {len(os.fsencode(folder)):,} bytes, and the files in it would be too "
            f"long for the system: choose one with at most {_LONGEST_HOME:,} with DP_ADS_HOME; it is {folder}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"cannot write to the home folder {folder}: {error.strerror}. Choose another folder with DP_ADS_HOME"
        ) from None


def ensure_airflow(folder: Path) -> None:
    """Creates or migrates the database in an Airflow folder, with the pool ``gpu``, unless that is already done.

    An empty database is kept in the home folder, and copied for each other folder.
    """
    check_home()
    with one_at_a_time("airflow", "is setting up Airflow's database"):
        _ensure(folder)


def _ensure(folder: Path) -> None:
    # It has the password of the UI, keys that sign logins, and logs that repeat values of the data.
    owners_alone(folder)
    lock = CHECKOUT / "requirements.lock"
    state = short_hash([lock.read_text() if lock.exists() else "", _COMMANDS])
    marker, empty = folder / "ready", home() / "cache" / f"airflow-{state}.db"
    if not _is_sound(empty):
        empty.unlink(missing_ok=True)
    if marker.exists() and not _is_sound(_database(folder)):
        _put_aside(_database(folder))
        marker.unlink()
    if marker.exists() and marker.read_text() == state:
        return
    if marker.exists() and _database(folder).exists():
        say("bringing Airflow's database up to date")
        _set_up(folder)
    else:  # also instead of one that was never finished
        if not empty.exists():
            say("setting up Airflow's database")
            _make_empty(empty)
        _remove_database(_database(folder))
        _copy_database(empty, _database(folder))
    write_text(marker, state)


def login() -> tuple[str, str]:
    """Returns the user and password that Airflow's simple auth manager generated for the servers."""
    path = airflow_folder() / "simple_auth_manager_passwords.json.generated"
    try:
        path.chmod(0o600)
        user, password = next(iter(json.loads(path.read_text()).items()))
    except (OSError, ValueError, StopIteration):
        raise UserError(f"there is no login in {path}, which Airflow's API server writes when it starts") from None
    return user, password


def _database(folder: Path) -> Path:
    return folder / "airflow.db"


def _is_sound(database: Path) -> bool:
    """Returns whether SQLite can read a database, and Airflow has made it."""
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as opened:
            opened.execute("SELECT version_num FROM alembic_version").fetchone()
            return opened.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
    except sqlite3.OperationalError as error:
        return "locked" in str(error)  # another process writes to it
    except sqlite3.DatabaseError:
        return False


def _put_aside(database: Path) -> None:
    """Renames a damaged database, if there is one, so that a new one is made. It has runs and settings."""
    if database.exists():
        aside = database.with_name(f"{database.name}.damaged")
        database.replace(aside)
        say(
            f"Airflow's database {database} is damaged: it is now {aside.name}, and a new one is made, without its runs"
        )
    else:
        say(f"Airflow's database {database} is missing: a new one is made, without its runs")
    _remove_database(database)


def _remove_database(database: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _make_empty(database: Path) -> None:
    """Creates an empty database in a folder of its own, and copies it to its place when it is complete."""
    database.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=database.parent, prefix=f".{database.name}.") as name, holding(Path(name)):
        _set_up(Path(name))
        _copy_database(_database(Path(name)), database)


def _set_up(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IN_ONE_PROCESS, json.dumps(_COMMANDS)],
        env=airflow_environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise UserError(f"setting up Airflow's database in {folder} failed:\n{tail}")


def _copy_database(source: Path, target: Path) -> None:
    # SQLite's own copy, since a part of the database may be in its write-ahead log.
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        whole_file(target) as temporary,
        contextlib.closing(sqlite3.connect(source)) as opened,
        contextlib.closing(sqlite3.connect(temporary)) as copy,
    ):
        opened.backup(copy)
