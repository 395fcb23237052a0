"""Requests to run a DAG, as Airflow's API server gets them. In a process of its own, as Airflow is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime.airflow_home import airflow_environment

ANSWER = """
import asyncio, json, sys
from dags.run_requests import RunRequests, checked
from tasks.runtime.errors import UserError

answers = []
for dag, text in json.loads(sys.argv[1]):
    try:
        answers.append(json.loads(checked(dag, text.encode())))
    except UserError as error:
        answers.append(str(error))
    except ValueError:
        answers.append("left alone")

async def request(path, method):
    seen = []
    async def app(scope, receive, send):
        seen.append((await receive())["body"].decode())
    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}
    scope = {"type": "http", "path": path, "method": method, "headers": []}
    await RunRequests(app)(scope, receive, None)
    return seen

for path, method in (("/api/v2/dags/clip_norm/dagRuns", "POST"), ("/api/v2/dags/clip_norm", "PATCH")):
    answers.append(asyncio.run(request(path, method)))
print("RESULT " + json.dumps(answers))
"""
SMOKE = {"profile": "smoke"}
REQUESTS: dict[str, tuple[str, Any]] = {
    "a choice": ("relative_loss", {"logical_date": None, "conf": {**SMOKE, "tasks": ["pctr"], "epsilons": "1,10"}}),
    "no choice": ("clip_norm", {"logical_date": None}),
    "a name": ("relative_loss", {"dag_run_id": "mine", "conf": SMOKE}),
    "preparation": ("prepare_data", {"conf": {**SMOKE, "pipeline": "label_dp", "tasks": None, "refit": True}}),
    "another's DAG": ("relative_loss_nightly", {"conf": {"tasks": []}}),
    "no task": ("relative_loss", {"conf": {**SMOKE, "tasks": None, "epsilons": "-1"}}),
    "no profile": ("relative_loss", {"conf": {"profile": None}}),
    "empty profile": ("relative_loss", {"conf": {"profile": ""}}),
    "another pipeline": ("relative_loss", {"conf": {**SMOKE, "pipeline": "clip_norm"}}),
    "the same pipeline": ("clip_norm", {"conf": {**SMOKE, "pipeline": "clip_norm"}}),
    "refit": ("prepare_data", {"conf": {**SMOKE, "refit": "yes"}}),
    "nonsense": ("relative_loss", "{"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    requests = [(dag, body if isinstance(body, str) else json.dumps(body)) for dag, body in REQUESTS.values()]
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, json.dumps(requests)],
        env=airflow_environment(tmp_path_factory.mktemp("airflow")),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, done.stderr
    return dict(zip([*REQUESTS, "not logged in", "another request"], json.loads(results[0][7:]), strict=True))


def test_a_run_is_named_for_what_was_chosen(answers: dict[str, Any]) -> None:
    assert answers["a choice"].pop("dag_run_id").startswith("smoke · pCTR · ε 1, 10 · 20")
    assert answers["a choice"] == REQUESTS["a choice"][1], "nothing else is changed"
    assert answers["no choice"]["dag_run_id"].startswith("quick · pCTR · ε 0.5, 3, 8 · ")
    assert answers["preparation"]["dag_run_id"].startswith("smoke · pCTR, pConvs · 20"), "prepares for any budget"


@pytest.mark.parametrize("request_", ["a name", "another's DAG"])
def test_others_are_left_alone(answers: dict[str, Any], request_: str) -> None:
    assert answers[request_] == REQUESTS[request_][1]


def test_what_airflow_refuses_itself_is_left_to_it(answers: dict[str, Any]) -> None:
    assert answers["nonsense"] == "left alone"


def test_what_cannot_run_is_refused_in_the_words_of_the_form(answers: dict[str, Any]) -> None:
    """An emptied field is null in the request."""
    first, second = answers["no task"].splitlines()
    assert first == "Prediction tasks: choose at least one of pCTR, pCVR, pConvs"
    assert second.startswith("Privacy budgets ε: '-1' is not a positive number")
    assert answers["no profile"] == answers["empty profile"] == "Profile: choose one"
    assert answers["refit"] == "New vocabulary: choose yes or no, true or false in JSON"


def test_the_dag_of_a_pipeline_runs_no_other(answers: dict[str, Any]) -> None:
    said = "Pipeline: this DAG runs relative_loss; other pipelines have DAGs of their own"
    assert answers["another pipeline"] == said
    assert answers["the same pipeline"]["dag_run_id"].startswith("smoke · pCTR · ε 1, 8 · ")


def test_who_is_not_logged_in_learns_nothing(answers: dict[str, Any]) -> None:
    assert answers["not logged in"] == ["{}"], "passed on unread, and Airflow asks for a login"
    assert answers["another request"] == ["{}"]


def test_names_are_allowed_as_ids(answers: dict[str, Any]) -> None:
    import re

    pattern = airflow_environment(Path("airflow"))["AIRFLOW__SCHEDULER__ALLOWED_RUN_ID_PATTERN"]
    for name in ("no choice", "preparation"):
        assert re.fullmatch(pattern, answers[name]["dag_run_id"])
