"""Whether releases fit into the total, and the sentence that says why not and when there is room again."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tasks.config.nightly import TotalBudget
from tasks.ledger.composition import Charges, charges_of, composed, epsilon, largest
from tasks.ledger.entries import DataDay, Entry, charges_by_day, standing_on
from tasks.ledger.release import Release
from tasks.ledger.spent import highest_user_total, user_epsilon
from tasks.runtime.errors import UserError
from tasks.runtime.progress import counted

_MOST_NAMED = 8


class DayTotal(NamedTuple):
    """The ε of one day's data."""

    day: DataDay
    epsilon: float


class OverBudget(UserError):
    """Releases would tell more about a day's data than the total allows. Nothing was reserved.

    Attributes:
        day: The day that would have the largest ε.
        epsilon: That ε.
        spent: ε of the day before.
        by: The entries that spent it, the last few, with the ε of each alone.
        free_after: The number of days after which the same releases would fit, if nothing else is charged until then;
            None if they never fit.
    """

    def __init__(
        self, text: str, day: DataDay, epsilon: float, spent: float, by: Mapping[str, float], free_after: int | None
    ) -> None:
        super().__init__(text)
        self.day, self.epsilon, self.spent, self.by, self.free_after = day, epsilon, spent, by, free_after


def check_finite(releases: Sequence[Release], delta: float) -> None:
    """Raises ``UserError`` that names a release without a finite ε at δ."""
    for release in releases:
        if math.isinf(epsilon(charges_of([release]), delta)):
            raise UserError(
                f"{release.label}: it has no finite ε at δ = {delta:g}, so it cannot be charged. Its noise is too "
                "little, or truncation and its vocabulary use up all of δ"
            )


def highest_total(entries: Iterable[Entry], charges: Mapping[DataDay, Charges], delta: float) -> DayTotal:
    """Returns the day with the largest ε among those charged, together with all that stands on it."""
    standing = standing_on(entries, charges)
    together = {day: composed([standing[day], charges[day]]) for day in charges}
    return max((DayTotal(day, epsilon(together[day], delta)) for day in largest(together)), key=lambda one: one.epsilon)


def user_over_budget(
    key: str, entries: Sequence[Entry], releases: Sequence[Release], total: TotalBudget
) -> OverBudget | None:
    """Returns the error for releases that would tell more about one user than the total allows; None if they do not."""
    if total.user_epsilon is None:
        return None
    highest = highest_user_total(entries, releases, total)
    if highest.epsilon <= total.user_epsilon:
        return None
    spent = user_epsilon(entries, highest.first, total)[0]
    here = [entry for entry in entries if not entry.charges.keys().isdisjoint(charges_by_day(releases))]
    free_after = _free_after(entries, releases, total)
    limit = f"ε = {total.user_epsilon:g} at δ = {total.delta:g}"
    would = "no ε" if highest.note else _text(highest.epsilon, total.user_epsilon)
    before = f"There is none: {highest.note}. " if highest.note else f"Before, it was ε = {spent:.3g}. "
    text = (
        f"{key} is refused before training: a user with up to {counted(total.user_examples, 'example')} on each of "
        f"{counted(total.user_days, 'day')} from {highest.first} on would have {would}, and the total of one user is "
        f"{limit}. {before}What is spent on a day never comes back. {_room(releases, free_after)}"
    )
    by = {entry.key: max(entry.own_epsilon(day, total.delta) for day in entry.charges) for entry in here[-_MOST_NAMED:]}
    return OverBudget(text, highest.first, highest.epsilon, spent or 0.0, by, free_after)


def over_budget(
    key: str, entries: Sequence[Entry], releases: Sequence[Release], total: TotalBudget, highest: DayTotal
) -> OverBudget:
    """Returns the error for releases that do not fit, where ``highest`` is the day that they would fill the most."""
    day = highest.day
    here = [entry for entry in entries if day in entry.charges]
    spent = epsilon(standing_on(here, [day])[day], total.delta)
    by = {entry.key: entry.own_epsilon(day, total.delta) for entry in here[-_MOST_NAMED:]}
    alone = epsilon(charges_by_day(releases)[day], total.delta)
    free_after = _free_after(entries, releases, total)
    limit = f"ε = {total.epsilon:g} at δ = {total.delta:g}"
    if not here:
        spending = "Nothing was spent on that day before: the release alone is more than the total"
    else:
        named = [f"{entry.key} (ε {by[entry.key]:.3g}, {entry.state})" for entry in here[-_MOST_NAMED:]]
        more = f" and {counted(len(here) - len(named), 'earlier release')}" if len(here) > len(named) else ""
        spending = f"Spent on that day: ε = {spent:.3g}, by {', '.join(named)}{more}"
        if any(entry.state == "reserved" for entry in here):
            spending += ". A reservation that a crash left standing is ended by `python -m tasks ledger resolve`"
    text = (
        f"{key} is refused before training: the data of {day} would have {_text(highest.epsilon, total.epsilon)} of "
        f"a total of {limit}. {spending}. The new releases alone have ε = {alone:.3g} there. "
        f"What is spent on a day never comes back. {_room(releases, free_after)}"
    )
    return OverBudget(text, day, highest.epsilon, spent, by, free_after)


def _text(value: float, total: float) -> str:
    """Returns an ε above the total with enough digits to show that it is."""
    if math.isinf(value):
        return "no finite ε"
    digits = next((n for n in (3, 4, 5, 6) if float(f"{value:.{n}g}") > total), 9)
    return f"ε = {value:.{digits}g}"


def _room(releases: Sequence[Release], free_after: int | None) -> str:
    if free_after is None:
        return "These releases would fit on no later days either: give them more noise, or raise the total"
    days = sorted({day for release in moved(releases, free_after) for day in release.days})
    span = f"on {days[0]}" if len(days) == 1 else f"on the days {days[0]} to {days[-1]}"
    return (
        f"Budget comes free {counted(free_after, 'night')} later: the same releases fit {span}, if nothing else is "
        "charged to them until then"
    )


def _free_after(entries: Sequence[Entry], releases: Sequence[Release], total: TotalBudget) -> int | None:
    """Returns after how many days the same releases, moved by as many, would fit."""
    charged = {day.day for entry in entries for day in entry.charges}
    first = min(day for release in releases for day in release.days)
    last = max([first, *charged])
    # From here on, all days are without charges.
    most = (_date(last) - _date(first)).days + 1
    for days in range(1, most + 1):
        if fits(entries, moved(releases, days), total):
            return days
    return None


def fits(entries: Sequence[Entry], releases: Sequence[Release], total: TotalBudget) -> bool:
    """Returns whether releases could be reserved beside what stands."""
    if highest_total(entries, charges_by_day(releases), total.delta).epsilon > total.epsilon:
        return False
    most = total.user_epsilon
    return most is None or highest_user_total(entries, releases, total).epsilon <= most


def moved(releases: Sequence[Release], days: int) -> tuple[Release, ...]:
    """Returns the same releases on data of so many days later."""
    step = datetime.timedelta(days=days)
    return tuple(
        dataclasses.replace(release, days=tuple((_date(day) + step).isoformat() for day in release.days))
        for release in releases
    )


def _date(day: str) -> datetime.date:
    return datetime.date.fromisoformat(day)
