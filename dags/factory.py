'''Builds the DAG of a pipeline, and the fields of its trigger form. Importing this module registers no DAG.

The DAG file that calls ``pipeline_dag`` registers the DAG, and Airflow lists it under that file. For example, a second
DAG of a pipeline, on a schedule::

    """Registers a nightly run of the relative-loss pipeline with Airflow."""
    from dags.factory import pipeline_dag
    from tasks.config.loading import load_config
    pipeline_dag(load_config(), "relative_loss", dag_id="relative_loss_nightly", schedule="@daily")
'''

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk import DAG, Param, dag, get_current_context, task

from tasks.config.dataset import TASKS
from tasks.config.loading import Config
from tasks.runtime.progress import step
from tasks.training.items import AuditedTrial, PreparedDataset, TrainedTrial, TrialGroup

# Markdown, so not indented.
_TRAINS = """
Prepares the logs, trains every trial of the sweep and a non-private baseline, audits each trial's ε from the record of
what it ran, and writes the report. Trials that share a compiled program are trained as one group. A trial that an
earlier run of any pipeline trained is reused. If all trials are reused, `train` and `audit` are skipped and `report`
audits them.
"""
_MEASURES = """
Prepares the logs, computes or measures, and writes the report. Nothing is trained.
"""


def pipeline_dag(config: Config, name: str, *, dag_id: str | None = None, schedule: str | None = None) -> DAG:
    """Builds the DAG of a pipeline: prepare → plan → train → audit → report, or prepare → plan → measure → report.

    Args:
        config: The loaded ``pipelines.yaml``.
        name: The pipeline.
        dag_id: Id of the DAG, for a second DAG of the same pipeline. Default: the pipeline's name.
        schedule: Airflow schedule such as ``@daily``. Default: the DAG runs when it is triggered.
    """
    pipeline = config.pipeline(name)
    trains = all(grids.trains for grids in pipeline.grids.values())
    title, _, of_the_paper = pipeline.title.partition(" (")

    @dag(
        dag_id=dag_id or name,
        dag_display_name=dag_id or title,
        schedule=schedule,
        catchup=False,
        max_active_runs=1,
        tags=["paper", of_the_paper.removesuffix(")").removeprefix("the paper's ")] if of_the_paper else [],
        params=_pipeline_params(config, name),
        doc_md=f"### {title}\n{_TRAINS if trains else _MEASURES}\n"
        f"The page is `reports/{name}/latest/page.html` in the home folder, and an artifact of the parent run in "
        "MLflow. `reports/index.html` lists all reports.",
    )
    def wired() -> None:
        @task
        def prepare() -> list[PreparedDataset]:
            from tasks.prepare import prepare_datasets

            return step(prepare_datasets, {"pipeline": name, **filled_in_params()})

        @task
        def plan(prepared: list[PreparedDataset]) -> list[TrialGroup]:
            from tasks.plan import plan

            planned = step(plan, {"pipeline": name, **filled_in_params()}, prepared)
            # Airflow maps tasks over the returned value only, so the run goes into an XCom of its own.
            get_current_context()["ti"].xcom_push(key="run", value=planned["run"])
            return planned["groups"]

        @task(pool="gpu", map_index_template="{{ group_name }}")
        def train(group: TrialGroup) -> list[TrainedTrial]:
            from tasks.train import train

            get_current_context()["group_name"] = group["name"]
            return step(train, group)

        @task(map_index_template="{{ group_name }}")
        def audit(trained: list[TrainedTrial]) -> list[AuditedTrial]:
            from tasks.audit import audit_group

            more = f" and {len(trained) - 1} more" if len(trained) > 1 else ""
            get_current_context()["group_name"] = trained[0]["name"] + more
            return step(audit_group, trained)

        @task(pool="gpu")
        def measure(run: str) -> str:
            from tasks.measure import measure

            return step(measure, run)

        # If every trial was trained before, there is nothing to map over: train and audit are skipped, report is not.
        @task(trigger_rule="none_failed", multiple_outputs=False)
        def report(run: str, audited: list[list[AuditedTrial]]) -> dict[str, str]:
            from tasks.report import report

            return step(report, run, [one for group in audited for one in group])

        planned = plan(prepare())
        if trains:
            report(planned["run"], audit.expand(trained=train.expand(group=planned)))
        else:
            report(measure(planned["run"]), [])

    return wired()


def filled_in_params() -> dict[str, Any]:
    """Returns the fields of the trigger form that were filled in, for a running task."""
    return {name: value for name, value in get_current_context()["params"].items() if value}


def profile_param(config: Config, profiles: Iterable[str]) -> Param:
    """Returns the form's field for the profile: one of ``profiles``, by default ``quick`` if it is one."""
    names = list(profiles)
    return Param(
        "quick" if "quick" in names else names[0],
        type="string",
        enum=names,
        title="Profile",
        description="Scale of the run. " + " ".join(f"{name}: {config.profile(name).description}" for name in names),
    )


def tasks_param(default: Iterable[str] | None) -> Param:
    """Returns the form's field for the prediction tasks; with ``default`` None it may stay empty."""
    return Param(
        None if default is None else list(default),
        type=["null", "array"] if default is None else "array",
        items={"type": "string", "enum": list(TASKS)},
        examples=list(TASKS),
        title="Prediction tasks",
        description="Leave empty for the pipeline's own." if default is None else None,
    )


def dataset_param(config: Config) -> Param:
    """Returns the form's field for the dataset."""
    return Param(
        None,
        type=["null", "string"],
        enum=[None, *config.datasets],
        title="Dataset",
        description="Used for all tasks. Leave empty for the pipeline's own.",
    )


def raw_param() -> Param:
    """Returns the form's field for the raw log's files."""
    return Param(
        None,
        type=["null", "string"],
        title="Raw log",
        description="The dataset's files, if pipelines.yaml does not name them: a file, a folder or a pattern such as "
        "logs/day=*/*.parquet.",
    )


def _pipeline_params(config: Config, name: str) -> dict[str, Param]:
    pipeline = config.pipeline(name)
    return {
        "profile": profile_param(config, pipeline.grids),
        "tasks": tasks_param(pipeline.datasets),
        "epsilons": Param(
            None,
            type=["null", "array"],
            items={"type": "number", "exclusiveMinimum": 0},
            title="Privacy budgets ε",
            description="Leave empty for the profile's own.",
        ),
        "seeds": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Seeds",
            description="Number of seeds to average over. Leave empty for the profile's own.",
        ),
        "dataset": dataset_param(config),
        "raw": raw_param(),
    }
