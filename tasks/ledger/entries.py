"""The entries of the ledger: what its rows say about each key, and what its releases charge to each day.

A key is reserved, then committed or given back; a reservation that a crash left standing is resolved by a person. Each
of these is a row. What was given back may be reserved again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from tasks.ledger.chain import Row
from tasks.ledger.composition import Charges, charges_of, composed, epsilon
from tasks.ledger.release import Release

State = Literal["reserved", "committed", "given back"]
Action = Literal["reserve", "commit", "give_back", "resolve_commit", "resolve_give_back"]
_AFTER: dict[Action, State] = {
    "reserve": "reserved",
    "commit": "committed",
    "give_back": "given back",
    "resolve_commit": "committed",
    "resolve_give_back": "given back",
}


class DataDay(NamedTuple):
    """One day of a dataset: what a budget belongs to."""

    dataset: str
    day: str

    def __str__(self) -> str:
        return f"{self.day} of {self.dataset}"


@dataclasses.dataclass(frozen=True)
class Entry:
    """What the ledger knows of a key.

    Attributes:
        state: Reserved and committed entries count; those given back do not.
        reserved: The releases that were reserved.
        releases: Those that count: the reserved ones, or what was committed in their place; none if given back.
        epsilon: The total ε that the reservation was checked against.
        delta: Its δ.
        reserved_at: The time of the reservation, in UTC, by the clock of the machine.
        changed_at: The time of the last change.
        reason: Why it was given back or resolved.
        resolved: Whether a person resolved it.
    """

    key: str
    state: State
    reserved: tuple[Release, ...]
    releases: tuple[Release, ...]
    epsilon: float
    delta: float
    reserved_at: str
    changed_at: str
    reason: str = ""
    resolved: bool = False

    @functools.cached_property
    def charges(self) -> dict[DataDay, Charges]:
        """What the releases that count charge to each day."""
        return charges_by_day(self.releases)

    @property
    def days(self) -> tuple[DataDay, ...]:
        """The days that the reserved releases touch."""
        return tuple(sorted({DataDay(one.dataset, day) for one in self.reserved for day in one.days}))

    def own_epsilon(self, day: DataDay, delta: float) -> float:
        """Returns ε of this entry alone on a day."""
        return epsilon(self.charges.get(day, Charges()), delta)

    def to_json(self) -> dict[str, Any]:
        """Returns the entry as a JSON-able dictionary."""
        found = {
            name: value for name, value in dataclasses.asdict(self).items() if name not in ("reserved", "releases")
        }
        found["reserved"] = [release.to_json() for release in self.reserved]
        return {**found, "releases": [release.to_json() for release in self.releases]}


def charges_by_day(releases: Sequence[Release]) -> dict[DataDay, Charges]:
    """Returns what releases charge to each day that they touch."""
    days = sorted({DataDay(release.dataset, day) for release in releases for day in release.days})
    return {
        day: charges_of(one for one in releases if one.dataset == day.dataset and day.day in one.days) for day in days
    }


def standing_on(entries: Iterable[Entry], days: Iterable[DataDay]) -> dict[DataDay, Charges]:
    """Returns everything that entries charge to each of some days, reserved or committed."""
    counted = list(entries)
    return {day: composed(entry.charges[day] for entry in counted if day in entry.charges) for day in days}


def replayed(rows: Sequence[Row]) -> tuple[dict[str, Entry], list[str]]:
    """Returns the entries by key, in the order of their last reservation, and what is wrong with the rows' actions."""
    entries: dict[str, Entry] = {}
    wrong: list[str] = []
    for row in rows:
        try:
            content = row.content
            key, action = content["key"], content["action"]
            entry = _after(entries.get(key), content)
        except (AttributeError, KeyError, TypeError, ValueError):
            wrong.append(f"row {row.number} is not one that this ledger writes")
            continue
        if entry is None:
            was = entries[key].state if key in entries else "not reserved"
            wrong.append(f"row {row.number} wants to {action} {key!r}, which is {was}")
            continue
        if action == "reserve":
            entries.pop(key, None)
        entries[key] = entry
    return entries, wrong


def _after(before: Entry | None, content: dict[str, Any]) -> Entry | None:
    """Returns the entry after a row; None if the action is not possible then."""
    action: Action = content["action"]
    if action == "reserve":
        if before is not None and before.state != "given back":
            return None
        releases = tuple(map(Release.from_json, content["releases"]))
        total, at = content["total"], content["time"]
        return Entry(content["key"], "reserved", releases, releases, total["epsilon"], total["delta"], at, at)
    if before is None or before.state != "reserved":
        return None
    changed = {"state": _AFTER[action], "changed_at": content["time"], "reason": content.get("reason", "")}
    changed["resolved"] = action.startswith("resolve")
    if action == "commit":
        changed["releases"] = tuple(map(Release.from_json, content["releases"]))
    elif changed["state"] == "given back":
        changed["releases"] = ()
    return dataclasses.replace(before, **changed)
