"""Which errors may pass when the same is tried again."""

from __future__ import annotations

import sqlite3
from concurrent.futures.process import BrokenProcessPool

import pytest
import requests
import sqlalchemy
from mlflow.exceptions import MlflowException

from tasks.privacy.verdict import AuditFailure
from tasks.runtime.errors import UserError, may_pass


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        TimeoutError(),
        requests.ConnectionError("refused"),
        sqlite3.OperationalError("database is locked"),
        sqlalchemy.exc.OperationalError("SELECT", {}, sqlite3.OperationalError("database is locked")),
        BrokenProcessPool("a process was killed"),
    ],
)
def test_networks_databases_and_workers_may_recover(error: Exception) -> None:
    assert may_pass(error)


@pytest.mark.parametrize(
    "error",
    [
        UserError("wrong"),
        AuditFailure("over the budget"),
        ValueError("a bug"),
        FileNotFoundError("gone"),
        PermissionError("not yours"),
        OSError(28, "No space left on device"),
        sqlite3.OperationalError("database or disk is full"),
        MemoryError(),
        MlflowException("no such run"),
        sqlite3.IntegrityError("not unique"),
    ],
)
def test_mistakes_stay(error: Exception) -> None:
    assert not may_pass(error)


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_an_error_passes_if_what_it_was_raised_from_does() -> None:
    """As MLflow's errors of a server that does not answer."""
    assert may_pass(raised_from(MlflowException("API request failed"), requests.ConnectionError("refused")))


def test_a_users_mistake_is_one_although_it_was_found_by_another_error() -> None:
    assert not may_pass(raised_from(UserError("cannot read the log"), OSError(5, "input/output error")))
