"""A process that has imported the large libraries, and forks a child for each run of pytest: importing takes seconds.

It imports nothing of ours, and starts no backend of JAX, so it has a single thread and can fork safely. A child
begins as a new process would: in a session of its own, with its own folder, environment and limit of processor time.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

LIBRARIES = ("jax", "jax.extend", "flax.linen", "optax", "scipy.stats", "scipy.fft", "dp_accounting")


class Grown(NamedTuple):
    """What became of a child: its exit status (negative for a signal), its output and its processor time in seconds."""

    status: int
    output: str
    seconds: float


class Nursery:
    """The process, seen from outside. Use it in a ``with`` statement.

    Args:
        libraries: What it imports.
        environment: Variables that must be set before that.
    """

    def __init__(self, libraries: Sequence[str], environment: Mapping[str, str]) -> None:
        # OpenBLAS would start threads when NumPy is imported.
        variables = {**os.environ, **environment, "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, *libraries],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables,
            text=True,
        )

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def run_pytest(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], seconds: int, wait: float
    ) -> Grown:
        """Runs pytest in a child.

        Args:
            arguments: Of pytest.
            folder: The working folder, first on the path of imports.
            environment: All variables of the child.
            seconds: The limit of its processor time.
            wait: The limit of the time until it ends.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = [list(arguments), str(folder), dict(environment), seconds, wait]
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that starts the tests has died")
        return Grown(*json.loads(answer))


def _serve(libraries: Sequence[str]) -> None:
    for library in ("pytest", *libraries):
        importlib.import_module(library)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with several threads cannot fork safely"
    for line in sys.stdin:
        arguments, folder, environment, seconds, wait = json.loads(line)
        output = Path(folder) / "pytest.out"
        child = os.fork()
        if child == 0:
            _grow(arguments, folder, environment, seconds, output)
        status, used = _wait_for(child, wait)
        text = output.read_text(errors="replace") if output.exists() else ""
        print(json.dumps([status, text[-100_000:], used]), flush=True)


def _grow(
    arguments: list[str], folder: str, environment: dict[str, str], seconds: int, output: Path
) -> None:  # pragma: no cover - in the child
    import pytest

    status = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((nothing, 0), (written, 1), (written, 2)):
            os.dup2(old, new)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
        sys.path.insert(0, folder)
        status = int(pytest.main(arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _wait_for(child: int, wait: float) -> tuple[int, float]:
    deadline = time.monotonic() + wait
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    _serve(sys.argv[1:])
