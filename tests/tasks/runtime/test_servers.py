"""``tasks up`` checks its ports before it starts anything, and leaves no process behind when stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import tasks.runtime.servers
from tasks.config.loading import load_config
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT
from tasks.runtime.servers import check_alive, running, up

# Generous, since the machine may be busy.
START_SECONDS = 180
STOP_SECONDS = 40


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DP_ADS_CONFIG", raising=False)
    return tmp_path / "home"


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
def started(command: list[str], output: Path) -> Iterator[subprocess.Popen]:
    """Starts a program in its own process group, as a terminal does, and kills it and its children at the end."""
    with open(output, "wb") as file:
        process = subprocess.Popen(command, cwd=CHECKOUT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
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


class TestPorts:
    @pytest.mark.parametrize("which", ["airflow", "mlflow"])
    def test_an_occupied_port(self, which: str, home: Path) -> None:
        with listening() as other:
            port, free = other.getsockname()[1], free_ports(1)[0]
            ports = {"airflow": free, "mlflow": free} | {which: port}
            arguments = ["--airflow-port", str(ports["airflow"]), "--mlflow-port", str(ports["mlflow"])]
            done = subprocess.run(
                [sys.executable, "-m", "tasks", "up", *arguments],
                cwd=CHECKOUT,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith(
            f"error: cannot use port {port} on 127.0.0.1 (Address already in use): stop the program that uses it, "
            f"or choose another port, for example `make up {which.upper()}_PORT="
        )
        assert not home.exists(), "nothing was started"

    @pytest.mark.parametrize("port", [-1, 0, 65536])
    def test_no_port(self, port: int) -> None:
        with pytest.raises(UserError, match=f"^MLFLOW_PORT must be from 1 to 65535, got {port}$"):
            up(free_ports(1)[0], port)

    def test_one_port_for_both(self) -> None:
        message = r"^AIRFLOW_PORT and MLFLOW_PORT are both 8080: choose two different ports$"
        with pytest.raises(UserError, match=message):
            up(8080, 8080)

    def test_an_address_of_another_machine(self) -> None:
        with pytest.raises(UserError, match=r"^cannot use port \d+ on 192\.0\.2\.1"):
            up(*free_ports(2), host="192.0.2.1")


# A server that ignores Ctrl-C, with a child in another process group, like an Airflow task.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; print('child', flush=True); time.sleep(600)"], process_group=0)
print("ready", flush=True)
time.sleep(600)
"""
# One that ends politely but leaves its child behind.
CARELESS = STUBBORN.replace("signal.SIG_IGN", "lambda *_: sys.exit(0)")


