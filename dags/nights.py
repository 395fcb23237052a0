"""Builds the DAG of a nightly retrain. Importing this module registers no DAG.

A night runs on a cron schedule, and whenever its asset ``new_day_NAME`` gets an event whose ``extra`` names the day,
as ``{"day": "2026-01-31"}``. Runs that assets start have no logical date, so the event carries the day.
"""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import (
    DAG,
    Asset,
    AssetAlias,
    AssetOrTimeSchedule,
    CronTriggerTimetable,
    Param,
    PokeReturnValue,
    dag,
    get_current_context,
    task,
)
from airflow.sdk.exceptions import AirflowSkipException

from dags import links
from dags.alerts import alerts_of
from dags.steps import RETRIES, run_step, step_task
from tasks.config.dataset import TASK_TITLES
from tasks.config.loading import Config
from tasks.config.nightly import DAY_FIELD, Nightly, checked_day
from tasks.nights.record import Night, dag_id
from tasks.runtime.progress import note, say

_POLL_SECONDS = 60.0
# Markdown, so not indented.
_DOC = """
### {title}
{description}

Every night, on `{schedule}` ({timezone}) and whenever the asset `{asset}` names a new day: waits for the day's data,
compares it with the window, trains on the {window} days before it with ε = {epsilon:g}, audits, registers the model as
`{name}`, and makes it `{name}@champion` if it is good enough on the new day. A night that would exceed the total of
ε = {total:g} for a day's data is refused before training. A night that is done does nothing new when it runs again.

**Un-pause** the DAG to start its schedule. To repeat past nights, use Airflow's backfill or give the field Day. The log
of `decide` says in one sentence how the night ended. All nights, the champion and the budget:
`reports/{dag}/nights/page.html`.
"""


def nightly_dag(config: Config, name: str) -> DAG:
    """Builds the DAG of an entry: open → wait → prepare → check_data → reserve → … → decide → report."""
    nightly = config.night(name)
    new_day = Asset(f"new_day_{name}")
    title = f"Nightly retrain of {name}"
    alerts = alerts_of(name, nightly.alerts)

    @dag(
        dag_id=dag_id(name),
        dag_display_name=f"{dag_id(name)} · {title}",
        schedule=AssetOrTimeSchedule(
            timetable=CronTriggerTimetable(nightly.schedule, timezone=nightly.timezone), assets=[new_day]
        ),
        start_date=datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC),
        catchup=False,
        # One night after the other: each is compared with the champion that the one before left.
        max_active_runs=1,
        is_paused_upon_creation=True,
        default_args={**RETRIES, "on_failure_callback": alerts},
        tags=["nightly", TASK_TITLES[nightly.task]],
        params={"day": _day_param(nightly)},
        doc_md=_DOC.format(
            title=title,
            description=nightly.description,
            schedule=nightly.schedule,
            timezone=nightly.timezone,
            asset=new_day.name,
            window=nightly.window_days,
            epsilon=nightly.epsilon,
            total=nightly.total.epsilon,
            name=name,
            dag=dag_id(name),
        ),
    )
    def wired() -> None:
        _wire(name, nightly, new_day, alerts)

    return wired()


def _day_param(nightly: Nightly) -> Param:
    return Param(
        None,
        type=["null", "string"],
        format="date",
        title=DAY_FIELD,
        description="The newest day: it is what the models are compared on, and the window ends before it. Empty: "
        f"the day before the logical date ({nightly.timezone}), also in a backfill.",
    )


def _wire(name: str, nightly: Nightly, new_day: Asset, alerts: list[Any]) -> None:
    """Makes the tasks of a night in the DAG that is being built."""
    reserved = links.with_links(_with_data(name, nightly, new_day), links.MLFLOW_RUN)
    links.with_links(_with_model(reserved, alerts), links.PAGE)


