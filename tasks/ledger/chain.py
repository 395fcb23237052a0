"""The chain of the ledger's rows, and the anchor that remembers its head outside of the database.

A row is a canonical JSON text and its SHA-256. The text holds the row's number and the hash of the row before it, so a
row that was altered, deleted, moved or put in between breaks the chain at that place. A chain that was cut at its end,
or computed anew from some row on, is a good chain. Only a head that was kept elsewhere shows those: the number of rows
and the last hash.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.ledger.release import canonical
from tasks.runtime.errors import UserError
from tasks.runtime.home import whole_file

# The hash before the first row.
BEGINNING = "0" * 64


class Row(NamedTuple):
    """A row of the ledger: its number from 1, its canonical JSON text, and the SHA-256 of the text."""

    number: int
    body: str
    hash: str

    @property
    def content(self) -> dict[str, Any]:
        return json.loads(self.body)


class Head(NamedTuple):
    """The state of a ledger in two values: the number of rows and the hash of the last one."""

    rows: int
    hash: str

    def __str__(self) -> str:
        return f"{self.rows}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Reads what ``str`` gives. Raises ``UserError`` for anything else."""
        count, _, digest = text.partition(":")
        if not (count.isdecimal() and count.isascii() and len(digest) == 64 and set(digest) <= set("0123456789abcdef")):
            raise UserError(f"{text!r:.100} is not a head of a ledger: it looks like 12:9f86d0…, with 64 hex digits")
        return cls(int(count), digest)


def head_of(rows: Sequence[Row]) -> Head:
    """Returns the head of all rows of a ledger."""
    return Head(len(rows), rows[-1].hash if rows else BEGINNING)


def next_row(head: Head, content: dict[str, Any]) -> Row:
    """Returns the row with ``content`` that follows after a head."""
    body = canonical({**content, "number": head.rows + 1, "previous": head.hash})
    return Row(head.rows + 1, body, _digest(body))


def breaks(rows: Sequence[Row]) -> Iterator[str]:
    """Yields what is wrong with a chain, one sentence each; rows are in the order of their numbers."""
    previous, number = BEGINNING, 0
    for row in rows:
        if row.number != number + 1:
            missing = f"row {number + 1}" if row.number == number + 2 else f"rows {number + 1} to {row.number - 1}"
            yield f"{missing} missing before row {row.number}" if row.number > number else f"row {row.number} is double"
        number = row.number
        if _digest(row.body) != row.hash:
            yield f"row {number} was altered: its text does not have its hash"
            previous = row.hash
            continue
        try:
            content = json.loads(row.body)
            if canonical(content) != row.body:
                raise ValueError
            told = content["number"], content["previous"]
        except (KeyError, TypeError, ValueError):
            yield f"row {number} is not one that this ledger writes"
        else:
            if told[0] != number:
                yield f"row {number} was moved: it was written as row {told[0]}"
            if told[1] != previous:
                yield f"row {number} does not follow the row before it: a row was altered, deleted, moved or put in"
        previous = row.hash


def contradiction(rows: Sequence[Row], head: Head, keeper: str) -> str:
    """Returns how rows contradict a head that was kept; empty if they continue it."""
    if head.rows == 0:
        return ""
    if len(rows) < head.rows:
        return f"the end is missing: {keeper} has seen {head.rows} rows, and there are {len(rows)}"
    if rows[head.rows - 1].hash != head.hash:
        return f"row {head.rows} is not the one that {keeper} has seen: rows up to it were written anew"
    return ""


def clock_remarks(rows: Sequence[Row]) -> list[str]:
    """Returns where the clock went back. Nothing depends on it: rows are ordered by their numbers."""
    found, latest = [], ""
    for row in rows:
        try:
            at = str(row.content["time"])
        except (KeyError, TypeError, ValueError):
            continue
        if at < latest:
            found.append(f"row {row.number} has an earlier time ({at}) than a row before it: a clock went back")
        latest = max(at, latest)
    return found


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


class Anchor:
    """A file with the newest head that this machine has seen. It only moves forward.

    It is written after the row is committed. After a crash between the two it is behind, which is no contradiction:
    the rows that it does not know yet are not protected by it until the next write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Head:
        """Returns the newest head; one of no rows if there is no file. Raises ``UserError`` if it is damaged."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return Head.parse(f"{found['rows']}:{found['hash']}")
        except (FileNotFoundError, NotADirectoryError):
            return Head(0, BEGINNING)
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, ValueError, UserError):
            raise UserError(
                f"{self.path} is damaged, so that a cut end of the ledger would not be noticed. Compare the ledger "
                "with a head that was logged elsewhere (`python -m tasks ledger verify --head …`), then delete the file"
            ) from None

    def advance(self, head: Head) -> None:
        """Remembers a head, unless a newer one is remembered."""
        try:
            self._advance(head)
        except OSError as error:
            raise UserError(
                f"row {head.rows} of the ledger was written, but {self.path} was not: {error.strerror}. Make its "
                "folder writable and run again"
            ) from None

    def _advance(self, head: Head) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path.with_suffix(".lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.read().rows >= head.rows:
                return
            with whole_file(self.path) as temporary, open(temporary, "w", encoding="utf-8") as file:
                file.write(json.dumps(head._asdict()) + "\n")
                file.flush()
                os.fsync(file.fileno())
