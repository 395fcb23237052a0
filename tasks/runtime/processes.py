"""Programs that run beside ours: started in stages, watched, and stopped with everything they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from tasks.runtime.errors import UserError

START_SECONDS = 180
# How long a program may take to end by itself after it was interrupted.
POLITE_SECONDS = 10
# How long to wait after each harder signal.
_PATIENCE_SECONDS = 5
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Asks Linux to terminate the process when its parent ends, even if that was killed (PR_SET_PDEATHSIG), then becomes the
# program. A function that is called between fork and exec could not do it safely: we may have threads.
_ENDS_WITH_PARENT = (
    *(sys.executable, "-I", "-S", "-c"),
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); os.execvp(sys.argv[1], sys.argv[1:])",
)


def ends_with_us(command: Sequence[str]) -> list[str]:
    """Returns a command whose program is terminated when our process ends, even if that was killed."""
    return [*(_ENDS_WITH_PARENT if sys.platform == "linux" else ()), *command]


@contextlib.contextmanager
def until_signalled() -> Iterator[None]:
    """Ends the block at the first stop signal, without a traceback. Further signals are ignored during clean-up."""
    with contextlib.suppress(KeyboardInterrupt), signals_interrupt():
        yield


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raises ``KeyboardInterrupt`` in the block at the first stop signal. Further signals are ignored in the block."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    # Under nohup, SIGHUP is ignored, and stays so.
    handled = [each for each in STOP_SIGNALS if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
    earlier = {each: signal.signal(each, stop) for each in handled}
    try:
        yield
    finally:
        for each, handler in earlier.items():
            signal.signal(each, handler)


class Programs:
    """Programs that were started, in stages. Each has a session and a log of its own."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._stages: list[tuple[dict[str, subprocess.Popen], signal.Signals]] = []

    def start(
        self,
        commands: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
        *,
        end_children_with: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Starts one more stage, the first to be stopped.

        Args:
            commands: The programs by their names.
            environment: The environment of all of them.
            end_children_with: The signal for children that are left when a program had its time to end.
        """
        programs: dict[str, subprocess.Popen] = {}
        self._stages.append((programs, end_children_with))
        for name, command in commands.items():
            with open(self.log(name), "ab") as file:
                programs[name] = subprocess.Popen(
                    ends_with_us(command),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                    umask=0o077,  # what it writes is for its owner alone
                )

    def wait_for(self, url: str) -> None:
        """Waits until an address answers. Raises a ``UserError`` if it does not, or if a program has exited."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check_alive()
            with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.2)
        raise UserError(f"{url} did not answer within {START_SECONDS} s; the logs are in {self._logs}")

    def check_alive(self) -> None:
        """Raises a ``UserError`` if a program has exited."""
        for programs, _ in self._stages:
            for name, program in programs.items():
                if program.poll() is not None:
                    raise UserError(
                        f"{name} exited unexpectedly with status {program.returncode}; its log is {self.log(name)}"
                    )

    def log(self, name: str) -> Path:
        """Returns the path of a program's log."""
        return self._logs / f"{name.lower().replace(' ', '-')}.log"

    def stop(self) -> None:
        """Stops the stages, the last one first."""
        for programs, end_children_with in reversed(self._stages):
            stop_programs(list(programs.values()), end_children_with=end_children_with)


@contextlib.contextmanager
def running(logs: Path) -> Iterator[Programs]:
    """Yields ``Programs`` whose processes are all stopped with the block."""
    programs = Programs(logs)
    try:
        yield programs
    finally:
        programs.stop()


def stop_programs(
    programs: Sequence[subprocess.Popen],
    *,
    end_children_with: signal.Signals,
    polite_seconds: float | None = None,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> None:
    """Interrupts programs that lead sessions, and ends what is left of their sessions.

    A program is interrupted alone, so that it ends its children in its own order. Then come the children, parents
    before their children, so that no parent reports a child's end as a failure.
    """
    for program in programs:
        with contextlib.suppress(ProcessLookupError):
            program.send_signal(signal.SIGINT)
    deadline = time.monotonic() + (POLITE_SECONDS if polite_seconds is None else polite_seconds)
    for program in programs:
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(max(0, deadline - time.monotonic()))
    _signal_children(programs, end_children_with)
    _wait_until_ended(programs, patience_seconds)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for program in programs:
            with contextlib.suppress(ProcessLookupError):
                program.send_signal(number)
        _signal_children(programs, number)
        _wait_until_ended(programs, patience_seconds)


def _signal_children(programs: Sequence[subprocess.Popen], number: signal.Signals) -> None:
    for program in programs:
        for child in _children(program):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)


def _wait_until_ended(programs: Sequence[subprocess.Popen], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(program.poll() is None or _children(program) for program in programs) and time.monotonic() < deadline:
        time.sleep(0.1)


def _children(program: subprocess.Popen) -> list[int]:
    """Returns the other live processes of a program's session, oldest first, where there is a /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name is in parentheses; then come state, parent, group, session, and as number 22 the start time.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == program.pid and fields[0] != "Z" and int(folder.name) != program.pid:
                found.append((int(fields[19]), int(folder.name)))
    return [number for _, number in sorted(found)]
