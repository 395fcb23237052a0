"""Training on several devices, in a process of its own, because JAX fixes the number of devices at start-up.

``in_processes`` starts the processes; each runs ``main`` and writes its report as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from dp_core.audit.correlation import rule_state
from dp_core.clipping.microbatches import make_microbatches
from dp_core.models.spec import CategoricalFeature
from dp_core.training import correlated, noise, placement
from dp_core.training.method import Method
from dp_core.training.placement import Placement
from dp_core.training.step import Hyperparameters, Steps, as_traced, make_trainer
from tests.support.gradients import QUICKLY
from tests.support.models import make_batch, make_model, make_parameters

CHECKOUT = Path(__file__).resolve().parent.parent.parent

MODULE = "tests.support.several_devices"
ROWS, STEPS, PIECES = 40, 3, 2
# Vocabularies that no number of devices divides; the first and the last table are large ones.
VOCABULARIES = {"embedding_0": 301, "embedding_1": 7, "embedding_2": 53}
LARGE_ARRAY = 500
EXPECTED_BATCH_SIZE = 60
NOISE_MULTIPLIER, SENSITIVITY, L2_CLIP_NORM = 1.5, 2.0, 0.4


class Run(NamedTuple):
    """The work of one process: one training per placement, alone or jointly with other processes."""

    placements: Sequence[tuple[int, str]]
    microbatch_size: int
    coordinator: str = ""
    processes: int = 1
    process: int = 0
    noise_coefficients: Sequence[float] = (1.0,)


def in_processes(runs: Sequence[Run], folder: Path, *, devices: int, timeout: float) -> list[Any]:
    """Runs processes at the same time and returns their reports; all have ended when it returns."""
    flags = {"xla_force_host_platform_device_count": devices, **QUICKLY}
    environment = {
        **os.environ,
        "XLA_FLAGS": " ".join(f"--{name}={str(value).lower()}" for name, value in flags.items()),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    }
    reports = [folder / f"{number}.json" for number in range(len(runs))]
    with contextlib.ExitStack() as stack:
        processes = []
        for run, report in zip(runs, reports, strict=True):
            command = [
                sys.executable,
                "-W",
                "error",
                "-m",
                "tests.support.several_devices",
                json.dumps(run),
                str(report),
            ]
            # Output goes to files: a process blocked on a full pipe would block the others too.
            log = stack.enter_context(report.with_suffix(".log").open("w+"))
            process = stack.enter_context(
                subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=log, stderr=log)
            )
            stack.callback(process.kill)
            processes.append((process, log))
        deadline = time.monotonic() + timeout
        for process, log in processes:
            code = process.wait(deadline - time.monotonic())
            log.seek(0)
            assert code == 0, log.read()
    return [json.loads(report.read_text()) for report in reports]


def main(run: Run, report: Path) -> None:
    if run.processes > 1:
        jax.distributed.initialize(run.coordinator, run.processes, run.process)
    noise.LARGE_ARRAY = placement.LARGE_ARRAY = correlated.LARGE_ARRAY = LARGE_ARRAY
    coefficients = tuple(run.noise_coefficients)
    seen = [train(Placement(*place), run.microbatch_size, coefficients) for place in run.placements]
    report.write_text(json.dumps(seen))


def train(place: Placement, microbatch_size: int, coefficients: tuple[float, ...]) -> dict[str, Any]:
    """Trains a few steps and, from the same start, takes one step without examples to measure its noise."""
    sizes = VOCABULARIES.values()
    features = [CategoricalFeature(*shape) for shape in zip(sizes, (4, 3, 10), (1, 1, 3), strict=True)]
    model = make_model(features=features, hidden_layers=(8,))
    microbatches = make_microbatches(microbatch_size)
    flat = [make_batch(model, ROWS, seed=seed, microbatches=microbatches) for seed in range(STEPS * PIECES)]
    whole = jax.tree.map(lambda *parts: np.stack(parts).reshape(STEPS, PIECES, *parts[0].shape), *flat)
    params = make_parameters(model, flat[0])
    asked: set[int] = set()

    def lay_out(values: np.ndarray) -> jax.Array:
        def fetch(index: Any) -> np.ndarray:
            asked.update(range(ROWS)[index[2]])
            return values[index]

        return place.batches(values.shape, fetch)

    def steps(batches: Any, active: int) -> Steps:
        pieces = place.copied(np.array([2, 1, 2], np.int32))
        return Steps(jax.tree.map(lay_out, batches), pieces, place.copied(np.asarray(active, np.int32)))

    hyper = Hyperparameters(
        learning_rate=1.0,
        total_steps=10**6,
        expected_batch_size=EXPECTED_BATCH_SIZE,
        l2_clip_norm=L2_CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
        sensitivity=SENSITIVITY,
        count_noise_multiplier=1.0,
        # The average of all iterates so far, which is what is released.
        averaging_share=1.0,
    )
    trainer = make_trainer(
        Method(model, "pctr", "sgd", 0.9, True, "adaptive", microbatch_size, "tail", place, coefficients)
    )

    def run(batches: Any, active: int) -> Any:
        state = trainer.init(params, as_traced(hyper))
        return trainer.run(state, steps(batches, active), jax.random.key(4), as_traced(hyper))

    def released(state: Any) -> dict[str, np.ndarray]:
        return {"/".join(path): np.asarray(value) for path, value in flatten_dict(trainer.release(state)).items()}

    def as_lists(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        return {name: array.tolist() for name, array in arrays.items()}

    only_noise, _ = run(whole._replace(mask=np.zeros_like(whole.mask)), 1)
    before = {"/".join(path): value for path, value in flatten_dict(params).items()}
    count = EXPECTED_BATCH_SIZE / microbatch_size
    drawn = {name: count * (before[name] - after) for name, after in released(only_noise).items()}

    asked.clear()
    state, reports = run(whole, STEPS)
    saved = place.whole(state)
    restored = place.put(saved)
    return {
        "params": as_lists(released(state)),
        "losses": np.asarray(reports.loss).tolist(),
        "step": int(state.step),
        "l2_clip_norm": float(state.l2_clip_norm),
        "not_finite": int(state.not_finite),
        "noise": as_lists(drawn),
        "asked": sorted(asked),
        "table_shards": shards_of_tables(state.params),
        "momentum_shards": shards_of_tables(rule_state(state)[0].trace),
        "average_shards": shards_of_tables(state.update_state.average),
        "restored_shards": shards_of_tables(restored.params),
        "restored_equal": equal(place.whole(restored), saved),
        "replicas_equal": all(replicas_are_equal(leaf) for leaf in jax.tree.leaves((state, restored))),
    }


def shards_of_tables(params: Any) -> dict[str, list[int]]:
    """The number of rows that each device of this process holds, for every table."""
    return {name: [len(shard.data) for shard in params[name]["table"].addressable_shards] for name in VOCABULARIES}


def replicas_are_equal(array: Any) -> bool:
    """Whether all replicas of the same shard in this process are equal to the bit."""
    first: dict[str, np.ndarray] = {}
    return all(
        np.array_equal(first.setdefault(str(shard.index), np.asarray(shard.data)), np.asarray(shard.data))
        for shard in array.addressable_shards
    )


def equal(left: Any, right: Any) -> bool:
    return all(map(np.array_equal, jax.tree.leaves(left), jax.tree.leaves(right)))


if __name__ == "__main__":
    main(Run(*json.loads(sys.argv[1])), Path(sys.argv[2]))
