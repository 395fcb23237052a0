"""The audit judges what ran. It passes honest runs and fails runs that break their promise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tasks.train
from dp_core.accounting import epsilon_bound
from dp_core.events import poisson_event
from dp_core.mechanism import MechanismRecord
from dp_core.training import Hyperparameters, as_traced
from tasks.audit import AuditFailure, audit, audit_group, judge
from tasks.budget import noise_multiplier_for
from tasks.encoded import Prepared, vocabulary_release
from tasks.errors import UserError
from tasks.home import read_json, write_json
from tasks.plan import plan
from tasks.train import run_trial, train
from tasks.trial import Trial
from tests.trials import make_prepared, make_trial, without_privacy


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


class Trained(NamedTuple):
    """A trained trial with what it left for the audit."""

    trial: Trial
    record: dict[str, Any]
    evidence: dict[str, Any]


def calibrated(epsilon: float, **changes: Any) -> float:
    """For two epochs of the tiny dataset."""
    question = {"delta": 1 / 2400, "examples": 2400, "batch_size": 100, "steps": 48, **changes}
    return noise_multiplier_for(epsilon=epsilon, **question)


def trained(trial: Trial, prepared: Prepared) -> Trained:
    run_trial(trial, prepared)
    return Trained(trial, read_json(trial.folder / "record.json"), read_json(trial.folder / "evidence.json"))


@pytest.fixture(scope="module")
def honest(prepared: Prepared) -> Trained:
    """A trial whose noise was calibrated to its budget."""
    return trained(make_trial(prepared, epsilon=4.0, noise_multiplier=calibrated(4.0)), prepared)


def with_mechanism(record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**record, "mechanism": {**record["mechanism"], **changes}}


def test_an_honest_run_passes_just_within_its_budget(honest: Trained) -> None:
    trial, record, evidence = honest
    result, statement = judge(trial, record, evidence)
    assert result["verdict"] == "passed"
    assert 0.99 * 4.0 <= result["epsilon"] <= 4.0
    assert result["rdp_epsilon"] > result["pld_epsilon"]
    assert 0.98 * result["epsilon"] <= result["epsilon_lower"] <= result["epsilon"]
    # Against dp_accounting directly, at the whole δ: truncation costs next to nothing.
    event = poisson_event(sampling_probability=100 / 2400, noise_multiplier=trial.noise_multiplier, steps=48)
    assert result["epsilon"] == pytest.approx(epsilon_bound(event, 1 / 2400).epsilon, rel=2e-3)
    for words in (
        "Unit of privacy | one training example",
        "add_or_remove_one",
        "Vocabulary | **outside ε**",
        "Hyperparameter tuning | **outside ε**",
        "dp-accounting",
        "Poisson",
        "48, counted",
        "connect-the-dots",
        "not covered",
        "8 examples contributed at most",
    ):
        assert words in statement
    assert "fixed seed 0" in statement


@pytest.mark.parametrize(
    ("changes", "measured", "finding"),
    [
        ({"noise_multiplier": 0.5}, {}, "over the budget"),
        ({"steps": 60}, {"batch_sizes": [100] * 60}, "over the budget"),
        ({"expected_batch_size": 240, "max_batch_size": 400}, {}, "over the budget"),
        ({"steps": 40}, {}, "48 batches were seen"),
        ({}, {"batch_sizes": [188] * 48}, "examples were sampled"),
        ({}, {"batch_sizes": [42] * 48}, "examples were sampled"),
        ({}, {"batch_sizes": [100] * 48}, "vary with a standard deviation of 0.00"),
        ({}, {"participations": [2] * 2400}, "watched examples were in 2.00 ± 0.00 batches"),
        ({"examples": 240_000, "expected_batch_size": 10_000, "max_batch_size": 20_000}, {}, "more than 1/N"),
        ({}, {"probe": None}, "were not measured"),
    ],
)
def test_a_record_of_something_else_fails(
    honest: Trained, changes: dict[str, Any], measured: dict[str, Any], finding: str
) -> None:
    trial, record, evidence = honest
    result, statement = judge(trial, with_mechanism(record, **changes), {**evidence, **measured})
    assert result["verdict"] == "failed"
    assert any(finding in text for text in result["findings"])
    assert "NOT SHOWN TO BE WITHIN" in statement
    assert finding in statement


def test_a_private_trial_without_a_record_fails(honest: Trained) -> None:
    trial, record, evidence = honest
    with pytest.raises(AuditFailure, match="left no record"):
        judge(trial, {**record, "mechanism": None}, evidence)


def test_a_baseline_is_said_to_have_no_guarantee(prepared: Prepared) -> None:
    result, statement = judge(without_privacy(prepared), {"mechanism": None}, {})
    assert result["epsilon"] is None
    assert "no privacy guarantee" in statement


def test_secret_noise_is_stated(honest: Trained) -> None:
    trial, record, evidence = honest
    _, statement = judge(trial.model_copy(update={"randomness": "secret"}), record, evidence)
    assert "operating system's entropy" in statement
    assert "reproduction" not in statement


def test_the_step_writes_the_statement_logs_it_and_fails_a_run_over_budget(own_home: Path) -> None:
    """Through real MLflow: the run of a failed audit is marked FAILED, and the step raises."""
    from mlflow.tracking import MlflowClient

    from tasks.datasets import prepare_datasets
    from tasks.tracking import tracking_uri

    options = {"profile": "smoke", "tasks": ["pconvs"], "epsilons": [2.0]}
    group = plan(options, prepare_datasets(options))["groups"][-1]
    assert [item["trial"]["mechanism"] for item in group["items"]] == ["dp_sgd", "dp_sgd"]
    kept, logged = train(group) or ()
    _, audited = audit_group([kept, logged])
    client = MlflowClient(tracking_uri())
    run = client.get_run(logged["mlflow_run"])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["epsilon"] == pytest.approx(audited["epsilon"])
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["privacy_statement.md"]

    folder = own_home / "trials" / logged["trial"]
    assert (folder / "privacy_statement.md").exists()
    write_json(folder / "record.json", with_mechanism(read_json(folder / "record.json"), noise_multiplier=0.3))
    with pytest.raises(AuditFailure, match="over the budget of 2"):
        audit(logged)
    # Of a group all are looked at, and told of together.
    (own_home / "trials" / kept["trial"] / "audit.json").unlink()
    with pytest.raises(AuditFailure, match=r"^audit of [^\n]*over the budget of 2[^\n]*$"):
        audit_group([logged, kept])
    assert read_json(own_home / "trials" / kept["trial"] / "audit.json")["verdict"] == "passed"
    assert client.get_run(logged["mlflow_run"]).info.status == "FAILED"
    assert client.get_run(logged["mlflow_run"]).data.tags["audit"] == "failed"

    (folder / "evidence.json").unlink()
    with pytest.raises(AuditFailure, match="Delete its folder and train again"):
        audit(logged)


def test_noise_that_the_step_did_not_get_is_not_recorded(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that hands its step half the planned noise leaves a record of half the noise, and fails."""
    planned = calibrated(4.0)
    trial = make_trial(prepared, epsilon=4.0, noise_multiplier=planned, seed=7)

    def halved(hyper: Hyperparameters) -> Hyperparameters:
        return as_traced(hyper._replace(noise_multiplier=hyper.noise_multiplier / 2))

    monkeypatch.setattr(tasks.train, "as_traced", halved)
    result, _ = judge(*trained(trial, prepared))
    assert result["verdict"] == "failed"
    assert "over the budget" in result["findings"][0]


