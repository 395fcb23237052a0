"""A tiny prepared dataset and trials on it, for tests of the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_core.models.spec import MLPSpec
from tasks.config.dataset import Dataset, Label
from tasks.data.preparation import prepare
from tasks.data.prepared import Prepared, open_prepared
from tasks.integrity.manifest import read_manifest, write_manifest
from tasks.runtime.home import read_json
from tasks.training.randomness import Randomness
from tasks.training.trial import Trial

ROWS = 3000


def make_prepared(folder: Path, **changes: Any) -> Prepared:
    """Prepares clicks with conversions that depend on a token and an integer; ``changes`` are keys of the dataset."""
    rng = np.random.default_rng(0)
    color, price = rng.integers(0, 4, ROWS), rng.integers(0, 1000, ROWS)
    intensity = np.exp(-3.0 + 0.8 * color + 0.2 * np.log1p(price))
    table = pa.table(
        {
            "time": np.arange(ROWS) // 3,
            "color": [f"color {c}" for c in color],
            "price": price,
            "conversions": rng.poisson(intensity * 0.3),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / "clicks.parquet"
    pq.write_table(table, raw)
    dataset = Dataset(
        format="parquet",
        time_column="time",
        integer_columns=("price",),
        categorical_columns=("color",),
        labels={
            "pcvr": Label(column="conversions", kind="any"),
            "pconvs": Label(column="conversions", kind="count"),
        },
        **changes,
    )
    return open_prepared(prepare("tiny_clicks", dataset, raw, min_count=5))


def make_trial(prepared: Prepared, **changes: Any) -> Trial:
    """Makes a short DP-SGD trial; ``changes`` are fields of ``Trial``."""
    values: dict[str, Any] = {
        "task": "pcvr",
        "dataset": "tiny_clicks",
        "data_fingerprint": prepared.fingerprint,
        "mechanism": "dp_sgd",
        "epsilon": 8.0,
        "target_delta": 1 / prepared.splits["train"]["rows"],
        "sampler": "poisson",
        "accountant": "tightest",
        "noise_multiplier": 1.0,
        "l2_clip_norm": 1.0,
        "clipping": "fixed",
        "clip_quantile": None,
        "microbatch_size": 1,
        "sensitivity": None,
        "response": None,
        "debias": None,
        "largest_count": None,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "batch_size": 100,
        "epochs": 2,
        "model": MLPSpec(hidden_layers=(8,)),
        "evaluations": 3,
        "canaries": 0,
        "randomness": "seeded",
        "seed": 0,
    }
    return Trial.model_validate({**values, **changes})


def share_randomness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives all trials of a seed the same noise and batches, to compare models that must then be equal."""

    def for_trial(trial: Trial) -> Randomness:
        return Randomness(jax.random.key(trial.seed), (trial.seed, 0), (trial.seed, 0))

    monkeypatch.setattr(Randomness, "for_trial", for_trial)


def without_privacy(prepared: Prepared, **changes: Any) -> Trial:
    """Makes the non-private baseline of ``make_trial``."""
    none = {"epsilon": None, "accountant": None, "noise_multiplier": None, "l2_clip_norm": None, "clipping": None}
    return make_trial(prepared, mechanism="non_private", **none, **changes)


def label_trial(prepared: Prepared, **changes: Any) -> Trial:
    """Makes a LabelDP trial: like ``without_privacy``, on noisy labels."""
    none = {"accountant": None, "noise_multiplier": None, "l2_clip_norm": None, "clipping": None, "target_delta": 0.0}
    values = {"epsilon": 2.0, "response": "binary", "debias": False, **changes}
    return make_trial(prepared, mechanism="label_dp", **none, **values)


# What differs between two records of the same training.
TIMES = ("seconds", "steps_per_second", "started", "ended", "interruptions")


def record_of(trial: Trial) -> dict[str, Any]:
    """Reads a finished trial's record, as JSON."""
    return read_json(trial.folder / "record.json")


def evidence_of(trial: Trial) -> dict[str, Any]:
    """Reads a finished trial's evidence, as JSON."""
    return read_json(trial.folder / "evidence.json")


def parameters_of(trial: Trial) -> dict[str, np.ndarray]:
    """Reads a finished trial's parameters."""
    with np.load(trial.folder / "parameters.npz") as file:
        return dict(file)


def renew_manifest(folder: Path) -> None:
    """Makes a manifest true again after a test has changed files, as if training had written them so."""
    names = read_manifest(folder)
    if names is not None:
        write_manifest(folder, [name for name in names if (folder / name).exists()])
