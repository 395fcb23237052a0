"""Trainings that take a private one apart: they share its seed and batches, and prove nothing."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest

from tasks.audit import audit_group
from tasks.next_round import next_round
from tasks.privacy.guarantees import no_guarantee
from tasks.privacy.verdict import judge
from tasks.report import report
from tasks.rounds.decomposition import without_clipping, without_noise
from tasks.runtime.errors import UserError
from tasks.train import train
from tasks.training.finished import FinishedTrial
from tasks.training.items import read_plan
from tasks.training.loop import run_trial
from tasks.training.trial import Trial
from tests.support.reports import configure, planned, report_home
from tests.support.trials import evidence_of, make_prepared, make_trial, parameters_of, record_of

PARTS = """  parts:
    title: Parts of the loss
    exhibit: decomposition
    datasets: {pcvr: tiny_clicks}
    grids:
      tiny:
        epsilons: [2, 8]
        seeds: 2
        tasks:
          pcvr:
            non_private: {optimizer: sgd, learning_rate: 0.1, batch_size: 200, epochs: 2}
            dp_sgd: {optimizer: sgd, learning_rate: 0.1, batch_size: 200, epochs: 2, l2_clip_norm: [1, 3]}
  clips:
"""


def test_without_noise_a_private_training_is_the_one_that_only_clips(own_home: Path, tmp_path: Path) -> None:
    """With noise 0 both do the same on the same batches, to the bit, so that the part of the noise is zero."""
    prepared = make_prepared(tmp_path / "raw")
    silent = make_trial(prepared, noise_multiplier=0.0)
    run_trial(silent, prepared)
    clipped = without_noise(silent)
    run_trial(clipped, prepared)
    assert clipped.key != silent.key
    assert record_of(clipped)["test_loss"] == record_of(silent)["test_loss"]
    for name, array in parameters_of(clipped).items():
        np.testing.assert_array_equal(array, parameters_of(silent)[name])


def test_without_effect_clipping_is_no_clipping(own_home: Path, tmp_path: Path) -> None:
    prepared = make_prepared(tmp_path / "raw")
    loose = make_trial(prepared, l2_clip_norm=1e9, noise_multiplier=0.0)
    run_trial(loose, prepared)
    clipped, plain = without_noise(loose), without_clipping(loose)
    for trial in (clipped, plain):
        run_trial(trial, prepared)
    for name, array in parameters_of(clipped).items():
        np.testing.assert_allclose(array, parameters_of(plain)[name], rtol=1e-3, atol=1e-5)
    # What only clips cannot be taken for private.
    record = record_of(clipped)
    assert (clipped.epsilon, record["mechanism"]) == (None, None)
    result, statement = judge(clipped, record, evidence_of(clipped))
    assert (result["epsilon"], result["budget"]) == (None, None)
    assert "This model has no privacy guarantee." in statement
    assert "proves no ε" in statement
    reason = no_guarantee(FinishedTrial.open(clipped))
    assert reason is not None
    assert reason.kind == "not private"
    assert "clipped without noise" in clipped.label()


def test_a_private_trial_shares_no_batches(own_home: Path, tmp_path: Path) -> None:
    prepared = make_prepared(tmp_path / "raw")
    first = make_trial(prepared)
    run_trial(first, prepared)
    with pytest.raises(UserError, match="only a trial without a guarantee can"):
        run_trial(make_trial(prepared, seed=1, sampled_like=first.key), prepared)
    # Nobody knows the batches of a secret trial.
    secret = make_trial(prepared, randomness="secret")
    assert without_noise(secret).sampled_like is None
    assert without_noise(first).sampled_like == first.key


def test_a_run_takes_its_chosen_trainings_apart(tmp_path: Path) -> None:
    with report_home(tmp_path) as here:
        configure(here, "  clips:\n", PARTS)
        found = planned("parts")
        audited = [one for group in found["groups"] for one in audit_group(train(group) or [])]
        assert len(audited) == 2 + 2 * 2 * 2
        groups = next_round(found["run"])
        assert groups is not None
        trials = [Trial.model_validate(item["trial"]) for group in groups for item in group["items"]]
        assert sorted((trial.mechanism, trial.seed) for trial in trials) == sorted(
            itertools.product(["clipped_only", "non_private"], [0, 0, 1, 1])
        )
        audited += [one for group in groups for one in audit_group(train(group) or [])]
        assert next_round(found["run"]) is None
        files = report(found["run"], audited)
        with open(files["table"], encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["epsilon"] for row in rows] == ["2", "8"]
        chosen = {
            item["trial"]["sampled_like"]
            for item in read_plan(found["run"])["items"]
            if "sampled_like" in item["trial"]
        }
        assert len(chosen) == 4
        baseline = [
            record_of(Trial.model_validate(item["trial"]))["test_loss"]
            for item in read_plan(found["run"])["items"]
            if item["trial"]["mechanism"] == "non_private" and item["round"] == 1
        ]
        for row in rows:
            losses = [FinishedTrial.open(key).record for key in chosen]
            private = [one["test_loss"] for one in losses if one["trial"]["epsilon"] == float(row["epsilon"])]
            total = 100 * (np.mean(private) - np.mean(baseline)) / np.mean(baseline)
            parts = [float(row[f"{name}_percent_mean"]) for name in ("recipe", "clipping", "noise")]
            assert sum(parts) == pytest.approx(total, rel=1e-5)
            assert float(row["relative_loss_percent"]) == pytest.approx(total, rel=1e-5)
        # The recipe of this grid is the baseline's, but for its batches.
        page = Path(files["page"]).read_text()
        assert "Where the loss comes from: pCVR" in page
        assert "clipped without noise" in page
