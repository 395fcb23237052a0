"""The ledger: every release is reserved before it is made, then committed or given back, and never forgotten.

``reserve`` adds up, in one transaction, everything that was released or is about to be released from each day's data,
and refuses what would exceed the total. A budget belongs to a day of a dataset, whoever spends it: two entries of
``nightly`` on the same dataset share it.

What the sum assumes:

- The noise of all releases is drawn independently. A draw of a private vocabulary that several models share counts
  once.
- Which mechanisms run, with which noise and how many steps, follows from settings and public numbers. What they
  compute may depend on earlier releases (a warm start does), but their privacy parameters may not: for parameters
  chosen from what was released, composition by PLD is not proven. Refusing a release because of the budget is fine,
  since that depends on the parameters alone.
- The number of examples and the days that exist are public.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tasks.config.nightly import TotalBudget
from tasks.ledger.budget import DayTotal, OverBudget, check_finite, fits, highest_total, over_budget, user_over_budget
from tasks.ledger.chain import Anchor, Head, Row, breaks, clock_remarks, contradiction, head_of, next_row
from tasks.ledger.composition import delta_used, largest
from tasks.ledger.entries import Entry, State, charges_by_day, replayed, standing_on
from tasks.ledger.release import Release, checked
from tasks.ledger.spent import DaySpent, spent_by_day
from tasks.ledger.store import PATIENCE_SECONDS, VARIABLE, Store, Transaction, ledger_url
from tasks.runtime.errors import UserError
from tasks.runtime.progress import say

__all__ = ["Entry", "Ledger", "OverBudget", "Release", "Reservation", "Verified"]

# What discretisation may make of equal costs.
_SAME_COST = 1e-3
_LONGEST_KEY, _LONGEST_REASON = 200, 2000


class Reservation(NamedTuple):
    """The answer of the ledger to a change.

    Attributes:
        key: The key of the entry.
        state: Its state now. A key that is committed needs no other run: it is done.
        new: Whether this call changed anything.
        highest: The day with the largest ε among those that the entry touches, if this call worked it out.
        head: The head of the ledger, to be logged elsewhere: it shows later whether the ledger was cut.
    """

    key: str
    state: State
    new: bool
    highest: DayTotal | None
    head: Head

    @property
    def done(self) -> bool:
        return self.state == "committed"


class Verified(NamedTuple):
    """What a look at every row found.

    Attributes:
        problems: What is wrong, one sentence each; empty for a ledger that is as it was written.
        remarks: What is unusual but allowed.
        head: The head of the rows that are there.
        anchored: The head that the anchor remembers.
    """

    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    head: Head
    anchored: Head


class Ledger:
    """A book of releases in a database. Each call opens and closes its own connection."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._anchor = Anchor(store.anchor_path)
        self.name = store.name

    @classmethod
    def open(cls, url: str | None = None, *, patience: float = PATIENCE_SECONDS) -> Ledger:
        """Returns the ledger at an address: that of ``DP_ADS_LEDGER`` by default, else one in the home folder.

        Nothing is created before the first reservation. ``patience`` is how long, in seconds, a call waits for other
        writers.
        """
        return cls(Store(ledger_url(url or os.environ.get(VARIABLE)), patience=patience))

    @property
    def anchor_path(self) -> Path:
        """The file that remembers the head."""
        return self._anchor.path

    def reserve(self, key: str, releases: Sequence[Release], total: TotalBudget) -> Reservation:
        """Reserves budget for releases that are about to be made.

        The same key with the same releases returns the reservation that stands, or says that it is committed.

        Raises:
            OverBudget: If any day, or any user if that is limited, would have more than ``total``. Nothing is written.
            UserError: If the key stands with other releases, or a release cannot be charged.
        """
        key, wanted = _checked_key(key), checked(releases)
        check_finite(wanted, total.delta)
        refused = None
        with self._changing() as (transaction, entries):
            before = entries.get(key)
            if before is not None and before.state != "given back":
                if not _same(before.reserved, wanted):
                    raise UserError(
                        f"the key {key!r} is {before.state} with other releases. A key stands for one set of releases: "
                        "use another key, or the same settings as then"
                    )
                return Reservation(key, before.state, False, None, head_of(transaction.rows))
            others = list(entries.values())
            highest = highest_total(others, charges_by_day(wanted), total.delta)
            if fits(others, wanted, total):
                budget = {"epsilon": total.epsilon, "delta": total.delta}
                head = _append(transaction, "reserve", key, {"releases": _as_json(wanted), "total": budget})
            else:
                refused = others
        if refused is not None:
            # Worked out when the lock is free again: it may take seconds.
            if highest.epsilon > total.epsilon:
                raise over_budget(key, refused, wanted, total, highest)
            told = user_over_budget(key, refused, wanted, total)
            assert told is not None
            raise told
        _tell_of_lower_totals(key, others, wanted, total)
        return self._changed(Reservation(key, "reserved", True, highest, head))

    def commit(self, key: str, releases: Sequence[Release]) -> Reservation:
        """Records what was released, in place of what was reserved.

        Raises:
            UserError: If it costs more than what was reserved, touches other days, or nothing is reserved. The entry
                then stands as it was.
        """
        key, actual = _checked_key(key), checked(releases)
        with self._changing() as (transaction, entries):
            entry = _known(entries, key)
            if entry.state == "committed" and _same(entry.releases, actual):
                return Reservation(key, "committed", False, None, head_of(transaction.rows))
            others = [one for one in entries.values() if one is not entry]
            if entry.state == "committed" and entry.resolved:
                # A person charged what was reserved, which covers what costs no more.
                _check_cost(entry, actual, others)
                return Reservation(key, "committed", False, None, head_of(transaction.rows))
            if entry.state != "reserved":
                raise UserError(f"{key!r} is {entry.state}, so that nothing else can be committed under it")
            check_finite(actual, entry.delta)
            _check_cost(entry, actual, others)
            head = _append(transaction, "commit", key, {"releases": _as_json(actual)})
        return self._changed(Reservation(key, "committed", True, None, head))

    def give_back(self, key: str, reason: str) -> Reservation:
        """Gives a reservation back. Only for a caller who knows that nothing was released and nothing will be."""
        return self._end(key, "give_back", "given back", reason)

    def resolve(self, key: str, to: Literal["commit", "give_back"], reason: str) -> Reservation:
        """Ends a reservation that a crash left standing, by a person's decision.

        "commit" charges what was reserved for good, because it was or may have been released. "give_back" states that
        nothing was released.
        """
        if to == "commit":
            return self._end(key, "resolve_commit", "committed", reason)
        return self._end(key, "resolve_give_back", "given back", reason)

    def entries(self) -> list[Entry]:
        """Returns all entries in the order of their reservations. Raises ``UserError`` if the chain is broken."""
        return list(self._entries(self._anchor.read(), self._store.rows()).values())

    def spent(
        self, dataset: str, total: TotalBudget, *, since: str | None = None, users: bool = True
    ) -> dict[str, DaySpent]:
        """Returns what was spent on each day of a dataset, reservations included.

        Args:
            dataset: The dataset's name.
            total: Gives the δ, and the number of days and examples of one user.
            since: The first day that is of interest.
            users: Whether ε of one user is worked out too.
        """
        return spent_by_day(self.entries(), dataset, total, since=since, users=users)

    def verify(self, kept: Head | None = None, *, known: Mapping[str, Head] | None = None) -> Verified:
        """Looks at every row, and compares them with the anchor and with heads that were kept elsewhere.

        Args:
            kept: A head that a person gave.
            known: Other heads, by the names of those who kept them.
        """
        problems: list[str] = []
        try:
            anchored = self._anchor.read()
        except UserError as error:
            anchored, problems = Head(0, ""), [str(error)]
        rows = self._store.rows()
        problems += _problems(rows, anchored, {**({"the head that was given": kept} if kept else {}), **(known or {})})
        remarks = clock_remarks(rows)
        if rows and anchored.rows == 0 and not problems:
            remarks.append(
                f"there is no anchor {self.anchor_path} of these rows, so that a cut end would not be noticed: compare "
                "the head with one that was kept elsewhere"
            )
        return Verified(tuple(problems), tuple(remarks), head_of(rows), anchored)

    def _end(self, key: str, action: str, state: State, reason: str) -> Reservation:
        key, reason = _checked_key(key), _checked_reason(reason)
        with self._changing() as (transaction, entries):
            entry = _known(entries, key)
            if entry.state == state and action == "give_back":
                return Reservation(key, state, False, None, head_of(transaction.rows))
            if entry.state != "reserved":
                hint = ": what was released cannot be taken back" if entry.state == "committed" else ""
                raise UserError(f"{key!r} is {entry.state}, not reserved{hint}")
            head = _append(transaction, action, key, {"reason": reason})
        return self._changed(Reservation(key, state, True, None, head))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[tuple[Transaction, dict[str, Entry]]]:
        """Yields the writer's transaction, and the entries in it."""
        # The anchor is read before the rows: another process may append and anchor between the two.
        anchored = self._anchor.read()
        with self._store.writing() as transaction:
            yield transaction, self._entries(anchored, transaction.rows)

    def _changed(self, done: Reservation) -> Reservation:
        self._anchor.advance(done.head)
        return done

    def _entries(self, anchored: Head, rows: Sequence[Row]) -> dict[str, Entry]:
        problems = _problems(rows, anchored, {})
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise UserError(
                f"the ledger {self.name} is not as it was written: {problems[0]}{more}. Nothing can be charged to it. "
                "`python -m tasks ledger verify` lists what is wrong; restore it from a copy that verifies"
            )
        return replayed(rows)[0]


