"""The measuring step, of pipelines that train nothing: curves of noise, or the speed of training steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.config import Config, load_config
from tasks.curves import noise_by_batch_size
from tasks.encoded import open_prepared
from tasks.errors import UserError
from tasks.grids import NoiseCurves, SpeedGrid
from tasks.home import write_json
from tasks.plan import read_plan
from tasks.progress import Ticker

MEASURED = "measured.json"


def measure(run_folder: str) -> str:
    """Computes or measures what a planned run is about; returns its folder, where the report finds it."""
    run = Path(run_folder)
    planned = read_plan(run)
    selection, config = planned["selection"], load_config()
    grids = config.grids(selection["pipeline"], selection["profile"])
    if grids.curves is not None:
        measured = _curves(grids.curves, planned)
    elif grids.speed is not None:
        measured = _speed(config, grids.speed, planned)
    else:
        raise UserError(f"pipeline {selection['pipeline']!r} has trials to train, and nothing to measure")
    write_json(run / MEASURED, measured)
    return run_folder


def measured_metrics(measured: Mapping[str, Any]) -> dict[str, float]:
    """What MLflow shows of a measurement: a number for each point of it."""
    if "rows" in measured:
        speeds = [row for row in measured["rows"] if row["fits"]]
        names = [f"{row['method']}{'_with_noise' * row['noise']}.{row['batch_size']}" for row in speeds]
        return {f"steps_per_second.{name}": row["steps_per_second"] for name, row in zip(names, speeds, strict=True)}
    return {
        f"noise_std.fixed_{fixed}.{epsilon}.{point['batch_size']}": point["standard_deviation"]
        for fixed in ("epochs", "steps")
        for epsilon, points in measured[fixed].items()
        for point in points
    }


def _curves(curves: NoiseCurves, planned: Mapping[str, Any]) -> dict[str, Any]:
    prepared = open_prepared(Path(next(iter(planned["prepared"].values()))))
    examples = curves.examples or prepared.splits["train"]["rows"]
    if max(curves.batch_sizes) > examples:
        raise UserError(f"curves.batch_sizes: {max(curves.batch_sizes):,} is more than the {examples:,} examples")
    epsilons = planned["selection"]["epsilons"]
    ticker = Ticker("noise by batch size", 2 * len(epsilons) * len(curves.batch_sizes), "points")
    measured: dict[str, Any] = {
        "examples": examples,
        "baseline_batch_size": curves.baseline_batch_size,
        "fixed": {"epochs": curves.epochs, "steps": curves.steps},
    }
    done = 0
    for fixed in ("epochs", "steps"):
        measured[fixed] = {}
        for epsilon in epsilons:
            points = []
            for batch_size in sorted(curves.batch_sizes):
                points += noise_by_batch_size(
                    examples=examples, epsilon=epsilon, batch_sizes=[batch_size], **{fixed: getattr(curves, fixed)}
                )
                done += 1
                ticker.update(done)
            measured[fixed][f"{epsilon:g}"] = [point._asdict() for point in points]
    return measured


def _speed(config: Config, speed: SpeedGrid, planned: Mapping[str, Any]) -> dict[str, Any]:
    from tasks.speed.throughput import measure_throughput

    selection = planned["selection"]
    task = selection["tasks"][0]
    return measure_throughput(
        {
            "prepared": planned["prepared"][selection["datasets"][task]],
            "task": task,
            "hidden_layers": list(speed.hidden_layers or config.profile(selection["profile"]).hidden_layers),
            "batch_sizes": list(speed.batch_sizes),
            "rounds": speed.rounds,
            "memory_cap_gib": speed.memory_cap_gib,
        }
    )
