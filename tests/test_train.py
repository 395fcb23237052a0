"""One trial: its record is of what ran, it resumes where it stopped, and it repeats exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_core.mechanism import MechanismRecord
from tasks.encoded import Prepared
from tasks.home import read_json
from tasks.train import run_trial
from tasks.trial import Trial
from tests.trials import make_prepared, make_trial, without_privacy


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


def record_of(trial: Trial) -> dict[str, Any]:
    return read_json(trial.folder / "record.json")


def parameters_of(trial: Trial) -> dict[str, np.ndarray]:
    with np.load(trial.folder / "parameters.npz") as file:
        return dict(file)


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("seconds", "steps_per_second")}


def test_a_private_trial_records_what_it_ran(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    run_trial(trial, prepared)
    record = record_of(trial)
    ran = MechanismRecord.from_json(record["mechanism"])
    assert (ran.examples, ran.steps, record["steps"]) == (2400, 48, 48)
    assert ran.sampling_probability == pytest.approx(100 / 2400)
    assert (ran.noise_multiplier, ran.l2_clip_norm) == (1.0, 1.0)
    assert ran.sampling_defect() is None
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
def test_no_bound_and_no_noise_is_the_baseline(prepared: Prepared, task: str) -> None:
    """The whole path, sampler and all: the same batches, the same model, to float tolerance."""
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
    assert record_of(other)["mechanism"]["sampled_examples"] != first["mechanism"]["sampled_examples"]
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
    assert "entropy" not in (trial.folder / "record.json").read_text()
    assert "key" not in record_of(trial)


def test_a_diverged_trial_is_recorded_as_such(prepared: Prepared) -> None:
    trial = without_privacy(prepared, task="pconvs", learning_rate=1e4)
    run_trial(trial, prepared)
    assert record_of(trial)["test_loss"] is None


def test_the_key_is_of_the_description_and_the_data(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    assert make_trial(prepared).key == trial.key
    changed = [{"seed": 1}, {"epsilon": 3.0}, {"noise_multiplier": 1.1}, {"data_fingerprint": "x"}, {"epochs": 3}]
    assert len({trial.key, *(make_trial(prepared, **change).key for change in changed)}) == 6
