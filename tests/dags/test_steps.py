"""Which failures of a task Airflow tries again, through real Airflow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tasks.runtime.airflow_home import airflow_environment

FAILING = """
import datetime, pathlib, sys
from airflow.sdk import dag
from dags.steps import RETRIES, run_step, step_task
from tasks.runtime.errors import UserError

CALLS = pathlib.Path(__file__).parent / "calls"

def call(name, *errors):
    calls = CALLS / name
    calls.touch()
    calls.write_text(calls.read_text() + "x")
    number = len(calls.read_text())
    if number <= len(errors):
        raise errors[number - 1]
    return number

@dag(dag_id="failing", schedule=None, default_args={**RETRIES, "retry_delay": datetime.timedelta(0)})
def failing():
    @step_task()
    def lost():
        return run_step(call, "lost", ConnectionResetError("the server went away"), OSError(5, "input/output error"))

    @step_task(trigger_rule="all_done")
    def wrong():
        return run_step(call, "wrong", UserError("the field is empty"), UserError("the field is empty"))

    @step_task(trigger_rule="all_done")
    def broken():
        return run_step(call, "broken", KeyError("a bug"), KeyError("a bug"))

    lost() >> wrong() >> broken()

failing()
"""


def test_what_may_pass_is_tried_again_and_what_is_final_is_not(tmp_path: Path) -> None:
    (tmp_path / "dags" / "calls").mkdir(parents=True)
    (tmp_path / "dags" / "failing.py").write_text(FAILING)
    environment = airflow_environment(tmp_path / "airflow") | {
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
    }
    for arguments in (["db", "migrate"], ["dags", "test", "failing"]):
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    calls = {path.name: len(path.read_text()) for path in (tmp_path / "dags" / "calls").iterdir()}
    assert calls == {"lost": 3, "wrong": 1, "broken": 1}, done.stdout + done.stderr
    assert "✗ the field is empty" in done.stdout
    assert "Done. Returned value was" not in done.stdout + done.stderr
