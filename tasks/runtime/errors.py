"""The error that a user can fix."""

from __future__ import annotations


class UserError(Exception):
    """An error that the user can fix. The message says what is wrong, where, and what would be right.

    The command line prints the message without a traceback and exits with status 2. Any other exception is a bug of
    ours and keeps its traceback.
    """
