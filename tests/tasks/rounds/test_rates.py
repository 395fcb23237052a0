"""Rates as a grid writes them, and as a trial holds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dp_core.training.rate_guess import SIGNAL_SHARE, STEP_LENGTH, guessed_rate
from tasks.config.loading import load_config
from tasks.config.selection import select
from tasks.data.prepared import Prepared
from tasks.rounds.cells import changed
from tasks.rounds.rates import as_written
from tasks.training.enumeration import enumerate_trials
from tasks.training.model_size import model_size
from tasks.training.trial import Trial
from tests.support.sweep_config import ALL, use
from tests.support.trials import make_prepared


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


def trials_of(per: str, prepared: Prepared, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    text = ALL.replace("raw: clicks.parquet", f"raw: {folder / 'raw' / 'clicks.parquet'}")
    text = text.replace("optimizer: sgd", f"optimizer: [sgd, adam], learning_rate_per: {per}")
    text = text.replace("[sgd, adam]", "sgd") if per == "guess" else text
    use(text, folder, monkeypatch)
    config = load_config()
    selection = select(config, {"pipeline": "sweep", "profile": "tiny", "seeds": 1})
    found = enumerate_trials(config, selection, "pcvr", prepared)
    return [trial for trial in found if trial.mechanism == "dp_sgd"]


def test_one_list_fits_every_clip_norm(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate of SGD is over the clip norm; that of Adam, whose step does not depend on it, is as written."""
    trials = trials_of("clip_norm", prepared, tmp_path, monkeypatch)
    rates = {(trial.optimizer, trial.l2_clip_norm): [] for trial in trials}
    for trial in trials:
        rates[trial.optimizer, trial.l2_clip_norm].append(trial.learning_rate)
    assert rates["sgd", 1.0] == [0.1, 0.3, 1.0]
    assert rates["sgd", 3.0] == pytest.approx([0.1 / 3, 0.1, 1 / 3])
    assert rates["adam", 1.0] == rates["adam", 3.0] == [0.1, 0.3, 1.0]
    assert {trial.learning_rate_per for trial in trials if trial.optimizer == "adam"} == {"one"}
    assert {as_written(trial, "learning_rate", prepared) for trial in trials} == {0.1, 0.3, 1.0}
    # A trial whose rate is not relative has the key that it had before there were relative ones.
    plain = next(trial for trial in trials if trial.optimizer == "adam")
    assert "learning_rate_per" not in plain.model_dump(mode="json")


def test_another_clip_norm_keeps_what_the_grid_gave(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for per in ("clip_norm", "guess"):
        trial = trials_of(per, prepared, tmp_path, monkeypatch)[0]
        other = changed(trial, prepared, l2_clip_norm=9.0)
        assert as_written(other, "learning_rate", prepared) == as_written(trial, "learning_rate", prepared) == 0.1
        assert other.learning_rate == pytest.approx(trial.learning_rate / 9)
        assert other.noise_multiplier == trial.noise_multiplier
        assert changed(other, prepared, l2_clip_norm=1.0).key == trial.key, "there and back is the same trial"
    longer = changed(trial, prepared, epochs=8.0)
    assert (longer.noise_multiplier or 0) > (trial.noise_multiplier or 0), "for the same budget"
    assert longer.learning_rate < trial.learning_rate
    assert changed(trial, prepared, keeps_noise=True, epochs=8.0).noise_multiplier == trial.noise_multiplier


def test_the_guess_is_the_centre_of_its_list(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for trial in trials_of("guess", prepared, tmp_path, monkeypatch):
        guess = guessed_rate(
            l2_clip_norm=trial.l2_clip_norm or 0,
            noise_multiplier=trial.noise_multiplier or 0,
            batch_size=trial.batch_size,
            dimension=model_size(trial.model, prepared),
            momentum=trial.momentum,
        )
        assert trial.learning_rate / guess == pytest.approx(as_written(trial, "learning_rate", prepared))


@pytest.mark.parametrize("noise_multiplier", [0.5, 4.0])
@pytest.mark.parametrize("l2_clip_norm", [1.0, 8.0])
def test_a_step_of_the_guessed_rate_has_the_stated_length(noise_multiplier: float, l2_clip_norm: float) -> None:
    """Measured on simulated steps without momentum. Seed 0; within 5 %, which is 10 standard errors and more."""
    rng, dimension, batch = np.random.default_rng(0), 4000, 200
    rate = guessed_rate(
        l2_clip_norm=l2_clip_norm,
        noise_multiplier=noise_multiplier,
        batch_size=batch,
        dimension=dimension,
        momentum=0.0,
    )
    signal = np.zeros(dimension)
    signal[0] = SIGNAL_SHARE * l2_clip_norm * batch
    noise = rng.normal(size=(50, dimension)) * noise_multiplier * l2_clip_norm
    lengths = np.linalg.norm(rate * (signal + noise) / batch, axis=1)
    assert lengths.mean() == pytest.approx(STEP_LENGTH, rel=0.05)
    with_momentum = guessed_rate(
        l2_clip_norm=l2_clip_norm,
        noise_multiplier=noise_multiplier,
        batch_size=batch,
        dimension=dimension,
        momentum=0.9,
    )
    assert with_momentum == pytest.approx(rate / 10)
