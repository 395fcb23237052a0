"""The measuring step, for pipelines that train nothing: noise curves, or the speed of training steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from tasks.config.loading import Config, load_config
from tasks.config.pipeline import NoiseCurves, SpeedGrid
from tasks.data.prepared import open_prepared
from tasks.privacy.noise_curves import noise_by_batch_size
from tasks.runtime.errors import UserError
from tasks.runtime.home import write_json
from tasks.runtime.mlflow_views import SweepMetric
from tasks.runtime.progress import Ticker
from tasks.speed.results import Throughput
from tasks.training.items import Plan, read_plan

MEASURED = "measured.json"


class NoisePoint(TypedDict):
    """``NoiseAtBatchSize`` as JSON."""

    batch_size: int
    steps: int
    noise_multiplier: float
    standard_deviation: float


class NoiseMeasured(TypedDict):
    """The noise that each batch size needs, by ε, at a fixed number of epochs and at a fixed number of steps."""

    examples: int
    baseline_batch_size: int
    fixed: dict[str, float]
    epochs: dict[str, list[NoisePoint]]
    steps: dict[str, list[NoisePoint]]


def measure(run_folder: str) -> str:
    """Measures what a planned run is about, writes ``measured.json`` into its folder, and returns the folder."""
    run = Path(run_folder)
    planned = read_plan(run)
    selection, config = planned["selection"], load_config()
    grids = config.grids(selection["pipeline"], selection["profile"])
    measured: NoiseMeasured | Throughput
    if grids.curves is not None:
        measured = _curves(grids.curves, planned)
    elif grids.speed is not None:
        measured = _speed(config, grids.speed, planned)
    else:
        name = selection["pipeline"]
        raise UserError(
            f"pipeline {name!r} trains trials and has nothing to measure: run `python -m tasks train --pipeline {name}`"
        )
    write_json(run / MEASURED, measured)
    return run_folder


def measured_metrics(measured: Mapping[str, Any]) -> list[SweepMetric]:
    """Returns the metrics that MLflow shows for a measurement: one for each point, over ε if it has one."""
    if "rows" in measured:
        speeds = [row for row in measured["rows"] if row["fits"]]
        names = [f"{row['method']}{'_with_noise' * row['noise']}/batch_{row['batch_size']}" for row in speeds]
        return [
            SweepMetric(f"steps_per_second/{name}", None, row["steps_per_second"])
            for name, row in zip(names, speeds, strict=True)
        ]
    return [
        SweepMetric(f"noise_std/fixed_{fixed}/batch_{point['batch_size']}", float(epsilon), point["standard_deviation"])
        for fixed in ("epochs", "steps")
        for epsilon, points in measured[fixed].items()
        for point in points
    ]


def _curves(curves: NoiseCurves, planned: Plan) -> NoiseMeasured:
    prepared = open_prepared(Path(next(iter(planned["prepared"].values()))))
    examples = curves.examples or prepared.splits["train"]["rows"]
    if max(curves.batch_sizes) > examples:
        raise UserError(f"curves.batch_sizes: {max(curves.batch_sizes):,} is more than the {examples:,} examples")
    epsilons = planned["selection"]["epsilons"]
    ticker = Ticker("noise by batch size", 2 * len(epsilons) * len(curves.batch_sizes), "points")
    done = itertools.count(1)

    def points(epsilon: float, **fixed: float) -> Iterator[NoisePoint]:
        for batch_size in sorted(curves.batch_sizes):
            question: dict[str, Any] = {"examples": examples, "epsilon": epsilon, "batch_sizes": [batch_size], **fixed}
            for point in noise_by_batch_size(**question):
                yield cast(NoisePoint, point._asdict())
            ticker.update(next(done))

    return {
        "examples": examples,
        "baseline_batch_size": curves.baseline_batch_size,
        "fixed": {"epochs": curves.epochs, "steps": curves.steps},
        "epochs": {f"{epsilon:g}": list(points(epsilon, epochs=curves.epochs)) for epsilon in epsilons},
        "steps": {f"{epsilon:g}": list(points(epsilon, steps=curves.steps)) for epsilon in epsilons},
    }


def _speed(config: Config, speed: SpeedGrid, planned: Plan) -> Throughput:
    from tasks.speed.throughput import measure_throughput

    selection = planned["selection"]
    task = selection["tasks"][0]
    model = speed.model.with_layers(config.profile(selection["profile"]).hidden_layers)
    return measure_throughput(
        {
            "prepared": planned["prepared"][selection["datasets"][task]],
            "task": task,
            "model": model.model_dump(mode="json"),
            "batch_sizes": list(speed.batch_sizes),
            "rounds": speed.rounds,
            "memory_cap_gib": speed.memory_cap_gib,
        }
    )
