"""Buttons of a task in the Airflow UI that lead to what it made: runs in MLflow, the report's page, data cards.

A task's body pushes the address as soon as it knows it, so a button works while the task is running. Addresses are
those of the servers that ``make up`` started; without them a button leads nowhere, and Airflow does not show it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink, get_current_context

from tasks.runtime.home import MLFLOW_AT, REPORTS_AT, home
from tasks.runtime.mlflow_views import children_path, run_path
from tasks.runtime.progress import note
from tasks.training.items import ParentRun, PreparedDataset, read_plan

# Airflow asks for the address again when the task ends, in the same process.
_pushed: dict[str, str] = {}


class TaskLink(BaseOperatorLink):
    """A button with a title, whose address is pushed by the task."""

    def __init__(self, title: str) -> None:
        self._title = title

    @property
    def name(self) -> str:
        return self._title

    @property
    def xcom_key(self) -> str:
        return f"link {self._title}"

    def push(self, address: str | None) -> None:
        """Sets the address, from the running task. None: no server is up that it could lead to."""
        if address:
            _pushed[self.xcom_key] = address
            get_current_context()["ti"].xcom_push(key=self.xcom_key, value=address)
            # The buttons are on the task's page "Details"; its first page is the log, which shows addresses as links.
            note(f"{self._title}: {address}")

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return _pushed.get(self.xcom_key, "")


MLFLOW_RUN = TaskLink("MLflow run")
MLFLOW_TRIALS = TaskLink("Trials in MLflow")
PAGE = TaskLink("Report")


def with_links(task: Any, *links: TaskLink) -> Any:
    """Gives a task its buttons, and returns what was given."""
    task.operator.operator_extra_links = links
    return task


def data_card_link(dataset: str) -> TaskLink:
    """Returns the button of a task that may prepare a dataset. Airflow shows it where the task did."""
    return TaskLink(f"Data card of {dataset}")


def run_in_mlflow(run: str) -> str | None:
    """Returns the address of a planned run in MLflow, given its folder."""
    return parent_in_mlflow(read_plan(run)["parent"])


def parent_in_mlflow(parent: ParentRun) -> str | None:
    """Returns the address of a run in MLflow that has trials nested in it."""
    return _in_mlflow(run_path(parent["experiment"], parent["mlflow_run"])) if parent["mlflow_run"] else None


def trials_in_mlflow(run: str) -> str | None:
    """Returns the address of the list of a planned run's trials in MLflow, given its folder."""
    parent = read_plan(run)["parent"]
    return _in_mlflow(children_path(parent["experiment"], parent["mlflow_run"])) if parent["mlflow_run"] else None


def report_page(page: str) -> str | None:
    """Returns the address of a page under ``reports/`` in the home folder."""
    return _on_reports_server(Path(page), home() / "reports", "")


def push_data_cards(prepared: list[PreparedDataset]) -> None:
    """Sets the addresses of the buttons of a task that prepared data."""
    for item in prepared:
        data_card_link(item["dataset"]).push(_on_reports_server(Path(item["data_card"]), home() / "data", "data/"))


def _in_mlflow(path: str) -> str | None:
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    server = uri if uri.startswith(("http://", "https://")) else os.environ.get(MLFLOW_AT)
    return f"{server.rstrip('/')}/#/{path}" if server else None


def _on_reports_server(file: Path, folder: Path, route: str) -> str | None:
    server = os.environ.get(REPORTS_AT)
    if not server or not file.resolve().is_relative_to(folder):
        return None
    return f"{server.rstrip('/')}/{route}{quote(file.resolve().relative_to(folder).as_posix())}"
