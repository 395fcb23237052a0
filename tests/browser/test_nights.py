"""A first night, in a browser: switch the DAG on, run a night, see the champion and the budget.

Follows ``test_everyday_use`` on the same home folder, whose servers were stopped at its end.
"""

from __future__ import annotations

import datetime
import re
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import APIResponse, expect

from browsing import PATIENCE_MS, log_in
from conftest import Session
from servers import RUN_SECONDS, wait_until
from test_everyday_use import api, is_theirs

expect.set_options(timeout=PATIENCE_MS)
ENTRY = "conversions"
DAG = f"nightly_retrain_{ENTRY}"
DAY = "2026-01-05"
# The schedule's time is 3:00 UTC. For ten minutes its run is on time, and does its night.
ON_TIME = datetime.time(2, 55), datetime.time(3, 11)


@pytest.fixture(scope="module", autouse=True)
def servers(session: Session) -> None:
    wait_until(lambda: not ON_TIME[0] <= datetime.datetime.now(datetime.UTC).time() <= ON_TIME[1], 1000, "3:11 UTC")
    if session.up.process.poll() is not None:
        session.start()
    log_in(session.page, session.up)


def runs(session: Session, kind: str) -> list[dict[str, Any]]:
    return [one for one in api(session, "dags", DAG, "dagRuns")["dag_runs"] if one["run_type"] == kind]


def post(session: Session, *path: str, body: Any) -> APIResponse:
    return session.page.context.request.post("/".join([session.up.airflow, "api/v2", *path]), data=body)


def task_page(session: Session, run: str, task: str) -> str:
    return f"{session.up.airflow}/dags/{DAG}/runs/{quote(run, safe='')}/tasks/{task}"


def tasks(session: Session, run: str) -> dict[str, str]:
    """Returns the state of each task of a run."""
    found = api(session, "dags", DAG, "dagRuns", run, "taskInstances")["task_instances"]
    return {one["task_id"]: one["state"] for one in found}


def ended(session: Session, kind: str, seconds: float = 90) -> dict[str, Any]:
    """Waits for the one run of a kind to end, and returns it."""

    def found() -> dict[str, Any] | None:
        return next((one for one in runs(session, kind) if one["state"] in ("success", "failed")), None)

    run = wait_until(found, seconds, f"the end of the run: {kind}")
    assert run["state"] == "success", tasks(session, run["dag_run_id"])
    assert len(runs(session, kind)) == 1
    return run


def assert_nothing_was_done(session: Session, run: str, sentence: str) -> None:
    assert set(tasks(session, run).values()) == {"skipped"}
    session.page.goto(task_page(session, run, "open"))
    expect(session.page.locator("body")).to_contain_text(sentence)


def test_the_dag_is_paused_until_it_is_switched_on(session: Session) -> None:
    page = session.page
    page.goto(f"{session.up.airflow}/dags")
    page.get_by_test_id("search-dags").fill(DAG)
    expect(page.get_by_text("1 Dag", exact=True)).to_be_visible()
    assert api(session, "dags", DAG)["is_paused"] is True
    page.get_by_role("link", name=re.compile(f"^{DAG}")).click()
    page.locator("[data-scope=switch][data-part=control]").first.click()
    wait_until(lambda: api(session, "dags", DAG)["is_paused"] is False, 30, "the DAG is switched on")


def test_switching_it_on_runs_no_night_of_the_past(session: Session) -> None:
    """Airflow starts a run for the last time of the schedule that has passed, which ends at once."""
    run = ended(session, "scheduled")["dag_run_id"]
    assert_nothing_was_done(session, run, "was due before the schedule was switched on, so nothing is done")
    assert not list(session.home.glob(f"nights/{ENTRY}/*/night.json"))


def test_a_day_that_is_none_is_refused_in_the_words_of_the_form(session: Session) -> None:
    for conf, words in (({"day": "5.1.2026"}, "Day: '5.1.2026' is not a day"), ({"dya": DAY}, "unknown option dya")):
        answer = post(session, "dags", DAG, "dagRuns", body={"logical_date": None, "conf": conf})
        assert (answer.status, words in answer.json()["detail"]) == (400, True), answer.text()


def test_a_night_is_triggered_and_ends_in_one_sentence(session: Session) -> None:
    page = session.page
    page.goto(f"{session.up.airflow}/dags/{DAG}")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog")
    form.locator("[name=element_day]").fill(DAY)
    form.get_by_test_id("trigger-dag-submit").click()
    session.run = ended(session, "manual", RUN_SECONDS)["dag_run_id"]
    assert session.run.startswith(f"night {DAY} · ")
    page.goto(task_page(session, session.run, "decide"))
    expect(page.locator("body")).to_contain_text(re.compile(rf"promoted night {DAY}, the first champion: AUC 0\.\d+"))


def test_mlflows_registry_has_the_champion(session: Session) -> None:
    page = session.page
    page.goto(f"{session.up.mlflow}/#/models/{ENTRY}")
    expect(page.locator("body")).to_contain_text("champion")
    expect(page.locator("body")).to_contain_text("Version 1")


def test_the_front_page_leads_to_the_nights_and_the_budget(session: Session) -> None:
    page = session.page
    page.goto(session.up.reports)
    page.get_by_role("link", name=f"Nights of {ENTRY}").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Nights of {ENTRY}")
    status = page.locator("#table-status")
    expect(status).to_contain_text("tonight")
    expect(status).to_contain_text(f"night {DAY}, version 1")
    left = re.search(r"([\d.]+) of ε = ([\d.]+)", status.inner_text())
    assert left is not None
    assert 0 < float(left[1]) < float(left[2])
    page.get_by_role("link", name=DAY, exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Night {DAY} of {ENTRY}")


def test_a_finished_night_is_not_run_again_by_an_event_or_a_backfill(session: Session) -> None:
    assets = api(session, "assets")["assets"]
    asset = next(one["id"] for one in assets if one["name"] == f"new_day_{ENTRY}")
    assert post(session, "assets", "events", body={"asset_id": asset, "extra": {"day": DAY}}).ok
    # The run of a schedule is for the day before.
    first, last = "2026-01-06T00:00:00Z", "2026-01-06T23:00:00Z"
    answer = post(session, "backfills", body={"dag_id": DAG, "from_date": first, "to_date": last})
    assert answer.ok, answer.text()
    for kind in ("asset_triggered", "backfill"):
        assert_nothing_was_done(session, ended(session, kind)["dag_run_id"], f"night {DAY} of {ENTRY} is done")
    assert [path.parent.name for path in session.home.glob(f"nights/{ENTRY}/*/night.json")] == [DAY]


def test_no_console_of_ours_has_a_message(session: Session) -> None:
    ours = session.up.reports
    assert [one for one in session.consoles if one.page.startswith(ours) or one.about.startswith(ours)] == []
    errors = [one for one in session.consoles if one.level == "error" and not is_theirs(session, one)]
    assert errors == []
    session.stop()
