"""Recalibrated trials: what is released has the shift, the audit says what it costs and finds bugs."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_core.evaluation.metrics import auc_loss
from dp_core.models.plain import predict_logits
from tasks.data.prepared import Prepared
from tasks.evaluation import recalibrating
from tasks.evaluation.recalibrating import shift_of, shifted
from tasks.privacy.recalibrated import recalibration_epsilon
from tasks.privacy.releases import releases
from tasks.privacy.verdict import judge
from tasks.runtime.errors import UserError
from tasks.training.finished import FinishedTrial
from tasks.training.loop import run_trial
from tasks.training.trial import Trial
from tests.support.trials import make_prepared, make_trial, parameters_of, record_of, without_privacy

ASKED = {"recalibration": "shift", "recalibration_epsilon": 0.5}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("recalibrating")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


@pytest.fixture(scope="module")
def secret(prepared: Prepared) -> FinishedTrial:
    """A secret trial, recalibrated, trained and audited."""
    trial = make_trial(prepared, randomness="secret", epochs=1, epsilon=20.0, **ASKED)
    return trained(trial, prepared)


def trained(trial: Trial, prepared: Prepared) -> FinishedTrial:
    run_trial(trial, prepared)
    finished = FinishedTrial.open(trial)
    evidence = finished.evidence
    assert evidence is not None
    result, statement = judge(trial, finished.record, evidence)
    assert result["verdict"] == "passed", result["findings"]
    finished.write_audit(result, statement)
    return finished


def predicted(finished: FinishedTrial, prepared: Prepared, split: str) -> tuple[np.ndarray, np.ndarray]:
    rows = prepared.split(split, finished.trial.task)
    network = finished.trial.model.model_dump(mode="json")
    return predict_logits(network, finished.read_parameters(), rows.integers, rows.categoricals), rows.labels


def test_the_released_model_has_the_shift_and_metrics_are_with_it(prepared: Prepared, secret: FinishedTrial) -> None:
    logits, labels = predicted(secret, prepared, "test")
    metrics = secret.record["test_metrics"]
    mean = float(np.mean(1 / (1 + np.exp(-logits.astype(np.float64)))))
    assert metrics["calibration"] == pytest.approx(mean / labels.mean(), rel=1e-5)
    made = secret.record["recalibration"]
    assert made["rows"] == prepared.splits["validation"]["rows"]
    assert len(made["released"]) == 4
    assert "exact" not in made


def test_the_audit_and_the_statement_say_what_it_costs_whom(secret: FinishedTrial) -> None:
    epsilon = secret.audit["recalibration_epsilon"]
    assert 0.5 * 0.998 <= epsilon <= 0.5
    noise = secret.record["recalibration"]["noise_multiplier"]
    assert epsilon == pytest.approx(recalibration_epsilon([noise], secret.trial.target_delta))
    # The Gaussian mechanism's δ at that ε (Balle and Wang, 2018, theorem 8) is the trial's.
    from scipy.stats import norm

    mu = 1 / noise
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(secret.trial.target_delta, rel=0.02)
    text = secret.statement.read_text()
    assert f"For an example of the validation split it costs **ε = {epsilon:.4f}**" in text
    assert "no example is in both splits" in text
    assert releases([secret.folder.name])[0]["epsilon"] == pytest.approx(secret.audit["epsilon"])
    # Many recalibrations on the same validation rows add up; two with σ each are one with σ/√2.
    assert recalibration_epsilon([noise, noise], 1e-4) == pytest.approx(
        recalibration_epsilon([noise / math.sqrt(2)], 1e-4), rel=1e-3
    )


def test_a_seeded_trial_and_a_baseline_are_recalibrated_too(prepared: Prepared) -> None:
    seeded = make_trial(prepared, epochs=1, epsilon=20.0, **ASKED)
    finished = trained(seeded, prepared)
    first = record_of(seeded)["recalibration"], parameters_of(seeded)["output/bias"]
    made = shift_of(seeded, np.zeros(300), np.ones(300), (1, 2))
    assert made.released == shift_of(seeded, np.zeros(300), np.ones(300), (1, 2)).released
    assert made.released != shift_of(seeded, np.zeros(300), np.ones(300), (1, 3)).released
    assert finished.audit["recalibration_epsilon"] <= 0.5
    assert first[0]["noise_multiplier"] > 1
    baseline = trained(without_privacy(prepared, epochs=1, recalibration="shift"), prepared)
    assert baseline.record["recalibration"]["released"] == []
    logits, labels = predicted(baseline, prepared, "validation")
    mean = float(np.mean(1 / (1 + np.exp(-logits.astype(np.float64)))))
    assert mean / labels.mean() == pytest.approx(1, abs=0.03)
    assert baseline.record["validation_loss"] == pytest.approx(auc_loss(logits, labels), abs=1e-4)
    plain = make_trial(prepared, epochs=1, epsilon=20.0)
    assert plain.key != seeded.key
    assert "recalibration" not in plain.model_dump(mode="json")


def broken_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is scaled to one sum instead of all of them."""
    import dp_core.evaluation.recalibration as core

    true = core.rounded_normal
    monkeypatch.setattr(core, "rounded_normal", lambda n, s, **kw: true(n, s / 2, **kw))