def _append(transaction: Transaction, action: str, key: str, content: Mapping[str, Any]) -> Head:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    transaction.append(next_row(head_of(transaction.rows), {**content, "action": action, "key": key, "time": now}))
    return head_of(transaction.rows)


def _as_json(releases: Sequence[Release]) -> list[dict[str, Any]]:
    """Returns releases for a row, each with the part of δ that it uses up."""
    return [{**release.to_json(), "delta": delta_used(release)} for release in releases]


def _tell_of_lower_totals(key: str, others: Sequence[Entry], wanted: Sequence[Release], total: TotalBudget) -> None:
    """Says so if a total was raised, in ε or in δ: what was promised of a day then no longer holds."""
    days = charges_by_day(wanted)
    lower = [
        one
        for one in others
        if not one.charges.keys().isdisjoint(days) and (one.epsilon < total.epsilon or one.delta < total.delta)
    ]
    if lower:
        least = min(lower, key=lambda one: (one.epsilon, one.delta))
        say(
            f"{key} is reserved under a total of ε = {total.epsilon:g} at δ = {total.delta:g}, but {least.key} was "
            f"under {least.epsilon:g} at {least.delta:g}: the smaller total no longer holds for the days that both read"
        )


def _problems(rows: Sequence[Row], anchored: Head, kept: Mapping[str, Head]) -> list[str]:
    found = list(breaks(rows))
    for keeper, head in {"the anchor": anchored, **kept}.items():
        if told := contradiction(rows, head, keeper):
            found.append(told)
    # Rows that were tampered with may say anything.
    return found or replayed(rows)[1]


