"""The audit judges what ran. It passes honest runs and fails runs that break their promise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tasks.train
from dp_core.accounting import epsilon_bound
from dp_core.sampling import poisson_event
from dp_core.training import Hyperparameters, as_traced
from tasks.audit import AuditFailure, audit, judge
from tasks.budget import noise_multiplier_for
from tasks.encoded import Prepared
from tasks.home import read_json, write_json
from tasks.plan import plan
from tasks.train import run_trial, train
from tests.trials import make_prepared, make_trial, without_privacy


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


@pytest.fixture(scope="module")
def honest(prepared: Prepared) -> tuple[Any, dict[str, Any]]:
    """A trained trial whose noise was calibrated to its budget, and its record."""
    noise_multiplier = noise_multiplier_for(epsilon=4.0, delta=1 / 2400, sampling_probability=100 / 2400, steps=48)
    trial = make_trial(prepared, epsilon=4.0, noise_multiplier=noise_multiplier)
    run_trial(trial, prepared)
    return trial, read_json(trial.folder / "record.json")


def with_mechanism(record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**record, "mechanism": {**record["mechanism"], **changes}}


def test_an_honest_run_passes_just_within_its_budget(honest: tuple[Any, dict[str, Any]]) -> None:
    trial, record = honest
    result, statement = judge(trial, record)
    assert result["verdict"] == "passed"
    assert 0.99 * 4.0 <= result["epsilon"] <= 4.0
    assert result["rdp_epsilon"] > result["pld_epsilon"]
    # Against dp_accounting directly, at the whole δ: truncation costs next to nothing.
    event = poisson_event(sampling_probability=100 / 2400, noise_multiplier=trial.noise_multiplier, steps=48)
    assert result["epsilon"] == pytest.approx(epsilon_bound(event, 1 / 2400).epsilon, rel=2e-3)
    for words in ("add_or_remove_one", "Poisson", "48, counted", "connect-the-dots", "not covered", "Vocabularies"):
        assert words in statement
    assert "fixed seed 0" in statement


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"noise_multiplier": 0.5}, "over the budget"),
        ({"steps": 60, "sampled_examples": 6000}, "over the budget"),
        ({"sampling_probability": 0.1, "sampled_examples": 11520, "max_batch_size": 400}, "over the budget"),
        ({"sampled_examples": 9000}, "examples were sampled"),
        ({"sampled_examples": 2000}, "examples were sampled"),
        ({"examples": 240_000, "sampling_probability": 100 / 240_000}, "more than 1/N"),
    ],
)
def test_a_record_of_something_else_fails(
    honest: tuple[Any, dict[str, Any]], changes: dict[str, Any], finding: str
) -> None:
    trial, record = honest
    result, statement = judge(trial, with_mechanism(record, **changes))
    assert result["verdict"] == "failed"
    assert any(finding in text for text in result["findings"])
    assert "NOT SHOWN TO BE WITHIN" in statement


def test_a_private_trial_without_a_record_fails(honest: tuple[Any, dict[str, Any]]) -> None:
    trial, record = honest
    with pytest.raises(AuditFailure, match="left no record"):
        judge(trial, {**record, "mechanism": None})


def test_a_baseline_is_said_to_have_no_guarantee(prepared: Prepared) -> None:
    result, statement = judge(without_privacy(prepared), {"mechanism": None})
    assert result["epsilon"] is None
    assert "no privacy guarantee" in statement


def test_secret_noise_is_stated(honest: tuple[Any, dict[str, Any]]) -> None:
    trial, record = honest
    _, statement = judge(trial.model_copy(update={"randomness": "secret"}), record)
    assert "operating system's entropy" in statement
    assert "reproduction" not in statement


def test_the_step_writes_the_statement_logs_it_and_fails_a_run_over_budget(own_home: Path) -> None:
    """Through real MLflow: the run of a failed audit is marked FAILED, and the step raises."""
    from mlflow.tracking import MlflowClient

    from tasks.datasets import prepare_datasets
    from tasks.tracking import tracking_uri

    options = {"profile": "smoke", "tasks": ["pconvs"], "epsilons": [2.0]}
    item = plan(options, prepare_datasets(options))["items"][-1]
    trained = train(item)
    audited = audit(trained)
    client = MlflowClient(tracking_uri())
    run = client.get_run(trained["mlflow_run"])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["epsilon"] == pytest.approx(audited["epsilon"])
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["privacy_statement.md"]

    folder = own_home / "trials" / trained["trial"]
    assert (folder / "privacy_statement.md").exists()
    write_json(folder / "record.json", with_mechanism(read_json(folder / "record.json"), noise_multiplier=0.3))
    with pytest.raises(AuditFailure, match="over the budget of 2"):
        audit(trained)
    assert client.get_run(trained["mlflow_run"]).info.status == "FAILED"
    assert client.get_run(trained["mlflow_run"]).data.tags["audit"] == "failed"


def test_noise_that_the_step_did_not_get_is_not_recorded(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that hands its step half the planned noise leaves a record of half the noise, and fails."""
    planned = noise_multiplier_for(epsilon=4.0, delta=1 / 2400, sampling_probability=100 / 2400, steps=48)
    trial = make_trial(prepared, epsilon=4.0, noise_multiplier=planned, seed=7)

    def halved(hyper: Hyperparameters) -> Hyperparameters:
        return as_traced(hyper._replace(noise_multiplier=hyper.noise_multiplier / 2))

    monkeypatch.setattr(tasks.train, "as_traced", halved)
    run_trial(trial, prepared)
    result, _ = judge(trial, read_json(trial.folder / "record.json"))
    assert result["verdict"] == "failed"
    assert "over the budget" in result["findings"][0]


