"""Programs that tests start and stop, ports, and calls to the servers of ``make up``."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tasks.runtime.home import CHECKOUT

# Generous, since the machine may be busy.
START_SECONDS = 240
STOP_SECONDS = 60


def listening() -> socket.socket:
    """Returns a listening socket on a free port."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    return server


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(listening()).getsockname()[1] for _ in range(count)]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def is_living(process: psutil.Process) -> bool:
    # In some containers process 1 does not reap, and an orphan stays a zombie.
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {seconds} s")


@contextlib.contextmanager
def started(command: list[str], output: Path, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen]:
    """Starts a program in its own process group, as a terminal does, and kills it and its children at the end."""
    with open(output, "wb") as file:
        # Under nohup it is ignored, and a program that is started inherits that.
        inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        signal.signal(signal.SIGHUP, inherited)
    try:
        yield process
    finally:
        left = []
        with contextlib.suppress(psutil.NoSuchProcess):
            left = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def call(url: str, token: str | None = None, body: Any = None) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
        return json.load(answer)


class Up(NamedTuple):
    """A running ``tasks up``: its process, its addresses, its login and what it printed."""

    process: subprocess.Popen
    reports: str
    airflow: str
    mlflow: str
    token: str
    text: str

    def get(self, path: str) -> Any:
        """Returns the answer of Airflow's REST API."""
        return call(f"{self.airflow}/api/v2/{path}", self.token)

    def stop(self) -> None:
        """Interrupts it and waits until it has stopped."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(STOP_SECONDS) == 0


@contextlib.contextmanager
def servers_up(output: Path, environment: dict[str, str] | None = None) -> Iterator[Up]:
    """Starts ``tasks up`` on free ports, yields when it is up, and kills what is left at the end."""
    ports = dict(zip(("reports", "airflow", "mlflow"), free_ports(3), strict=True))
    at = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    arguments = [text for name, port in ports.items() for text in (f"--{name}-port", str(port))]
    with started([sys.executable, "-m", "tasks", "up", *arguments], output, environment) as process:

        def is_up() -> bool:
            assert process.poll() is None, output.read_text()
            return "Ctrl-C stops all" in output.read_text()

        wait_until(is_up, START_SECONDS, "the servers")
        text = output.read_text()
        login = re.search(rf"^▸ Airflow  {at['airflow']}   user (\S+), password (\S+)$", text, re.MULTILINE)
        assert login is not None, text
        token = call(f"{at['airflow']}/auth/token", body={"username": login[1], "password": login[2]})["access_token"]
        yield Up(process, at["reports"], at["airflow"], at["mlflow"], token, text)
