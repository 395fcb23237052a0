"""Programs are started in stages, watched, and ended with all processes that they have started."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

import tasks.runtime.processes
from tasks.runtime.errors import UserError
from tasks.runtime.processes import running
from tests.tasks.runtime.programs import is_living, started, wait_until

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
# One that waits for its child when it is interrupted, and says how the child ended, like Airflow's scheduler. The child
# says when it is terminated, like a task that reports to Airflow that it failed.
WAITING = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", '''
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("terminated", flush=True), sys.exit(1)))
print("child", flush=True)
time.sleep(600)
'''])
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
print("ready", flush=True)
child.wait()
print("ended by", -child.returncode, flush=True)
"""


def wait_for_words(log: Path, *words: str) -> None:
    wait_until(lambda: log.exists() and set(words) <= set(log.read_text().split()), 30, f"{words} in {log.name}")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.runtime.processes, "POLITE_SECONDS", 1)


def test_all_their_processes_are_ended(tmp_path: Path) -> None:
    # Other tests leave children: multiprocessing keeps helper processes.
    before = set(psutil.Process().children(recursive=True))
    with running(tmp_path) as programs:
        programs.start({"One": [sys.executable, "-c", STUBBORN]}, os.environ)
        programs.start({"Two": [sys.executable, "-c", CARELESS]}, os.environ)
        for name in ("one", "two"):
            wait_for_words(tmp_path / f"{name}.log", "ready", "child")
        programs.check_alive()
        processes = set(psutil.Process().children(recursive=True)) - before
        assert len([process for process in processes if "time.sleep" in " ".join(process.cmdline())]) == 4
    assert [process for process in processes if is_living(process)] == []


def test_children_can_be_killed_before_they_report(tmp_path: Path) -> None:
    with running(tmp_path) as programs:
        command = [sys.executable, "-c", WAITING]
        programs.start({"Scheduler": command}, os.environ, end_children_with=signal.SIGKILL)
        wait_for_words(tmp_path / "scheduler.log", "ready", "child")
    words = (tmp_path / "scheduler.log").read_text().split()
    assert words[-4:] == ["interrupted", "ended", "by", "9"], "it had time to end in its own order"
    assert "terminated" not in words


def test_the_last_stage_ends_first(tmp_path: Path) -> None:
    order = tmp_path / "order.txt"
    program = f"""
import signal, sys, time
def end(*_):
    with open({str(order)!r}, "a") as file:
        file.write(sys.argv[1] + " ")
    sys.exit(0)
signal.signal(signal.SIGINT, end)
print("ready", flush=True)
time.sleep(600)
"""
    with running(tmp_path) as programs:
        for stage in ("first", "second"):
            programs.start({stage: [sys.executable, "-c", program, stage]}, os.environ)
            wait_for_words(tmp_path / f"{stage}.log", "ready")
    assert order.read_text() == "second first "


def test_one_that_ends_by_itself_is_told(tmp_path: Path) -> None:
    with running(tmp_path) as programs:
        programs.start({"One": [sys.executable, "-c", "raise SystemExit(3)"]}, os.environ)

        def ended() -> str | None:
            try:
                programs.check_alive()
            except UserError as error:
                return str(error)
            return None

        message = wait_until(ended, 20, "the end")
    assert message == f"One exited unexpectedly with status 3; its log is {tmp_path / 'one.log'}"


# What `up` does, with servers that start at once.
TWO_SERVERS = """
import os, sys, time
from pathlib import Path
from tasks.runtime.processes import running, until_signalled
with until_signalled():
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with running(Path(sys.argv[1])) as programs:
        programs.start({"One": command, "Two": command}, os.environ)
        print("started", flush=True)
        time.sleep(600)
print("after", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_stops_them_quietly(number: signal.Signals, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with started([sys.executable, "-c", TWO_SERVERS, str(tmp_path)], output) as process:
        wait_until(lambda: "started" in output.read_text(), 20, "start")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        os.killpg(process.pid, number)
        os.killpg(process.pid, number)  # A second signal changes nothing.
        assert process.wait(30) == 0
    assert output.read_text() == "started\nafter\n"
    assert [child for child in children if is_living(child)] == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_they_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with started([sys.executable, "-c", TWO_SERVERS, str(tmp_path)], output) as process:

        def servers() -> list[psutil.Process]:
            found = psutil.Process(process.pid).children()
            return found if len([one for one in found if "time.sleep(600)" in one.cmdline()[-1]]) == 2 else []

        children = wait_until(servers, 20, "start")
        wait_until(lambda: all(one.cmdline()[1] == "-c" for one in children), 20, "the servers themselves")
        process.kill()
        wait_until(lambda: not any(map(is_living, children)), 20, "the end of the servers")