class TestServers:
    def test_all_their_processes_are_ended(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tasks.runtime.servers, "POLITE_SECONDS", 1)
        commands = {"One": [sys.executable, "-c", STUBBORN], "Two": [sys.executable, "-c", CARELESS]}
        before = set(
            psutil.Process().children(recursive=True)
        )  # from other tests: multiprocessing keeps helper processes
        with running(commands, os.environ, tmp_path) as servers:
            for name in ("one", "two"):
                log = tmp_path / f"{name}.log"
                wait_until(lambda log=log: {"ready", "child"} <= set(log.read_text().split()), 20, "start")
            check_alive(servers, tmp_path)
            processes = set(psutil.Process().children(recursive=True)) - before
            assert len([process for process in processes if "time.sleep" in " ".join(process.cmdline())]) == 4
        assert [process for process in processes if is_living(process)] == []
        assert capsys.readouterr().out == "▸ stopped\n"

    def test_one_that_ends_by_itself_is_told(self, tmp_path: Path) -> None:
        with running({"One": [sys.executable, "-c", "raise SystemExit(3)"]}, os.environ, tmp_path) as servers:
            servers["One"].wait(20)
            with pytest.raises(UserError) as caught:
                check_alive(servers, tmp_path)
        assert str(caught.value) == f"One exited unexpectedly with status 3; its log is {tmp_path / 'one.log'}"

    def test_one_that_fails_at_the_start_ends_the_others(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        program = tmp_path / "python"
        program.write_text('#!/bin/sh\n[ "$2" = airflow ] && exec sleep 600\necho broken\nexit 4\n')
        program.chmod(0o755)
        monkeypatch.setattr(tasks.runtime.servers, "ensure_airflow", lambda: None)
        monkeypatch.setattr(sys, "executable", str(program))
        with pytest.raises(UserError) as caught:
            up(*free_ports(2))
        log = home / "logs" / "mlflow.log"
        assert str(caught.value) == f"MLflow exited unexpectedly with status 4; its log is {log}"
        assert log.read_text() == "broken\n"
        assert capsys.readouterr().out.splitlines()[-1] == "▸ stopped"
        assert not [child for child in psutil.Process().children() if is_living(child) and child.name() == "sleep"]


# What `up` does, with servers that start at once.
TWO_SERVERS = """
import os, sys, time
from pathlib import Path
from tasks.runtime.servers import running, until_signalled
with until_signalled():
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with running({"One": command, "Two": command}, os.environ, Path(sys.argv[1])):
        print("started", flush=True)
        time.sleep(600)
print("after", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_stops_both_quietly(number: signal.Signals, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with started([sys.executable, "-c", TWO_SERVERS, str(tmp_path)], output) as process:
        wait_until(lambda: "started" in output.read_text(), 20, "start")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        os.killpg(process.pid, number)
        os.killpg(process.pid, number)  # A second signal changes nothing.
        assert process.wait(30) == 0
    assert output.read_text() == "started\n▸ stopped\nafter\n"
    assert [child for child in children if is_living(child)] == []


def test_the_real_servers(home: Path, tmp_path: Path) -> None:
    """Takes about a minute. Both servers start, serve what the documentation promises, and stop without a trace."""
    airflow_port, mlflow_port = free_ports(2)
    airflow, mlflow = f"http://127.0.0.1:{airflow_port}", f"http://127.0.0.1:{mlflow_port}"
    output = tmp_path / "output"
    arguments = ["--airflow-port", str(airflow_port), "--mlflow-port", str(mlflow_port)]
    with started([sys.executable, "-m", "tasks", "up", *arguments], output) as process:

        def is_up() -> bool:
            assert process.poll() is None, output.read_text()
            return "Ctrl-C stops both" in output.read_text()

        wait_until(is_up, START_SECONDS, "both servers")
        text = output.read_text()
        login = re.search(rf"^▸ Airflow  {airflow}   user (\S+), password (\S+)$", text, re.MULTILINE)
        assert login is not None, text
        assert f"▸ MLflow   {mlflow}\n" in text
        with urllib.request.urlopen(f"{mlflow}/health", timeout=30) as health:
            assert health.status == 200

        credentials = {"username": login[1], "password": login[2]}
        token = call(f"{airflow}/auth/token", body=credentials)["access_token"]

        def dags() -> dict[str, Any] | None:
            found = {dag["dag_id"]: dag for dag in call(f"{airflow}/api/v2/dags", token)["dags"]}
            return found if {*load_config().pipelines, "prepare_data"} <= set(found) else None

        found = wait_until(dags, 60, "a DAG for each pipeline, and the one for data")
        assert not any(dag["is_paused"] or dag["has_import_errors"] for dag in found.values())
        assert call(f"{airflow}/api/v2/importErrors", token)["import_errors"] == []
        assert call(f"{airflow}/api/v2/pools/gpu", token)["slots"] == 1

        children = psutil.Process(process.pid).children(recursive=True)
        addresses = {
            (connection.laddr.ip, connection.laddr.port)
            for child in children
            for connection in child.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert addresses == {("127.0.0.1", airflow_port), ("127.0.0.1", mlflow_port)}, "and nothing else listens"
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(STOP_SECONDS) == 0
    stopped = output.read_text().removeprefix(text)
    assert stopped == "▸ stopped\n"
    assert [child for child in children if is_living(child)] == []
    assert is_free(airflow_port)
    assert is_free(mlflow_port)
    assert (home / "airflow" / "ready").exists(), "so the next start is quicker"


def call(url: str, token: str | None = None, body: Any = None) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
        return json.load(answer)
