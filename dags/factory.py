'''Builds the DAG of a pipeline. Importing this module registers no DAG.

The DAG file that calls ``pipeline_dag`` registers the DAG, and Airflow lists it under that file. For example, a second
DAG of a pipeline, on a schedule::

    """Registers a nightly run of the relative-loss pipeline with Airflow."""
    from dags.factory import pipeline_dag
    from tasks.config.loading import load_config
    pipeline_dag(load_config(), "relative_loss", dag_id="relative_loss_nightly", schedule="@daily")
'''

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, dag, get_current_context
from airflow.sdk.exceptions import AirflowSkipException

from dags import links
from dags.form import filled_in_params, pipeline_params
from dags.steps import RETRIES, run_step, step_task
from tasks.config.loading import Config
from tasks.config.selection import run_title
from tasks.rounds.registry import most_rounds
from tasks.training.items import AuditedTrial, PreparedDataset, TrainedTrial, TrialGroup

# Markdown, so not indented.
_TRAINS = """
Checks the choices, prepares the logs, trains every trial of the sweep and a non-private baseline, audits each trial's ε
from the record of what it ran, and writes the report. Trials that share a compiled program are trained as one group. A
trial that an earlier run of any pipeline trained is reused. If all trials are reused, `train` and `audit` are skipped
and `report` audits them.
"""
_ROUNDS = """
What is trained depends on what was trained before: there are up to {rounds} rounds. `train` is the first; each
`next_round_N` plans a round from the validation losses so far, and `train_N` trains it. When nothing is left to train,
the other rounds are skipped.
"""
_MEASURES = """
Checks the choices, prepares the logs, computes or measures, and writes the report. Nothing is trained.
"""


def pipeline_dag(config: Config, name: str, *, dag_id: str | None = None, schedule: str | None = None) -> DAG:
    """Builds the DAG of a pipeline: check → prepare → plan → train → audit → report; or measure instead of the two.

    A pipeline whose later trials depend on earlier outcomes has as many rounds (next_round_N → train_N) between train
    and audit as the grid of any of its profiles may need (``tasks.rounds``).

    Args:
        config: The loaded ``pipelines.yaml``.
        name: The pipeline.
        dag_id: Id of the DAG, for a second DAG of the same pipeline. Default: the pipeline's name.
        schedule: Airflow schedule such as ``@daily``. Default: the DAG runs when it is triggered.
    """
    pipeline = config.pipeline(name)
    trains = all(grids.trains for grids in pipeline.grids.values())
    rounds = max(most_rounds(pipeline, grids) for grids in pipeline.grids.values()) if trains else 1
    documentation = (_TRAINS if trains else _MEASURES) + (_ROUNDS.format(rounds=rounds) if rounds > 1 else "")
    title, _, of_the_paper = pipeline.title.partition(" (")

    @dag(
        dag_id=dag_id or name,
        # The search of the UI looks at this name only, so it has the id, by which the README calls the pipeline.
        dag_display_name=f"{dag_id or name} · {title}",
        schedule=schedule,
        catchup=False,
        max_active_runs=1,
        default_args=RETRIES,
        tags=["paper", of_the_paper.removesuffix(")").removeprefix("the paper's ")] if of_the_paper else [],
        params=pipeline_params(config, name),
        doc_md=f"### {title}\n{documentation}\n"
        "The log of the task `report`, and its Details, link to the page; those of `train` and `audit` link to the "
        f"trials in MLflow. The files are in `reports/{name}/` in the home folder.",
    )
    def wired() -> None:
        _wire(config, name, trains=trains, rounds=rounds)

    return wired()


def _wire(config: Config, name: str, *, trains: bool, rounds: int) -> None:
    """Makes the tasks of a pipeline in the DAG that is being built."""

    @step_task()
    def check() -> str:
        from tasks.check import check

        return run_title(run_step(check, {**filled_in_params(), "pipeline": name}))

    @step_task()
    def prepare() -> list[PreparedDataset]:
        from tasks.prepare import prepare_datasets

        prepared = run_step(prepare_datasets, {**filled_in_params(), "pipeline": name})
        links.push_data_cards(prepared)
        return prepared

    @step_task()
    def plan(prepared: list[PreparedDataset]) -> list[TrialGroup]:
        from tasks.plan import plan

        planned = run_step(plan, {**filled_in_params(), "pipeline": name}, prepared)
        links.MLFLOW_RUN.push(links.run_in_mlflow(planned["run"]))
        # Airflow maps tasks over the returned value only, so the run goes into an XCom of its own.
        get_current_context()["ti"].xcom_push(key="run", value=planned["run"])
        return planned["groups"]

    # Named by its arguments, which Airflow knows before the task starts.
    @step_task(pool="gpu", map_index_template="{{ task.op_kwargs['group']['name'] }}")
    def train(group: TrialGroup) -> list[TrainedTrial]:
        from tasks.train import train

        links.MLFLOW_TRIALS.push(links.trials_in_mlflow(group["items"][0]["run"]))
        return run_step(train, group)

    # A round in which nothing was left to train has skipped its training.
    @step_task(trigger_rule="all_success" if rounds == 1 else "none_failed")
    def audit(run: str, trained: list[list[list[TrainedTrial]] | None]) -> list[AuditedTrial]:
        every = [one for groups in trained for group in groups or () for one in group]
        if not every:
            raise AirflowSkipException("nothing was trained")
        from tasks.audit import audit_group

        links.MLFLOW_TRIALS.push(links.trials_in_mlflow(run))
        return run_step(audit_group, every)

    @step_task(pool="gpu")
    def measure(run: str) -> str:
        from tasks.measure import measure

        return run_step(measure, run)

    # If every trial was trained before, there is nothing to map over: train and audit are skipped, report is not.
    @step_task(trigger_rule="none_failed", multiple_outputs=False)
    def report(run: str, audited: list[AuditedTrial] | None) -> dict[str, str]:
        from tasks.report import report

        made = run_step(report, run, audited or [])
        links.PAGE.push(links.report_page(made["page"]))
        return made

    prepared = links.with_links(prepare(), *map(links.data_card_link, config.datasets))
    check() >> prepared
    planned = links.with_links(plan(prepared), links.MLFLOW_RUN)
    run = planned["run"]
    if trains:
        trained = [links.with_links(train.expand(group=planned), links.MLFLOW_TRIALS)]
        for number in range(2, rounds + 1):
            planned = _next_round(number, planned["run"], trained[-1])
            again = train.override(task_id=f"train_{number}")
            trained.append(links.with_links(again.expand(group=planned), links.MLFLOW_TRIALS))
        made = report(run, links.with_links(audit(run, trained), links.MLFLOW_TRIALS))
    else:
        made = report(measure(run), [])
    links.with_links(made, links.PAGE)


def _next_round(number: int, run: Any, trained: Any) -> Any:
    """Makes the task that plans a round, given the run from the task that planned the round before, and its training.

    If that round was planned but not trained, since its trials were found, this one is planned. If it was skipped, so
    is this one: the plan of the round before is its only other upstream.
    """

    @step_task(task_id=f"next_round_{number}", trigger_rule="none_failed_min_one_success")
    def next_round(run: str) -> list[TrialGroup]:
        from tasks.next_round import next_round

        groups = run_step(next_round, run, number)
        if groups is None:
            raise AirflowSkipException("nothing is left to train")
        get_current_context()["ti"].xcom_push(key="run", value=run)
        return groups

    planned = next_round(run)
    trained >> planned
    return planned
