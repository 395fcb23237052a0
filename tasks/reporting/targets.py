"""Targets of links into MLflow, for pages that do not know where MLflow will run when they are read.

A page holds the path of a run in MLflow. Where the reports server serves the page, its script makes links of such
paths, through the server's ``/go/mlflow``; elsewhere they stay text. If ``MLFLOW_TRACKING_URI`` names a server, targets
are addresses there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from urllib.parse import quote

# Marks a target as a path in MLflow. It is no scheme that a browser knows.
IN_MLFLOW = "mlflow:"


def run_target(experiment: str, run_id: str) -> str:
    """Returns the target of a run's page."""
    return _target(run_path(experiment, run_id))


def compare_target(experiment: str, run_ids: Iterable[str]) -> str:
    """Returns the target of the page that compares runs."""
    return _target(compare_path(experiment, run_ids))


def run_path(experiment: str, run_id: str) -> str:
    """Returns the path in MLflow of a run's page."""
    return f"experiments/{experiment}/runs/{run_id}"


def compare_path(experiment: str, run_ids: Iterable[str]) -> str:
    """Returns the path in MLflow of the page that compares runs.

    >>> compare_path("1", ["a", "b"])
    'compare-runs?runs=%5B%22a%22%2C%22b%22%5D&experiments=%5B%221%22%5D'
    """

    def listed(names: Iterable[str]) -> str:
        return quote(json.dumps(list(names), separators=(",", ":")), safe="")

    return f"compare-runs?runs={listed(run_ids)}&experiments={listed([experiment])}"


def _target(path: str) -> str:
    server = os.environ.get("MLFLOW_TRACKING_URI", "")
    return f"{server.rstrip('/')}/#/{path}" if server.startswith(("http://", "https://")) else IN_MLFLOW + path