def test_the_papers_scaling_is_marked_as_no_guarantee(prepared: Prepared) -> None:
    """Noise for one clip norm, where an example in a group can move the sum by two: the claim is
    within its budget, and what holds is what half the noise multiplier is worth."""
    noise_multiplier = calibrated(4.0)
    values = {"epsilon": 4.0, "noise_multiplier": noise_multiplier, "microbatch_size": 4}
    paper, proven = (make_trial(prepared, **values, sensitivity=kind) for kind in ("paper", "proven"))
    result, statement = judge(*trained(paper, prepared))
    assert result["verdict"] == "passed"
    assert 0.99 * 4 <= result["claimed_epsilon"] <= 4
    half = poisson_event(sampling_probability=100 / 2400, noise_multiplier=noise_multiplier / 2, steps=48)
    assert result["epsilon"] == pytest.approx(epsilon_bound(half, 1 / 2400).epsilon, rel=5e-3)
    assert result["epsilon"] > 8
    assert "not a guarantee under adding or removing" in statement
    assert f"What holds is ε = {result['epsilon']:.4f}" in statement

    _, record, evidence = trained(proven, prepared)
    result, statement = judge(proven, record, evidence)
    assert result["verdict"] == "passed"
    assert result["claimed_epsilon"] is None
    assert 0.99 * 4 <= result["epsilon"] <= 4
    assert "not a guarantee" not in statement
    assert "| Sensitivity of a sum | 2C" in statement
    assert "groups of 4" in statement

    # A run that was to be proven but scaled its noise like the paper does not pass.
    result, _ = judge(proven, with_mechanism(record, sensitivity=1.0), evidence)
    assert result["verdict"] == "failed"
    assert any("which one example can exceed" in finding for finding in result["findings"])


