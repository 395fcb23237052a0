"""``tasks up``: runs the reports server, the Airflow UI and an MLflow server until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from tasks.config.loading import config_path, load_config
from tasks.owners.sweeping import end_processes, sweep
from tasks.runtime.airflow_api import AirflowApi, NoAnswer
from tasks.runtime.airflow_home import (
    airflow_environment,
    airflow_folder,
    check_home,
    ensure_airflow,
    login,
)
from tasks.runtime.errors import UserError
from tasks.runtime.home import MLFLOW_AT, REPORTS_AT, home, owners_alone
from tasks.runtime.moved_store import adopt_artifacts
from tasks.runtime.processes import POLITE_SECONDS, Programs, running, until_signalled
from tasks.runtime.progress import say
from tasks.runtime.running_servers import Addresses, as_the_running_servers

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
_DAGS_SECONDS = 30
_MAKE_STORE = "from tasks.runtime.tracking import embedded_store as store, ensure_store; ensure_store(store())"


class Ports(NamedTuple):
    """The ports of the three servers."""

    reports: int
    airflow: int
    mlflow: int


def up(ports: Ports, host: str = LOOPBACK) -> None:
    """Starts the servers, prints their addresses and the login, and returns when stopped.

    Ctrl-C, SIGTERM and closing the terminal stop all servers and their processes, also while they are starting. Tasks
    that were running are started again by the next ``up``.
    """
    load_config()
    _check_numbers({f"{name.upper()}_PORT": port for name, port in ports._asdict().items()})
    reached = LOOPBACK if host == EVERYWHERE else host
    at = Addresses(
        pid=os.getpid(),
        reports=f"http://{reached}:{ports.reports}",
        airflow=f"http://{reached}:{ports.airflow}",
        mlflow=f"http://{reached}:{ports.mlflow}",
        config=str(config_path().resolve()),
    )
    check_home()
    with until_signalled(), as_the_running_servers(at):
        # No other `make up` runs on this home folder now, so these are of one that was killed.
        end_processes(REPORTS_AT, "of a `make up` that was killed")
        sweep()
        _check_free(host, {f"{name.upper()}_PORT": port for name, port in ports._asdict().items()})
        # The log of Airflow's API server repeats the password.
        logs = owners_alone(home() / "logs")
        ensure_airflow(airflow_folder())
        try:
            with running(logs) as programs:
                try:
                    _start(programs, at, ports, host)
                    while True:
                        programs.check_alive()
                        time.sleep(1)
                except KeyboardInterrupt:
                    say(f"stopping; the next `make up` repeats tasks that do not end within {POLITE_SECONDS} s")
                    raise
        finally:
            say("stopped")


def _start(programs: Programs, at: Addresses, ports: Ports, host: str) -> None:
    python, environment = sys.executable, _environment(at, ports, host)
    say("starting; this takes about half a minute")
    programs.start(
        {
            "Reports server": [python, "-m", "tasks.runtime.reports_server", host, str(ports.reports)],
            "MLflow": [python, "-m", "mlflow", "server", *_mlflow_arguments(host, ports.mlflow)],
            "Airflow API server": [python, "-m", "airflow", "api-server"],
        },
        environment,
    )
    for address in (f"{at.reports}/", f"{at.mlflow}/health", f"{at.airflow}/api/v2/monitor/health"):
        programs.wait_for(address)
    # The parts of `airflow standalone` that we need. Standalone would also serve task logs on all network interfaces,
    # and it does not notice when a part dies. They start once the API server answers: tasks that were running when the
    # servers were stopped start at once, and report to it. At the end, tasks that are still running are killed, which
    # leaves them as running in the database. The next scheduler finds them there and starts them again. A task that
    # is only terminated would report that it failed.
    programs.start(
        {
            "Airflow scheduler": [python, "-m", "airflow", "scheduler", "--skip-serve-logs"],
            "Airflow DAG processor": [python, "-m", "airflow", "dag-processor"],
            "Airflow triggerer": [python, "-m", "airflow", "triggerer", "--skip-serve-logs"],
        },
        environment,
        end_children_with=signal.SIGKILL,
    )
    _wait_for_dags(programs, at)
    user, password = login()
    say(f"Reports  {at.reports}")
    say(f"Airflow  {at.airflow}   user {user}, password {password}")
    say(f"MLflow   {at.mlflow}")
    say("Ctrl-C stops all")


def _wait_for_dags(programs: Programs, at: Addresses) -> None:
    """Waits until Airflow lists the pipelines: its page of DAGs does not refresh itself while it is empty.

    It does not wait for long. If a DAG cannot be read, Airflow's pages say why.
    """
    api, deadline = AirflowApi(at.airflow), time.monotonic() + _DAGS_SECONDS
    while time.monotonic() < deadline:
        programs.check_alive()
        with contextlib.suppress(NoAnswer, UserError):
            if {dag["dag_id"] for dag in api.get("dags", limit="1000")["dags"]} >= set(load_config().pipelines):
                return
        time.sleep(0.5)


def _environment(at: Addresses, ports: Ports, host: str) -> dict[str, str]:
    return airflow_environment(airflow_folder()) | {
        "AIRFLOW__API__HOST": host,
        "AIRFLOW__API__PORT": str(ports.airflow),
        "AIRFLOW__API__BASE_URL": at.airflow,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{at.airflow}/execution/",
        # A training uses all cores, and the API server may then answer late. That is no reason to end the training.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
        "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "8",
        "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "10",
        # Tasks of a scheduler that was killed are started again within a minute, not after five.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
        # Saves seven processes that run evaluations by language models, which we do not use.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        MLFLOW_AT: at.mlflow,
        REPORTS_AT: at.reports,
    }


def _mlflow_arguments(host: str, port: int) -> list[str]:
    store = home() / "mlflow"
    store.mkdir(parents=True, exist_ok=True)
    # MLflow, which is not needed here otherwise, creates the store in a process that ends.
    if not (store / "mlflow.db").exists():
        done = subprocess.run(
            [sys.executable, "-c", _MAKE_STORE], env=airflow_environment(airflow_folder()), check=False
        )
        if done.returncode != 0:
            raise UserError(f"MLflow's database in {store} cannot be set up; what it said is above")
    adopt_artifacts(store)
    return [
        *("--host", host, "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{store / 'mlflow.db'}"),
        *("--artifacts-destination", (store / "artifacts").as_uri()),
    ]


def _check_numbers(ports: Mapping[str, int]) -> None:
    for name, port in ports.items():
        if not 0 < port < 65536:
            raise UserError(f"{name} must be from 1 to 65535, got {port}")
        same = [each for each, other in ports.items() if other == port]
        if len(same) > 1:
            raise UserError(f"{' and '.join(same)} are both {port}: choose different ports")


def _check_free(host: str, ports: Mapping[str, int]) -> None:
    for name, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                free = port + 100 if port + 100 < 65536 else port - 100
                raise UserError(
                    f"cannot use port {port} on {host} ({error.strerror}): stop the program that uses it, "
                    f"or choose another port, for example `make up {name}={free}`"
                ) from None
