"""``tasks run``: runs a pipeline in this terminal, through the same DAG that the Airflow UI shows."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from tasks.config.loading import load_config
from tasks.config.selection import select
from tasks.reporting.files import report_files
from tasks.runtime.airflow_home import airflow_environment, ensure_airflow
from tasks.runtime.errors import UserError
from tasks.runtime.home import home
from tasks.runtime.progress import ERROR_MARK, PROGRESS_MARK, format_seconds, say


def run_pipeline(options: Mapping[str, Any]) -> dict[str, str]:
    """Runs the DAG to its end and returns the paths of the report's files.

    Prints the progress of the steps. Airflow's log goes to a file, whose path is printed. Raises a ``UserError`` with
    the errors of the steps if the run fails.
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
        reasons = "\n".join(dict.fromkeys(errors)) or "a task failed unexpectedly"
        raise UserError(f"{reasons}\n(the run failed; full log: {log})")
    return report_files(home() / "reports" / selection.pipeline / f"latest-{selection.profile}")


class _TrialsLeft:
    """Counts trained trials in the progress lines and estimates the time left."""

    def __init__(self) -> None:
        self._done = self._total = 0
        self._start = time.monotonic()

    def left_after(self, line: str) -> str:
        """Returns the text to append to a progress line; empty unless the line reports a finished trial."""
        planned = re.search(r"planned (\d+) trials, (\d+) of them", line)
        if planned:
            self._start = time.monotonic()
            self._total = int(planned[1]) - int(planned[2])
        if not re.match(rf"{PROGRESS_MARK}trial \d+ of", line):
            return ""
        self._done += 1
        left = (time.monotonic() - self._start) / self._done * (self._total - self._done)
        return f" ({self._done} of {self._total} done, about {format_seconds(left)} left)"
