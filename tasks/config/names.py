"""The names of datasets, profiles, pipelines and nightly entries. They become names of folders, DAGs and addresses."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

LONGEST_NAME = 60
# What a pipeline cannot be called, and why.
RESERVED_PIPELINES = {
    "all": "`PIPELINE=all` runs every pipeline",
    "data": "the reports server has the data cards there",
    "go": "the reports server has its links to Airflow and MLflow there",
    "prepare_data": "a DAG of ours has this name",
}
# What the DAGs of nightly entries are called (``tasks.nights.record.dag_id``).
_NIGHTS = "nightly_retrain_"
_ALLOWED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


def checked_name(name: str) -> str:
    """Returns a name. Raises ``ValueError`` if it has other characters than letters, digits, ``_`` and ``-``.

    >>> checked_name("my-clicks_2")
    'my-clicks_2'
    """
    if not _ALLOWED.fullmatch(name) or len(name) > LONGEST_NAME:
        raise ValueError(
            f"{name[: LONGEST_NAME + 1]!r} is not a name: use letters (a to z, A to Z), digits, _ and -, at most "
            f"{LONGEST_NAME} characters, the first not a -"
        )
    return name


def _pipeline_name(name: str) -> str:
    if name in RESERVED_PIPELINES:
        raise ValueError(f"{name!r} is reserved: {RESERVED_PIPELINES[name]}; choose another name")
    if name.startswith(_NIGHTS):
        raise ValueError(f"names that begin with {_NIGHTS} are reserved for the DAGs of `nightly`; choose another name")
    return name


Name = Annotated[str, AfterValidator(checked_name)]
PipelineName = Annotated[Name, AfterValidator(_pipeline_name)]
