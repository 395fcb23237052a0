"""Registers the check and the names of runs with Airflow's API server (``dags.run_requests``).

Every process of Airflow loads its plugins, also each task's, so nothing is imported here before a server asks for it.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin


def run_requests(app: Any) -> Any:
    """Returns the server with the middleware in front of it."""
    from dags.run_requests import RunRequests

    return RunRequests(app)


class RunRequestsPlugin(AirflowPlugin):
    """Names the middleware for Airflow."""

    name = "run_requests"
    fastapi_root_middlewares = [{"middleware": run_requests, "name": "Checks and names of runs"}]  # noqa: RUF012
