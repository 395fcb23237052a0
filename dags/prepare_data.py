"""The DAG that prepares data ahead of the pipelines that read it, and announces it as an asset."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from airflow.sdk import Asset, Metadata, Param, dag, get_current_context, task

from tasks.config import load_config
from tasks.progress import step

PREPARED_DATA = Asset("prepared_data")
_CONFIG = load_config()


@dag(
    dag_id="prepare_data",
    dag_display_name="Prepare data",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["data"],
    params={
        "pipeline": Param("relative_loss", type="string", enum=list(_CONFIG.pipelines), title="For which pipeline"),
        "profile": Param("quick", type="string", enum=list(_CONFIG.profiles), title="Profile"),
        "dataset": Param(
            None,
            type=["null", "string"],
            enum=[None, *_CONFIG.datasets],
            title="Dataset",
            description="Leave empty for the pipeline's own.",
        ),
        "tasks": Param(None, type=["null", "array"], items={"type": "string"}, title="Prediction tasks"),
        "raw": Param(
            None,
            type=["null", "string"],
            title="Raw log",
            description="The dataset's files: a path, a folder or a pattern such as logs/day=*/*.parquet.",
        ),
        "refit": Param(
            False,
            type="boolean",
            title="New vocabulary",
            description="For datasets with keep_vocabulary, whose tokens otherwise keep their ids.",
        ),
    },
)
def prepare_data() -> None:
    """
    ### From raw logs to encoded splits
    Chronological 80/10/10 split, log transform, vocabularies from the training part, encoded arrays that training
    maps into memory. Data that was prepared before is found, not made again. The asset `prepared_data` carries the
    fingerprints.
    """

    @task(outlets=[PREPARED_DATA])
    def prepare() -> Iterator[Any]:
        from tasks.datasets import prepare_datasets

        options = {name: value for name, value in get_current_context()["params"].items() if value}
        refit = options.pop("refit", False)
        prepared = step(functools.partial(prepare_datasets, refit=refit), options)
        yield Metadata(PREPARED_DATA, extra={item["dataset"]: item["fingerprint"] for item in prepared})
        return prepared

    prepare()


prepare_data()
