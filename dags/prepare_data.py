"""Registers the DAG that prepares data ahead of the pipelines and announces it as an asset."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from airflow.sdk import Asset, Metadata, Param, dag, task

from dags.factory import dataset_param, filled_in_params, profile_param, raw_param, tasks_param
from tasks.config.loading import load_config
from tasks.runtime.progress import step

PREPARED_DATA = Asset("prepared_data")
_CONFIG = load_config()
_PIPELINES = list(_CONFIG.pipelines)
# Markdown, so not indented.
_DOC = """
### From raw logs to encoded splits
Splits the log chronologically 80/10/10, log-transforms integers, builds vocabularies from the training split and writes
encoded arrays that training memory-maps. Data that is already prepared is reused. The asset `prepared_data` carries the
fingerprints.
"""


@dag(
    dag_id="prepare_data",
    dag_display_name="Prepare data",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["data"],
    doc_md=_DOC,
    params={
        "pipeline": Param(
            "relative_loss" if "relative_loss" in _PIPELINES else _PIPELINES[0],
            type="string",
            enum=_PIPELINES,
            title="Pipeline",
            description="Its datasets are prepared.",
        ),
        "profile": profile_param(_CONFIG, _CONFIG.profiles),
        "dataset": dataset_param(_CONFIG),
        "tasks": tasks_param(None),
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
    @task(outlets=[PREPARED_DATA])
    def prepare() -> Iterator[Any]:
        from tasks.prepare import prepare_datasets

        options = filled_in_params()
        refit = options.pop("refit", False)
        prepared = step(functools.partial(prepare_datasets, refit=refit), options)
        yield Metadata(PREPARED_DATA, extra={item["dataset"]: item["fingerprint"] for item in prepared})
        return prepared

    prepare()


prepare_data()
