"""Training one trial: the record describes what ran, an interrupted run resumes, and a seeded run repeats exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_core.accounting.mechanism import MechanismRecord
from dp_core.audit.sampling_checks import sampling_defects
from dp_core.audit.sampling_counts import SamplingCounts
from tasks.data.prepared import Prepared
from tasks.integrity.manifest import write_manifest
from tasks.runtime.errors import UserError
from tasks.training.loop import run_trial
from tests.support.trials import (
    TIMES,
    evidence_of,
    make_prepared,
    make_trial,
    parameters_of,
    record_of,
    share_randomness,
    without_privacy,
)


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in TIMES}


def test_a_private_trial_records_what_it_ran(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    run_trial(trial, prepared)
    record = record_of(trial)
    ran = MechanismRecord.from_json(record["mechanism"])
    assert (ran.examples, ran.steps, record["steps"]) == (2400, 48, 48)
    assert (ran.sampler, ran.stated_sampler.sampling_probability) == ("poisson", pytest.approx(100 / 2400))
    assert (ran.noise_multiplier, ran.l2_clip_norm) == (1.0, 1.0)
    assert ran.vocabulary is None
    assert (ran.coordinates, ran.noise_summands) == (record["parameters"], 1)
    assert ran.noise_support == pytest.approx(9.0802, abs=1e-4)
    evidence = evidence_of(trial)
    counts = SamplingCounts.from_json(evidence["sampling"])
    assert sampling_defects(ran.stated_sampler, counts) == []
    assert counts.steps == 48
    assert sum(counts.sizes) == len(counts.participations()[0])
    assert [point["step"] for point in record["curve"]] == [16, 32, 48]
    assert record["validation_loss"] == record["curve"][-1]["validation_loss"]
    assert 0 < record["test_loss"] < 0.6
    names = {"embedding_0/table", "hidden_0/kernel", "hidden_0/bias", "output/kernel", "output/bias"}
    parameters = parameters_of(trial)
    assert set(parameters) == names
    assert record["parameters"] == sum(array.size for array in parameters.values())


def test_the_baseline_learns_and_has_no_mechanism(prepared: Prepared) -> None:
    trial = without_privacy(prepared, epochs=20, optimizer="adam", learning_rate=0.02)
    run_trial(trial, prepared)
    record = record_of(trial)
    assert record["mechanism"] is None
    assert record["test_loss"] < 0.35


@pytest.mark.parametrize("task", ["pcvr", "pconvs"])
def test_no_bound_and_no_noise_is_the_baseline(prepared: Prepared, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole path including the sampler: the same batches give the same model, up to rounding."""
    share_randomness(monkeypatch)
    private = make_trial(prepared, task=task, l2_clip_norm=1e30, noise_multiplier=0.0, learning_rate=0.02)
    baseline = without_privacy(prepared, task=task, learning_rate=0.02)
    for trial in (private, baseline):
        run_trial(trial, prepared)
    expected = parameters_of(baseline)
    for name, actual in parameters_of(private).items():
        np.testing.assert_allclose(actual, expected[name], rtol=1e-3, atol=1e-5)
    assert record_of(private)["test_loss"] == pytest.approx(record_of(baseline)["test_loss"], abs=1e-4)


def test_a_seeded_trial_repeats_to_the_last_bit_and_another_seed_differs(prepared: Prepared, own_home: Path) -> None:
    trial = make_trial(prepared)
    run_trial(trial, prepared)
    first, parameters = record_of(trial), parameters_of(trial)
    trial.folder.rename(own_home / "elsewhere")
    run_trial(trial, prepared)
    assert timeless(record_of(trial)) == timeless(first)
    for name, array in parameters_of(trial).items():
        np.testing.assert_array_equal(array, parameters[name])
    other = make_trial(prepared, seed=1)
    run_trial(other, prepared)
    assert not np.allclose(parameters_of(other)["output/kernel"], parameters["output/kernel"])


def test_an_interrupted_trial_resumes_as_if_nothing_had_happened(prepared: Prepared, own_home: Path) -> None:
    trial = make_trial(prepared)
    run_trial(trial, prepared)
    whole, parameters = record_of(trial), parameters_of(trial)
    trial.folder.rename(own_home / "elsewhere")

    run_trial(trial, prepared, stop_after=20)
    assert not trial.folder.exists()
    run_trial(trial, prepared, stop_after=35)
    run_trial(trial, prepared)
    assert timeless(record_of(trial)) == timeless(whole)
    for name, array in parameters_of(trial).items():
        np.testing.assert_array_equal(array, parameters[name])
    assert not list((own_home / "trials" / ".unfinished").iterdir())


def test_secret_randomness_does_not_repeat_and_is_not_recorded(prepared: Prepared, own_home: Path) -> None:
    trial = make_trial(prepared, randomness="secret")
    run_trial(trial, prepared)
    first = parameters_of(trial)
    trial.folder.rename(own_home / "elsewhere")
    run_trial(trial, prepared)
    assert not np.array_equal(parameters_of(trial)["output/kernel"], first["output/kernel"])
    # Normalised entropy is a metric.
    assert "entropy" not in (trial.folder / "record.json").read_text().replace("normalized_entropy", "")
    assert "key" not in record_of(trial)
    assert record_of(trial)["mechanism"]["noise_summands"] == 4