def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    import dp_core.evaluation.recalibration as core

    monkeypatch.setattr(core, "rounded_normal", lambda n, s, **kw: np.zeros(n, np.int64))


def unclipped_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    import dp_core.evaluation.recalibration as core

    monkeypatch.setattr(core, "_terms", lambda task, values: np.rint(core.GRID * 3 * values).astype(np.int64))


def other_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(parameters: dict[str, Any], shift: float) -> dict[str, Any]:
        right = shifted(parameters, shift)
        return {**right, "hidden_0": {**right["hidden_0"], "bias": right["hidden_0"]["bias"] + np.float32(0.01)}}

    monkeypatch.setattr("tasks.training.loop.shifted", moved)


def too_little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recalibrating, "_noise_multiplier", lambda epsilon, delta: 1.0)


@pytest.mark.parametrize(
    ("bug", "said"),
    [
        (no_noise, "noise of the recalibration's sums"),
        (broken_scale, "noise of another recalibration's sums"),
        (unclipped_terms, "adds up to"),
        (other_layer, "not those of the last step with a shifted output bias"),
        (too_little_noise, "over its budget of 0.5"),
    ],
)
def test_planted_bugs_fail_the_audit(prepared: Prepared, monkeypatch: pytest.MonkeyPatch, bug: Any, said: str) -> None:
    """Each bug has a seed of its own, so that it is trained."""
    seed = [no_noise, broken_scale, unclipped_terms, other_layer, too_little_noise].index(bug) + 10
    trial = make_trial(prepared, epochs=0.2, epsilon=20.0, seed=seed, **ASKED)
    bug(monkeypatch)
    run_trial(trial, prepared)
    finished = FinishedTrial.open(trial)
    evidence = finished.evidence
    assert evidence is not None
    result, _ = judge(trial, finished.record, evidence)
    assert result["verdict"] == "failed"
    assert any(said in finding for finding in result["findings"]), result["findings"]


def test_records_that_deny_a_recalibration_fail(secret: FinishedTrial) -> None:
    evidence = secret.evidence
    assert evidence is not None
    record = copy.deepcopy(secret.record)
    del record["recalibration"]
    assert any("which the record denies" in one for one in judge(secret.trial, record, evidence)[0]["findings"])
    unmeasured = {**evidence, "recalibration": None}
    found = judge(secret.trial, secret.record, unmeasured)[0]["findings"]  # type: ignore[arg-type]
    assert any("was not measured" in one for one in found)


def test_a_model_without_an_output_bias_is_refused() -> None:
    with pytest.raises(UserError, match="last layer is called 'output'"):
        shifted({"output": {"kernel": np.zeros((2, 1))}}, 0.1)


def test_served_predictions_have_the_shift(prepared: Prepared, secret: FinishedTrial, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from tasks.serving.packaging import save_model
    from tasks.serving.released import ReleasedModel
    from tests.tasks.evaluation.test_segments import described

    save_model(secret, prepared, described(), tmp_path / "model")
    model = ReleasedModel.load(tmp_path / "model")
    raw = (
        pq.read_table(prepared.path.parents[3] / "raw" / "clicks.parquet")
        .to_pandas()
        .sort_values("time", kind="stable")
    )
    test = raw.tail(prepared.splits["test"]["rows"])[["price", "color"]].astype(object)
    served = model.predictor.predict(test)["pcvr"].to_numpy()
    logits, labels = predicted(secret, prepared, "test")
    np.testing.assert_allclose(served, 1 / (1 + np.exp(-logits.astype(np.float64))), atol=1e-6)
    assert served.mean() / labels.mean() == pytest.approx(secret.record["test_metrics"]["calibration"], rel=1e-5)
    assert model.guarantee["recalibration_epsilon"] == secret.audit["recalibration_epsilon"]
