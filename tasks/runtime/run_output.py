"""What ``tasks run`` shows of a run's log: progress with the time left, the errors, and the result."""

from __future__ import annotations

import itertools
import json
import re
import time
from statistics import fmean

from tasks.runtime.progress import ERROR_MARK, PROGRESS_MARK, RESULT_MARK, format_seconds

# Before this many trials are done, nothing is said about the time left: trials that train side by side end together.
_TRIALS_BEFORE_AN_ESTIMATE = 4


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

    The time of a trial is the mean time from one trial's end to the next one's. The longest is left out: that is where
    the next group started and compiled its program.
    """

    def __init__(self) -> None:
        self._total = 0
        self._ends: list[float] = []

    def left_after(self, line: str) -> str:
        """Returns the text to append to a progress line; empty unless the line reports a finished trial."""
        planned = re.search(r"planned (\d+) trials?, (\d+) of them", line)
        if planned:
            self._total += int(planned[1]) - int(planned[2])  # every round has such a line
        if not self._total or not re.match(rf"{PROGRESS_MARK}trial \d+ of", line):
            return ""
        self._ends.append(time.monotonic())
        done = len(self._ends)
        text = f"{done} of {self._total} done"
        if _TRIALS_BEFORE_AN_ESTIMATE <= done < self._total:
            between = sorted(later - earlier for earlier, later in itertools.pairwise(self._ends))
            text += f", about {format_seconds(fmean(between[:-1]) * (self._total - done))} left"
        return f" ({text})"