def test_a_diverged_trial_is_recorded_as_such(prepared: Prepared) -> None:
    trial = without_privacy(prepared, task="pconvs", learning_rate=1e4)
    run_trial(trial, prepared)
    assert record_of(trial)["test_loss"] is None
    assert not (trial.folder / "parameters.npz").exists()


def test_the_key_is_of_the_description_and_the_data(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    assert make_trial(prepared).key == trial.key
    changed = [{"seed": 1}, {"epsilon": 3.0}, {"noise_multiplier": 1.1}, {"data_fingerprint": "x"}, {"epochs": 3}]
    assert len({trial.key, *(make_trial(prepared, **change).key for change in changed)}) == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"microbatch_size": 4, "sensitivity": "proven"},
        {"clipping": "adaptive", "clip_quantile": 0.9},
        {"clipping": "automatic"},
        {"model": {"name": "dcn_v2", "hidden_layers": [8], "cross_layers": 2}},
        {"model": {"name": "dlrm", "hidden_layers": [8], "interaction_dimension": 3}},
    ],
    ids=lambda changes: "-".join(v["name"] if isinstance(v, dict) else str(v) for v in changes.values()),
)
def test_other_clipping_and_other_models_train(prepared: Prepared, changes: dict[str, Any]) -> None:
    """With little noise, each clipping method learns the dataset's simple rule."""
    trial = make_trial(prepared, **changes, noise_multiplier=0.05, epochs=12, l2_clip_norm=0.5, learning_rate=0.3)
    run_trial(trial, prepared)
    record = record_of(trial)
    assert record["test_loss"] < 0.36
    ran = MechanismRecord.from_json(record["mechanism"])
    assert ran.microbatch_size == trial.microbatch_size
    assert ran.clipping == trial.clipping
    assert ran.sensitivity == (2 if trial.microbatch_size > 1 else 1)
    if trial.clipping == "adaptive":
        assert record["final_l2_clip_norm"] != 0.5
        # The event is worth what was planned: the count's noise is part of it.
        assert ran.effective_noise_multiplier == pytest.approx(0.05, rel=1e-5)
        assert ran.noise_multiplier > 0.05
    else:
        assert record["final_l2_clip_norm"] == 0.5


@pytest.mark.parametrize("microbatch_size", [1, 4])
def test_physical_batches_change_nothing_but_rounding(
    prepared: Prepared, own_home: Path, monkeypatch: pytest.MonkeyPatch, microbatch_size: int
) -> None:
    trial = make_trial(prepared, microbatch_size=microbatch_size, sensitivity="proven" if microbatch_size > 1 else None)
    run_trial(trial, prepared)
    at_once = parameters_of(trial)
    assert record_of(trial)["physical_batch_size"] >= 100
    trial.folder.rename(own_home / "elsewhere")

    config = Path("pipelines.yaml").read_text().replace("physical_batch_size: auto", "physical_batch_size: 48")
    (own_home / "cut.yaml").write_text(config)
    monkeypatch.setenv("DP_ADS_CONFIG", str(own_home / "cut.yaml"))
    run_trial(trial, prepared)
    assert record_of(trial)["physical_batch_size"] <= 72
    for name, array in parameters_of(trial).items():
        np.testing.assert_allclose(array, at_once[name], rtol=1e-4, atol=1e-6)


def with_a_bad_row(prepared: Prepared, column: str, value: float) -> None:
    """Puts a non-finite value into row 17 of the training split on disk."""
    path = next(prepared.path.glob(f"**/train/{column}.npy"))
    array = np.load(path)
    array[17] = value
    np.save(path, array)
    write_manifest(prepared.path)  # as if it had been prepared so


@pytest.mark.parametrize(("column", "value"), [("label_pcvr", np.nan), ("integers", np.inf)])
def test_a_non_finite_example_refuses_the_step(prepared: Prepared, own_home: Path, column: str, value: float) -> None:
    with_a_bad_row(prepared, column, value)
    trial = make_trial(prepared)
    with pytest.raises(UserError, match=r"step \d+ was refused and updated nothing: 1 of .*rows 17 of"):
        run_trial(trial, prepared)
    assert not trial.folder.exists()


def test_a_private_trial_that_diverges_is_recorded_as_such(prepared: Prepared) -> None:
    """exp(f) overflows, which is no example's fault: the sweep goes on without this trial."""
    trial = make_trial(prepared, task="pconvs", learning_rate=1e4, l2_clip_norm=1e6, noise_multiplier=0.01)
    run_trial(trial, prepared)
    record = record_of(trial)
    assert record["test_loss"] is None
    assert record["validation_loss"] is None
    # Where it stopped depends on the data. It is accounted for as planned, and releases nothing.
    assert record["steps"] < record["mechanism"]["steps"] == 48
    evidence = evidence_of(trial)
    assert evidence["log"]["steps"] == evidence["device_steps"] == record["steps"]
    assert (evidence["log"]["first"], evidence["probe"], evidence["replays"]) == (None, None, None)
    assert not (trial.folder / "parameters.npz").exists()
