"""``tasks run``: runs a pipeline in this terminal, through the same DAG that the Airflow UI shows.

If ``make up`` runs on the home folder, its Airflow gets the run. Otherwise the run has an Airflow database of its own,
which no scheduler reads: a scheduler would start the same tasks again.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.check import check
from tasks.config.loading import config_path, load_config
from tasks.config.raw_roots import outside_roots
from tasks.config.selection import run_title
from tasks.outages.told import ended_with
from tasks.owners.sweeping import mark_killed, sweep
from tasks.runtime.airflow_home import airflow_of_a_run, ensure_airflow, environment_of_a_run
from tasks.runtime.errors import UserError
from tasks.runtime.handed_over import Paused, hand_over
from tasks.runtime.home import home, owners_alone
from tasks.runtime.processes import ends_with_us, signals_interrupt, stop_programs
from tasks.runtime.progress import say
from tasks.runtime.run_output import RunOutput
from tasks.runtime.running_servers import running_servers

_NO_GRAPHVIZ = "ignore:Could not import graphviz:UserWarning"


def run_pipeline(options: Mapping[str, Any]) -> dict[str, str]:
    """Runs the DAG to its end and returns the paths of the report's files.

    Prints the progress of the steps, and where the full log is. Raises a ``UserError`` with the errors of the steps if
    the run fails. Ctrl-C, SIGTERM and closing the terminal end the run and raise ``KeyboardInterrupt``.
    """
    selection = check(options)
    conf = {name: value for name, value in options.items() if name != "pipeline" and value is not None}
    if selection.raw is not None:
        conf["raw"] = selection.raw
    # The servers would refuse it: whoever uses them may read less than whoever has this shell.
    refused = selection.raw is not None and outside_roots(load_config(), selection.raw) is not None
    return run_dag(
        selection.pipeline,
        run_title(selection),
        conf,
        f"profile {selection.profile}",
        alone_because=f"{selection.raw} is outside of `raw_roots`" if refused else None,
    )


def run_dag(
    dag: str, title: str, conf: Mapping[str, Any], what: str, *, alone_because: str | None = None
) -> dict[str, str]:
    """Runs a DAG to its end and returns the result that its last step printed; see ``run_pipeline``.

    Args:
        dag: The DAG's id.
        title: What the run is, for lists of runs.
        conf: The values of the trigger form.
        what: What the run is, for the first line.
        alone_because: Why servers that are running do not get the run; None if they do.
    """
    sweep()
    servers = running_servers()
    if servers is not None and alone_because is not None:
        say(f"`make up` runs, but {alone_because}: running without it")
        servers = None
    if servers is not None and servers.config != str(config_path().resolve()):
        say(f"`make up` runs with another configuration, {servers.config}: running without it")
        servers = None
    with signals_interrupt():
        try:
            if servers is not None:
                say(f"running DAG {dag}, {what}")
                try:
                    return hand_over(servers, dag, title, conf)
                except Paused:
                    # Its scheduler starts no task of this DAG, so nothing can run twice.
                    say(f"{dag} is paused in the Airflow of `make up`, {servers.airflow}: running without it")
            return _run_alone(dag, conf, what)
        except KeyboardInterrupt:
            say(
                f"prepared data, finished trials and checkpoints are kept in {home()}: "
                "the same command continues from them"
            )
            raise


def _run_alone(dag: str, conf: Mapping[str, Any], what: str) -> dict[str, str]:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    output = RunOutput()
    with airflow_of_a_run(f"{dag}-{now}") as folder:
        ensure_airflow(folder)
        # The folder's name is no other run's, also if two start in the same second.
        log = owners_alone(home() / "logs") / f"{folder.name}.log"
        say(f"running DAG {dag}, {what}; full log: {log}")
        command = [sys.executable, "-m", "airflow", "dags", "test", dag, "--conf", json.dumps(dict(conf))]
        # Else every log begins with it.
        quiet = {"PYTHONWARNINGS": ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), _NO_GRAPHVIZ]))}
        try:
            status = _run_to_the_end(command, environment_of_a_run(folder) | quiet, log, output)
        finally:
            mark_killed(folder.name)
    if status != 0 or output.result is None:
        raise UserError(f"{output.reasons() or ended_with(status, log)}\n(the run failed; full log: {log})")
    return output.result


def _run_to_the_end(command: list[str], environment: Mapping[str, str], log: Path, output: RunOutput) -> int:
    """Runs a program with its output in ``log`` and in ``output``, and returns its status."""
    # In a session of its own: Ctrl-C reaches us alone, and we end the program with all processes that it has started.
    with (
        open(log, "w", encoding="utf-8") as file,
        subprocess.Popen(
            ends_with_us(command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            umask=0o077,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                output.take(line)
            return process.wait()
        except BaseException:
            stop_programs([process], end_children_with=signal.SIGTERM, polite_seconds=2, patience_seconds=1)
            raise
