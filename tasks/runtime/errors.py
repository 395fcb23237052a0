"""The error that a user can fix, and the one that stops a trial for another's sake."""

from __future__ import annotations


class UserError(Exception):
    """An error that the user can fix. The message says what is wrong, where, and what would be right.

    The command line prints the message without a traceback and exits with status 2. Any other exception is a bug of
    ours and keeps its traceback.
    """


class Stopped(Exception):
    """A trial was abandoned because another one of its group failed."""
