"""Registers the DAG that prepares data ahead of the pipelines and announces it as an asset."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from airflow.sdk import Asset, Metadata, Param, dag

from dags import links
from dags.form import dataset_param, filled_in_params, pipeline_param, profile_param, raw_param, tasks_text_param
from dags.steps import RETRIES, run_step, step_task
from tasks.config.loading import load_config

PREPARED_DATA = Asset("prepared_data")
_CONFIG = load_config()
# Markdown, so not indented.
_DOC = """
### From raw logs to encoded splits
Splits the log chronologically 80/10/10, log-transforms integers, builds vocabularies from the training split and writes
encoded arrays that training memory-maps. Data that is already prepared is reused. The log of the task `prepare`, and
its Details, link to the data cards. The asset `prepared_data` carries the fingerprints.
"""


@dag(
    dag_id="prepare_data",
    dag_display_name="prepare_data · Prepare data",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    default_args=RETRIES,
    tags=["data"],
    doc_md=_DOC,
    params={
        "pipeline": pipeline_param(_CONFIG),
        "profile": profile_param(_CONFIG, _CONFIG.profiles),
        "dataset": dataset_param(_CONFIG),
        "tasks": tasks_text_param(),
        "raw": raw_param(),
        "refit": Param(
            False,
            type="boolean",
            title="New vocabulary",
            description="Only matters for datasets with keep_vocabulary: builds a new vocabulary instead of keeping "
            "the ids of the earlier one.",
        ),
    },
)
def prepare_data() -> None:
    @step_task()
    def check() -> None:
        from tasks.check import check

        run_step(check, {name: value for name, value in filled_in_params().items() if name != "refit"})

    @step_task(outlets=[PREPARED_DATA])
    def prepare() -> Iterator[Any]:
        from tasks.prepare import prepare_datasets

        options = filled_in_params()
        refit = options.pop("refit", False)
        prepared = run_step(functools.partial(prepare_datasets, refit=refit), options)
        links.push_data_cards(prepared)
        yield Metadata(PREPARED_DATA, extra={item["dataset"]: item["fingerprint"] for item in prepared})
        return prepared

    check() >> links.with_links(prepare(), *map(links.data_card_link, _CONFIG.datasets))


prepare_data()
