"""``make run`` beside ``make up`` on one home, and ``make up`` restarted in the middle of a run.

Takes minutes, so `make test` leaves it out: ``pytest -m servers``. ``SERVERS_RUNS`` is the number of runs
beside the servers, 3 by default.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.tasks.runtime.programs import Up, call, servers_up, started, wait_until

pytestmark = pytest.mark.servers
RUNS = int(os.environ.get("SERVERS_RUNS", "3"))
RUN_SECONDS = 600
SMOKE = [sys.executable, "-m", "tasks", "run", "--profile", "smoke", "--tasks", "pctr"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return (tmp_path_factory.mktemp("beside") / "home").resolve()


@pytest.fixture(scope="module")
def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "MLFLOW", "DP_ADS"))}
    return kept | {"DP_ADS_HOME": str(home)}


@pytest.fixture(scope="module")
def up(home: Path, environment: dict[str, str]) -> Iterator[Up]:
    with servers_up(home.parent / "up.txt", environment) as servers:
        yield servers
        servers.stop()


def tasks_of(up: Up, run: dict[str, Any]) -> list[dict[str, Any]]:
    path = f"dags/{run['dag_id']}/dagRuns/{quote(run['dag_run_id'], safe='')}/taskInstances?limit=100"
    return up.get(path)["task_instances"]


def ran(up: Up, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The tasks of a run, without those of rounds that the smoke profile does not have, which are skipped."""
    later = re.compile(r"(next_round|train)_\d+")
    tasks = tasks_of(up, run)
    # The task that finds that there is no second round runs and skips itself.
    return [task for task in tasks if not (later.fullmatch(task["task_id"]) and task["state"] == "skipped")]


def attempts(home: Path, run: dict[str, Any]) -> list[Path]:
    folder = home / "airflow" / "logs" / f"dag_id={run['dag_id']}" / f"run_id={run['dag_run_id']}"
    return sorted(folder.rglob("attempt=*.log"))


def page_of(text: str) -> Path:
    found = re.findall(r"^Page: (.+)$", text, re.MULTILINE)
    assert len(found) == 1, text
    return Path(found[0])


@pytest.mark.parametrize("number", range(1, RUNS + 1))
def test_a_run_beside_the_servers_ends_in_its_own_table(
    number: int, up: Up, home: Path, environment: dict[str, str]
) -> None:
    """Each has a budget of its own, so each trains."""
    earlier = {run["dag_run_id"] for run in up.get("dags/relative_loss/dagRuns")["dag_runs"]} if number > 1 else set()
    done = subprocess.run(
        [*SMOKE, "--epsilons", str(number)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert "Relative loss increment" in text.replace("\n ", " ") or "increment (%)" in text
    progress = [line for line in done.stdout.splitlines() if line.startswith("▸ ")]
    assert len(progress) == len(set(progress)), "no line twice"
    trials = 3 if number == 1 else 2  # the baseline is trained once
    assert len([line for line in progress if re.match(r"▸ trial \d+ of 3", line)]) == trials
    assert len([line for line in progress if line.startswith("▸ planned 3 trials")]) == 1
    page = page_of(text)
    assert f"--epsilons {number}" in text or f"EPSILONS={number}" in (page.parent / "report.md").read_text()

    (run,) = [run for run in up.get("dags/relative_loss/dagRuns")["dag_runs"] if run["dag_run_id"] not in earlier]
    assert run["state"] == "success"
    instances = ran(up, run)
    assert {task["state"] for task in instances} == {"success"}
    assert {task["try_number"] for task in instances} == {1}, "no task was started twice"
    logs = [log for log in attempts(home, run) if "task_id=next_round_2" not in log.as_posix()]
    assert len(logs) == len(instances)
    assert all(log.stat().st_size > 0 for log in logs)
    with_page = page.relative_to(home / "reports").as_posix()
    assert call_text(f"{up.reports}/{with_page}") == page.read_text()
    assert with_page in call_text(f"{up.reports}/")


def call_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def test_an_interrupted_run_is_cancelled(up: Up, home: Path, environment: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "run.txt"
    with started([*SMOKE, "--epsilons", "77"], output, environment) as process:
        wait_until(lambda: "▸ planned" in output.read_text(), RUN_SECONDS, "the plan")
        process.terminate()
        assert process.wait(60) == 130
    text = output.read_text()
    assert "▸ cancelled the run in Airflow\n" in text
    assert f"are kept in {home}: the same command continues from them" in text
    runs = up.get("dags/relative_loss/dagRuns")["dag_runs"]
    (run,) = [run for run in runs if run["conf"].get("epsilons") in ([77.0], "77")]
    assert run["state"] == "failed"
    wait_until(lambda: not any(task["state"] == "running" for task in tasks_of(up, run)), 60, "its tasks end")


@pytest.mark.parametrize("step", ["train", "audit"])
def test_a_run_outlives_a_restart(step: str, tmp_path: Path, environment: dict[str, str], home: Path) -> None:
    """On a home of its own: the servers are stopped while a task of the step runs, and started again."""
    home = tmp_path / "home"
    environment = environment | {"DP_ADS_HOME": str(home)}
    with servers_up(tmp_path / "first.txt", environment) as first:

        def is_known() -> bool:
            return any(dag["dag_id"] == "relative_loss" for dag in first.get("dags")["dags"])

        wait_until(is_known, 120, "the DAG")
        body = {"logical_date": None, "conf": {"profile": "smoke", "tasks": ["pctr"]}}
        run = call(f"{first.airflow}/api/v2/dags/relative_loss/dagRuns", first.token, body)

        def is_running() -> bool:
            return any(task["task_id"] == step and task["state"] == "running" for task in tasks_of(first, run))

        wait_until(is_running, RUN_SECONDS, f"a running {step}")
        first.stop()
    with servers_up(tmp_path / "second.txt", environment) as second:

        def is_over() -> str | None:
            path = f"dags/relative_loss/dagRuns/{quote(run['dag_run_id'], safe='')}"
            state = second.get(path)["state"]
            return state if state in ("success", "failed") else None

        assert wait_until(is_over, RUN_SECONDS, "the run") == "success"
        assert {task["state"] for task in ran(second, run)} == {"success"}
        assert all(log.stat().st_size > 0 for log in attempts(home, run)), "no log is empty"
        second.stop()
    assert (home / "reports" / "relative_loss").exists()
