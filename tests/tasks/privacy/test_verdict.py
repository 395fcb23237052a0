"""The audit's verdict: honest runs pass, and runs that do not keep their promise fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tasks.training.setup
from dp_core.accounting.epsilon import epsilon_bound
from dp_core.accounting.events import poisson_event
from dp_core.accounting.mechanism import MechanismRecord
from dp_core.audit.sampling_counts import SamplingCounts
from dp_core.sampling import PoissonSampler, ShuffledSampler
from dp_core.training.step import Hyperparameters, as_traced
from tasks.data.prepared import Prepared, vocabulary_release
from tasks.privacy.cached_accounting import noise_multiplier_for
from tasks.privacy.statement import audits_line, summary
from tasks.privacy.verdict import AuditFailure, judge
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json
from tasks.training.finished import FinishedTrial
from tasks.training.loop import run_trial
from tasks.training.trial import Trial
from tests.support.trials import make_prepared, make_trial, without_privacy


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


class Trained(NamedTuple):
    """A trained trial with its record and its evidence."""

    trial: Trial
    record: dict[str, Any]
    evidence: dict[str, Any]


def calibrated(epsilon: float, **changes: Any) -> float:
    """Returns the noise multiplier for two epochs of the tiny dataset."""
    question = {"delta": 1 / 2400, "examples": 2400, "batch_size": 100, "steps": 48, **changes}
    return noise_multiplier_for(epsilon=epsilon, **question)


def trained(trial: Trial, prepared: Prepared) -> Trained:
    run_trial(trial, prepared)
    return Trained(trial, read_json(trial.folder / "record.json"), read_json(trial.folder / "evidence.json"))


@pytest.fixture(scope="module")
def honest(prepared: Prepared) -> Trained:
    """A trial with noise that was calibrated to its budget."""
    return trained(make_trial(prepared, epsilon=4.0, noise_multiplier=calibrated(4.0)), prepared)


def with_mechanism(record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**record, "mechanism": {**record["mechanism"], **changes}}


def shuffled(batch_size: int) -> dict[str, Any]:
    """Returns the counts of 48 shuffled batches."""
    sampler, counts = ShuffledSampler(2400, batch_size, batch_size), SamplingCounts(2400)
    for step in range(48):
        counts.add(step, sampler.batch(step).indices)
    return counts.to_json()


def test_an_honest_run_passes_just_within_its_budget(honest: Trained) -> None:
    trial, record, evidence = honest
    result, statement = judge(trial, record, evidence)
    assert result["verdict"] == "passed"
    assert 0.99 * 4.0 <= result["epsilon"] <= 4.0
    assert result["rdp_epsilon"] > result["pld_epsilon"]
    assert 0.98 * result["epsilon"] <= result["epsilon_lower"] <= result["epsilon"]
    # Against dp_accounting directly, at the whole δ: truncation costs almost nothing.
    event = poisson_event(sampling_probability=100 / 2400, noise_multiplier=trial.noise_multiplier, steps=48)
    assert result["epsilon"] == pytest.approx(epsilon_bound(event, 1 / 2400).epsilon, rel=2e-3)
    for words in (
        "Unit of privacy | one training example",
        "replace_special (zeroing out)",
        "N is public",
        "**The non-private baseline.**",
        "Vocabulary | **outside ε**",
        "Hyperparameter tuning | **outside ε**",
        "dp-accounting",
        "Poisson",
        "48, counted",
        "connect-the-dots",
        "not covered",
        "times what rounding explains",
        "Every step reported from the device which rows it computed with",
    ):
        assert words in statement
    assert "fixed seed 0" in statement
    assert "| Guarantee | **none**, because the noise is not secret; the same training with" in statement


@pytest.mark.parametrize(
    ("changes", "measured", "finding"),
    [
        ({"noise_multiplier": 0.5}, {}, "over the budget"),
        ({"steps": 60}, {}, "over the budget"),
        ({"expected_batch_size": 240, "max_batch_size": 400}, {}, "over the budget"),
        ({"steps": 40}, {}, "48 batches were seen"),
        ({}, {"sampling": shuffled(188)}, "examples were sampled"),
        ({}, {"sampling": shuffled(42)}, "examples were sampled"),
        ({}, {"sampling": shuffled(100)}, "vary with a standard deviation of 0.00"),
        ({}, {"sampling": shuffled(100)}, "watched examples were in 2.00 ± 0.00 batches"),
        ({"examples": 240_000, "expected_batch_size": 10_000, "max_batch_size": 20_000}, {}, "more than 1/N"),
        ({}, {"probe": None}, "was not measured"),
        ({}, {"replays": []}, "was not measured"),
        ({}, {"device_steps": 49}, "the model has taken 49"),
        ({}, {"releases_the_last_state": False}, "are not those of the last step"),
        ({"clipping": "automatic"}, {}, "clipping is 'fixed' in the program that ran, but 'automatic' is recorded"),
        ({"microbatch_size": 2, "sensitivity": 2.0}, {}, "microbatch_size is 1 in the trial, but 2 is recorded"),
        ({"l2_clip_norm": 0.5}, {}, "l2_clip_norm is 1.0 in the trial, but 0.5 is recorded"),
        ({"coordinates": 5}, {}, "but 5 is recorded"),
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
    assert "| Guarantee | **none**: the audit failed" in statement
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


def test_noise_that_the_step_did_not_get_is_not_recorded(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that gives its step half the planned noise records half the noise and fails."""
    planned = calibrated(4.0)
    trial = make_trial(prepared, epsilon=4.0, noise_multiplier=planned, seed=7)

    def halved(hyper: Hyperparameters) -> Hyperparameters:
        return as_traced(hyper._replace(noise_multiplier=hyper.noise_multiplier / 2))

    monkeypatch.setattr(tasks.training.setup, "as_traced", halved)
    result, _ = judge(*trained(trial, prepared))
    assert result["verdict"] == "failed"
    assert "over the budget" in result["findings"][0]


