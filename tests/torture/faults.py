"""Kills the process that imports it at its n-th file operation: no clean-up, no buffer flushed, like a power cut.

The points are before every change of the file system that Python makes: opening a file to write, renames, removals, new
folders and links; and before and after every sync and rename, and before every commit to a database. What lies between
two changes is one point: a kill after a file is closed is a kill before the next change.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import sqlalchemy
from sqlalchemy.engine import Engine

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Points:
    """Counts the points of this process from now on, and kills it at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.passed = 0
        self._kill_at = kill_at
        self._active = True
        sys.addaudithook(self._audited)
        for name in ("fsync", "rename", "replace"):
            setattr(os, name, self._around(getattr(os, name), before=name == "fsync"))
        sqlalchemy.event.listen(Engine, "commit", lambda _: self._pass())

    def stop(self) -> int:
        """Ends the counting and returns the number of points. (An audit hook cannot be removed.)"""
        self._active = False
        return self.passed

    def _pass(self) -> None:
        if self._active:
            if self.passed == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.passed += 1

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES:
            self._pass()
        elif event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES and not str(path).startswith("/dev/"):
                self._pass()

    def _around(self, function: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if before:
                self._pass()
            result = function(*arguments, **options)
            self._pass()
            return result

        return wrapped
