"""Tasks of a DAG that call a step in ``tasks``, and which of their failures Airflow tries again."""

from __future__ import annotations

import datetime
import functools
import time
from collections.abc import Callable
from typing import Any

from airflow.sdk import task
from airflow.sdk.exceptions import AirflowFailException

from tasks.runtime.errors import UserError, may_pass
from tasks.runtime.progress import step

# A worker that is lost, a network or a database that does not answer: tried again after 10, 20, 40 seconds.
# Finished trials are found again, and a trial that was interrupted resumes from its checkpoint.
RETRIES: dict[str, Any] = {
    "retries": 3,
    "retry_delay": datetime.timedelta(seconds=10),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": datetime.timedelta(minutes=5),
}
# Airflow gives a printed line the time at which another process reads it, and shows a log in the order of times.
# Without a pause, the last lines of a step (the report's table) stand after the task's end, folded away with others.
_UNTIL_READ_SECONDS = 0.2
# A task of a DAG. Steps print what a person reads; the values that they hand on are in the task's XComs.
step_task = functools.partial(task, show_return_value_in_logs=False)


def run_step(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a step. A failure that would be the same the next time fails the task at once."""
    try:
        return step(function, *arguments)
    except Exception as error:
        if may_pass(error):
            raise
        # What a person can mend is said in its message; of a bug, Airflow's log shows where it was.
        raise AirflowFailException(str(error)) from None if isinstance(error, UserError) else error
    finally:
        time.sleep(_UNTIL_READ_SECONDS)