def test_the_papers_scaling_is_marked_as_no_guarantee(prepared: Prepared) -> None:
    """Noise is scaled to one clip norm, but an example in a group can move the sum by two. The claim is within its
    budget, and the valid ε is that of half the noise multiplier."""
    noise_multiplier = calibrated(4.0)
    values = {"epsilon": 4.0, "noise_multiplier": noise_multiplier, "microbatch_size": 4}
    paper, proven = (make_trial(prepared, **values, sensitivity=kind) for kind in ("paper", "proven"))
    result, statement = judge(*trained(paper, prepared))
    assert result["verdict"] == "passed"
    assert 0.99 * 4 <= result["claimed_epsilon"] <= 4
    half = poisson_event(sampling_probability=100 / 2400, noise_multiplier=noise_multiplier / 2, steps=48)
    assert result["epsilon"] == pytest.approx(epsilon_bound(half, 1 / 2400).epsilon, rel=5e-3)
    assert result["epsilon"] > 8
    assert "**The budget of ε = 4 is not a guarantee**" in statement
    assert f"What holds is ε = {result['epsilon']:.4f}" in statement

    _, record, evidence = trained(proven, prepared)
    result, statement = judge(proven, record, evidence)
    assert result["verdict"] == "passed"
    assert result["claimed_epsilon"] is None
    assert 0.99 * 4 <= result["epsilon"] <= 4
    assert "not a guarantee" not in statement
    assert "| Sensitivity of a sum | 2C" in statement
    assert "groups of 4" in statement

    # A run that was asked for the proven scaling but used the paper's does not pass.
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
    assert "for the count, which has sensitivity 1; ε covers both" in statement
    # Without noise on the count there is no guarantee.
    without = judge(trial, with_mechanism(record, count_noise_multiplier=0.0), evidence)[0]
    assert without["verdict"] == "failed"


