"""Tasks of a DAG that call a step in ``tasks``, and which of their failures Airflow tries again."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from typing import Any

from airflow.sdk import task
from airflow.sdk.exceptions import AirflowFailException

from tasks.runtime.errors import may_pass
from tasks.runtime.progress import step

# A worker that is lost, a network or a database that does not answer: tried again after 10, 20, 40 seconds.
# Finished trials are found again, and a trial that was interrupted resumes from its checkpoint.
RETRIES: dict[str, Any] = {
    "retries": 3,
    "retry_delay": datetime.timedelta(seconds=10),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": datetime.timedelta(minutes=5),
}
# A task of a DAG. Steps print what a person reads; the values that they hand on are in the task's XComs.
step_task = functools.partial(task, show_return_value_in_logs=False)


def run_step(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a step. A failure that would be the same the next time fails the task at once."""
    try:
        return step(function, *arguments)
    except Exception as error:
        if may_pass(error):
            raise
        raise AirflowFailException(str(error)) from error
