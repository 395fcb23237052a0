"""``tasks run``: one pipeline, through the DAG that the Airflow UI shows, in this terminal."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from tasks.airflow_home import airflow_environment, ensure_airflow
from tasks.config import load_config
from tasks.errors import UserError
from tasks.home import home
from tasks.progress import ERROR_MARK, PROGRESS_MARK, format_seconds, say
from tasks.report_files import report_files
from tasks.selection import select


def run_pipeline(options: Mapping[str, Any]) -> dict[str, str]:
    """Runs the DAG to its end and returns what the report is made of.

    Shows the steps' own lines; everything that Airflow logs goes to a file whose path is said.
    """
    selection = select(load_config(), options)
    ensure_airflow()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    log = home() / "logs" / f"{selection.pipeline}-{now}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    say(f"running DAG {selection.pipeline}, profile {selection.profile}; full log: {log}")

    conf = {name: value for name, value in options.items() if name != "pipeline" and value is not None}
    if selection.raw is not None:
        conf["raw"] = selection.raw
    command = [sys.executable, "-m", "airflow", "dags", "test", selection.pipeline, "--conf", json.dumps(conf)]
    errors, trials = [], _TrialsLeft()
    with (
        open(log, "w", encoding="utf-8") as file,
        subprocess.Popen(
            command, env=airflow_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                if line.startswith(PROGRESS_MARK):
                    print(line.rstrip() + trials.left_after(line), flush=True)
                elif line.startswith(ERROR_MARK):
                    errors.append(line.removeprefix(ERROR_MARK).rstrip())
        except KeyboardInterrupt:
            process.terminate()
            raise
    if process.returncode != 0 or errors:
        reasons = "\n".join(dict.fromkeys(errors)) or "a task failed in a way it should not have"
        raise UserError(f"{reasons}\n(the run failed; full log: {log})")
    return report_files(home() / "reports" / selection.pipeline / "latest")


class _TrialsLeft:
    """Counts the trials that were trained, to say how long the others may take."""

    def __init__(self) -> None:
        self._done = self._total = 0
        self._start = time.monotonic()

    def left_after(self, line: str) -> str:
        """What to add to a line: nothing, unless it tells of a finished trial."""
        planned = re.search(r"planned (\d+) trials, (\d+) of them", line)
        if planned:
            self._start = time.monotonic()
            self._total = int(planned[1]) - int(planned[2])
        if not re.match(rf"{PROGRESS_MARK}trial \d+ of", line):
            return ""
        self._done += 1
        left = (time.monotonic() - self._start) / self._done * (self._total - self._done)
        return f" ({self._done} of {self._total} done, about {format_seconds(left)} left)"
