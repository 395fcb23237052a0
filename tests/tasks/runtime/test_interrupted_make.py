"""A SIGINT that is sent to ``make`` alone reaches the program that it runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.runtime.home import CHECKOUT

PROGRAM = """
import sys, time
from tasks.runtime.interrupted_make import watch_make
watch_make()
print("started", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""


# A background job of a shell ignores SIGINT, and so do its children.
INTERRUPTIBLE = (
    *(sys.executable, "-c"),
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])",
)


def lines_after(command: list[str], folder: Path, number: signal.Signals) -> list[str]:
    """Starts a command, sends a signal to its process alone, and returns what it printed."""
    (folder / "program.py").write_text(PROGRAM)
    (folder / "Makefile").write_text(f"run:\n\t@exec {sys.executable} program.py\n")
    with subprocess.Popen(
        [*INTERRUPTIBLE, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip()]
        time.sleep(0.2)
        process.send_signal(number)
        begun = time.monotonic()
        process.wait(30)
        assert time.monotonic() - begun < 20
        return lines + [line.strip() for line in process.stdout]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="make is watched through /proc")
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_is_interrupted(tmp_path: Path) -> None:
    assert lines_after(["make", "--no-print-directory", "run"], tmp_path, signal.SIGINT) == ["started", "interrupted"]


def test_the_program_itself_is_interrupted_once(tmp_path: Path) -> None:
    assert lines_after([sys.executable, "program.py"], tmp_path, signal.SIGINT) == ["started", "interrupted"]


def test_the_targets_that_run_long_are_children_of_make() -> None:
    """A shell between make and the program would hide make from it."""
    recipes = (CHECKOUT / "Makefile").read_text().split("\n\n")
    for target in ("run", "up"):
        (recipe,) = [text for text in recipes if f"\n{target}: " in f"\n{text}"]
        assert "\t@exec $(BIN)/python -m tasks" in recipe, target
