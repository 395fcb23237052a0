"""The steps of a night: open → wait → check_data → prepare → reserve → train → audit → register → decide.

Each takes a night as far as it has come and returns it with what it added. A night that cannot go on ends with a
sentence: the step raises ``NightEnded`` after the record and the pages were written. The DAG, the command line and the
tests call the same functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from tasks.config.loading import load_config
from tasks.days.delivered import DayState, look
from tasks.nights.record import (
    DECIDED,
    Night,
    NightEnded,
    end_night,
    read_night,
)
from tasks.runtime.errors import UserError
from tasks.runtime.progress import say, say_result

_Step = Callable[[Night], Night]


def ends_the_night(step: _Step) -> _Step:
    """Makes a step write the night's record and pages if it ends the night. The pages show it, whatever ended it."""

    @functools.wraps(step)
    def wrapped(night: Night) -> Night:
        try:
            return step(night)
        except NightEnded as ended:
            end_night(ended.night or night, ended.status, str(ended))
            write_pages(night["name"], night["day"])
            raise

    return wrapped


def open_night(name: str, day: str, reason: str = "manual") -> Night:
    """Starts the night of a day, unless it was decided before: then its record is returned, with its ``status``."""
    load_config().night(name)
    earlier = read_night(name, day)
    if earlier is not None and earlier["status"] in DECIDED:
        say(f"night {day} of {name} is done, and a rerun does nothing new: {earlier['sentence']}")
        say_result(write_pages(name, day))
        return {**earlier}
    return {"name": name, "day": day, "reason": reason, "said": []}


def has_data(night: Night) -> bool:
    """Returns whether the data of the night's day is there."""
    config = load_config()
    return look(config, config.night(night["name"]).dataset, night["day"]).state != "missing"


@ends_the_night
def give_up_waiting(night: Night) -> Night:
    """Ends a night whose data did not come."""
    from tasks.days.deliveries import record_missed

    nightly = load_config().night(night["name"])
    record_missed(nightly.dataset, night["day"])
    waited = f"after {nightly.wait_hours:g} hours" if nightly.wait_hours else "yet"
    raise NightEnded(
        "missing",
        f"night {night['day']}: {nightly.dataset} has no data of {night['day']} {waited}. The champion stays. The next "
        "night makes up for this one if the data has come by then",
    )


@ends_the_night
def prepare(night: Night) -> Night:
    """Takes in the day's data and prepares the window, with the day as validation and test splits."""
    from tasks.days.window import prepare_window

    try:
        window = prepare_window(load_config(), night["name"], night["day"])
    except UserError as error:
        raise NightEnded("stopped", f"night {night['day']} was stopped: {error}. The champion stays") from None
    if window.contents != night["contents"]:
        raise NightEnded(
            "stopped",
            f"night {night['day']} was stopped: data was delivered again while it was being checked. Run it again",
        )
    return {
        **night,
        "prepared": str(window.path),
        "window": list(window.window),
        "missing_days": list(window.left_out),
        "rows": window.rows,
        "vocabulary_days": list(window.vocabulary_days),
    }


@ends_the_night
def check_data(night: Night) -> Night:
    """Compares the day with its window. A breach of a limit ends the night, with a page that shows it."""
    from tasks.days.checks_page import write_checks_page
    from tasks.days.data_checks import check_day, night_days, sentence

    config, name, day = load_config(), night["name"], night["day"]
    found = night_days(config, name, day)
    said = [state.sentence for state in (*found.window, found.newest) if _is_news(state)]
    used = (*found.present, found.newest)
    night = {
        **night,
        "said": said,
        "rows": {state.day: state.rows for state in used},
        "contents": {state.day: state.contents for state in used},
    }
    for one in said:
        say(one)
    try:
        checked = check_day(config, name, day, found=found)
    except UserError as error:
        raise NightEnded("stopped", f"night {day} was stopped: {error}. The champion stays", night) from None
    write_checks_page(checked)
    night = {**night, "checked": True, "window": list(checked.window), "missing_days": list(checked.left_out)}
    if checked.breaches:
        raise NightEnded("stopped", f"night {day} was {sentence(checked)}. The champion stays", night)
    say(sentence(checked))
    return night


def _is_news(day: DayState) -> bool:
    """Returns whether a person should read of a day: it is missing, empty or refused, it came late, or it changed."""
    return day.state != "delivered" or ";" in day.sentence


def report(night: Night) -> dict[str, str]:
    """Writes the pages of an entry's nights, and deletes prepared data that no night needs any more.

    Returns the paths of the overview's files.
    """
    from tasks.days.old_nights import delete_old_nights

    made = write_pages(night["name"], night["day"])
    delete_old_nights(load_config().night(night["name"]).dataset)
    say(f"nights: {made['page']}")
    say_result(made)
    return made


def write_pages(name: str, day: str) -> dict[str, str]:
    """Writes the overview of an entry's nights, the page of one night, and the ledger's page."""
    from tasks.nights.pages import write_night_pages

    return write_night_pages(name, day)
