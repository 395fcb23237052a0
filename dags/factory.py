"""One DAG for each pipeline of ``pipelines.yaml``, all made by one factory. They only wire: each task is a local import
and one call."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param, dag, get_current_context, task

from tasks.config import Config, load_config
from tasks.descriptions import TASKS
from tasks.progress import step

_TRAINS = """
    Prepares the logs, trains every trial of the sweep (and a non-private baseline) in groups that share a compiled
    program, audits each trial's ε from the record of what it ran, and makes the report. Trials that an earlier run
    trained, of this pipeline or another, are found and not trained again: where there are only such, `train` and
    `audit` are skipped, and `report` audits what it found.
"""
_MEASURES = """
    Prepares the logs, computes or measures, and makes the report. Nothing is trained.
"""


def pipeline_dag(config: Config, name: str) -> DAG:
    """The DAG of a pipeline: prepare, plan, train and audit in groups (or measure), report."""
    pipeline = config.pipeline(name)
    trains = all(grids.trains for grids in pipeline.grids.values())
    title, _, of_the_paper = pipeline.title.partition(" (")

    def options() -> dict[str, Any]:
        params = get_current_context()["params"]
        return {"pipeline": name, **{key: value for key, value in params.items() if value}}

    @dag(
        dag_id=name,
        dag_display_name=title,
        schedule=None,
        catchup=False,
        max_active_runs=1,
        tags=["paper", *([of_the_paper.removesuffix(")").removeprefix("the paper's ")] if of_the_paper else [])],
        params=_params(config, name),
        doc_md=f"### {title}\n{_TRAINS if trains else _MEASURES}\n"
        f"The page is `reports/{name}/latest/page.html` in the home folder, and on the parent run in MLflow; "
        "`reports/index.html` lists all.",
    )
    def wired() -> None:
        @task
        def prepare() -> list[dict[str, str]]:
            from tasks.datasets import prepare_datasets

            return step(prepare_datasets, options())

        @task
        def plan(prepared: list[dict[str, str]]) -> list[dict[str, Any]]:
            from tasks.plan import plan

            planned = step(plan, options(), prepared)
            # Beside the returned value, which is the only one that tasks can be mapped over.
            get_current_context()["ti"].xcom_push(key="run", value=planned["run"])
            return planned["groups"]

        @task(pool="gpu", map_index_template="{{ group_name }}")
        def train(group: dict[str, Any]) -> list[dict[str, Any]]:
            from tasks.train import train

            get_current_context()["group_name"] = group["name"]
            return step(train, group)

        @task(map_index_template="{{ group_name }}")
        def audit(trained: list[dict[str, Any]]) -> list[dict[str, Any]]:
            from tasks.audit import audit_group

            more = f" and {len(trained) - 1} more" if len(trained) > 1 else ""
            get_current_context()["group_name"] = trained[0]["name"] + more
            return step(audit_group, trained)

        @task(pool="gpu")
        def measure(run: str) -> str:
            from tasks.measure import measure

            return step(measure, run)

        # Also where every trial was trained before, so that there is nothing to map over. Not an XCom for each key.
        @task(trigger_rule="none_failed", multiple_outputs=False)
        def report(run: str, audited: list[list[dict[str, Any]]]) -> dict[str, str]:
            from tasks.report import report

            return step(report, run, [one for group in audited for one in group])

        planned = plan(prepare())
        if trains:
            report(planned["run"], audit.expand(trained=train.expand(group=planned)))
        else:
            report(measure(planned["run"]), [])

    return wired()


def _params(config: Config, name: str) -> dict[str, Param]:
    pipeline = config.pipeline(name)
    return {
        "profile": Param(
            "quick" if "quick" in pipeline.grids else next(iter(pipeline.grids)),
            type="string",
            enum=list(pipeline.grids),
            title="Profile",
            description="How large: " + "; ".join(f"{key}: {p.description}" for key, p in config.profiles.items()),
        ),
        "tasks": Param(
            list(pipeline.datasets),
            type="array",
            items={"type": "string", "enum": list(TASKS)},
            examples=list(TASKS),
            title="Prediction tasks",
        ),
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
            description="How many to average over. Leave empty for the profile's own.",
        ),
        "dataset": Param(
            None,
            type=["null", "string"],
            enum=[None, *config.datasets],
            title="Dataset",
            description="For all tasks. Leave empty for the pipeline's own (synthetic).",
        ),
        "raw": Param(
            None,
            type=["null", "string"],
            title="Raw log",
            description="The dataset's files, where they are not in pipelines.yaml: a path, a folder or a pattern.",
        ),
    }


_CONFIG = load_config()
for _name in _CONFIG.pipelines:
    pipeline_dag(_CONFIG, _name)
