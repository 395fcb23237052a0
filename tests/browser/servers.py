"""``make up`` and ``make run`` as a person starts them, from outside: nothing of the product is imported."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
# Generous, since the machine may be busy.
START_SECONDS = 240
STOP_SECONDS = 60
RUN_SECONDS = 600


class Ports(NamedTuple):
    """The ports that ``make up`` is given."""

    reports: int
    airflow: int
    mlflow: int


def free_ports() -> Ports:
    """Returns three ports that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in Ports._fields]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return Ports(*(each.getsockname()[1] for each in sockets))


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Returns the first value of ``condition`` that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.3)
    raise AssertionError(f"{what}: not within {seconds} s")


def environment(home: Path) -> dict[str, str]:
    """Returns the environment of programs that run on a home folder."""
    ours = ("AIRFLOW", "MLFLOW", "DP_ADS", "MAKE", "MFLAGS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {"DP_ADS_HOME": str(home)}


class Up(NamedTuple):
    """A running ``make up``: its process, its addresses, its login and what it printed."""

    process: subprocess.Popen[bytes]
    reports: str
    airflow: str
    mlflow: str
    user: str
    password: str
    output: Path

    def stop(self) -> str:
        """Sends SIGINT to make, as Ctrl-C does, waits until all has stopped, and returns what was printed."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(STOP_SECONDS)
        return self.output.read_text()


@contextlib.contextmanager
def make_up(home: Path, ports: Ports, output: Path) -> Iterator[Up]:
    """Starts ``make up`` and yields when it has printed its addresses. Kills what is left at the end."""
    given = [f"{name.upper()}_PORT={port}" for name, port in ports._asdict().items()]
    with open(output, "wb") as file:
        process = subprocess.Popen(
            # Shells let programs that they start in the background ignore SIGINT, and so would ours.
            ["env", "--default-signal=INT", "make", "--no-print-directory", "up", *given],
            cwd=CHECKOUT,
            env=environment(home),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:

        def is_up() -> bool:
            assert process.poll() is None, output.read_text()
            return "Ctrl-C stops all" in output.read_text()

        wait_until(is_up, START_SECONDS, "the servers")
        text = output.read_text()
        login = re.search(r"^▸ Airflow .* user (\S+), password (\S+)$", text, re.MULTILINE)
        assert login is not None, text
        at = [f"http://127.0.0.1:{port}" for port in ports]
        yield Up(process, *at, login[1], login[2], output)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Ran(NamedTuple):
    """A ``make run`` that has ended: what it printed, and how long it took from the line that names the DAG."""

    text: str
    seconds: float


def make_run(home: Path, **choices: str) -> Ran:
    """Runs ``make run NAME=value …`` to its end. It must end well.

    The time begins where the DAG is started: before, a first run sets up Airflow's database, once for a home folder.
    """
    command = ["make", "--no-print-directory", "run", *(f"{name}={value}" for name, value in choices.items())]
    lines, start = [], time.monotonic()
    with subprocess.Popen(
        command, cwd=CHECKOUT, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("▸ running DAG"):
                start = time.monotonic()
    text = "".join(lines)
    assert process.returncode == 0, text
    return Ran(text, time.monotonic() - start)
