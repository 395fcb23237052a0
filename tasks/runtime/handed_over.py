"""Hands a run to the Airflow that ``make up`` runs on the same home folder, and follows it to its end."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from tasks.runtime.airflow_api import AirflowApi, NoAnswer, Refused
from tasks.runtime.airflow_home import airflow_folder
from tasks.runtime.errors import UserError
from tasks.runtime.processes import START_SECONDS
from tasks.runtime.progress import say
from tasks.runtime.run_output import RunOutput
from tasks.runtime.running_servers import Addresses, running_servers
from tasks.runtime.task_logs import TaskLogs

_POLL_SECONDS = 0.5
# How long the API server may be silent, or the log may lack the result of a run that has ended.
_SILENT_SECONDS = 120
_LATE_SECONDS = 15
# How often to look whether a cancelled run stays cancelled: longer than a scheduler takes for a decision.
_LOOKS = 6
# Characters that our setting `allowed_run_id_pattern` does not allow in the id of a run.
_REFUSED = re.compile(r"[^\w.~:+, ·-]+")


class Paused(Exception):
    """The DAG is switched off in Airflow, which would leave a run of it waiting."""


def hand_over(servers: Addresses, dag: str, name: str, conf: Mapping[str, Any]) -> dict[str, str]:
    """Triggers a DAG, prints its progress, and returns the result that the run printed.

    If it is interrupted, the run is cancelled. Raises ``Paused`` before anything is done if the DAG is switched off.

    Args:
        servers: The running servers.
        dag: The DAG's id.
        name: What the run is, for people. The time is appended, since names of runs are unique.
        conf: The values of the trigger form.
    """
    api = AirflowApi(servers.airflow)
    _wait_for(api, servers, dag)
    run = _trigger(api, dag, name, conf)
    page = f"{servers.airflow}/dags/{quote(dag)}/runs/{quote(run)}"
    say(f"handed over to the Airflow of `make up`: {page}")
    try:
        return _follow(api, dag, run, page)
    except KeyboardInterrupt:
        _cancel(api, dag, run)
        raise


def _trigger(api: AirflowApi, dag: str, name: str, conf: Mapping[str, Any]) -> str:
    """Triggers the DAG and returns the run's id: the name and the time."""
    allowed = _REFUSED.sub("-", name)
    for seconds_left in (3, 2, 1, 0):
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        body = {"dag_run_id": f"{allowed} · {now}", "logical_date": None, "conf": dict(conf)}
        try:
            return str(api.post("dags", dag, "dagRuns", body=body)["dag_run_id"])
        except NoAnswer as error:
            raise UserError(f"Airflow did not say whether it took the run: {error}") from None
        except Refused as refused:
            # Another run of that name was started in the same second.
            if refused.status != HTTPStatus.CONFLICT or not seconds_left:
                raise
        time.sleep(1)
    raise AssertionError("unreachable")


def _wait_for(api: AirflowApi, servers: Addresses, dag: str) -> None:
    """Waits until Airflow knows the DAG. The servers may have been started a moment ago."""
    deadline = time.monotonic() + START_SECONDS
    said = False
    while True:
        try:
            paused = api.get("dags", dag)["is_paused"]
            break
        except (NoAnswer, Refused) as error:
            unknown = isinstance(error, NoAnswer) or error.status == HTTPStatus.NOT_FOUND
            if not unknown or time.monotonic() > deadline:
                raise UserError(f"the Airflow of `make up` does not take the run: {error}") from None
        if running_servers() is None:
            raise UserError("`make up` was stopped before it could take the run: start either again")
        if not said:
            say(f"waiting for the Airflow of `make up`, {servers.airflow}")
            said = True
        time.sleep(1)
    if paused:
        raise Paused


def _follow(api: AirflowApi, dag: str, run: str, page: str) -> dict[str, str]:
    logs = TaskLogs(_log_folder(dag, run))
    output = RunOutput()
    last_answer, waits, state = time.monotonic(), False, "queued"
    while state not in ("success", "failed"):
        time.sleep(_POLL_SECONDS)
        _take(logs, output)
        try:
            state = api.get("dags", dag, "dagRuns", run)["state"]
            last_answer = time.monotonic()
            if state == "queued" and not waits and _others(api, dag, run):
                waits = True
                say(f"waiting: another run of {dag} is running, and the DAG runs one at a time")
        except NoAnswer:
            if running_servers() is None:
                raise UserError(f"`make up` was stopped. Its next start continues this run, {run!r}") from None
            if time.monotonic() - last_answer > _SILENT_SECONDS:
                raise UserError(f"Airflow does not answer any more; the run is {page}") from None
    deadline = time.monotonic() + _LATE_SECONDS
    _take(logs, output)
    while state == "success" and output.result is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        _take(logs, output)
    if state == "failed" or output.result is None:
        _fail(api, dag, run, page, output)
    return output.result


def _take(logs: TaskLogs, output: RunOutput) -> None:
    for line in logs.new_lines():
        output.take(line)


def _log_folder(dag: str, run: str) -> Path:
    return airflow_folder() / "logs" / f"dag_id={dag}" / f"run_id={run}"


def _others(api: AirflowApi, dag: str, run: str) -> bool:
    running = api.get("dags", dag, "dagRuns", state="running")["dag_runs"]
    return any(other["dag_run_id"] != run for other in running)


def _fail(api: AirflowApi, dag: str, run: str, page: str, output: RunOutput) -> NoReturn:
    raise UserError(f"{output.reasons() or _failed_tasks(api, dag, run)}\n(the run failed; its logs: {page})")


def _failed_tasks(api: AirflowApi, dag: str, run: str) -> str:
    try:
        tasks = api.get("dags", dag, "dagRuns", run, "taskInstances", state="failed")["task_instances"]
    except NoAnswer:
        tasks = []
    names = ", ".join(dict.fromkeys(task["task_id"] for task in tasks))
    return f"task {names} failed unexpectedly" if names else "the run ended without a result"


def _cancel(api: AirflowApi, dag: str, run: str) -> None:
    """Marks the run as failed, and sees that it stays so.

    SQLite has no locks of rows: a scheduler that has just read the run as running writes its own decision over ours,
    which may be "success", for tasks that were cancelled before they started count as skipped.
    """
    try:
        api.patch("dags", dag, "dagRuns", run, body={"state": "failed"})
        for _ in range(_LOOKS):
            time.sleep(_POLL_SECONDS)
            if api.get("dags", dag, "dagRuns", run)["state"] != "failed":
                api.patch("dags", dag, "dagRuns", run, body={"state": "failed"})
    except (NoAnswer, UserError) as error:
        say(f"the run could not be cancelled in Airflow ({error})")
    else:
        say("cancelled the run in Airflow")
