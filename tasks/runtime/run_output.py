"""What ``tasks run`` shows of a run's log: progress with the time left, the errors, and the result."""

from __future__ import annotations

import json
import re
import time

from tasks.runtime.progress import ERROR_MARK, PROGRESS_MARK, RESULT_MARK, format_seconds

# Before this many trials are done, nothing is said about the time left: the first trials compile the program, and those
# that train side by side end together.
_TRIALS_BEFORE_AN_ESTIMATE = 3


class RunOutput:
    """Prints the progress lines of a log and keeps its errors and its result."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.result: dict[str, str] | None = None
        self._trials = _TrialsLeft()

    def take(self, line: str) -> None:
        """Takes the next line of the log."""
        if line.startswith(PROGRESS_MARK):
            print(line.rstrip() + self._trials.left_after(line), flush=True)
        elif line.startswith(ERROR_MARK):
            self.errors.append(line.removeprefix(ERROR_MARK).rstrip())
        elif line.startswith(RESULT_MARK):
            self.result = json.loads(line.removeprefix(RESULT_MARK))

    def reasons(self) -> str:
        """Returns the errors, each once; empty if the log has none."""
        return "\n".join(dict.fromkeys(self.errors))


class _TrialsLeft:
    """Counts trained trials in the progress lines and estimates the time left.

    The estimate counts the time since the first trial was done, so that compilation is left out.
    """

    def __init__(self) -> None:
        self._done = self._total = 0
        self._first = 0.0

    def left_after(self, line: str) -> str:
        """Returns the text to append to a progress line; empty unless the line reports a finished trial."""
        planned = re.search(r"planned (\d+) trials?, (\d+) of them", line)
        if planned:
            self._total = int(planned[1]) - int(planned[2])
        if not re.match(rf"{PROGRESS_MARK}trial \d+ of", line):
            return ""
        self._done += 1
        if self._done == 1:
            self._first = time.monotonic()
        text = f"{self._done} of {self._total} done"
        if _TRIALS_BEFORE_AN_ESTIMATE <= self._done < self._total:
            left = (time.monotonic() - self._first) / (self._done - 1) * (self._total - self._done)
            text += f", about {format_seconds(left)} left"
        return f" ({text})"
