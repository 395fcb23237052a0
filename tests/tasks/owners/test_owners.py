"""Locks that end with their process, and what the sweep takes: everything of the dead, nothing of the living."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.owners import sweeping
from tasks.owners.held import holding
from tasks.owners.locks import is_taken, one_at_a_time
from tasks.owners.runs import RUN, run_folders
from tasks.owners.sweeping import end_processes, mark_killed, sweep
from tasks.runtime.errors import Stopped
from tasks.runtime.home import whole_directory, whole_file
from tests.tasks.runtime.programs import wait_until

# Holds a lock, a half-written file and a half-written folder, has a forked child that lives on, and waits.
HOLDER = """
import os, sys, time
from pathlib import Path
from tasks.owners.locks import one_at_a_time
from tasks.runtime.home import home, whole_directory, whole_file
name = os.environ.get("DP_ADS_RUN", "clicks")
with one_at_a_time(name, f"is preparing {name}"), whole_file(home() / name), whole_directory(home() / f"{name}s"):
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(child, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _at_once(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_home.mkdir()
    monkeypatch.setattr(sweeping, "_MOMENT_SECONDS", -1.0)


@contextlib.contextmanager
def holder(**environment: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def hidden(home: Path) -> list[Path]:
    return [path for path in home.iterdir() if path.name.startswith(".")]


def test_a_lock_and_what_it_guards_end_with_a_killed_process(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if a child that it has forked lives on."""
    with holder() as (process, child):
        assert is_taken("clicks")
        sweep()
        assert len(hidden(own_home)) == 2, "its files are its own while it lives"
        process.kill()
        process.wait()
        os.kill(child, 0)
        assert not is_taken("clicks")
        with one_at_a_time("clicks", "is preparing clicks"):
            pass
        assert capsys.readouterr().out == ""
        sweep()
    assert hidden(own_home) == []
    assert list((own_home / "locks").iterdir()) == []
    assert capsys.readouterr().out == "▸ tidied up after processes that were killed: 2 half-written files deleted\n"
    sweep()
    assert capsys.readouterr().out == ""


def test_who_waits_says_for_whom_and_then_goes_on(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with holder() as (process, _):
        threading.Timer(1.6, process.kill).start()
        with one_at_a_time("clicks", "is preparing clicks"):
            assert process.wait() == -signal.SIGKILL
    assert capsys.readouterr().out == f"▸ waiting for process {process.pid}, which is preparing clicks\n"


def test_threads_take_turns_and_one_that_should_stop_does() -> None:
    inside, most = [0], [0]

    def work() -> None:
        with one_at_a_time("trial", "is training"):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.01)
            inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    with one_at_a_time("trial", "is training"), pytest.raises(Stopped):  # noqa: SIM117
        with one_at_a_time("trial", "is training", should_stop=lambda: True):
            pass


def test_what_is_written_now_and_what_has_another_name_stays(own_home: Path) -> None:
    (own_home / ".unfinished").mkdir()
    (own_home / ".notes").touch()
    with whole_file(own_home / "file") as file, whole_directory(own_home / "folder") as folder:
        sweep()
        assert file.exists()
        assert folder.exists()
    assert {path.name for path in own_home.iterdir()} == {".unfinished", ".notes", "file", "folder"}


def test_a_killed_runs_processes_and_folder_go(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("dead", "alive"):
        (run_folders() / name).mkdir(parents=True)
    with (
        holding(run_folders() / "alive"),
        holder(**{RUN: "dead"}) as (dead, child),
        holder(**{RUN: "alive"}) as (alive, other),
    ):
        sweep()
        assert dead.wait(10) == -signal.SIGTERM
        wait_until(lambda: not is_running(child), 10, "the child's end")
        assert alive.poll() is None
        assert is_running(other)
    assert [path.name for path in run_folders().iterdir()] == ["alive"]
    assert "1 folder of a run deleted, 2 processes ended" in capsys.readouterr().out


def is_running(process: int) -> bool:
    return sweeping._is_living(process)


def test_processes_of_another_home_stay(own_home: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with holder(**{RUN: "dead", "DP_ADS_HOME": str(tmp_path / "other")}) as (process, _):
        assert end_processes(RUN) == 0
        assert process.poll() is None


def test_only_runs_whose_owner_has_ended_are_marked_as_killed(own_store: Path) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{own_store / 'mlflow' / 'mlflow.db'}")
    (run_folders() / "alive").mkdir(parents=True)
    (own_store / "airflow").mkdir()
    with contextlib.closing(sqlite3.connect(own_store / "airflow" / "airflow.db")) as database, database:
        database.execute("CREATE TABLE dag_run (dag_id, run_id, state)")
        database.executemany("INSERT INTO dag_run VALUES ('d', ?, ?)", [("at work", "running"), ("ended", "failed")])
    owners = {
        "dead": "KILLED",
        "alive": "RUNNING",
        "airflow: d at work": "RUNNING",
        "airflow: d ended": "KILLED",
        "airflow: d deleted": "KILLED",
        "../mlflow": "RUNNING",
        "": "RUNNING",
    }
    made = {one: client.create_run("0", tags={"owner": one} if one else {}).info.run_id for one in owners}
    resumed = client.create_run("0", tags={"owner": "dead", "trial": "abc"}).info.run_id
    with holding(run_folders() / "alive"), one_at_a_time("trial abc", "is training"):
        assert mark_killed() == 3
        assert client.get_run(resumed).info.status == "RUNNING", "another run goes on with it"
    found = {one: client.get_run(run).info for one, run in made.items()}
    assert {one: info.status for one, info in found.items()} == owners
    assert all((info.end_time is not None) is (info.status == "KILLED") for info in found.values())
    assert mark_killed("alive") == 1
