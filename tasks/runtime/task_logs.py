"""Follows the task logs of a DAG run that Airflow executes, in the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path


class TaskLogs:
    """Reads what was added to the logs of a run since the last time: no line is lost or read twice.

    Airflow writes one file for each attempt of a task, with one JSON object per line.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new_lines(self) -> list[str]:
        """Returns the messages that were added, in the order of their times."""
        found = [line for path in sorted(self._folder.rglob("attempt=*.log")) for line in self._added(path)]
        return [message for _, message in sorted(found, key=lambda line: line[0])]

    def _added(self, path: Path) -> list[tuple[str, str]]:
        start = self._read.get(path, 0)
        with open(path, "rb") as file:
            file.seek(start)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]  # the last line may be only half written
        self._read[path] = start + len(whole)
        # Split at newlines only: a message may contain other characters that end lines.
        return [_time_and_message(line) for line in whole.decode("utf-8", "replace").split("\n")[:-1]]


def _time_and_message(line: str) -> tuple[str, str]:
    try:
        entry = json.loads(line)
        return str(entry.get("timestamp", "")), str(entry.get("event", ""))
    except (ValueError, AttributeError):
        return "", line
