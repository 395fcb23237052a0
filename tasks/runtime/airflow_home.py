"""Our own Airflow in the home folder: settings, database and pool, set up on first use.

Airflow is run as a program and never imported, so that none of its processes starts with JAX, Dask or MLflow loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT, home, short_hash, write_text
from tasks.runtime.progress import say

# Training tasks that may run at the same time: one, since a group of trials uses the whole device.
GPU_POOL_SLOTS = 1


def airflow_environment() -> dict[str, str]:
    """Returns the environment in which ``airflow`` finds our DAGs and keeps its files in the home folder."""
    programs = Path(sys.executable).parent
    return os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(CHECKOUT),
        "DP_ADS_HOME": str(home()),
        "AIRFLOW_HOME": str(home() / "airflow"),
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
        # Seconds that the scheduler waits before it looks for a next task; by default 1. At 0.1 it took about a tenth
        # of a core from training.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.4",
    }


def ensure_airflow() -> None:
    """Creates or migrates Airflow's database and the pool ``gpu``, unless that is already done."""
    lock = CHECKOUT / "requirements.lock"
    state = short_hash([lock.read_text() if lock.exists() else "", GPU_POOL_SLOTS])
    marker = home() / "airflow" / "ready"
    if marker.exists() and marker.read_text() == state:
        return
    say("setting up Airflow's database")
    _airflow("db", "migrate")
    _airflow("pools", "set", "gpu", str(GPU_POOL_SLOTS), "Training tasks that may run at the same time")
    write_text(marker, state)


def _airflow(*arguments: str) -> None:
    command = [sys.executable, "-m", "airflow", *arguments]
    done = subprocess.run(command, env=airflow_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise UserError(f"`airflow {' '.join(arguments)}` failed:\n{tail}")
