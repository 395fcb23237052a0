"""Which run a process belongs to, so that what a killed run leaves can be told from what a living one works on.

A run of ``make run`` without servers is a folder in ``airflow-run``, whose lock the process of the terminal holds. A
run of the servers is a DAG run in their Airflow's database.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from tasks.owners.held import is_nobodys
from tasks.runtime.home import home

# The environment variable with the name of the run's folder, set for the processes of a run without servers.
RUN = "DP_ADS_RUN"
_OF_SERVERS = "airflow: "
_ENDED = ("success", "failed")


def this_run() -> str | None:
    """Returns the owner that this process works for; None for a verb in a terminal, which no one else can judge."""
    if run := os.environ.get(RUN):
        return run
    dag, run = os.environ.get("AIRFLOW_CTX_DAG_ID"), os.environ.get("AIRFLOW_CTX_DAG_RUN_ID")
    return f"{_OF_SERVERS}{dag} {run}" if dag and run else None


def run_folders() -> Path:
    """Returns the folder with a folder for each run without servers, beside the logs of their tasks."""
    return home() / "airflow-run"


def has_ended(owner: str) -> bool:
    """Returns whether a run has ended; False if that cannot be told."""
    if owner.startswith(_OF_SERVERS):
        dag, _, run = owner.removeprefix(_OF_SERVERS).partition(" ")
        return _dag_run_has_ended(dag, run)
    folder = run_folders() / owner
    return Path(owner).name == owner and (not folder.exists() or is_nobodys(folder))


def _dag_run_has_ended(dag: str, run: str) -> bool:
    database = home() / "airflow" / "airflow.db"
    if not database.exists():
        return False
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(database, timeout=10)) as connection:
        found = connection.execute("SELECT state FROM dag_run WHERE dag_id = ? AND run_id = ?", (dag, run)).fetchone()
        return found is None or found[0] in _ENDED
    return False
