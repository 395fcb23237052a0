"""``tasks up``: runs the Airflow UI and an MLflow server until Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from tasks.config.loading import load_config
from tasks.runtime.airflow_home import airflow_environment, ensure_airflow
from tasks.runtime.errors import UserError
from tasks.runtime.home import MLFLOW_AT, home
from tasks.runtime.moved_store import adopt_artifacts
from tasks.runtime.progress import say

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
START_SECONDS = 180
POLITE_SECONDS = 15
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Servers = dict[str, subprocess.Popen]


def up(airflow_port: int, mlflow_port: int, host: str = LOOPBACK) -> None:
    """Starts both servers, prints their addresses and the login, and returns when stopped.

    Ctrl-C, SIGTERM and closing the terminal stop both servers and all their processes, also while they are starting.
    """
    load_config()
    _check_ports(host, {"AIRFLOW_PORT": airflow_port, "MLFLOW_PORT": mlflow_port})
    logs = home() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    reached = LOOPBACK if host == EVERYWHERE else host
    airflow_url, mlflow_url = f"http://{reached}:{airflow_port}", f"http://{reached}:{mlflow_port}"
    environment = airflow_environment() | {
        "AIRFLOW__API__HOST": host,
        "AIRFLOW__API__PORT": str(airflow_port),
        "AIRFLOW__API__BASE_URL": airflow_url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{airflow_url}/execution/",
        # Saves seven processes that run evaluations by language models, which we do not use.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        MLFLOW_AT: mlflow_url,
    }
    python = sys.executable
    # The parts of `airflow standalone` that we need. Standalone would also serve task logs on all network interfaces
    # and run a triggerer, and it does not notice when a part dies.
    commands = {
        "MLflow": [python, "-m", "mlflow", "server", *_mlflow_arguments(host, mlflow_port)],
        "Airflow API server": [python, "-m", "airflow", "api-server"],
        "Airflow scheduler": [python, "-m", "airflow", "scheduler", "--skip-serve-logs"],
        "Airflow DAG processor": [python, "-m", "airflow", "dag-processor"],
    }
    with until_signalled():
        ensure_airflow()
        with running(commands, environment, logs) as servers:
            say("starting; this takes about half a minute")
            _wait_for(f"{mlflow_url}/health", servers, logs)
            _wait_for(f"{airflow_url}/api/v2/monitor/health", servers, logs)
            user, password = _login()
            say(f"Airflow  {airflow_url}   user {user}, password {password}")
            say(f"MLflow   {mlflow_url}")
            say("Ctrl-C stops both")
            while True:
                check_alive(servers, logs)
                time.sleep(1)


def _mlflow_arguments(host: str, port: int) -> list[str]:
    store = home() / "mlflow"
    store.mkdir(parents=True, exist_ok=True)
    adopt_artifacts(store)
    return [
        *("--host", host, "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{store / 'mlflow.db'}"),
        *("--artifacts-destination", (store / "artifacts").as_uri()),
    ]


def _check_ports(host: str, ports: Mapping[str, int]) -> None:
    if len(set(ports.values())) < len(ports):
        raise UserError(f"{' and '.join(ports)} are both {next(iter(ports.values()))}: choose two different ports")
    for name, port in ports.items():
        if not 0 < port < 65536:
            raise UserError(f"{name} must be from 1 to 65535, got {port}")
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


@contextlib.contextmanager
def until_signalled() -> Iterator[None]:
    """Ends the block at the first stop signal, without a traceback. Further signals are ignored during clean-up."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    # Under nohup, SIGHUP is ignored, and stays so.
    handled = [each for each in STOP_SIGNALS if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
    earlier = {each: signal.signal(each, stop) for each in handled}
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        for each, handler in earlier.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def running(commands: Mapping[str, list[str]], environment: Mapping[str, str], logs: Path) -> Iterator[Servers]:
    """Starts the servers, each in its own session. All processes of the sessions are stopped with the block."""
    servers: Servers = {}
    try:
        for name, command in commands.items():
            with open(_log(logs, name), "ab") as file:
                servers[name] = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
        yield servers
    finally:
        _stop(servers)


def _stop(servers: Servers) -> None:
    """Interrupts the servers, then terminates, then kills what is left of their sessions."""
    # First only each server's own process group, so that it stops its children in its own order. Airflow runs tasks
    # in other groups of the session.
    for server in servers.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGINT)
    deadline = time.monotonic() + POLITE_SECONDS
    for server in servers.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(max(0, deadline - time.monotonic()))
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        for server in servers.values():
            for process in _processes(server):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
        _wait_until_ended(servers, patience)
    say("stopped")


def _wait_until_ended(servers: Servers, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(_processes(server) for server in servers.values()) and time.monotonic() < deadline:
        time.sleep(0.1)


def _processes(server: subprocess.Popen) -> list[int]:
    """Returns the live processes of a server: itself and, where there is a /proc, those of its session."""
    found = [server.pid] if server.poll() is None else []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name is in parentheses; then come state, parent, group and session.
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == server.pid and state != "Z" and int(folder.name) != server.pid:
                found.append(int(folder.name))
    return found


def _wait_for(url: str, servers: Servers, logs: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        check_alive(servers, logs)
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.5)
    raise UserError(f"{url} did not answer within {START_SECONDS} s; the logs are in {logs}")


def check_alive(servers: Servers, logs: Path) -> None:
    """Raises a ``UserError`` if a server has exited."""
    for name, server in servers.items():
        if server.poll() is not None:
            raise UserError(
                f"{name} exited unexpectedly with status {server.returncode}; its log is {_log(logs, name)}"
            )


def _log(logs: Path, name: str) -> Path:
    return logs / f"{name.lower().replace(' ', '-')}.log"


def _login() -> tuple[str, str]:
    """Returns the user and password that Airflow's simple auth manager generated."""
    path = home() / "airflow" / "simple_auth_manager_passwords.json.generated"
    try:
        user, password = next(iter(json.loads(path.read_text()).items()))
    except (OSError, ValueError, StopIteration):
        raise UserError(f"Airflow started, but there is no login in {path}") from None
    return user, password