def test_the_papers_scaling_is_marked_as_no_guarantee(prepared: Prepared) -> None:
    """Noise for one clip norm, where an example in a group can move the sum by two: the claim is
    within its budget, and what holds is what half the noise multiplier is worth."""
    noise_multiplier = noise_multiplier_for(epsilon=4.0, delta=1 / 2400, sampling_probability=100 / 2400, steps=48)
    values = {"epsilon": 4.0, "noise_multiplier": noise_multiplier, "microbatch_size": 4}
    paper, proven = (make_trial(prepared, **values, sensitivity=kind) for kind in ("paper", "proven"))
    for trial in (paper, proven):
        run_trial(trial, prepared)

    result, statement = judge(paper, read_json(paper.folder / "record.json"))
    assert result["verdict"] == "passed"
    assert 0.99 * 4 <= result["claimed_epsilon"] <= 4
    half = poisson_event(sampling_probability=100 / 2400, noise_multiplier=noise_multiplier / 2, steps=48)
    assert result["epsilon"] == pytest.approx(epsilon_bound(half, 1 / 2400).epsilon, rel=5e-3)
    assert result["epsilon"] > 8
    assert "not a guarantee under adding or removing" in statement
    assert f"What holds is ε = {result['epsilon']:.4f}" in statement

    record = read_json(proven.folder / "record.json")
    result, statement = judge(proven, record)
    assert result["verdict"] == "passed"
    assert result["claimed_epsilon"] is None
    assert 0.99 * 4 <= result["epsilon"] <= 4
    assert "not a guarantee" not in statement
    assert "| Sensitivity of a sum | 2C" in statement
    assert "groups of 4" in statement

    # A run that was to be proven but scaled its noise like the paper does not pass.
    result, _ = judge(proven, with_mechanism(record, sensitivity=1.0))
    assert result["verdict"] == "failed"
    assert any("which one example can exceed" in finding for finding in result["findings"])


def test_an_adaptive_clip_norm_is_paid_for(prepared: Prepared) -> None:
    noise_multiplier = noise_multiplier_for(epsilon=4.0, delta=1 / 2400, sampling_probability=100 / 2400, steps=48)
    trial = make_trial(prepared, epsilon=4.0, noise_multiplier=noise_multiplier, clipping="adaptive", clip_quantile=0.5)
    run_trial(trial, prepared)
    record = read_json(trial.folder / "record.json")
    result, statement = judge(trial, record)
    assert result["verdict"] == "passed"
    assert 0.99 * 4 <= result["epsilon"] <= 4
    assert "for the count, whose sensitivity is 1; ε covers both" in statement
    # Without noise on the count there is no guarantee at all.
    without = judge(trial, with_mechanism(record, count_noise_multiplier=0.0))[0]
    assert without["verdict"] == "failed"
