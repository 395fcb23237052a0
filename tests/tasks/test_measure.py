"""The measuring step: noise curves by the accountant, and the speed of the pipeline's own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tasks.speed.throughput
from tasks.config.loading import load_config
from tasks.config.selection import select
from tasks.measure import MEASURED, measure, measured_metrics
from tasks.prepare import prepare_datasets
from tasks.privacy.cached_accounting import noise_multiplier_for
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json, write_json
from tasks.runtime.mlflow_views import SweepMetric
from tasks.training.items import read_plan
from tests.support.trials import make_prepared
from tests.tasks.test_plan import CONFIG, use

SWEEP = CONFIG[CONFIG.index("        epsilons:") :]
CURVES = """        epsilons: [6.5]
        curves: {batch_sizes: [400, 200], epochs: 1, steps: 10, examples: 2000}
"""
SPEED = """        speed: {batch_sizes: [16, 64], rounds: 2, memory_cap_gib: 0.5}
"""


@pytest.fixture
def folder(own_home: Path, tmp_path: Path) -> Path:
    make_prepared(tmp_path / "raw")
    return tmp_path


def planned(grid: str, folder: Path, monkeypatch: pytest.MonkeyPatch, exhibit: str = "noise_and_batch") -> str:
    """Writes the plan of a pipeline with this grid, without a run in MLflow."""
    config = CONFIG.replace(SWEEP, grid).replace("title: A sweep", f"title: A sweep\n    exhibit: {exhibit}")
    use(config.replace("clicks.parquet", str(folder / "raw" / "clicks.parquet")), folder, monkeypatch)
    options = {"pipeline": "sweep", "profile": "tiny"}
    prepared = {item["dataset"]: item["path"] for item in prepare_datasets(options)}
    run = folder / "run"
    write_json(run / "plan.json", {"selection": select(load_config(), options)._asdict(), "prepared": prepared})
    (run / MEASURED).unlink(missing_ok=True)
    return str(run)


def test_curves_are_the_accountants(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = planned(CURVES, folder, monkeypatch)
    assert measure(run) == run
    measured = read_json(Path(run) / MEASURED)
    assert (measured["examples"], measured["fixed"]) == (2000, {"epochs": 1.0, "steps": 10})
    assert measured["baseline_batch_size"] == 1024
    for fixed, steps in (("epochs", {200: 10, 400: 5}), ("steps", {200: 10, 400: 10})):
        assert list(measured[fixed]) == ["6.5"]
        for epsilon, points in measured[fixed].items():
            # From the smallest batch on, in whatever order they are given.
            assert [point["batch_size"] for point in points] == [200, 400]
            for point in points:
                size = point["batch_size"]
                numbers = {"delta": 1 / 2000, "examples": 2000, "batch_size": size, "steps": steps[size]}
                expected = noise_multiplier_for(epsilon=float(epsilon), **numbers)
                assert (point["steps"], point["noise_multiplier"]) == (steps[size], expected)
                assert point["standard_deviation"] == expected / size


def test_examples_are_those_of_the_data_unless_they_are_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no batch may be larger than their number."""
    monkeypatch.setattr(tasks.measure, "noise_by_batch_size", lambda **numbers: [])
    grid = CURVES.replace(", examples: 2000", "")
    run = planned(grid, folder, monkeypatch)
    measure(run)
    assert read_json(Path(run) / MEASURED)["examples"] == 2400
    for changed, examples in ((grid.replace("400", "2401"), "2,400"), (CURVES.replace("400", "2001"), "2,000")):
        run = planned(changed, folder, monkeypatch)
        with pytest.raises(UserError, match=rf"curves\.batch_sizes: 2,\d+ is more than the {examples} examples"):
            measure(run)
        assert not (Path(run) / MEASURED).exists()


def test_speed_is_asked_of_what_the_pipeline_would_train(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def measured(spec: dict[str, Any]) -> dict[str, Any]:
        asked.append(spec)
        return {"rows": []}

    monkeypatch.setattr(tasks.speed.throughput, "measure_throughput", measured)
    run = planned(SPEED, folder, monkeypatch, "throughput")
    measure(run)
    assert read_json(Path(run) / MEASURED) == {"rows": []}
    assert asked == [
        {
            "prepared": read_plan(run)["prepared"]["tiny_clicks"],
            "task": "pcvr",
            "model": {"name": "mlp", "hidden_layers": [8]},
            "batch_sizes": [16, 64],
            "rounds": 2,
            "memory_cap_gib": 0.5,
        }
    ]
    # It is a request that the measurement takes.
    request = tasks.speed.throughput.Request.model_validate_json(json.dumps(asked[0]))
    assert request.methods == ("non_private", "vmap", "ghost")


def test_a_sweep_has_nothing_to_measure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = planned(SWEEP.replace("        search: random\n", ""), folder, monkeypatch, "relative_loss")
    with pytest.raises(UserError, match="'sweep' trains trials and has nothing to measure"):
        measure(run)


def test_there_must_be_a_plan(own_home: Path) -> None:
    with pytest.raises(UserError, match="no plan at"):
        measure(str(own_home / "runs" / "sweep" / "none"))


def test_mlflow_has_the_speed_of_what_fits() -> None:
    row = {"method": "vmap", "noise": False, "batch_size": 64, "steps_per_second": 3.5, "fits": True}
    rows = [row, {**row, "noise": True, "steps_per_second": 3.0}, {**row, "batch_size": 256, "fits": False}]
    assert measured_metrics({"rows": rows}) == [
        SweepMetric("steps_per_second/vmap/batch_64", None, 3.5),
        SweepMetric("steps_per_second/vmap_with_noise/batch_64", None, 3.0),
    ]
