"""What was spent on each day of a dataset, for one example and for one user.

*One user.* The ε of a user holds for a user who has at most ``user_examples`` examples on each of ``user_days`` days in
a row, and none on other days, when all of these examples are emptied at once. A release that read j of these days may
have read j·``user_examples`` examples of the user, and is charged as a group of that size. It says nothing of users
with more examples or other days: a user with examples every day has a larger ε, as large as all spans together.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from typing import NamedTuple

from tasks.config.nightly import TotalBudget
from tasks.ledger.composition import charges_of, composed, epsilon, for_group, no_group_number
from tasks.ledger.entries import DataDay, Entry, State, standing_on
from tasks.ledger.release import Release


class SpentBy(NamedTuple):
    """What one entry spent on a day: its ε by itself."""

    key: str
    state: State
    epsilon: float


class DaySpent(NamedTuple):
    """What was spent on a day's data.

    Attributes:
        day: The day.
        epsilon: The ε of everything together that was reserved or committed.
        by: The entries, each with its ε by itself. These do not add up to ``epsilon``.
        user_epsilon: The ε of one user whose days begin with this one; None if there is no number, or it was not asked.
        user_note: Why there is none.
    """

    day: str
    epsilon: float
    by: tuple[SpentBy, ...]
    user_epsilon: float | None = None
    user_note: str = ""


def spent_by_day(
    entries: Sequence[Entry], dataset: str, total: TotalBudget, *, since: str | None = None, users: bool = True
) -> dict[str, DaySpent]:
    """Returns what entries spent on each day of a dataset that has charges, in order."""
    here = [entry for entry in entries if any(day.dataset == dataset for day in entry.charges)]
    days = sorted({day for entry in here for day in entry.charges if day.dataset == dataset})
    found = {}
    for day in days:
        if since is not None and day.day < since:
            continue
        by = [entry for entry in here if day in entry.charges]
        user, note = user_epsilon(here, day, total) if users else (None, "")
        found[day.day] = DaySpent(
            day.day,
            epsilon(standing_on(by, [day])[day], total.delta),
            tuple(SpentBy(entry.key, entry.state, entry.own_epsilon(day, total.delta)) for entry in by),
            user,
            note,
        )
    return found


class UserTotal(NamedTuple):
    """The ε of one user whose days begin with ``first``; infinite if there is no number, and ``note`` says why."""

    first: DataDay
    epsilon: float
    note: str = ""


def highest_user_total(entries: Sequence[Entry], releases: Sequence[Release], total: TotalBudget) -> UserTotal:
    """Returns the user with the largest ε among those whose days releases read, together with all that stands."""
    made = tuple(releases)
    new = Entry("", "reserved", made, made, total.epsilon, total.delta, "", "")
    starts = {
        DataDay(day.dataset, (datetime.date.fromisoformat(day.day) - datetime.timedelta(days=back)).isoformat())
        for day in new.charges
        for back in range(total.user_days)
    }
    found = []
    for first in sorted(starts):
        value, note = user_epsilon([*entries, new], first, total)
        found.append(UserTotal(first, math.inf if value is None else value, note))
    return max(found, key=lambda one: one.epsilon)


def user_epsilon(entries: Sequence[Entry], first: DataDay, total: TotalBudget) -> tuple[float | None, str]:
    """Returns ε of one user whose days begin with ``first``, or None and the reason why there is no number."""
    start = datetime.date.fromisoformat(first.day)
    span = {(start + datetime.timedelta(days=number)).isoformat() for number in range(total.user_days)}
    charged = []
    for entry in entries:
        for release in entry.releases:
            read = len(span & set(release.days)) if release.dataset == first.dataset else 0
            if read:
                charged.append(for_group(charges_of([release]), read * total.user_examples))
    together = composed(charged)
    note = no_group_number(together)
    return (None, note) if note else (epsilon(together, total.delta), "")