def _check_cost(entry: Entry, actual: Sequence[Release], others: Sequence[Entry]) -> None:
    """Raises ``UserError`` if the actual releases cost any day more than the reserved ones."""
    planned, made = entry.charges, charges_by_day(actual)
    beyond = [str(day) for day in made if day not in planned]
    if beyond:
        raise UserError(
            f"{entry.key!r} was not reserved on {', '.join(beyond)}: the reservation stands, and nothing was committed"
        )
    dearer = {day: charges for day, charges in made.items() if not charges <= planned[day]}
    standing = standing_on(others, dearer)
    for day in largest({day: standing[day] + charges for day, charges in dearer.items()}):
        before = highest_total(others, {day: planned[day]}, entry.delta).epsilon
        after = highest_total(others, {day: made[day]}, entry.delta).epsilon
        if after > before and (after > before * (1 + _SAME_COST) or after > entry.epsilon):
            raise UserError(
                f"what {entry.key!r} released costs more than was reserved: the data of {day} would have ε = "
                f"{after:.6g} instead of {before:.6g}. The reservation stands, and nothing was committed. Do not "
                "publish it: train again with the noise that was reserved"
            )


def _same(some: Sequence[Release], others: Sequence[Release]) -> bool:
    """Returns whether releases are the same, whatever their runs and notes."""

    def plain(releases: Sequence[Release]) -> list[str]:
        return sorted(repr(dataclasses.replace(release, run="", note="").to_json()) for release in releases)

    return plain(some) == plain(others)


def _known(entries: Mapping[str, Entry], key: str) -> Entry:
    if key not in entries:
        raise UserError(f"nothing is reserved under {key!r}. `python -m tasks ledger list` shows the keys")
    return entries[key]


def _checked_key(key: str) -> str:
    if not isinstance(key, str) or not key.strip() or not key.isprintable() or len(key) > _LONGEST_KEY:
        raise UserError(f"a key is printable text of up to {_LONGEST_KEY} characters, got {key!r:.80}")
    return key


def _checked_reason(reason: str) -> str:
    text = " ".join(str(reason).split())
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError("the reason has characters that cannot be written: give it in plain text") from None
    if not any(map(str.isalnum, text)) or len(text) > _LONGEST_REASON:
        raise UserError(f"say why, in words, in up to {_LONGEST_REASON} characters: the ledger keeps the reason")
    return text