def test_a_private_vocabulary_is_part_of_the_budget(own_home: Path, tmp_path: Path) -> None:
    """It leaves less of the budget for training, which then needs more noise; the audit composes the two."""
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
    # A training that was planned without the vocabulary is over its budget.
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
    assert "hashed into 64 buckets per column, which costs no ε" in judge(trial, record, evidence)[1]


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        ("shuffle", ["replace_special", "**No amplification by sampling is claimed**"]),
        ("balls_in_bins", ["replace_special", "balls in bins", "ε by RDP | none", "not known for this sampler"]),
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
    # Shuffled batches need about twice the noise of Poisson samples here.
    assert (noise_multiplier > 1.5 * calibrated(4.0)) == (sampler == "shuffle")


def test_a_run_that_diverged_has_no_guarantee_to_give(honest: Trained) -> None:
    """It stopped after 5 of 48 steps. Neither those 5 nor the budget are what holds."""
    trial, record, evidence = honest
    stopped = {**record, "test_loss": None, "steps": 5}
    counts, sampler = SamplingCounts(2400), PoissonSampler(2400, 100, 161)
    for step in range(5):
        counts.add(step, sampler.batch(step).indices)
    log = {**evidence["log"], "steps": 5}
    seen = {**evidence, "sampling": counts.to_json(), "log": log, "device_steps": 5, "probe": None, "replays": None}
    result, statement = judge(trial, stopped, seen, name="otter")
    assert (result["verdict"], result["findings"]) == ("diverged", [])
    for name in ("epsilon", "pld_epsilon", "rdp_epsilon", "epsilon_lower", "claimed_epsilon"):
        assert result[name] is None  # type: ignore[literal-required]
    assert "there is no guarantee to give" in statement
    assert "5 of\n48 planned steps" in statement
    assert "No parameters were written" in statement
    assert "within" not in statement
    assert summary(result) == "no guarantee (diverged)"
    # Batches that were seen are still counted, and a record over its budget still fails.
    assert judge(trial, {**stopped, "steps": 6}, seen)[0]["verdict"] == "failed"
    loud = with_mechanism(stopped, noise_multiplier=0.5)
    assert judge(trial, loud, seen)[0]["verdict"] == "failed"


def test_the_statement_names_no_hash_of_the_data(honest: Trained, prepared: Prepared) -> None:
    """Someone who knows all rows but one could test candidates for it on such a hash."""
    trial, record, evidence = honest
    for kept in (record, {**record, "test_loss": None}):
        _, statement = judge(trial, kept, {**evidence, "probe": evidence["probe"]}, name="otter")
        assert "`otter`" in statement
        for secret in (trial.key, trial.data_fingerprint, prepared.fingerprint):
            assert secret not in statement


def test_a_public_name_is_drawn_once_and_says_nothing(honest: Trained) -> None:
    finished = FinishedTrial(honest.trial.folder)
    name = finished.public_name
    assert name == finished.public_name == FinishedTrial.open(honest.trial).public_name
    assert len(name) == 16
    (finished.folder / "public_name.txt").unlink()
    assert finished.public_name != name


def test_only_budgets_that_were_kept_are_said_to_be_kept(honest: Trained, prepared: Prepared) -> None:
    passed, _ = judge(*honest)
    baseline, _ = judge(without_privacy(prepared), {"mechanism": None}, {})  # type: ignore[typeddict-item]
    paper = {**passed, "claimed_epsilon": 4.0}
    diverged = {**passed, "verdict": "diverged", "epsilon": None}
    assert audits_line([passed, passed]) == "2 trials audited: 2 within budget"
    assert audits_line([passed, paper, diverged, baseline]) == (  # type: ignore[list-item]
        "4 trials audited: 1 within budget, 1 with the paper's noise, whose budget is no guarantee, "
        "1 diverged, without a guarantee, 1 not private"
    )
