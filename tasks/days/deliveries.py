"""The register of deliveries: for each day of a dataset what was delivered when, and which nights used it.

A day is a JSON file, ``home()/nights/days/DATASET/DAY.json``. Only usable days are in the register. A process that
changes it holds a lock on the dataset's folder.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NotRequired, TypedDict

from tasks.logs.files import RawFile
from tasks.runtime.home import home, read_json, short_hash, write_json

_PIECE = 4 << 20


class DeliveredFile(TypedDict):
    """A file of a day, with the digest of its bytes and the number of its rows that are used."""

    path: str
    size: int
    modified: int
    contents: str
    rows: int


class Change(TypedDict):
    """A day that was delivered again with other contents: when that was seen, and what it was before.

    ``files`` are the digests of the files that it was made of. Changes that earlier versions noted have none.
    """

    at: str
    contents: str
    rows: int
    files: NotRequired[list[str]]


class Use(TypedDict):
    """A night that used a day, as ``NAME of DAY``, with the contents that it used."""

    night: str
    contents: str


class Delivery(TypedDict):
    """What is known of a day.

    Attributes:
        contents: Equal for equal contents, whatever the names and times of the files.
        rows: The rows that are used, without bad ones and those that ``keep_rows`` drops.
        first_seen: When the day was first found delivered.
        missed: When a night did without it or gave up on it before that, None if none did.
        changes: Later deliveries with other contents, oldest first.
        uses: The nights that used the day.
    """

    day: str
    files: list[DeliveredFile]
    contents: str
    rows: int
    first_seen: str
    missed: str | None
    changes: list[Change]
    uses: list[Use]


class _Missed(TypedDict):
    missed: str


def now() -> str:
    """Returns the time as text."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S UTC}"


def register_folder(name: str) -> Path:
    """Returns the folder of a dataset's register."""
    return home() / "nights" / "days" / name


@contextlib.contextmanager
def changing(name: str) -> Iterator[None]:
    """Holds the lock on a dataset's register for the duration of the block."""
    folder = register_folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def delivery(name: str, day: str) -> Delivery | None:
    """Returns what is known of a day, None if it was never found delivered."""
    path = register_folder(name) / f"{day}.json"
    return read_json(path, alone=True) if path.exists() else None


def deliveries(name: str) -> dict[str, Delivery]:
    """Returns all days of the register, in order."""
    return {path.stem: read_json(path, alone=True) for path in sorted(register_folder(name).glob("????-??-??.json"))}


def registered_datasets() -> list[str]:
    """Returns the names of all datasets with a register."""
    root = register_folder("")
    return sorted(folder.name for folder in root.iterdir() if folder.is_dir()) if root.is_dir() else []


def record(name: str, delivered: Delivery) -> None:
    """Writes a day of the register."""
    write_json(register_folder(name) / f"{delivered['day']}.json", delivered)


def record_use(name: str, contents: dict[str, str], night: str) -> None:
    """Notes that a night used days with these contents."""
    with changing(name):
        for day, used in contents.items():
            known = delivery(name, day)
            use: Use = {"night": night, "contents": used}
            if known is not None and use not in known["uses"]:
                known["uses"].append(use)
                record(name, known)


def nights_that_used(delivered: Delivery, contents: str, files: Collection[str]) -> list[str]:
    """Returns the nights that used a day when it had these contents, or one of these files, now or earlier.

    Args:
        delivered: The day.
        contents: The digest of a whole day.
        files: Digests of files with rows.
    """
    had = {delivered["contents"]: {file["contents"] for file in delivered["files"]}}
    had |= {change["contents"]: set(change.get("files", ())) for change in delivered["changes"]}
    return [
        use["night"]
        for use in delivered["uses"]
        if use["contents"] == contents or not had.get(use["contents"], set()).isdisjoint(files)
    ]


def record_missed(name: str, day: str) -> None:
    """Notes that a night does without a day that is not delivered, or gives up on it. The first time counts."""
    path = register_folder(name) / f"{day}.missed.json"
    if not path.exists() and delivery(name, day) is None:
        missed: _Missed = {"missed": now()}
        write_json(path, missed)


def first_missed(name: str, day: str) -> str | None:
    """Returns when a night first did without a day or gave up on it, None if none did."""
    path = register_folder(name) / f"{day}.missed.json"
    return read_json(path, alone=True)["missed"] if path.exists() else None


def file_digest(path: Path) -> str:
    """Returns a digest of a file's bytes, reading a piece at a time."""
    state = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            state.update(piece)
    return state.hexdigest()


def day_contents(files: list[RawFile]) -> str:
    """Returns a digest of a day's contents, the same in whatever order and under whatever names the files come."""
    return short_hash(sorted(str(file.contents) for file in files))
