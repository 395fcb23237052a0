"""Where a ledger may be kept, and what is said if it cannot be used."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from tasks.ledger import store
from tasks.ledger.book import Ledger
from tasks.runtime.errors import UserError
from tests.tasks.ledger.support import TOTAL, metric


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://me:hunter2@host/db", "cannot be kept in mysql"),
        ("postgresql+asyncpg://me:hunter2@host/db", "cannot be kept in postgresql"),
        ("postgresql://me:hunter2@host:port/db", "is not an address of a database"),
        ("hunter2", "is not an address of a database"),
        ("sqlite://", "in memory would be forgotten"),
        ("sqlite:///:memory:", "in memory would be forgotten"),
        ("sqlite:///file:/tmp/ledger.db?mode=memory&uri=true", "in memory would be forgotten"),
        ("sqlite:///file:/tmp/ledger.db?nolock=1&uri=true", "takes no nolock"),
        ("sqlite:////tmp/ledger.db?vfs=unix-none&immutable=1", "takes no immutable or vfs"),
        ("sqlite:///ledger.db", "depends on the working folder"),
        ("postgresql://me:hunter2@127.0.0.1:1/db", "Connection refused"),
        ("postgresql://me@127.0.0.1:1/db?password=hunter2", "Connection refused"),
        ("sqlite:////dev/null/ledger.db", "cannot be written"),
    ],
)
def test_a_wrong_address_is_explained_without_its_password(
    url: str, said: str, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DP_ADS_LEDGER", url)
    with pytest.raises(UserError, match=said) as error:
        Ledger.open().reserve("k", [metric(9.0)], TOTAL)
    assert "hunter2" not in str(error.value)
    assert error.value.__cause__ is None


def test_the_ledger_is_in_the_home_folder_unless_an_address_is_given(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Ledger.open().name == str(own_home / "ledger" / "ledger.db")
    assert Ledger.open().entries() == []
    assert not (own_home / "ledger").exists(), "nothing is made before the first reservation"
    monkeypatch.setenv("DP_ADS_LEDGER", f"sqlite:///{tmp_path}/elsewhere/book.db")
    ledger = Ledger.open()
    ledger.reserve("k", [metric(9.0)], TOTAL)
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {"book.db", "book.head.json", "book.head.lock"}


def test_a_file_that_is_no_database_or_cannot_be_written(own_home: Path, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("hello " * 1000)
    with pytest.raises(UserError, match=r"text\.db cannot be used: file is not a database"):
        Ledger.open(f"sqlite:///{tmp_path}/text.db").reserve("k", [metric(9.0)], TOTAL)
    Ledger.open(f"sqlite:///{tmp_path}/read.db").reserve("k", [metric(9.0)], TOTAL)
    read_only = Ledger.open(f"sqlite:///file:{tmp_path}/read.db?mode=ro&uri=true")
    assert [entry.key for entry in read_only.entries()] == ["k"]
    assert read_only.verify().problems == ()
    with pytest.raises(UserError, match=r"read\.db cannot be used: attempt to write a readonly database"):
        read_only.reserve("l", [metric(9.0)], TOTAL)


def test_a_writer_waits_and_says_so(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "ATTEMPT_SECONDS", 0.1)
    ledger = Ledger.open(patience=30)
    ledger.reserve("k", [metric(9.0)], TOTAL)
    other = sqlite3.connect(ledger.name, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    assert len(ledger.entries()) == 1, "readers do not wait"
    done = threading.Timer(0.5, other.rollback)
    done.start()
    start = time.monotonic()
    assert ledger.reserve("l", [metric(9.0)], TOTAL).new
    assert time.monotonic() - start > 0.3
    assert "waiting for the ledger: another process has been writing" in capsys.readouterr().out
    done.join()
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(UserError, match=r"locked by another process .* nothing was written"):
        Ledger.open(patience=0.2).reserve("m", [metric(9.0)], TOTAL)
    other.close()
    assert len(ledger.entries()) == 2
