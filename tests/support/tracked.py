"""What a sweep must look like in MLflow."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from tasks.runtime.mlflow_views import compare_path


def client_of(here: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{here / 'home' / 'mlflow' / 'mlflow.db'}")


def history(here: Path, run_id: str, metric: str) -> dict[int, float]:
    """Returns the values of a metric by step."""
    return {point.step: point.value for point in client_of(here).get_metric_history(run_id, metric)}


def check_trial(child: Run, baseline: float, losses: Collection[float]) -> None:
    """Asserts that a trial of a sweep over budgets, clip norms and seeds has the metrics and parameters of all."""
    common = {"relative_loss_percent", "epsilon", "epsilon_lower", "steps_per_second", "seconds", "train/loss"}
    scores = {f"{split}/{metric}" for split in ("test", "validation") for metric in ("auc", "log_loss")}
    metrics, params = child.data.metrics, child.data.params
    assert set(metrics) == common | scores
    loss = 1 - metrics["test/auc"]
    assert any(loss == pytest.approx(known, rel=1e-9) for known in losses)
    assert metrics["relative_loss_percent"] == pytest.approx(100 * (loss - baseline) / baseline)
    plain = {name for name in params if "/" not in name}
    if params["epsilon"] == "inf":
        assert metrics["epsilon"] == metrics["epsilon_lower"] == 100
        assert plain == {"task", "mechanism", "epsilon", "seed"}
    else:
        assert metrics["epsilon"] == pytest.approx(float(params["epsilon"]), rel=0.01)
        assert plain == {"task", "mechanism", "epsilon", "seed", "l2_clip_norm", "noise_multiplier"}
    assert params["unvaried/batch_size"]


def check_views(here: Path, parent: Run, children: Sequence[Run]) -> None:
    """Asserts that the descriptions of a run and its experiment lead to views that exist and show its trials."""
    ids = {child.info.run_id for child in children}
    compare = compare_path(parent.info.experiment_id, ids)
    note = parent.data.tags["mlflow.note.content"]
    assert f"(#/{compare})" in note
    assert f"get-artifact?path=figure.svg&run_uuid={parent.info.run_id}" in note
    client = client_of(here)
    experiment = client.get_experiment(parent.info.experiment_id)
    key = parse_qs(compare.partition("?")[2])["viewStateShareKey"][0]
    view = json.loads(experiment.tags[f"mlflow.sharedViewState.{key}"])
    found = client.search_runs([experiment.experiment_id], view["searchFilter"], order_by=[f"{view['orderByKey']} ASC"])
    assert {run.info.run_id for run in found} == ids
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert "100 stands for ∞" in experiment.tags["mlflow.note.content"]
