"""``tasks up`` checks its ports before it starts anything, and leaves no process behind when stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import tasks.runtime.servers
from tasks.config.loading import load_config
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT
from tasks.runtime.running_servers import running_servers
from tasks.runtime.servers import Ports, up
from tests.tasks.runtime.programs import STOP_SECONDS, free_ports, is_free, is_living, listening, servers_up, wait_until


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DP_ADS_CONFIG", raising=False)
    return tmp_path / "home"


def tasks_up(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs ``tasks up`` where it is refused."""
    return subprocess.run(
        [sys.executable, "-m", "tasks", "up", *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class TestPorts:
    @pytest.mark.parametrize("which", ["reports", "airflow", "mlflow"])
    def test_an_occupied_port(self, which: str, home: Path) -> None:
        with listening() as other:
            port = other.getsockname()[1]
            ports = Ports(*free_ports(3))._asdict() | {which: port}
            done = tasks_up(*(text for name, number in ports.items() for text in (f"--{name}-port", str(number))))
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith(
            f"error: cannot use port {port} on 127.0.0.1 (Address already in use): stop the program that uses it, "
            f"or choose another port, for example `make up {which.upper()}_PORT="
        )
        assert [path.name for path in home.iterdir()] == ["up.lock"], "nothing was started"
        assert running_servers() is None

    @pytest.mark.parametrize("port", [-1, 0, 65536])
    def test_no_port(self, port: int) -> None:
        with pytest.raises(UserError, match=f"^MLFLOW_PORT must be from 1 to 65535, got {port}$"):
            up(Ports(*free_ports(2), port))

    def test_one_port_for_two(self) -> None:
        message = r"^REPORTS_PORT and MLFLOW_PORT are both 8080: choose different ports$"
        with pytest.raises(UserError, match=message):
            up(Ports(8080, 8081, 8080))

    def test_an_address_of_another_machine(self) -> None:
        with pytest.raises(UserError, match=r"^cannot use port \d+ on 192\.0\.2\.1"):
            up(Ports(*free_ports(3)), host="192.0.2.1")


def test_one_that_fails_at_the_start_ends_the_others(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\n[ "$2" = mlflow ] || exec sleep 600\necho broken\nexit 4\n')
    program.chmod(0o755)
    monkeypatch.setattr(tasks.runtime.servers, "ensure_airflow", lambda folder: None)
    monkeypatch.setattr(sys, "executable", str(program))
    # So that the servers do not create it: that is a program too.
    (home / "mlflow").mkdir(parents=True)
    (home / "mlflow" / "mlflow.db").touch()
    with pytest.raises(UserError) as caught:
        up(Ports(*free_ports(3)))
    log = home / "logs" / "mlflow.log"
    assert str(caught.value) == f"MLflow exited unexpectedly with status 4; its log is {log}"
    assert log.read_text() == "broken\n"
    assert capsys.readouterr().out.splitlines()[-1] == "▸ stopped"
    assert not [child for child in psutil.Process().children() if is_living(child) and child.name() == "sleep"]
    assert running_servers() is None


def test_the_real_servers(home: Path, tmp_path: Path) -> None:
    """Takes about a minute. The servers start, serve what the documentation promises, and stop without a trace."""
    output = tmp_path / "output"
    with servers_up(output) as servers:
        shown = [line for line in servers.text.splitlines() if "http" in line]
        assert shown[0] == f"▸ Reports  {servers.reports}", "the front page comes first"
        assert shown[-1] == f"▸ MLflow   {servers.mlflow}"
        pid, config = servers.process.pid, str(CHECKOUT / "pipelines.yaml")
        assert running_servers() == (pid, servers.reports, servers.airflow, servers.mlflow, config)
        again = tasks_up()
        assert again.returncode == 2
        assert again.stderr.startswith(
            f"error: `make up` already runs on {home} (process {pid}): reports {servers.reports}, "
            f"Airflow {servers.airflow}, MLflow {servers.mlflow}. "
        )

        def dags() -> dict[str, Any] | None:
            found = {dag["dag_id"]: dag for dag in servers.get("dags")["dags"]}
            return (
                found
                if {*load_config().pipelines, "prepare_data", "nightly_retrain_conversions"} <= set(found)
                else None
            )

        found = wait_until(dags, 120, "a DAG for each pipeline, and the one for data")
        paused = {name for name, dag in found.items() if dag["is_paused"]}
        assert paused == {"nightly_retrain_conversions"}, "nobody has switched it on"
        assert not any(dag["has_import_errors"] for dag in found.values())
        assert servers.get("importErrors")["import_errors"] == []
        assert servers.get("pools/gpu")["slots"] == 1

        def are_healthy() -> bool:
            parts = servers.get("monitor/health")
            return all(parts[name]["status"] == "healthy" for name in ("scheduler", "triggerer", "dag_processor"))

        wait_until(are_healthy, 60, "no part is red on Airflow's home page")

        children = psutil.Process(pid).children(recursive=True)
        addresses = {
            f"http://{connection.laddr.ip}:{connection.laddr.port}"
            for child in children
            for connection in child.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert addresses == {servers.reports, servers.airflow, servers.mlflow}, "and nothing else listens"
        os.killpg(pid, signal.SIGINT)
        assert servers.process.wait(STOP_SECONDS) == 0
    stopped = output.read_text().removeprefix(servers.text)
    assert stopped == ("▸ stopping; the next `make up` repeats tasks that do not end within 10 s\n▸ stopped\n")
    assert [child for child in children if is_living(child)] == []
    assert all(is_free(int(address.rpartition(":")[2])) for address in addresses)
    assert running_servers() is None
    assert (home / "airflow" / "ready").exists(), "so the next start is quicker"
