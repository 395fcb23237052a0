"""One process at a time makes an output: a database, a prepared dataset, a trial. The others wait and then find it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tasks.owners.held import release, take
from tasks.runtime.errors import Stopped
from tasks.runtime.home import home, short_hash
from tasks.runtime.progress import say

_LOOK_EVERY_SECONDS = 0.1
# Short waits are not worth a line.
_SAY_AFTER_SECONDS = 1.0


@contextlib.contextmanager
def one_at_a_time(output: str, doing: str, *, should_stop: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Holds the lock of an output during the block.

    Waits for a process that holds it, with one line that says which one and what it does. The lock ends with its
    process, so it is never stale. It holds between threads too, and must not be taken twice by one.

    Args:
        output: The output, by which others know it.
        doing: What the block does, for those who wait: "is preparing clicks".
        should_stop: Asked while waiting; if True, ``Stopped`` is raised.
    """
    path = home() / "locks" / f"{short_hash(output)}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _wait_for(path, doing, should_stop)
    try:
        os.pwrite(descriptor, f"process {os.getpid()}, which {doing}".encode(), 0)
        yield
    finally:
        # While it is held: who has opened the file in the meantime sees that it is another one, and opens it again.
        path.unlink(missing_ok=True)
        release(descriptor)


def is_taken(output: str) -> bool:
    """Returns whether a process, or another thread of this one, makes an output now."""
    path = home() / "locks" / f"{short_hash(output)}.lock"
    if not path.exists():
        return False
    descriptor = take(path)
    if descriptor is None:
        return True
    path.unlink(missing_ok=True)
    release(descriptor)
    return False


def _wait_for(path: Path, doing: str, should_stop: Callable[[], bool]) -> int:
    begun, said = time.monotonic(), False
    while (descriptor := take(path)) is None:
        if should_stop():
            raise Stopped(f"{doing}, after waiting")
        if not said and time.monotonic() - begun > _SAY_AFTER_SECONDS:
            said = True
            say(f"waiting for {_owner(path)}")
        time.sleep(_LOOK_EVERY_SECONDS)
    return descriptor


def _owner(path: Path) -> str:
    with contextlib.suppress(OSError):
        if written := path.read_text(encoding="utf-8", errors="replace"):
            return written
    return "another process"
