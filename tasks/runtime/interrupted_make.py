"""Notices an interrupt that was sent to ``make`` alone.

Ctrl-C reaches every process of the terminal. A SIGINT that is sent to ``make`` alone does not: GNU make does not pass
it on, and waits for its command to end by itself. Where there is a /proc, a thread watches whether ``make`` has set
SIGINT to its default action, the first thing that it does on a SIGINT, and then interrupts our own process.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

_EVERY_SECONDS = 0.5


def watch_make() -> None:
    """Starts to watch the parent process, if that is ``make``, for the rest of this process."""
    parent = os.getppid()
    if _catches_interrupt(parent):
        threading.Thread(target=_watch, args=(parent,), name="watch make", daemon=True).start()


def _watch(parent: int) -> None:
    while _catches_interrupt(parent):
        time.sleep(_EVERY_SECONDS)
    if os.getppid() == parent:
        os.kill(os.getpid(), signal.SIGINT)


def _catches_interrupt(process: int) -> bool:
    """Returns whether a process is ``make`` and catches SIGINT; False if that cannot be read."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
    name = re.search(r"^Name:\s+(\S+)$", status, re.MULTILINE)
    caught = re.search(r"^SigCgt:\s+([0-9a-f]+)$", status, re.MULTILINE)
    if name is None or caught is None or name[1] not in ("make", "gmake"):
        return False
    return bool(int(caught[1], 16) >> (signal.SIGINT - 1) & 1)
