"""The table of the ledger's rows in SQLite or PostgreSQL, with one writer at a time.

A writer takes the database's own lock before it reads: ``BEGIN IMMEDIATE`` in SQLite, ``LOCK TABLE`` in PostgreSQL. So
what it read is still true when it writes, and its rows appear all or not at all. SQLite keeps a rollback journal and
not a write-ahead log: the ledger stays one file that can be copied, writes are rare, and readers hardly wait.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote_plus

import sqlalchemy
from sqlalchemy import Column, Integer, MetaData, Table, Text, event
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from tasks.ledger.chain import Row
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, short_hash
from tasks.runtime.progress import format_seconds, say

VARIABLE = "DP_ADS_LEDGER"
# How long one attempt waits for the lock, and how long all of them.
ATTEMPT_SECONDS, PATIENCE_SECONDS = 5.0, 600.0
# Serialises the creation of the table in PostgreSQL. Any number that no one else uses.
_CREATION = 0x1ED6E5
_LOCKED = "55P03"

_metadata = MetaData()
ROWS = Table(
    "dp_ads_ledger",
    _metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    Column("hash", Text, nullable=False, unique=True),
)


def ledger_url(given: str | None) -> URL:
    """Returns the address of a ledger; the one in the home folder if none is given.

    Raises ``UserError``, without the password, for an address that is neither SQLite's nor PostgreSQL's.
    """
    if not given:
        return URL.create("sqlite", database=str(home() / "ledger" / "ledger.db"))
    try:
        url = make_url(given)
        # Reads the rest of the address too, where a wrong port shows.
        drivername = url.drivername
    except (ArgumentError, ValueError):
        # The text may hold a password.
        raise UserError(f"{VARIABLE} is not an address of a database. {_RIGHT}") from None
    if drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if drivername in ("sqlite", "sqlite+pysqlite"):
        path = url.database or ""
        if not path or path == ":memory:" or url.query.get("mode") == "memory":
            raise UserError(f"{VARIABLE}: a ledger in memory would be forgotten. {_RIGHT}")
        if not path.startswith(("/", "file:/")):
            raise UserError(
                f"{VARIABLE}: {path} depends on the working folder, so that there would be several ledgers. {_RIGHT}"
            )
        if others := sorted(set(url.query) - {"mode", "uri"}):
            # SQLite can be told to do without locks, and then two writers overspend.
            raise UserError(f"{VARIABLE}: a ledger in SQLite takes no {' or '.join(others)}. {_RIGHT}")
        return url
    raise UserError(f"{VARIABLE}: the ledger cannot be kept in {drivername}. {_RIGHT}")


_RIGHT = (
    "Right would be sqlite:////data/ledger.db (four slashes: an absolute path) or "
    "postgresql+psycopg://user:password@host/database"
)


class Transaction:
    """A writer's view: all rows, and the way to append one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.rows = _read(connection)

    def append(self, row: Row) -> None:
        """Appends a row. It is there for others once the transaction has ended without an error."""
        self._connection.execute(ROWS.insert().values(row._asdict()))
        self.rows.append(row)


class Store:
    """The rows of one ledger.

    Attributes:
        name: The address without its password.
        anchor_path: The file for the anchor: beside SQLite's file, or in the home folder for PostgreSQL.
    """

    def __init__(self, url: URL, *, patience: float = PATIENCE_SECONDS) -> None:
        self._url = url
        self._patience = patience
        self._sqlite = url.get_backend_name() == "sqlite"
        shown = {name: value for name, value in url.query.items() if "password" not in name}
        self.name = url.set(query=shown).render_as_string(hide_password=True)
        self._file = Path((url.database or "").removeprefix("file:").partition("?")[0]) if self._sqlite else None
        if self._file is not None:
            self.name = str(self._file)
            self.anchor_path = self._file.with_suffix(".head.json")
        else:
            self.anchor_path = home() / "ledger" / f"{short_hash(self.name)}.head.json"
        # Without a pool: Airflow forks, and a connection must not be shared with a child.
        options = {"timeout": ATTEMPT_SECONDS} if self._sqlite else {"connect_timeout": 10}
        self._engine = sqlalchemy.create_engine(url, poolclass=NullPool, connect_args=options)
        if self._sqlite:
            _let_us_begin(self._engine)

    def rows(self) -> list[Row]:
        """Returns all rows in the order of their numbers; none if there is no ledger yet."""
        if self._file is not None and not self._file.exists():
            return []
        with self._told(), self._engine.connect() as connection:
            return _read(connection) if sqlalchemy.inspect(connection).has_table(ROWS.name) else []

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Yields the only writer's transaction. It is committed if the block succeeds, and rolled back otherwise.

        Waits for another writer, with a line that says so, and raises ``UserError`` if that takes too long.
        """
        if self._file is not None:
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"the ledger {self.name} cannot be written: {error.strerror}") from None
        with self._told(), self._engine.connect().execution_options(ledger_writes=True) as connection:
            self._patiently(self._lock, connection)
            try:
                yield Transaction(connection)
            except BaseException:
                connection.rollback()
                raise
            # A reader that began before may hold SQLite back for a moment.
            self._patiently(Connection.commit, connection)

    def _lock(self, connection: Connection) -> None:
        if self._sqlite:
            connection.begin()
            _metadata.create_all(connection)
            return
        if not sqlalchemy.inspect(connection).has_table(ROWS.name):
            connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_CREATION)))
            _metadata.create_all(connection)
        connection.commit()
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{ATTEMPT_SECONDS:g}s'")
        # Holds back every other writer, also one that does not know of this protocol. Readers read on.
        connection.exec_driver_sql(f"LOCK TABLE {ROWS.name} IN EXCLUSIVE MODE")

    def _patiently(self, attempt: Callable[[Connection], None], connection: Connection) -> None:
        start = time.monotonic()
        while True:
            try:
                return attempt(connection)
            except DBAPIError as error:
                if not _is_locked(error):
                    raise
                if attempt is not Connection.commit:
                    connection.rollback()
            waited = time.monotonic() - start
            if waited > self._patience:
                raise UserError(
                    f"the ledger {self.name} has been locked by another process for {format_seconds(waited)}: nothing "
                    "was written. End that process, or wait for it, and run again"
                ) from None
            say(f"waiting for the ledger: another process has been writing to it for {format_seconds(waited)}")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turns errors of the database into sentences, without the password."""
        try:
            yield
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            text = " ".join(str(cause).split()) or type(cause).__name__
            for secret in {self._url.password, quote_plus(str(self._url.password or "")), *self._query_secrets()}:
                text = text.replace(str(secret), "***") if secret else text
            hint = "" if self._sqlite else f". The address is in {VARIABLE}; its password is not shown"
            raise UserError(f"the ledger {self.name} cannot be used: {text}{hint}") from None

    def _query_secrets(self) -> list[str]:
        return [str(value) for name, value in self._url.query.items() if "password" in name]


def _read(connection: Connection) -> list[Row]:
    return [Row(*found) for found in connection.execute(ROWS.select().order_by(ROWS.c.number))]


def _is_locked(error: DBAPIError) -> bool:
    if getattr(error.orig, "sqlstate", None) == _LOCKED:
        return True
    return "database is locked" in str(error.orig) or "database table is locked" in str(error.orig)


def _let_us_begin(engine: sqlalchemy.Engine) -> None:
    """Makes SQLAlchemy begin SQLite's transactions instead of the driver, which begins them too late."""

    @event.listens_for(engine, "connect")
    def connected(connection: sqlalchemy.PoolProxiedConnection, _: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begins(connection: Connection) -> None:
        writes = connection.get_execution_options().get("ledger_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
