"""``tasks up``: the Airflow UI and an MLflow server, until Ctrl-C."""

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

from tasks.airflow_home import airflow_environment, ensure_airflow
from tasks.config import load_config
from tasks.errors import UserError
from tasks.home import MLFLOW_AT, home
from tasks.progress import say

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"
START_SECONDS = 180
POLITE_SECONDS = 15
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Servers = dict[str, subprocess.Popen]


def up(airflow_port: int, mlflow_port: int, host: str = LOOPBACK) -> None:
    """Starts both, says where they are and how to log in, and returns when told to stop.

    Ctrl-C, SIGTERM and the end of the terminal stop both with all the processes they started, also
    during the start.
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
        # Seven processes for evaluations by language models, which nothing here uses.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        MLFLOW_AT: mlflow_url,
    }
    python = sys.executable
    # The parts of `airflow standalone` that are needed. Standalone would also serve task logs on
    # all of the machine's addresses, run a triggerer, and not notice when a part has died.
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
    return [
        *("--host", host, "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{store / 'mlflow.db'}"),
        *("--artifacts-destination", (store / "artifacts").as_uri()),
    ]


def _check_ports(host: str, ports: Mapping[str, int]) -> None:
    if len(set(ports.values())) < len(ports):
        raise UserError(f"{' and '.join(ports)} are the same port, {next(iter(ports.values()))}: give two")
    for name, port in ports.items():
        if not 0 < port < 65536:
            raise UserError(f"{name} is {port}: a port is a number from 1 to 65535")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                free = port + 100 if port + 100 < 65536 else port - 100
                raise UserError(
                    f"port {port} on {host} cannot be used ({error.strerror}): end what uses it, "
                    f"or choose another, for example `make up {name}={free}`"
                ) from None


@contextlib.contextmanager
def until_signalled() -> Iterator[None]:
    """Ends the block quietly at the first signal to stop; while it cleans up, further ones change nothing."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    # nohup ignores the terminal's end, and so does what it starts.
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
    """The named servers, each in a session of its own that is ended whole with the block."""
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
    """Asks the servers to end, then all their processes, and then makes them."""
    # A server's own group first: it ends its children in its own order. Airflow runs a task in
    # another group of the session.
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
    """The living processes of a server: itself and, where there is a /proc, all of its session."""
    found = [server.pid] if server.poll() is None else []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # After the name, in parentheses: state, parent, group, session.
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
    raise UserError(f"{url} did not answer within {START_SECONDS} s; see the logs in {logs}")


def check_alive(servers: Servers, logs: Path) -> None:
    for name, server in servers.items():
        if server.poll() is not None:
            raise UserError(f"{name} stopped by itself with status {server.returncode}; see {_log(logs, name)}")


def _log(logs: Path, name: str) -> Path:
    return logs / f"{name.lower().replace(' ', '-')}.log"


def _login() -> tuple[str, str]:
    """The user and password that Airflow's simple auth manager made up."""
    path = home() / "airflow" / "simple_auth_manager_passwords.json.generated"
    try:
        user, password = next(iter(json.loads(path.read_text()).items()))
    except (OSError, ValueError, StopIteration):
        raise UserError(f"Airflow started but left no login in {path}") from None
    return user, password
