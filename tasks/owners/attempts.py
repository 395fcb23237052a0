"""How far each attempt at a run came, kept on disk between attempts: what an interrupted run did twice.

A checkpoint has the steps that are kept. Steps after it ran, and are lost when the run is killed: nothing else on disk
would say so. The file has two numbers for each attempt, the step it began at and the step it had begun to run, and is
changed in place without waiting for the disk, which takes microseconds. After a power cut it may lack the newest steps.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TypedDict

_NUMBERS = struct.Struct("<qq")


class Interruption(TypedDict):
    """An attempt that did not end the run.

    Attributes:
      reached: The number of steps that it had run, or begun to run.
      resumed_at: The number of steps that the next attempt began with. The steps from there to ``reached`` were lost
        and are run again.
      drawn_again: What is drawn anew for steps that are run again; nothing for a seeded run, which repeats them to the
        bit.
    """

    reached: int
    resumed_at: int
    drawn_again: list[str]


class Attempts:
    """The attempts at one run. If the file cannot be read as such, earlier attempts are not known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._offset = 0

    def begin(self, step: int, *, drawn_again: list[str]) -> list[Interruption]:
        """Adds an attempt that begins after so many steps, and returns the interruptions before it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        self._offset = len(content) - len(content) % _NUMBERS.size
        earlier = list(_NUMBERS.iter_unpack(content[: self._offset]))
        self.reached(step, began=step)
        starts = [began for began, _ in earlier[1:]] + [step]
        return [
            {"reached": max(reached, began), "resumed_at": began, "drawn_again": list(drawn_again)}
            for (_, reached), began in zip(earlier, starts, strict=bool(earlier))
        ]

    def reached(self, step: int, *, began: int | None = None) -> None:
        """Writes that the steps before ``step`` are run."""
        if self._descriptor is None:  # another process of the run writes
            return
        if began is None:
            os.pwrite(self._descriptor, struct.pack("<q", step), self._offset + _NUMBERS.size // 2)
        else:
            os.pwrite(self._descriptor, _NUMBERS.pack(began, step), self._offset)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def discard(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)
