"""Averages and initial biases through whole trials: resumed, released, budgeted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_core.training.label_rate import bias_of
from tasks.config.grid_settings import distinct_settings
from tasks.config.loading import Hardware
from tasks.config.pipeline import PrivateGrid
from tasks.data.prepared import Prepared
from tasks.privacy.cached_accounting import epsilon_of
from tasks.privacy.label_rate import with_initial_bias
from tasks.privacy.label_rate_budget import budgeted, label_rate_noise, label_rate_of
from tasks.privacy.statement import private_statement
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json
from tasks.training.enumeration import _noise_multiplier
from tasks.training.finished import FinishedTrial
from tasks.training.loop import run_trial
from tasks.training.setup import set_up
from tasks.training.trial import Trial
from tests.support.trials import label_trial, make_prepared, make_trial, without_privacy


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("recipes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


def initial_bias(trial: Trial, prepared: Prepared) -> float:
    run, state, _ = set_up(trial, prepared, Hardware(), checkpoint_seconds=60)
    (bias,) = np.asarray(run.initial_params["output"]["bias"])
    (first,) = np.asarray(run.trainer.release(state)["output"]["bias"])
    if int(state.step) == 0:
        assert bias == first
    return float(bias)


@pytest.mark.parametrize("averaging", ["tail", "exponential"])
def test_an_interrupted_average_resumes_to_the_bit(prepared: Prepared, averaging: str) -> None:
    changes: dict[str, Any] = {"optimizer": "adam_scaled", "learning_rate": 0.01, "averaging": averaging}
    changes |= {"initial_bias": "label_rate", "initial_bias_epsilon": 0.5, "warmup": 0.1, "weight_decay": 0.1}
    trial = make_trial(prepared, **changes)
    run_trial(trial, prepared)
    whole = FinishedTrial.open(trial).read_parameters()
    evidence = read_json(trial.folder / "evidence.json")
    assert evidence["releases_the_last_state"]
    trial.folder.rename(trial.folder.with_name(f"whole {averaging}"))
    run_trial(trial, prepared, stop_after=31)
    run_trial(trial, prepared)
    for name, array in FinishedTrial.open(trial).read_parameters().items():
        np.testing.assert_array_equal(array, whole[name])
    again = read_json(trial.folder / "evidence.json")
    assert again["label_rate"]["noisy"] == evidence["label_rate"]["noisy"]


def test_a_secret_label_rate_is_drawn_once_for_a_run(prepared: Prepared) -> None:
    trial = make_trial(prepared, randomness="secret", initial_bias="label_rate", initial_bias_epsilon=0.02)
    run_trial(trial, prepared, stop_after=5)
    first = initial_bias(trial, prepared)
    assert first == initial_bias(trial, prepared), "the checkpoint holds the draw"
    other = trial.model_copy(update={"seed": 9})
    assert initial_bias(other, prepared) != initial_bias(other, prepared), "without one, each attempt draws anew"


def test_the_bias_of_each_mechanism(prepared: Prepared) -> None:
    labels = np.asarray(prepared.split("train", "pcvr").labels)
    exact = bias_of(float(labels.sum()), len(labels), "pcvr")
    rate: dict[str, Any] = {"initial_bias": "label_rate"}
    assert initial_bias(without_privacy(prepared, **rate), prepared) == pytest.approx(exact)
    assert initial_bias(without_privacy(prepared), prepared) == 0
    noisy = initial_bias(make_trial(prepared, **rate, initial_bias_epsilon=0.02), prepared)
    assert noisy != pytest.approx(exact, abs=1e-4)
    # Randomised responses without debiasing have a mean nearer to 1/2, and nothing but them is read.
    responses = initial_bias(label_trial(prepared, **rate, epsilon=0.5), prepared)
    assert exact + 0.1 < responses < 0.1
    trial = make_trial(prepared, **rate, initial_bias_epsilon=0.1, start_from="0123456789abcdef")
    with pytest.raises(UserError, match="starts from a released model"):
        with_initial_bias(trial, {"output": {"bias": np.zeros(1)}}, labels, 5)


def test_training_and_the_label_rate_together_keep_the_budget(prepared: Prepared) -> None:
    grid = PrivateGrid.model_validate(
        {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 100, "epochs": 2, "l2_clip_norm": 1}
        | {"initial_bias": ["zero", "label_rate"], "initial_bias_epsilon": 0.4}
    )
    slots = prepared.splits["train"]["rows"]
    zero, rate = [budgeted(one, 2.0) for one in distinct_settings(grid, (8,))]
    assert (zero["initial_bias_epsilon"], rate["initial_bias_epsilon"]) == (None, 0.4)
    noises = [_noise_multiplier(one, slots, 2.0, None) for one in (zero, rate)]
    assert noises[0] < noises[1]
    trial = make_trial(
        prepared, epsilon=2.0, noise_multiplier=noises[1], initial_bias="label_rate", initial_bias_epsilon=0.4
    )
    run_trial(trial, prepared)
    record = FinishedTrial.open(trial).mechanism
    assert record is not None
    bound = epsilon_of(record, 1 / slots)  # type: ignore[arg-type]
    assert 1.9 < bound.epsilon <= 2.0
    assert record.label_rate_noise_multiplier == label_rate_noise(0.4, 1 / slots)  # type: ignore[union-attr]
    audit: Any = {"verdict": "passed", "claimed_epsilon": None, "epsilon_lower": None, "probe": None, "attack": None}
    audit["findings"] = []
    text = private_statement(trial, record, bound, audit, {"kind": "hash", "buckets": 9}, "x")  # type: ignore[arg-type]
    assert "| Initial bias | inside ε" in text
    assert "each at most 1 " in text
    assert "ε = 0.4 by itself" in text


def test_the_label_rate_gets_a_share_of_the_budget_unless_it_is_given_one() -> None:
    settings = {"initial_bias": "label_rate", "initial_bias_epsilon": None}
    assert budgeted(settings, 3.0)["initial_bias_epsilon"] == pytest.approx(0.03)
    with pytest.raises(UserError, match=r"leaves nothing for training of a budget of 0\.3"):
        budgeted({**settings, "initial_bias_epsilon": 0.5}, 0.3)
    grid = {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 1, "epochs": 1, "l2_clip_norm": 1}
    assert label_rate_of(PrivateGrid.model_validate(grid), 1.0, 1e-5) is None
    rate = PrivateGrid.model_validate(grid | {"initial_bias": "label_rate"})
    assert label_rate_of(rate, 1.0, 1e-5) == label_rate_noise(0.01, 1e-5)


def test_scaled_gradients_and_microbatches_are_refused_in_the_grid(tmp_path: Path) -> None:
    grid = {"optimizer": ["sgd", "adam_scaled"], "learning_rate": 0.1, "batch_size": 1, "epochs": 1, "l2_clip_norm": 1}
    assert PrivateGrid.model_validate(grid)
    with pytest.raises(ValueError, match=r"`optimizer: adam_scaled` scales .* `microbatch_size: 1`, got 4"):
        PrivateGrid.model_validate({**grid, "microbatch_size": [1, 4]})
