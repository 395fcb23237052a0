"""Whether servers run is known from a lock, not from a file that a killed process may leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT
from tasks.runtime.running_servers import Addresses, as_the_running_servers, running_servers

AT = Addresses(os.getpid(), "http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3", "/pipelines.yaml")
HOLDS = """
import os, time
from tasks.runtime.running_servers import Addresses, as_the_running_servers
with as_the_running_servers(Addresses(os.getpid(), "r", "a", "m", "c")):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def home(own_home: Path) -> Path:
    return own_home


def test_none_run(home: Path) -> None:
    assert running_servers() is None
    assert not home.exists(), "asking writes nothing"


def test_they_run_during_the_block(home: Path) -> None:
    with as_the_running_servers(AT):
        assert running_servers() == AT
        assert running_servers() == AT, "asking changes nothing"
    assert running_servers() is None
    assert [path.name for path in home.iterdir()] == ["up.lock"]


def test_a_second_is_told_what_runs_and_where(home: Path) -> None:
    with as_the_running_servers(AT), pytest.raises(UserError) as caught, as_the_running_servers(AT):
        pass
    assert str(caught.value) == (
        f"`make up` already runs on {home} (process {os.getpid()}): reports {AT.reports}, Airflow {AT.airflow}, MLflow "
        f"{AT.mlflow}. Use it, stop it with `kill {os.getpid()}`, or choose another folder with DP_ADS_HOME"
    )
    assert running_servers() is None


def test_after_an_error_the_home_is_free_again() -> None:
    with pytest.raises(ZeroDivisionError), as_the_running_servers(AT):
        raise ZeroDivisionError
    with as_the_running_servers(AT):
        assert running_servers() == AT


def test_another_process_that_is_killed(home: Path) -> None:
    """Its file stays behind and misleads nobody."""
    with subprocess.Popen([sys.executable, "-c", HOLDS], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        found = running_servers()
        assert found is not None
        assert found.pid == process.pid
        process.send_signal(signal.SIGKILL)
    assert (home / "up.json").exists()
    assert running_servers() is None
    with as_the_running_servers(AT):
        assert running_servers() == AT
