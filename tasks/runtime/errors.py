"""The error that a user can fix, which other errors may pass, and the one that stops a trial for another's sake."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

# Errors of databases and worker processes, by the names of their classes: importing the libraries would cost seconds.
_PASSING = {"OperationalError", "KilledWorker", "CommClosedError", "BrokenExecutor", "RestException"}
# Errors of the file system that are the same the next time.
_LASTING = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_LASTING_NUMBERS = {errno.EROFS, errno.ENAMETOOLONG}
# NumPy says only how much it could write; SQLite, Arrow and XLA have errors of their own.
_FULL_DISK = re.compile(
    r"No space left on device|database or disk is full|Disk quota exceeded|\d+ requested and \d+ written"
)
_NO_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|Cannot allocate memory|can't start new thread|bad_alloc|malloc of size \d+ failed"
    r"|Unable to allocate|Out of memory|failed to map segment|pthread_create\(\) failed|mmap error: 12"
)


class UserError(Exception):
    """An error that the user can fix. The message says what is wrong, where, and what would be right.

    The command line prints the message without a traceback and exits with status 2. Any other exception is a bug of
    ours and keeps its traceback.
    """


class Stopped(Exception):
    """A trial was abandoned because another one of its group failed."""


def may_pass(error: BaseException) -> bool:
    """Returns whether the same call may succeed later: a network, a disk, a database or a worker failed.

    >>> may_pass(ConnectionResetError()), may_pass(UserError("no such file")), may_pass(KeyError("a bug"))
    (True, False, False)
    """
    if isinstance(error, UserError) or disk_is_full(error) or out_of_memory(error):
        return False
    return any(_passes(cause) for cause in causes_of(error))


def disk_is_full(error: BaseException) -> bool:
    """Returns whether an error comes from a full disk, or one on which the user may not use more.

    >>> disk_is_full(OSError(28, "No space left on device")), disk_is_full(OSError(5, "Input/output error"))
    (True, False)
    """
    return any(
        (isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)) or says_full_disk(str(cause))
        for cause in causes_of(error)
    )


def says_full_disk(text: str) -> bool:
    """Returns whether a text has the words of a system or a library that meets a full disk."""
    return _FULL_DISK.search(text) is not None


def out_of_memory(error: BaseException) -> bool:
    """Returns whether an error comes from a lack of memory.

    >>> out_of_memory(MemoryError()), out_of_memory(ValueError("RESOURCE_EXHAUSTED: 8 GB")), out_of_memory(KeyError(1))
    (True, True, False)
    """
    return any(
        isinstance(cause, MemoryError)
        or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM)
        or says_no_memory(str(cause))
        for cause in causes_of(error)
    )


def says_no_memory(text: str) -> bool:
    """Returns whether a text has the words of a system or a library that lacks memory."""
    return _NO_MEMORY.search(text) is not None


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yields the error, and those that it was raised from or while handling."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _passes(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return not isinstance(error, _LASTING) and error.errno not in _LASTING_NUMBERS
    return any(kind.__name__ in _PASSING for kind in type(error).__mro__)
