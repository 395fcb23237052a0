"""Measures of the data checks in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.days.data_checks import Measure

# What each check measures, for tables.
TITLES = {
    "bad_rows": "bad rows",
    "other_days": "rows of other days",
    "rows": "number of rows",
    "label_rate": "mean label",
    "unseen_tokens": "rows with unseen tokens",
    "drift": "drift (PSI)",
}


def wording(measure: Measure, day: str, task: str) -> str:
    """Returns what a measure says about a day."""
    share, limit = percent(measure.day), f"limit {percent(measure.limit)}"
    match measure.check:
        case "bad_rows":
            most = f", most of them for: {measure.note}" if measure.note else ""
            return f"{share} of the rows of {measure.of or day} are bad{most} ({limit})"
        case "other_days":
            most = f", most often {measure.note}" if measure.note else ""
            return f"{share} of the rows of {day} have a time on another day{most} ({limit})"
        case "rows":
            if measure.window is None:
                return f"{day} has no rows"
            return f"{day} has {measure.day:,.0f} rows, {_times(measure, f'usual {measure.window:,.0f}')}"
        case "label_rate":
            name = "mean label" if task == "pconvs" else "label rate"
            return f"the {name} of {day} is {measure.day:.3g}, {_times(measure, f'{measure.window or 0:.3g}')}"
        case "unseen_tokens":
            return f"{share} of the rows of {day} have a token in {measure.of} that the window does not have ({limit})"
        case _:
            index = f"{measure.value or 0:.3g} (limit {measure.limit:g})"
            return f"the population stability index of {measure.of} on {day} is {index}"


def percent(share: float) -> str:
    """Returns a share as a percentage.

    >>> percent(0.01), percent(0.12345), percent(1)
    ('1 %', '12.3 %', '100 %')
    """
    return f"{100 * share:.3g} %"


def _times(measure: Measure, of_window: str) -> str:
    limit = f"(limit {measure.limit:g})"
    if measure.value is None:
        return f"but the window's {of_window} {limit}"
    if measure.day >= (measure.window or 0):
        return f"{measure.value:.2g} times the window's {of_window} {limit}"
    return f"and the window's {of_window} is {measure.value:.2g} times as much {limit}"
