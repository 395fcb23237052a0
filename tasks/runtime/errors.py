"""The error that a user can fix, which other errors may pass, and the one that stops a trial for another's sake."""

from __future__ import annotations

from collections.abc import Iterator

# Errors of databases and worker processes, by the names of their classes: importing the libraries would cost seconds.
_PASSING = {"OperationalError", "KilledWorker", "CommClosedError", "BrokenExecutor", "RestException"}
# Errors of the file system that are the same the next time.
_LASTING = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)


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
    if isinstance(error, UserError):
        return False
    return any(_passes(cause) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields the error, and those that it was raised from or while handling."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _passes(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return not isinstance(error, _LASTING)
    return any(kind.__name__ in _PASSING for kind in type(error).__mro__)