def test_an_adaptive_clip_norm_is_paid_for(prepared: Prepared) -> None:
    noise_multiplier = calibrated(4.0)
    trial = make_trial(prepared, epsilon=4.0, noise_multiplier=noise_multiplier, clipping="adaptive", clip_quantile=0.5)
    _, record, evidence = trained(trial, prepared)
    result, statement = judge(trial, record, evidence)
    assert result["verdict"] == "passed"
    assert 0.99 * 4 <= result["epsilon"] <= 4
    assert "for the count, whose sensitivity is 1; ε covers both" in statement
    # Without noise on the count there is no guarantee at all.
    without = judge(trial, with_mechanism(record, count_noise_multiplier=0.0), evidence)[0]
    assert without["verdict"] == "failed"


def test_a_private_vocabulary_is_part_of_the_budget(own_home: Path, tmp_path: Path) -> None:
    """The same budget then leaves less for training, which gets more noise; the audit adds the two up."""
    prepared = make_prepared(tmp_path, vocabulary="private", vocabulary_epsilon=2.0)
    vocabulary = vocabulary_release(prepared)
    assert vocabulary is not None
    noise_multiplier = calibrated(4.0, vocabulary=vocabulary)
    assert noise_multiplier > 1.02 * calibrated(4.0)
    trial, record, evidence = trained(make_trial(prepared, epsilon=4.0, noise_multiplier=noise_multiplier), prepared)
    result, statement = judge(trial, record, evidence)
    assert result["verdict"] == "passed"
    assert 0.995 * 4 <= result["epsilon"] <= 4
    assert "Vocabulary | inside ε" in statement

    ran = MechanismRecord.from_json(record["mechanism"])
    assert ran.vocabulary == vocabulary
    alone = dataclasses.replace(ran, vocabulary=None).epsilon_bound(trial.target_delta).epsilon
    assert alone < 0.98 * result["epsilon"]
    assert result["epsilon_lower"] <= alone
    # The same training, had the vocabulary been forgotten in the planning, is over its budget.
    forgot = with_mechanism(record, noise_multiplier=calibrated(4.0))
    assert any("over the budget" in finding for finding in judge(trial, forgot, evidence)[0]["findings"])


def test_a_budget_that_the_vocabulary_uses_up_is_refused(own_home: Path, tmp_path: Path) -> None:
    prepared = make_prepared(tmp_path, vocabulary="private", vocabulary_epsilon=2.0)
    with pytest.raises(UserError, match="no noise multiplier"):
        calibrated(0.5, vocabulary=vocabulary_release(prepared))


def test_hashed_tokens_cost_nothing_and_it_is_said(own_home: Path, tmp_path: Path) -> None:
    prepared = make_prepared(tmp_path, vocabulary="hash", vocabulary_buckets=64)
    trial, record, evidence = trained(make_trial(prepared, noise_multiplier=1.0), prepared)
    assert MechanismRecord.from_json(record["mechanism"]).vocabulary is None
    assert "hashed into 64 buckets a column, which costs no ε" in judge(trial, record, evidence)[1]


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        ("shuffle", ["replace_special", "**No amplification by sampling is claimed**"]),
        ("balls_in_bins", ["add_or_remove_one", "balls in bins", "ε by RDP | none", "not known for this sampler"]),
    ],
)
def test_other_samplers_are_accounted_as_what_they_are(prepared: Prepared, sampler: Any, words: list[str]) -> None:
    noise_multiplier = calibrated(4.0, sampler=sampler)
    result, statement = judge(
        *trained(make_trial(prepared, epsilon=4.0, noise_multiplier=noise_multiplier, sampler=sampler), prepared)
    )
    assert result["verdict"] == "passed"
    assert 0.995 * 4 <= result["epsilon"] <= 4
    assert [word for word in words if word not in statement] == []
    # Shuffled batches pay for what they are: about twice the noise of Poisson's here.
    assert (noise_multiplier > 1.5 * calibrated(4.0)) == (sampler == "shuffle")
