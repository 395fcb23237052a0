"""Targets of links into MLflow, for pages that do not know where MLflow will run when they are read.

A page holds the path of a run in MLflow. Where the reports server serves the page, its script makes links of such
paths, through the server's ``/go/mlflow``; elsewhere they stay text. If ``MLFLOW_TRACKING_URI`` names a server, targets
are addresses there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from tasks.runtime.mlflow_views import compare_path, run_path

# Marks a target as a path in MLflow. It is no scheme that a browser knows.
IN_MLFLOW = "mlflow:"


def run_target(experiment: str, run_id: str) -> str:
    """Returns the target of a run's page; an empty text for a run that MLflow has not got."""
    return _target(run_path(experiment, run_id)) if run_id else ""


def compare_target(experiment: str, run_ids: Iterable[str]) -> str:
    """Returns the target of the page that compares runs."""
    return _target(compare_path(experiment, run_ids))


def _target(path: str) -> str:
    server = os.environ.get("MLFLOW_TRACKING_URI", "")
    return f"{server.rstrip('/')}/#/{path}" if server.startswith(("http://", "https://")) else IN_MLFLOW + path
