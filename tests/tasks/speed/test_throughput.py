"""Throughput of a tiny model, measured for real in child processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dp_core.models.spec import DCNv2Spec, DLRMSpec, MLPSpec
from tasks.data.prepared import Prepared
from tasks.runtime.errors import UserError
from tasks.speed import throughput
from tasks.speed.child import run_child
from tasks.speed.throughput import measure_throughput
from tasks.speed.workloads import PreparedWorkload, workload_from_json
from tasks.training.setup import build_model
from tests.conftest import QUICK_COMPILATION
from tests.support.trials import make_prepared, make_trial

CAP_BYTES = 200_000


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("throughput")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        patch.setenv("XLA_FLAGS", QUICK_COMPILATION)
        yield make_prepared(folder / "raw")


def spec_for(prepared: Prepared, **changes: Any) -> dict[str, Any]:
    spec = {
        "prepared": str(prepared.path),
        "task": "pcvr",
        "model": {"name": "mlp", "hidden_layers": [8]},
        "batch_sizes": [32, 512],
        "methods": ["non_private", "vmap", "ghost"],
        "rounds": 1,
        "memory_cap_gib": CAP_BYTES / 2**30,
    }
    return spec | changes


@pytest.fixture(scope="module")
def measured(prepared: Prepared) -> dict[str, Any]:
    return measure_throughput(spec_for(prepared))


def test_every_method_is_measured_at_every_size(measured: dict[str, Any]) -> None:
    steps = [("non_private", False), ("vmap", False), ("vmap", True), ("ghost", False), ("ghost", True)]
    kinds = [(row["batch_size"], row["method"], row["noise"]) for row in measured["rows"]]
    assert kinds == [(size, *step) for size in (32, 512) for step in steps]
    for row in measured["rows"]:
        if row["fits"]:
            assert row["examples_per_second"] == pytest.approx(row["steps_per_second"] * row["batch_size"])
            assert 0 < row["steps_per_second"] <= row["best_steps_per_second"]
            assert 4 * measured["parameters"] < row["peak_memory_bytes"] <= CAP_BYTES
        assert row["steps_per_second_std"] is None, "of one round"
    assert not measured["reused"]
    assert (measured["device"], measured["devices"], measured["memory_cap_bytes"]) == ("cpu", 1, CAP_BYTES)
    assert measured["seconds"] > 0
    json.dumps(measured, allow_nan=False)


def test_what_goes_over_the_cap_is_not_run(measured: dict[str, Any]) -> None:
    for row in measured["rows"]:
        assert row["fits"] == ((row["method"], row["batch_size"]) != ("vmap", 512))
        if not row["fits"]:
            assert row["peak_memory_bytes"] > CAP_BYTES
            assert row["steps_per_second"] is row["examples_per_second"] is None
    largest, at_once = measured["largest_batch_size"], measured["largest_batch_size_at_once"]
    assert 32 <= largest["vmap"] < 512 <= min(largest["ghost"], largest["non_private"])
    assert at_once["vmap"] == largest["vmap"]
    assert all(at_once[method] <= largest[method] for method in largest)


def test_a_measurement_is_remembered(
    measured: dict[str, Any], prepared: Prepared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def only_the_machine(target: str, *arguments: Any, **request: Any) -> Any:
        asked.append(target.partition(":")[2])
        if asked[-1] == "describe_machine":
            return {name: measured[name] for name in ("device", "cpus", "jax")}
        raise UserError("measured anew")

    monkeypatch.setattr(throughput, "run_child", only_the_machine)
    assert measure_throughput(spec_for(prepared)) == measured | {"reused": True}
    assert asked == ["describe_machine"]
    assert "measured before" in capsys.readouterr().out
    for changes in (
        {"rounds": 2},
        {"model": {"name": "mlp", "hidden_layers": [8, 8]}},
        {"task": "pconvs"},
        {"methods": ["ghost"]},
    ):
        with pytest.raises(UserError, match="measured anew"):
            measure_throughput(spec_for(prepared, **changes))
    monkeypatch.setitem(measured, "cpus", measured["cpus"] + 1)
    with pytest.raises(UserError, match="measured anew"):
        measure_throughput(spec_for(prepared))


def test_what_is_measured_is_what_trials_train(prepared: Prepared) -> None:
    specs = MLPSpec(), DCNv2Spec(cross_layers=2), DLRMSpec(interaction_dimension=4)
    for spec in specs:
        trial = make_trial(prepared, model=spec.with_layers((8,)))
        workload = PreparedWorkload(str(prepared.path), trial.task, trial.model)
        assert workload.model == build_model(trial, prepared, None)
        assert workload_from_json(json.loads(json.dumps(workload.to_json()))) == workload


def test_examples_are_rows_of_the_training_part(prepared: Prepared) -> None:
    split = prepared.split("train", "pcvr")
    workload = PreparedWorkload(str(prepared.path), "pcvr", MLPSpec(hidden_layers=(8,)))
    batch = workload.random_batch(len(split), 1, len(split))
    for ours, theirs in ((batch.integers, split.integers), (batch.categoricals, split.categoricals)):
        np.testing.assert_array_equal(ours[0], theirs)
    np.testing.assert_array_equal(batch.labels[0], split.labels)
    padded = workload.random_batch(100, 2, 64)
    assert padded.mask.sum() == 100
    assert not padded.categoricals[1, 36:].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["magic"]}, "methods.0: .*'non_private', 'vmap', 'ghost'"),
        ({"batch_sizes": [32, 4096]}, "batch size 4,096: the training split of 'tiny_clicks' has only 2,400 rows"),
        ({"batch_sizes": []}, "batch_sizes: .* at least 1 item"),
        ({"batch_sizes": [0]}, "batch_sizes.0: .* greater than or equal to 1"),
        ({"memory_cap_gib": -1.0}, "memory_cap_gib: .* greater than 0"),
        ({"task": "pctr"}, "has no label for 'pctr'"),
        ({"speed": 1}, "speed: Extra inputs are not permitted"),
        ({"prepared": "/nowhere"}, "there is no prepared data in /nowhere"),
    ],
)
def test_a_wrong_spec_is_named(changes: dict[str, Any], message: str, prepared: Prepared) -> None:
    with pytest.raises(UserError, match=message):
        measure_throughput(spec_for(prepared) | changes)


def test_a_childs_error_is_said_and_raised(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"measuring .*nowhere.* failed; the reason is above"):
        run_child("tasks.logs.files:find_files", {}, raw=["/nowhere"])
    assert "✗ " in capsys.readouterr().out
