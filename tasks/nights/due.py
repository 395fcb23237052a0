"""Which nights are due: the day that a run is for, earlier nights whose data came late, and what events name."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from typing import Any
from zoneinfo import ZoneInfo

from tasks.config.loading import Config
from tasks.config.nightly import Nightly, checked_day
from tasks.days.delivered import survey
from tasks.nights.record import days_before, is_decided, nights_folder, read_night
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json, write_json
from tasks.runtime.progress import say

# A run of the schedule that starts later than this after its time was not waited for.
_PUNCTUAL = datetime.timedelta(minutes=10)


def day_of_schedule(nightly: Nightly, moment: datetime.datetime) -> str:
    """Returns the day that a scheduled run is for: the one before, in the schedule's time zone."""
    return str(moment.astimezone(ZoneInfo(nightly.timezone)).date() - datetime.timedelta(days=1))


def due_nights(config: Config, name: str, day: str) -> list[str]:
    """Returns the days whose nights a run for ``day`` should do, oldest first; ``day`` is the last.

    Earlier ones are nights that ended without data that has come since. Those that a later night has overtaken are
    left out: their models could no longer become champion, so they would spend budget for nothing.
    """
    unheard = []
    for earlier in reversed(days_before(day, config.night(name).window_days)):
        if is_decided(name, earlier):
            break
        record = read_night(name, earlier)
        if record is not None and record["status"] == "missing":
            unheard.append(earlier)
    if not unheard:
        return [day]
    come = {found.day for found in survey(config, name, day).window if found.state != "missing"}
    return [*(earlier for earlier in reversed(unheard) if earlier in come), day]


def is_before_schedule(name: str, moment: datetime.datetime, started: datetime.datetime) -> bool:
    """Returns whether a run of the schedule is for a time before the schedule was switched on.

    Airflow starts a run for the newest time that has passed when a DAG is un-paused or back-filled for the first time.
    Nobody asked for that night, which would spend budget and take the place of the champion. The first run that starts
    long after its time is that one; it is remembered, because later ones make up for a night that a stopped machine
    missed.
    """
    path = nights_folder(name) / "schedule.json"
    if path.exists():
        return moment < datetime.datetime.fromisoformat(read_json(path)["switched_on"])
    since = started if started - moment > _PUNCTUAL else moment
    write_json(path, {"switched_on": since.isoformat()})
    return moment < since


def nights_of_events(config: Config, name: str, consumed: Iterable[Any], later: Iterable[Any]) -> list[str]:
    """Returns the days whose nights a run of asset events should do, oldest first. Done ones are left out.

    Args:
        config: The configuration.
        name: The entry of ``nightly``.
        consumed: What the events say that started the run, as ``{"day": "2026-01-31"}``; ``then`` may list more days.
        later: The same of events since. Airflow starts no run for events that come while another event is waiting for
            a run to end, so their nights are done too if there was no such night yet.

    Raises:
        UserError: None of the events that started the run names a day.
    """
    consumed = list(consumed)
    named, wrong = _named_days(consumed)
    for sentence in wrong if named else ():
        say(f"left out: {sentence}")
    if not named:
        raise UserError(wrong[0] if wrong else f"no event of new_day_{name} started this run: give the field Day")
    new = {day for day in _named_days(later)[0] if read_night(name, day) is None}
    days = sorted(named | new)
    # A run that had several nights to do has asked already which are due. Asked again, a night that fails without a
    # record would be due for ever, and the newest one never.
    asked = any(isinstance(extra, dict) and "then" in extra for extra in consumed)
    first = [days[0]] if asked else due_nights(config, name, days[0])
    due = dict.fromkeys([*first, *days[1:]])
    return [day for day in due if not is_decided(name, day)] or days[-1:]


def _named_days(extras: Iterable[Any]) -> tuple[set[str], list[str]]:
    """Returns the days that events name, and a sentence for each event that names none."""
    days, wrong = set(), []
    for extra in extras:
        said = extra if isinstance(extra, dict) else {}
        then = said.get("then")
        try:
            days |= {checked_day(day) for day in (said.get("day"), *(then if isinstance(then, list) else ()))}
        except UserError:
            wrong.append(
                f"an event of the asset names no day: its extra is {json.dumps(extra)}, and must be like "
                '{"day": "2026-01-31"}'
            )
    return days, wrong
