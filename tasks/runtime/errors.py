"""The one kind of error a user is meant to read."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right: says what is wrong, where, and what would be right.

    The command line prints the message alone, without a traceback, and exits with status 2.
    Anything else that is raised is a defect of ours and keeps its traceback.
    """
