"""Files and folders that a process works on: it holds a lock on them, which ends with the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

# Descriptors of locks of this process. A forked child closes its copies, or a lock would outlive its owner.
_held: set[int] = set()


@contextlib.contextmanager
def holding(path: Path) -> Iterator[None]:
    """Holds the lock of an existing file or folder during the block. Nothing is held where there are no such locks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    _held.add(descriptor)
    try:
        # Some network file systems have no locks for readers: what is there is then never swept up.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        release(descriptor)


def take(path: Path) -> int | None:
    """Creates a file if it is missing and takes its lock. Returns the descriptor; None if another one holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The owner before may have deleted the file after it was opened here.
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            _held.add(descriptor)
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def release(descriptor: int) -> None:
    """Gives a lock back."""
    _held.discard(descriptor)
    os.close(descriptor)


def is_nobodys(path: Path) -> bool:
    """Returns whether no process holds the lock of a file or folder; False if that cannot be told."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _close_in_child() -> None:
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
