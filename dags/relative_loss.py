"""The DAG of the paper's Table 1. It only wires: each task is a local import and one call."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param, dag, get_current_context, task

from tasks.config import load_config
from tasks.descriptions import TASKS
from tasks.progress import step

PIPELINE = "relative_loss"
_CONFIG = load_config()


def _options() -> dict[str, Any]:
    params = get_current_context()["params"]
    return {"pipeline": PIPELINE, **{name: value for name, value in params.items() if value}}


@dag(
    dag_id=PIPELINE,
    dag_display_name="Relative loss by privacy budget",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["paper", "table 1"],
    params={
        "profile": Param(
            "quick",
            type="string",
            enum=list(_CONFIG.pipeline(PIPELINE).grids),
            title="Profile",
            description="How large: " + "; ".join(f"{name}: {p.description}" for name, p in _CONFIG.profiles.items()),
        ),
        "tasks": Param(
            list(_CONFIG.pipeline(PIPELINE).datasets),
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
            enum=[None, *_CONFIG.datasets],
            title="Dataset",
            description="For all tasks. Leave empty for the pipeline's own (synthetic).",
        ),
        "raw": Param(
            None,
            type=["null", "string"],
            title="Raw log",
            description="The dataset's files, where they are not in pipelines.yaml: a path, a folder or a pattern.",
        ),
    },
)
def relative_loss() -> None:
    """
    ### How much is lost at each privacy budget?
    Prepares the logs, trains every trial of the sweep with DP-SGD (and a non-private baseline), audits each
    trial's ε from the record of what it ran, and makes the table of relative losses: Table 1 of *Private Ad
    Modeling with DP-SGD*. Trials that an earlier run trained are found and not trained again: where there are only
    such, `train` and `audit` are skipped, and `report` audits what it found.

    The table is in `reports/relative_loss/latest/` of the home folder and on the parent run in MLflow.
    """

    @task
    def prepare() -> list[dict[str, str]]:
        from tasks.datasets import prepare_datasets

        return step(prepare_datasets, _options())

    @task
    def plan(prepared: list[dict[str, str]]) -> list[dict[str, Any]]:
        from tasks.plan import plan

        planned = step(plan, _options(), prepared)
        # Beside the returned value, which is the only one that tasks can be mapped over.
        get_current_context()["ti"].xcom_push(key="run", value=planned["run"])
        return planned["items"]

    # Not an XCom for each key of the result: with hundreds of trials that is most of the time a rerun takes.
    @task(pool="gpu", map_index_template="{{ trial_name }}", multiple_outputs=False)
    def train(item: dict[str, Any]) -> dict[str, Any]:
        from tasks.train import train

        get_current_context()["trial_name"] = item["name"]
        return step(train, item)

    @task(map_index_template="{{ trial_name }}", multiple_outputs=False)
    def audit(trained: dict[str, Any]) -> dict[str, Any]:
        from tasks.audit import audit

        get_current_context()["trial_name"] = trained["name"]
        return step(audit, trained)

    # Also where every trial was trained before, so that there is nothing to map over.
    @task(trigger_rule="none_failed", multiple_outputs=False)
    def report(run: str, audited: list[dict[str, Any]]) -> dict[str, str]:
        from tasks.report import report

        return step(report, run, audited)

    planned = plan(prepare())
    report(planned["run"], audit.expand(trained=train.expand(item=planned)))


relative_loss()
