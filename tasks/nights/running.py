"""Runs nights from the command line, each through its DAG: one, a range of past days, or a play with synthetic days."""

from __future__ import annotations

import datetime
from typing import Any

from tasks.config.loading import Config, load_config
from tasks.config.nightly import checked_day
from tasks.nights.due import due_nights
from tasks.nights.record import ENDINGS, Night, dag_id, read_night, read_nights
from tasks.reporting.files import PAGE
from tasks.runtime.errors import UserError
from tasks.runtime.home import home
from tasks.runtime.progress import say

_MOST_NIGHTS = 400


def run_night(name: str, day: str) -> Night:
    """Runs the night of a day to its end, and returns its record.

    Raises:
        UserError: The night did not end: a step failed for another reason than those that a night can end with.
    """
    from tasks.runtime.dag_run import run_dag

    load_config().night(name)
    before = read_night(name, day)
    try:
        run_dag(dag_id(name), f"night {day}", {"day": day}, f"night {day}")
    except UserError:
        record = read_night(name, day)
        if record is None or record == before:
            raise
        return record
    record = read_night(name, day)
    if record is None:
        raise UserError(f"night {day} of {name} ended without a record")
    return record


def run_nights(name: str, first: str, last: str) -> list[Night]:
    """Runs past nights in the order of their days. Nights that are done are left as they are."""
    start, end = (datetime.date.fromisoformat(checked_day(day)) for day in (first, last))
    count = (end - start).days + 1
    if not 0 < count <= _MOST_NIGHTS:
        raise UserError(f"from {first} to {last} are {count} nights; give 1 to {_MOST_NIGHTS}")
    return [_told(run_night(name, str(start + datetime.timedelta(days=number)))) for number in range(count)]


def play(name: str, count: int) -> list[Night]:
    """Plays nights on synthetic days, from the first day with a full window before it. Late days are made up for."""
    config = load_config()
    first = _first_night(config, name)
    records = []
    for number in range(count):
        day = str(first + datetime.timedelta(days=number))
        # What the schedule does: nights whose data came late go first.
        records += [_told(run_night(name, due)) for due in due_nights(config, name, day)]
    return records


def listed(name: str) -> list[Night]:
    """Returns the records of all nights of an entry."""
    load_config().night(name)
    return read_nights(name)


def explained(name: str, day: str) -> dict[str, Any]:
    """Returns the record of a night, with the path of the page that explains it."""
    record = read_night(name, day)
    if record is None:
        known = ", ".join(night["day"] for night in read_nights(name)[-5:]) or "none"
        raise UserError(f"night {day} of {name} has not ended; the last nights that have: {known}")
    return {**record, "page": str(home() / "reports" / dag_id(name) / day / PAGE)}


def _first_night(config: Config, name: str) -> datetime.date:
    nightly = config.night(name)
    synthetic = config.dataset(nightly.dataset).synthetic
    if synthetic is None or synthetic.days is None:
        raise UserError(
            f"{nightly.dataset} is not synthetic, so there is nothing to play: run its nights with --from and --to"
        )
    return synthetic.days.start + datetime.timedelta(days=nightly.window_days)


def _told(night: Night) -> Night:
    say(f"{ENDINGS[night['status']]}: {night['sentence']}")
    return night
