"""The fields of the trigger form. A field's title is the name by which messages call the option.

A field takes what the form can write and also what ``make run`` sends: lists as lists. In the form, an array of numbers
would be an editor of JSON, so lists of numbers are text with commas, as ``make run`` takes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.sdk import Param, get_current_context

from tasks.config.dataset import TASK_TITLES, TASKS
from tasks.config.loading import Config
from tasks.config.selection import (
    DEFAULT_PIPELINE,
    DEFAULT_PROFILE,
    EPSILONS_PATTERN,
    FIELDS,
    MOST_SEEDS,
    without_effect,
)


def filled_in_params() -> dict[str, Any]:
    """Returns the fields of the trigger form that were filled in, for a running task."""
    params = get_current_context()["params"].items()
    return {name: value for name, value in params if value is not None and value is not False and value != ""}


def pipeline_params(config: Config, name: str) -> dict[str, Param]:
    """Returns the form of a pipeline, without fields that would have no effect."""
    pipeline = config.pipeline(name)
    fields = {
        "profile": profile_param(config, pipeline.grids),
        "tasks": _tasks_param(pipeline.datasets),
        "epsilons": _epsilons_param(),
        "seeds": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=MOST_SEEDS,
            title=FIELDS["seeds"],
            description="Number of seeds to average over. Empty: the profile's own.",
        ),
        "dataset": dataset_param(config),
        "raw": raw_param(),
    }
    return {field: param for field, param in fields.items() if field not in without_effect(pipeline)}


def pipeline_param(config: Config) -> Param:
    """Returns the field for the pipeline, in the form that prepares data."""
    names = list(config.pipelines)
    return Param(
        DEFAULT_PIPELINE if DEFAULT_PIPELINE in names else names[0],
        type="string",
        enum=names,
        title=FIELDS["pipeline"],
        description="The pipeline whose datasets are prepared.",
    )


def profile_param(config: Config, profiles: Iterable[str]) -> Param:
    """Returns the field for the profile: one of ``profiles``, by default ``quick`` if it is one."""
    names = list(profiles)
    return Param(
        DEFAULT_PROFILE if DEFAULT_PROFILE in names else names[0],
        type="string",
        enum=names,
        title=FIELDS["profile"],
        description_md="\n".join(["Scale of the run:", "", *(_profile_line(config, name) for name in names)]),
    )


def _profile_line(config: Config, name: str) -> str:
    # Airflow's style for code covers the line above it.
    description = config.profile(name).description.replace("`", "")
    return f"- **{name}**: {description}" if description else f"- **{name}**"


def _tasks_param(own: Iterable[str]) -> Param:
    return Param(
        list(own),
        type="array",
        items={"type": "string", "enum": list(own)},
        examples=list(own),
        values_display=TASK_TITLES,
        minItems=1,
        uniqueItems=True,
        title=FIELDS["tasks"],
        description="What the models predict; choose at least one. pCTR: whether an impression is clicked. pCVR: "
        "whether a click converts. pConvs: the number of conversions after a click.",
    )


def tasks_text_param() -> Param:
    """Returns the field for the tasks where the form does not know the pipeline."""
    return Param(
        None,
        type=["null", "string", "array"],
        items={"type": "string", "enum": list(TASKS)},
        minItems=1,
        examples=[*TASKS, ",".join(TASKS[:2])],
        title=FIELDS["tasks"],
        description="Separated by commas, for example pctr,pcvr. Empty: the pipeline's own.",
    )


def _epsilons_param() -> Param:
    return Param(
        None,
        type=["null", "string", "array"],
        pattern=EPSILONS_PATTERN,
        items={"type": "number", "exclusiveMinimum": 0},
        examples=["1", "1,10", "0.5,1,3,10"],
        title=FIELDS["epsilons"],
        description="Positive numbers separated by commas, for example 1,10 (as in make run EPSILONS=1,10). Empty: the "
        "profile's own. The baseline without privacy always runs.",
    )


def dataset_param(config: Config) -> Param:
    """Returns the field for the dataset."""
    return Param(
        None,
        type=["null", "string"],
        enum=[None, *config.datasets],
        values_display={"null": "the pipeline's own"},
        title=FIELDS["dataset"],
        description="The log that all tasks read. It must have a label for each of them.",
    )


def raw_param() -> Param:
    """Returns the field for the raw log's files."""
    return Param(
        None,
        type=["null", "string"],
        title=FIELDS["raw"],
        description="A file, a folder or a pattern such as /data/logs/day=*/*.parquet. Needed for a dataset whose "
        "files pipelines.yaml does not name; otherwise leave it empty. It must be in one of the folders that raw_roots "
        "in pipelines.yaml allows.",
    )
