"""Progress lines for a person.

One line per event reads well both in a terminal and in an Airflow task log. The mark at the start of a line lets
``tasks run`` pick our lines out of Airflow's log.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tasks.outages.told import said_as

PROGRESS_MARK = "▸ "
ERROR_MARK = "✗ "
RESULT_MARK = "result: "

_writing = threading.Lock()


def say(message: str) -> None:
    """Prints a progress line."""
    _write(PROGRESS_MARK + message)


def note(message: str) -> None:
    """Prints a line that ``tasks run`` does not show: one of many of its kind, for the log."""
    _write(message)


def say_error(message: str) -> None:
    """Prints an error, every line of it marked."""
    _write("\n".join(ERROR_MARK + line for line in message.splitlines()))


def say_result(result: Mapping[str, str]) -> None:
    """Prints the result of a run, in which ``tasks run`` finds the files of the very run that it started."""
    _write(RESULT_MARK + json.dumps(dict(result)))


def _write(text: str) -> None:
    # `print` writes the end of the line separately, so lines of trials that train side by side would mix.
    with _writing:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def step(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a step for a DAG. Prints what a person can mend in marked lines before raising the error again."""
    try:
        return function(*arguments)
    except Exception as error:
        reason = said_as(error)
        if reason is not None:
            say_error(reason)
        raise


def counted(number: float, noun: str) -> str:
    """Returns a number with its noun, in the plural where it is not one.

    >>> counted(1, "trial"), counted(2, "trial"), counted(0.5, "epoch")
    ('1 trial', '2 trials', '0.5 epochs')
    """
    text = f"{number:g}" if isinstance(number, float) else f"{number}"
    return f"{text} {noun}" if number == 1 else f"{text} {noun}s"


def format_seconds(seconds: float) -> str:
    """Formats a duration for a person.

    >>> format_seconds(7.25), format_seconds(192), format_seconds(7400)
    ('7.2 s', '3 min 12 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


class Ticker:
    """Reports the progress of a long loop, at most once every ``every_seconds``.

    Time counts from the first update: before it, the loop starts and compiles. The first report comes a full period
    later, so that short loops stay silent and the rate is known.
    """

    def __init__(self, label: str, total: int, unit: str, every_seconds: float = 10.0) -> None:
        self._label = label
        self._total = total
        self._unit = unit
        self._every = every_seconds
        self._start = self._last = 0.0
        self._first_done: int | None = None

    def update(self, done: int, detail: str = "") -> None:
        """Reports that ``done`` of the total are done, if a report is due."""
        now = time.monotonic()
        if self._first_done is None:
            self._first_done, self._start, self._last = done, now, now
            return
        if now - self._last < self._every or done == self._first_done:
            return
        self._last = now
        rate = (done - self._first_done) / (now - self._start)
        left = format_seconds((self._total - done) / rate)
        percent = 100 * done / self._total
        say(
            f"{self._label}: {done:,} of {self._total:,} {self._unit} ({percent:.0f} %), "
            f"{rate:,.1f} {self._unit}/s, {left} left{detail}"
        )
