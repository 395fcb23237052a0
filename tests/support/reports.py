"""A small configuration and the steps that make a report from it, for tests of reports."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from tasks.audit import audit_group
from tasks.plan import plan
from tasks.prepare import prepare_datasets
from tasks.report import report
from tasks.runtime.mlflow_views import compare_path
from tasks.train import train
from tasks.training.items import read_plan
from tests.support.trials import make_prepared

GRID = """
        epsilons: [2, 8]
        seeds: 2
        tasks:
          pcvr:
            non_private: {optimizer: yogi, learning_rate: 0.01, batch_size: 200, epochs: 2}
            dp_sgd: {optimizer: sgd, learning_rate: 0.1, batch_size: 200, epochs: 2, l2_clip_norm: [1, 3]}"""

CONFIG = f"""
hardware: {{trials_at_once: 1}}
datasets:
  tiny_clicks:
    format: parquet
    raw: RAW
    time_column: time
    integer_columns: [price]
    categorical_columns: [color]
    segment_column: color
    labels: {{pcvr: {{column: conversions, kind: any}}}}
profiles:
  tiny: {{synthetic_rows: 3000, min_count: 5, hidden_layers: [8], evaluations: 2}}
pipelines:
  clips:
    title: Clip norms side by side (the paper's Table 2)
    exhibit: clip_norm
    datasets: {{pcvr: tiny_clicks}}
    columns: [l2_clip_norm]
    paper: {{C = 1: {{2: 0.75, 8: 0.76}}}}
    grids:
      tiny:{GRID}
  losses:
    title: Losses by budget
    exhibit: relative_loss
    datasets: {{pcvr: tiny_clicks}}
    grids:
      tiny:{GRID}
  drawn:
    title: A random search
    datasets: {{pcvr: tiny_clicks}}
    grids:
      tiny:
        search: random{GRID.replace("seeds: 2", "seeds: 1")}
  rates:
    title: Learning rates, one of them far too large
    exhibit: optimizers
    datasets: {{pcvr: tiny_clicks}}
    columns: [optimizer, learning_rate]
    grids:
      tiny:{GRID.replace("learning_rate: 0.1", "learning_rate: [0.1, 1.0e+30]").replace("[1, 3]", "1")}
  settings:
    title: Any settings side by side
    datasets: {{pcvr: tiny_clicks}}
    columns: [optimizer, learning_rate, l2_clip_norm]
    grids:
      tiny:{GRID.replace("optimizer: sgd, learning_rate: 0.1", "optimizer: [sgd, adam], learning_rate: [0.01, 0.1]")}
  labels:
    title: Responses on labels (the paper's Figure 5)
    exhibit: label_dp
    datasets: {{pcvr: tiny_clicks}}
    columns: [response, debias]
    grids:
      tiny:{GRID}
            label_dp: {{optimizer: yogi, learning_rate: [0.01, 0.03], batch_size: 200, epochs: 2, response: binary}}
  noise:
    title: Noise against batch size (the paper's Figure 2)
    exhibit: noise_and_batch
    datasets: {{pcvr: tiny_clicks}}
    grids:
      tiny:
        epsilons: [4]
        curves: {{batch_sizes: [400, 200], epochs: 1, steps: 10}}
"""


class Ran(NamedTuple):
    """A finished run: its folder, the number of trials that it trained, and its report."""

    folder: Path
    trained: int
    report: Path
    files: dict[str, str]

    @property
    def plan(self) -> dict[str, Any]:
        return read_plan(self.folder)


@contextlib.contextmanager
def report_home(folder: Path) -> Iterator[Path]:
    """Points the steps at a home folder, a raw log and a configuration inside ``folder``."""
    folder = folder.resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        patch.setenv("DP_ADS_CONFIG", str(folder / "my.yaml"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        make_prepared(folder / "raw")
        configure(folder)
        yield folder


def configure(folder: Path, old: str = "", new: str = "") -> None:
    """Writes the configuration, with ``old`` replaced by ``new``."""
    assert old in CONFIG
    text = CONFIG.replace("RAW", str(folder / "raw" / "clicks.parquet"))
    (folder / "my.yaml").write_text(text.replace(old, new) if old else text)


def planned(pipeline: str, **options: Any) -> dict[str, Any]:
    options = {"pipeline": pipeline, "profile": "tiny", **options}
    return plan(options, prepare_datasets(options))


def run(pipeline: str, **options: Any) -> Ran:
    """Runs every step of a pipeline, as its DAG does."""
    found = planned(pipeline, **options)
    audited = []
    for group in found["groups"]:
        trained = train(group)
        assert trained is not None
        audited += audit_group(trained)
    files = report(found["run"], audited)
    return Ran(Path(found["run"]), len(audited), Path(files["page"]).parent, files)


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def mlflow_runs(here: Path, ran: Ran) -> tuple[Run, list[Run]]:
    """Returns a run in MLflow and its children."""
    client = _client_of(here)
    parent = client.get_run(ran.plan["parent"]["mlflow_run"])
    runs = client.search_runs([parent.info.experiment_id])
    return parent, [found for found in runs if found.data.tags.get("mlflow.parentRunId") == parent.info.run_id]


def artifacts(here: Path, run_id: str) -> set[str]:
    client = _client_of(here)
    return {file.path for file in client.list_artifacts(run_id)}


def records(here: Path) -> dict[str, int]:
    """Returns when each trial was trained, by key."""
    return {path.parent.name: path.stat().st_mtime_ns for path in (here / "home" / "trials").glob("*/record.json")}


def _client_of(here: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{here / 'home' / 'mlflow' / 'mlflow.db'}")


def history(here: Path, run_id: str, metric: str) -> dict[int, float]:
    """Returns the values of a metric by step."""
    return {point.step: point.value for point in _client_of(here).get_metric_history(run_id, metric)}


def check_trial(child: Run, baseline: float, losses: Collection[float]) -> None:
    """Asserts that a trial of a sweep over budgets, clip norms and seeds has the metrics and parameters of all."""
    common = {"relative_loss_percent", "epsilon", "epsilon_lower", "steps_per_second", "seconds", "train/loss"}
    metrics_of_a_split = ("auc", "log_loss", "normalized_entropy", "llh", "calibration")
    scores = {f"{split}/{metric}" for split in ("test", "validation") for metric in metrics_of_a_split}
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
    client = _client_of(here)
    experiment = client.get_experiment(parent.info.experiment_id)
    key = parse_qs(compare.partition("?")[2])["viewStateShareKey"][0]
    view = json.loads(experiment.tags[f"mlflow.sharedViewState.{key}"])
    found = client.search_runs([experiment.experiment_id], view["searchFilter"], order_by=[f"{view['orderByKey']} ASC"])
    assert {run.info.run_id for run in found} == ids
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert "100 stands for ∞" in experiment.tags["mlflow.note.content"]
