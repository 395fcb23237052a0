"""An Airflow of our own below the home folder: settings, database and pools, set up when needed.

Nothing here imports Airflow: it is run as a program, so that no process of it starts with JAX,
Dask or MLflow loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tasks.errors import UserError
from tasks.home import CHECKOUT, home, short_hash, write_text
from tasks.progress import say

# Trials that may train at the same time: one, since a trial takes the whole device.
GPU_POOL_SLOTS = 1


def airflow_environment() -> dict[str, str]:
    """The environment in which ``airflow`` finds our DAGs and keeps its files below the home folder."""
    programs = Path(sys.executable).parent
    return os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(CHECKOUT),
        "DP_ADS_HOME": str(home()),
        "AIRFLOW_HOME": str(home() / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(CHECKOUT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        # Each running task imports JAX or MLflow: hundreds of megabytes.
        "AIRFLOW__CORE__PARALLELISM": str(max(2, os.cpu_count() or 2)),
        "AIRFLOW__CORE__MAX_MAP_LENGTH": "10000",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    }


def ensure_airflow() -> None:
    """Makes or brings up to date Airflow's database and the pool ``gpu``; does nothing the second time."""
    lock = CHECKOUT / "requirements.lock"
    state = short_hash([lock.read_text() if lock.exists() else "", GPU_POOL_SLOTS])
    marker = home() / "airflow" / "ready"
    if marker.exists() and marker.read_text() == state:
        return
    say("setting up Airflow's database")
    _airflow("db", "migrate")
    _airflow("pools", "set", "gpu", str(GPU_POOL_SLOTS), "Trials that may train at the same time")
    write_text(marker, state)


def _airflow(*arguments: str) -> None:
    command = [sys.executable, "-m", "airflow", *arguments]
    done = subprocess.run(command, env=airflow_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise UserError(f"`airflow {' '.join(arguments)}` failed:\n{tail}")
