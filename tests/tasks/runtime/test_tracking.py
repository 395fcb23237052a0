"""Links to runs in MLflow."""

from __future__ import annotations

import pytest

from tasks.runtime.home import MLFLOW_AT
from tasks.runtime.tracking import run_link


def test_links_lead_to_where_mlflow_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv(MLFLOW_AT, raising=False)
    assert run_link("3", "abc") == "http://127.0.0.1:5000/#/experiments/3/runs/abc?workflowType=machine_learning"
    monkeypatch.setenv(MLFLOW_AT, "http://127.0.0.1:5097")
    assert run_link("3", "abc").startswith("http://127.0.0.1:5097/#/")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example/")
    assert run_link("3", "abc") == "https://mlflow.example/#/experiments/3/runs/abc?workflowType=machine_learning"
