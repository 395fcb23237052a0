"""Which days of a log have been delivered, and in what state.

A day is delivered when its files match the dataset's ``raw`` with the day in place of ``{day}``, and no one is writing
them any more: the dataset's ``day_marker`` is beside them or, without a marker, none of them has changed for a minute.
A file that cannot be read to its end is not delivered yet either.

| state | |
|---|---|
| ``missing`` | not delivered yet |
| ``empty`` | delivered without a row that is used |
| ``refused`` | delivered, but must not be used: an example would be in the data twice, or the files cannot be read |
| ``delivered`` | can be used |

A delivered day is registered (``deliveries``) with a digest of its bytes. A file that was only touched is no new work.
One with other contents replaces the day for later nights, and the sentence names the nights that used the old rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from tasks.config.dataset import Dataset
from tasks.config.loading import Config
from tasks.config.nightly import parsed_day
from tasks.data.parts import Part, is_parsed, parse_files
from tasks.days.deliveries import (
    Change,
    DeliveredFile,
    Delivery,
    changing,
    day_contents,
    deliveries,
    delivery,
    file_digest,
    first_missed,
    nights_that_used,
    now,
    record,
    record_missed,
)
from tasks.days.shared_files import found_elsewhere
from tasks.logs.files import DAY, IncompleteFile, RawFile, find_paths, inspect_file
from tasks.logs.synthetic_days import day_file, deliver
from tasks.runtime.errors import UserError
from tasks.runtime.parallel import cluster

# Without a marker, files count as complete when none has changed for so long.
SETTLED_SECONDS = 60.0
# A file that changes in the future by up to so much has the time of a clock that is ahead of ours, and is new. A time
# further ahead says nothing.
_CLOCK_AHEAD_SECONDS = 600.0

State = Literal["delivered", "empty", "missing", "refused"]


@dataclass(frozen=True)
class DayState:
    """A day: its state, one sentence for a person, and its files where it can be used."""

    day: str
    state: State
    sentence: str
    files: tuple[RawFile, ...] = ()
    contents: str = ""
    rows: int = 0

    def parts(self, name: str, dataset: Dataset) -> list[Part]:
        """Returns the parsed files; ``look`` has parsed them already."""
        return parse_files(name, dataset, self.files, quiet=True) if self.files else []


class Survey(NamedTuple):
    """The days of a night: the newest one, and those of its window in order."""

    newest: DayState
    window: tuple[DayState, ...]

    @property
    def present(self) -> tuple[DayState, ...]:
        """The days of the window that can be trained on."""
        return tuple(day for day in self.window if day.state == "delivered")

    @property
    def left_out(self) -> dict[str, str]:
        """The other days of the window, each with the reason."""
        return {day.day: day.sentence for day in self.window if day.state != "delivered"}


class _NotYet(Exception):
    """The files of a day are not there, or not complete."""


def window_days(day: str, count: int) -> list[str]:
    """Returns the days before a day, oldest first.

    >>> window_days("2026-03-02", 3)
    ['2026-02-27', '2026-02-28', '2026-03-01']
    """
    newest = parsed_day(day)
    if newest is None:
        raise UserError(f"{day!r} is not a day: write it as 2026-01-31")
    return [str(newest - datetime.timedelta(back)) for back in range(count, 0, -1)]


def survey(config: Config, entry: str, day: str) -> Survey:
    """Looks at the days of a night, and notes which days of the window it does without."""
    nightly = config.night(entry)
    name, dataset = nightly.dataset, config.dataset(nightly.dataset)
    days = window_days(day, nightly.window_days)
    if dataset.synthetic is not None:
        deliver(name, dataset, day, window_days=nightly.window_days)
    window = tuple(_look(config, name, dataset, earlier) for earlier in days)
    for earlier in window:
        if earlier.state == "missing":
            record_missed(name, earlier.day)
    return Survey(_look(config, name, dataset, day), window)


def look(config: Config, name: str, day: str) -> DayState:
    """Returns the state of a day of a dataset, as its own night finds it, and registers it if it is new or has changed.

    A synthetic log delivers what is there by that night.
    """
    dataset = config.dataset(name)
    window_days(day, 0)
    if dataset.synthetic is not None:
        deliver(name, dataset, day)
    return _look(config, name, dataset, day)


def _look(config: Config, name: str, dataset: Dataset, day: str) -> DayState:
    if not dataset.comes_by_days:
        raise UserError(f"{name} does not come by days: write {DAY} in its `raw`, as in /data/day={DAY}/*.parquet")
    try:
        paths = _paths(name, dataset, day)
        try:
            found = [_inspected(path) for path in paths]
        except UserError as error:
            return DayState(day, "refused", f"{day} is refused, because it cannot be read: {error}")
        with changing(name):
            return _registered(config, name, dataset, day, found)
    except (_NotYet, IncompleteFile, FileNotFoundError) as reason:
        gone = " any more" if delivery(name, day) is not None else ""
        return DayState(day, "missing", f"{day} is not delivered{gone}: {reason}")


def _paths(name: str, dataset: Dataset, day: str) -> list[Path]:
    """Returns the files of a day. Raises ``_NotYet`` if they are not there or may be incomplete."""
    if dataset.synthetic is not None:
        path = day_file(name, day)
        if not path.exists():
            raise _NotYet(f"{path.parent.name}/{path.name} does not exist")
        return [path]
    patterns = [pattern.replace(DAY, day) for pattern in dataset.raw or ()]
    try:
        paths = find_paths(patterns)
    except UserError as error:
        raise _NotYet(str(error)) from None
    marker = dataset.day_marker
    data = [path for path in paths if path.name != marker]
    if not data or not all(path.is_file() for path in data):
        raise _NotYet(f"no file matches {' or '.join(patterns)}")
    if marker is not None:
        without = next((path for path in data if not (path.parent / marker).exists()), None)
        if without is not None:
            raise _NotYet(f"there is no {marker} beside {without}")
    else:
        for path in data:
            age = time.time() - path.stat().st_mtime
            if -_CLOCK_AHEAD_SECONDS <= age < SETTLED_SECONDS:
                raise _NotYet(
                    f"{path} changed {max(age, 0):.0f} s ago and may still be written; it counts as complete after "
                    f"{SETTLED_SECONDS:.0f} s without a change"
                )
    return data


def _inspected(path: Path) -> RawFile:
    status = path.stat()
    # A file of no bytes is a delivery without rows, where a log that is one file would be a mistake.
    return inspect_file(path) if status.st_size else RawFile(path.resolve(), 0, status.st_mtime_ns, None)


def _registered(config: Config, name: str, dataset: Dataset, day: str, found: Sequence[RawFile]) -> DayState:
    known = delivery(name, day)
    files = _with_contents(found, known)
    contents = day_contents(files)
    parseable = [file for file in files if file.size]
    # Connected before reading: a cluster that does not answer is no fault of the files.
    with contextlib.nullcontext() if all(is_parsed(name, dataset, file) for file in parseable) else cluster():
        try:
            parts = iter(parse_files(name, dataset, parseable, quiet=True))
        except IncompleteFile:
            raise
        except UserError as error:
            return DayState(day, "refused", f"{day} is refused, because it cannot be read: {error}")
    parsed = [next(parts).summary["rows"] if file.size else 0 for file in files]
    listed: list[DeliveredFile] = [
        {"path": str(f.path), "size": f.size, "modified": f.modified, "contents": str(f.contents), "rows": rows}
        for f, rows in zip(files, parsed, strict=True)
    ]
    # What is in the register was compared when it came.
    twice = next(_duplicates(name, day, listed, contents), None) if not known or known["files"] != listed else None
    if twice is not None:
        return DayState(day, "refused", twice)
    # Generated files belong to their dataset alone, though equal settings generate equal ones.
    elsewhere = found_elsewhere(config, name, day, listed) if dataset.synthetic is None else None
    if elsewhere is not None:
        return DayState(day, "refused", f"{day} is refused: {elsewhere}")
    rows = sum(parsed)
    moment, changes = now(), list(known["changes"]) if known else []
    if known and known["contents"] != contents:
        was = [file["contents"] for file in known["files"] if file["rows"]]
        changes.append(Change(at=moment, contents=known["contents"], rows=known["rows"], files=was))
    delivered: Delivery = {
        "day": day,
        "files": listed,
        "contents": contents,
        "rows": rows,
        "first_seen": known["first_seen"] if known else moment,
        "missed": known["missed"] if known else first_missed(name, day),
        "changes": changes,
        "uses": known["uses"] if known else [],
    }
    if delivered != known:
        record(name, delivered)
    return DayState(day, "delivered" if rows else "empty", _sentence(delivered), tuple(parseable), contents, rows)


def _with_contents(files: Sequence[RawFile], known: Delivery | None) -> list[RawFile]:
    """Adds digests to files; reads only those that are not in the register with the same size and time."""
    digests = {(f["path"], f["size"], f["modified"]): f["contents"] for f in known["files"]} if known else {}
    found = []
    for file in files:
        digest = digests.get((str(file.path), file.size, file.modified))
        if digest is None:
            digest = file_digest(file.path)
            status = file.path.stat()
            if (status.st_size, status.st_mtime_ns) != (file.size, file.modified):
                raise _NotYet(f"{file.path} changed while it was being read")
        found.append(dataclasses.replace(file, contents=digest))
    return found


def _duplicates(name: str, day: str, files: Sequence[DeliveredFile], contents: str) -> Iterator[str]:
    """Yields a sentence for every file that is already in the data: in this day, or in another one."""
    why = "An example would be in the data twice, so that no ε would hold for it"
    own: dict[str, str] = {}
    for file in files:
        # Files without rows are often equal.
        if file["rows"] and file["contents"] in own:
            yield f"{day} is refused: {own[file['contents']]} and {file['path']} have the same contents. {why}"
        own[file["contents"]] = file["path"]
    mine = {file["path"]: file for file in files}
    for other, delivered in deliveries(name).items():
        for theirs in delivered["files"] if other != day else []:
            if theirs["path"] in mine:
                yield f"{day} is refused: `raw` finds {theirs['path']} for {day} and for {other}. {why}"
            elif theirs["rows"] and theirs["contents"] in own:
                twin = own[theirs["contents"]]
                yield f"{day} is refused: {twin} has the same contents as {theirs['path']} of {other}. {why}"
    if any(file["rows"] for file in files):
        yield from _moved(name, day, files, contents)


def _moved(name: str, day: str, files: Sequence[DeliveredFile], contents: str) -> Iterator[str]:
    """Yields a sentence if the day, or a file of it, was delivered as another day before, and nights used it there.

    A date that was corrected is like that. What was released from the rows is charged to the other day, so that they
    would have a second budget here.
    """
    paths = {file["contents"]: file["path"] for file in files if file["rows"]}
    for other, delivered in deliveries(name).items():
        used = nights_that_used(delivered, contents, paths) if other != day else []
        if used:
            moved = [path for digest, path in paths.items() if nights_that_used(delivered, "", [digest])]
            what = "its rows were" if len(moved) in (0, len(paths)) else f"the rows of {moved[0]} were"
            yield (
                f"{day} is refused: {what} delivered as {other} before, and {', '.join(used)} used them there. "
                f"What these released is charged to {other}, so that the rows would have a second budget on {day}"
            )


def _sentence(delivered: Delivery) -> str:
    day, rows, changes = delivered["day"], delivered["rows"], delivered["changes"]
    said = f"{day} has {rows:,} rows" if rows else f"{day} was delivered without a row that can be used"
    if delivered["missed"] is not None:
        said += f"; it came late (a night did without it on {delivered['missed']})"
    if changes:
        old = changes[-1]
        used = [use["night"] for use in delivered["uses"] if use["contents"] != delivered["contents"]]
        nights = f"; {', '.join(used)} used earlier rows" if used else ""
        said += (
            f"; it was delivered again with other contents, found on {changes[-1]['at']} "
            f"({old['rows']:,} rows before){nights}"
        )
    return said
