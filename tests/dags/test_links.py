"""Addresses of the buttons of tasks. In a process of its own, as Airflow is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runtime.airflow_home import airflow_environment
from tasks.runtime.home import MLFLOW_AT, REPORTS_AT, write_json

ADDRESSES = """
import json, sys
from dags import links
run, page, card = sys.argv[1:]
found = [links.run_in_mlflow(run), links.trials_in_mlflow(run), links.report_page(page), links.report_page(card)]
print("RESULT " + json.dumps(found))
"""


def addresses(home: Path, **servers: str) -> list[str | None]:
    run, page = home / "runs" / "clip_norm" / "r1", home / "reports" / "clip_norm" / "r1" / "page.html"
    write_json(run / "plan.json", {"parent": {"experiment": "3", "mlflow_run": "abc", "pipeline": "clip_norm"}})
    unset = {
        name: value
        for name, value in airflow_environment(home / "airflow").items()
        if name not in (MLFLOW_AT, REPORTS_AT)
    }
    done = subprocess.run(
        [sys.executable, "-c", ADDRESSES, str(run), str(page), "/etc/passwd"],
        env=unset | servers,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, done.stderr
    return json.loads(results[0].removeprefix("RESULT "))


def test_they_lead_to_the_servers_that_are_up(own_home: Path) -> None:
    up = {MLFLOW_AT: "http://127.0.0.1:5001", REPORTS_AT: "http://127.0.0.1:8090/"}
    run, trials, page, outside = addresses(own_home, **up)
    assert run == "http://127.0.0.1:5001/#/experiments/3/runs/abc?workflowType=machine_learning"
    assert trials == (
        "http://127.0.0.1:5001/#/experiments/3/runs?workflowType=machine_learning&searchFilter=tags.%60mlflow.parentRunId%60%20%3D%20%27abc%27"
    )
    assert page == "http://127.0.0.1:8090/clip_norm/r1/page.html"
    assert outside is None


@pytest.mark.parametrize(
    ("environment", "run"),
    [
        ({}, None),
        (
            {"MLFLOW_TRACKING_URI": "https://ml.example/"},
            "https://ml.example/#/experiments/3/runs/abc?workflowType=machine_learning",
        ),
    ],
)
def test_without_servers_of_ours(own_home: Path, environment: dict[str, str], run: str | None) -> None:
    assert addresses(own_home, **environment)[0::2] == [run, None]