def _with_data(name: str, nightly: Nightly, new_day: Asset) -> Any:
    """Makes the tasks until the night has its data and its budget; returns the last of them."""

    # The outlet is an alias, because each task that succeeds sends an event of each asset among its outlets, but an
    # event through an alias only if it adds one.
    later_nights = AssetAlias(f"later_nights_of_{name}")

    @step_task(task_id="open", multiple_outputs=False, inlets=[new_day], outlets=[later_nights])
    def open_() -> Night:
        from tasks.nights.steps import open_night

        reason, days = run_step(_due, name, nightly, new_day)
        if not days:
            raise AirflowSkipException(reason)
        # The ids of runs that the schedule and assets start do not name the day.
        note(f"night {days[0]}, started by: {reason}")
        night = run_step(open_night, name, days[0], reason)
        if "status" in night:
            raise AirflowSkipException(night["sentence"])
        if days[1:]:
            # Starts the next run, for the nights that are left.
            extra = {"day": days[1], "then": days[2:]}
            get_current_context()["outlet_events"][later_nights].add(new_day, extra=extra)
        return night

    @task.sensor(
        poke_interval=_POLL_SECONDS,
        mode="reschedule",
        # The step itself gives up: then the night has a record, and whoever should know is told.
        timeout=nightly.wait_hours * 3600 + 24 * 3600,
    )
    def wait(night: Night) -> PokeReturnValue:
        from tasks.nights.steps import give_up_waiting, has_data

        if not _is_its_turn():
            say("an earlier night of the backfill is running: this one waits for it to end")
            return PokeReturnValue(False)
        if run_step(has_data, night):
            return PokeReturnValue(True, night)
        if _hours_since_start() >= nightly.wait_hours:
            run_step(give_up_waiting, night)
        return PokeReturnValue(False)

    @step_task(multiple_outputs=False)
    def check_data(night: Night) -> Night:
        from tasks.nights.steps import check_data

        return run_step(check_data, night)

    @step_task(multiple_outputs=False)
    def prepare(night: Night) -> Night:
        from tasks.nights.steps import prepare

        return run_step(prepare, night)

    @step_task(multiple_outputs=False)
    def reserve(night: Night) -> Night:
        from tasks.nights.training_steps import reserve

        reserved = run_step(reserve, night)
        links.MLFLOW_RUN.push(links.parent_in_mlflow(reserved["parent"]))
        return reserved

    return reserve(prepare(check_data(wait(open_()))))


def _with_model(reserved: Any, alerts: list[Any]) -> Any:
    """Makes the tasks that train and judge; returns the last of them."""

    @step_task(multiple_outputs=False, pool="gpu")
    def train(night: Night) -> Night:
        from tasks.nights.training_steps import train

        return run_step(train, night)

    @step_task(multiple_outputs=False)
    def audit(night: Night) -> Night:
        from tasks.nights.training_steps import audit

        return run_step(audit, night)

    @step_task(multiple_outputs=False)
    def register(night: Night) -> Night:
        from tasks.nights.training_steps import register

        return run_step(register, night)

    @step_task(multiple_outputs=False, on_success_callback=alerts)
    def decide(night: Night) -> Night:
        from tasks.nights.training_steps import decide

        return run_step(decide, night)

    @step_task(multiple_outputs=False)
    def report(night: Night) -> dict[str, str]:
        from tasks.nights.steps import report

        made = run_step(report, night)
        links.PAGE.push(links.report_page(made["page"]))
        return made

    return report(decide(register(audit(train(reserved)))))


def _due(name: str, nightly: Nightly, new_day: Asset) -> tuple[str, list[str]]:
    """Returns what started the running DAG run, and the days whose nights are due, oldest first.

    A person and a backfill name one night, and get that one. The schedule and assets get nights that came late first.
    Without days, the run has nothing to do, and instead of what started it there is a sentence that says why.
    """
    from tasks.config.loading import load_config
    from tasks.nights.due import day_of_schedule, due_nights, is_before_schedule, nights_of_events

    context: Any = get_current_context()
    run, given = context["dag_run"], context["params"].get("day")
    if given:
        return "manual", [checked_day(given)]
    if run.run_type == "asset_triggered":
        events = list(context["triggering_asset_events"].get(new_day, ()))
        since = min((event.timestamp for event in events), default=run.run_after)
        later = context["inlet_events"][new_day].after(since.isoformat())
        extras = [event.extra for event in events], [event.extra for event in later]
        return "asset", nights_of_events(load_config(), name, *extras)
    moment = run.logical_date or run.run_after
    day = day_of_schedule(nightly, moment)
    if run.run_type == "scheduled":
        if is_before_schedule(name, moment, run.start_date):
            say(
                f"night {day} was due before the schedule was switched on, so nothing is done: the next night is the "
                "first. To run this one, trigger the DAG with its Day"
            )
            return "due before the schedule was switched on", []
        return "schedule", due_nights(load_config(), name, day)
    return "backfill" if run.run_type == "backfill" else "manual", [day]


def _is_its_turn() -> bool:
    """Returns whether no earlier night of the same backfill is running.

    The DAG's ``max_active_runs`` does not hold for backfills. They have their own, usually 10.
    """
    context: Any = get_current_context()
    if context["dag_run"].run_type != "backfill":
        return True
    earlier = context["ti"].get_previous_dagrun(state="running")
    return earlier is None or earlier.run_type != "backfill"


def _hours_since_start() -> float:
    context: Any = get_current_context()
    started = context["dag_run"].start_date
    return (datetime.datetime.now(datetime.UTC) - started).total_seconds() / 3600
