"""The audit's verdict on a trial: whether the run was what its record says, and the ε that follows.

ε is computed again from the record of what ran. The record is then compared with what was measured on the
run: the batches, the contributions and noise of the compiled step and, if there are canaries, how well an
attacker can guess from the model which of them were in the training data. A correct run fails with
probability at most about 1e-3 with canaries and 1e-5 without.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from dp_core.accounting.banded_noise import column_norm
from dp_core.accounting.mechanism import MechanismRecord
from dp_core.audit.chances import binomial_chance
from dp_core.audit.key_checks import KeyEvidence
from dp_core.audit.one_run import audit_scores
from dp_core.audit.probe import Probe
from dp_core.audit.release_noise import GaussianNoise, histogram_defects
from dp_core.audit.replay import Replay
from dp_core.audit.sampling_checks import sampling_defects
from dp_core.audit.sampling_counts import SamplingCounts
from dp_core.audit.step_log import StepLog
from dp_core.labels.record import LabelRecord, response_defects
from tasks.privacy.audit_evidence import Evidence
from tasks.privacy.audit_result import AttackResult, AuditResult
from tasks.privacy.cached_accounting import epsilon_lower_of, epsilon_of
from tasks.privacy.label_rate_audit import label_rate_findings
from tasks.privacy.label_statement import label_statement
from tasks.privacy.recalibrated import recalibration_findings, recalibration_row
from tasks.privacy.statement import diverged_statement, non_private_statement, private_statement
from tasks.runtime.errors import UserError
from tasks.training.finished import TrialRecord
from tasks.training.trial import Trial
from tasks.training.warm_start import Start

# The attack's ε is logged at the trial's δ and at the usual confidence. The comparison that fails a run is
# stricter: more confidence, and a much smaller δ, which weakens the attack less.
LOGGED_CONFIDENCE = 0.95
FAILING_CONFIDENCE = 0.999
FAILING_DELTA = 1e-8
# The rate at which fair coins of canaries are reported.
COINS_FALSE_ALARM_RATE = 1e-6


class AuditFailure(UserError):
    """A run that does not keep its promise."""


def judge(
    trial: Trial, record: TrialRecord, evidence: Evidence, *, name: str = "without a name", start: Start | None = None
) -> tuple[AuditResult, str]:
    """Returns the audit's result and the privacy statement of a trial. Reads and writes no files.

    ``name`` is what the statement calls the trial. It must say nothing about the data, as the trial's key does.
    ``start`` is the model that a trial with a warm start names (``tasks.training.warm_start.start_of``).

    Raises ``AuditFailure`` if a private trial has no record of its mechanism.
    """
    mechanism = record["mechanism"]
    if trial.epsilon is None:
        return _result(trial, [], target_delta=trial.target_delta), non_private_statement(trial)
    if mechanism is None:
        raise AuditFailure(f"audit of {trial.label()} failed: a private trial left no record of its mechanism")
    if trial.mechanism == "label_dp":
        return _judge_labels(trial, LabelRecord.from_json(mechanism), evidence, name)
    return _judge_dp_sgd(trial, MechanismRecord.from_json(mechanism), record, evidence, name, start)


def _judge_dp_sgd(
    trial: Trial, ran: MechanismRecord, record: TrialRecord, evidence: Evidence, name: str, start: Start | None
) -> tuple[AuditResult, str]:
    bound = epsilon_of(ran, trial.target_delta)
    claim = ran.as_claimed()
    claimed = bound if claim is None else epsilon_of(claim, trial.target_delta)
    findings = _budget_findings(trial, ran, claimed.epsilon)
    findings += _record_findings(trial, ran, record, evidence)
    findings += _correlation_findings(ran, evidence)
    findings += _batch_findings(ran, record, evidence)
    findings += _step_findings(ran, record, evidence)
    findings += _vocabulary_findings(ran, record)
    findings += label_rate_findings(trial, ran, evidence)
    findings += _start_findings(trial, evidence, start)
    recalibration, recalibration_defects = recalibration_findings(trial, record, evidence)
    findings += recalibration_defects
    attack, attack_findings = _attack(trial, ran, evidence)
    findings += attack_findings
    lower = epsilon_lower_of(ran, trial.target_delta)
    if lower is not None and not lower <= bound.epsilon:
        findings.append(f"ε = {bound.epsilon:.6g} is below {lower:.6g}, which no valid ε can be")
    result = _result(trial, findings, target_delta=trial.target_delta)
    if record["test_loss"] is None and not findings:
        result["verdict"] = "diverged"
        return result, diverged_statement(trial, ran, record["steps"], name)
    result.update(
        {
            "accountant": bound.accountant,
            "truncation_delta": ran.truncation_delta(),
            "epsilon": _finite(bound.epsilon),
            "pld_epsilon": _finite(bound.pld_epsilon),
            "rdp_epsilon": _finite(bound.rdp_epsilon),
            "interval": _finite(bound.interval),
            "further_change": bound.further_change,
            "converged": bound.converged,
            "epsilon_lower": lower,
            "claimed_epsilon": None if claim is None else claimed.epsilon,
            "probe": evidence["probe"],
            "attack": attack,
        }
    )
    if recalibration is not None:
        result["recalibration_epsilon"] = recalibration
    recalibrated = recalibration_row(record, recalibration, trial.target_delta)
    statement = private_statement(
        trial, ran, bound, result, record["vocabulary"], name, start=start, recalibrated=recalibrated
    )
    return result, statement


def _judge_labels(trial: Trial, ran: LabelRecord, evidence: Evidence, name: str) -> tuple[AuditResult, str]:
    findings = []
    # Splitting a budget and adding its parts again can be off in the last digit.
    if ran.epsilon > (trial.epsilon or 0.0) * (1 + 1e-12):
        findings.append(f"ε = {ran.epsilon:.6g} is over the budget of {trial.epsilon:g}")
    if (ran.kind, ran.debiased) != (trial.response, trial.debias):
        findings.append(
            f"the responses are of kind {ran.kind}, debiased: {ran.debiased}, which is not what was asked for"
        )
    findings += response_defects(ran, np.asarray(evidence["label_transitions"]))
    if ran.histogram_epsilon > 0:
        findings += histogram_defects(ran.histogram_epsilon, evidence["histogram_noise"])
    result = _result(trial, findings, target_delta=0.0)
    result.update({"accountant": "randomised response", "epsilon": _finite(ran.epsilon)})
    return result, label_statement(trial, ran, result, name)


def _result(trial: Trial, findings: list[str], *, target_delta: float) -> AuditResult:
    """Returns a result with the verdict and no numbers yet."""
    return AuditResult(
        verdict="failed" if findings else "passed",
        findings=findings,
        budget=trial.epsilon,
        target_delta=target_delta,
        accountant=None,
        truncation_delta=None,
        epsilon=None,
        pld_epsilon=None,
        rdp_epsilon=None,
        interval=None,
        further_change=None,
        converged=None,
        epsilon_lower=None,
        claimed_epsilon=None,
        probe=None,
        attack=None,
    )


def _finite(value: float) -> float | None:
    return None if value == math.inf else value


def _budget_findings(trial: Trial, ran: MechanismRecord, claimed_epsilon: float) -> list[str]:
    assert trial.epsilon is not None
    findings = []
    if ran.as_claimed() is not None and trial.sensitivity != "paper":
        findings.append(f"noise was scaled to {ran.sensitivity:g} clip norms, which one example can exceed")
    if claimed_epsilon > trial.epsilon:
        findings.append(f"ε = {claimed_epsilon:.6g} is over the budget of {trial.epsilon:g}")
    if trial.target_delta > 1 / ran.examples:
        findings.append(f"δ = {trial.target_delta:g} is more than 1/N = {1 / ran.examples:g}")
    return findings


def _record_findings(trial: Trial, ran: MechanismRecord, record: TrialRecord, evidence: Evidence) -> list[str]:
    """Compares the record with the program that ran, with the trial and with the data's vocabulary."""
    findings = []
    asked = {
        "sampler": trial.sampler,
        "expected_batch_size": trial.batch_size,
        "clipping": trial.clipping,
        "microbatch_size": trial.microbatch_size,
        "bands": trial.bands,
        "l2_clip_norm": float(np.float32(trial.l2_clip_norm or 0.0)),
    }
    for source, stated in (("the program that ran", evidence["program"]), ("the trial", asked)):
        findings += [
            f"{name} is {value!r} in {source}, but {getattr(ran, name)!r} is recorded"
            for name, value in stated.items()
            if getattr(ran, name) != value
        ]
    if (record["vocabulary"]["kind"] == "private") != (ran.vocabulary is not None):
        findings.append(
            f"the vocabulary is of kind {record['vocabulary']['kind']}, which the mechanism's record denies"
        )
    return findings


def _correlation_findings(ran: MechanismRecord, evidence: Evidence) -> list[str]:
    """Checks that what one example adds is in disjoint blocks of rows, each of a norm of at most 1.

    The probe compares the program's noise with these coefficients, and the tests of the batches the parts with theirs.
    """
    coefficients = tuple(evidence.get("noise_coefficients", [1.0]))
    findings = []
    if len(coefficients) > ran.bands:
        findings.append(
            f"noise is correlated over {len(coefficients):,} steps, but an example may take part every {ran.bands:,}: "
            "its contributions overlap, and the sensitivity is more than is accounted for"
        )
    if column_norm(coefficients) > 1:
        findings.append(
            f"a column of the noise's matrix has norm {column_norm(coefficients):.6g}: one example adds more than the "
            "sensitivity that is accounted for, which is that of norm 1"
        )
    return findings


def _batch_findings(ran: MechanismRecord, record: TrialRecord, evidence: Evidence) -> list[str]:
    counts = SamplingCounts.from_json(evidence["sampling"])
    findings = sampling_defects(ran.stated_sampler, counts)
    steps = _steps_run(ran, record)
    if counts.steps != steps:
        findings.append(f"{steps:,} steps are recorded, but {counts.steps:,} batches were seen")
    return findings


def _steps_run(ran: MechanismRecord, record: TrialRecord) -> int:
    """Returns how many steps were run: a run that diverged is accounted for all the steps that were planned."""
    return record["steps"] if record["test_loss"] is None else ran.steps


def _vocabulary_findings(ran: MechanismRecord, record: TrialRecord) -> list[str]:
    if ran.vocabulary is None:
        return []
    measured = record["vocabulary"].get("noise")
    if measured is None:
        return ["the noise of the private vocabulary was not measured"]
    names = {
        "drawn": "the vocabulary's counts",
        "published": "the published counts",
        "probed": "another draw of counts",
    }
    return [defect for part, name in names.items() for defect in GaussianNoise.from_json(measured[part]).defects(name)]


def _start_findings(trial: Trial, evidence: Evidence, start: Start | None) -> list[str]:
    """Checks that a warm start was from the stated model, and that this has a guarantee.

    The digest of the initial state ties what ran to the parameters that the evidence has the digest of.
    """
    if trial.start_from is None:
        return []
    if start is None:
        return ["the model that the training started from was not looked at"]
    if start.refused is not None:
        return [f"the training must not start from the model that it names: {start.refused}"]
    if evidence.get("initial_parameters") != start.digest:
        return ["the initial parameters are not those of the model that the training says it started from"]
    return []


def _step_findings(ran: MechanismRecord, record: TrialRecord, evidence: Evidence) -> list[str]:
    """Returns what the device's reports, the replayed dispatches and the probe contradict."""
    steps = _steps_run(ran, record)
    log = StepLog(**evidence["log"])
    findings = log.defects(steps)
    # A run that diverged may have taken more steps by the time that it was noticed. It releases nothing.
    diverged = record["test_loss"] is None
    if not diverged and log.state != evidence["last_state"]:
        findings.append("the last state is not the one that the last dispatch ended with")
    if not diverged and evidence["device_steps"] != steps:
        findings.append(f"{steps:,} steps are recorded, but the model has taken {evidence['device_steps']:,}")
    if not evidence["releases_the_last_state"]:
        averaging = record["trial"].get("averaging", "none")
        released = "those of the last step" if averaging == "none" else f"the {averaging} average of the iterates"
        findings.append(f"the released parameters are not {released}")
    findings += _interruption_findings(evidence)
    findings += KeyEvidence(**evidence["keys"]).defects() if evidence["keys"] else ["the noise key was not measured"]
    if evidence["probe"] is None or not evidence["replays"]:
        # A run that diverged releases nothing and has nothing finite to measure.
        return findings if record["test_loss"] is None else [*findings, "the compiled step was not measured"]
    for one in evidence["replays"]:
        findings += Replay(**one).defects()
    probe = Probe.from_json(evidence["probe"])
    stated = (ran.noise_multiplier, ran.sensitivity, ran.count_noise_multiplier or 0.0)
    probed = (probe.noise_multiplier, probe.sensitivity, probe.count_noise_multiplier)
    if probed != stated:
        findings.append(f"noise, sensitivity and count noise of the program were {probed}, but {stated} are recorded")
    return findings + probe.defects()


def _interruption_findings(evidence: Evidence) -> list[str]:
    """Checks that the first attempt began with the initial state, and every other with a saved one."""
    first, *later = evidence["attempts"]
    findings = []
    if (first["step"], first["state"]) != (0, evidence["initial_state"]):
        findings.append(f"the run began at step {first['step']:,} with a state that is not the initial one")
    for attempt in later:
        if attempt not in evidence["saves"]:
            findings.append(f"the run resumed at step {attempt['step']:,} with a state that is not the saved one")
    return findings


def _attack(trial: Trial, ran: MechanismRecord, evidence: Evidence) -> tuple[AttackResult | None, list[str]]:
    """Returns what guessing at the canaries shows, and a finding if it shows more than the record allows."""
    if evidence["canaries"] is None:
        return None, []
    scores, included = list(evidence["canaries"]["attacks"].values()), evidence["canaries"]["included"]
    logged = audit_scores(scores, included, delta=trial.target_delta, confidence=LOGGED_CONFIDENCE)
    delta = min(FAILING_DELTA + ran.truncation_delta(), trial.target_delta)
    strict = audit_scores(scores, included, delta=delta, confidence=FAILING_CONFIDENCE)
    # The canaries were added after the vocabulary was chosen, so it says nothing about them.
    allowed = epsilon_of(dataclasses.replace(ran, vocabulary=None), delta).epsilon
    findings = []
    tosses = binomial_chance(sum(included), len(included), 0.5)
    if tosses < COINS_FALSE_ALARM_RATE:
        findings.append(f"{sum(included):,} of {len(included):,} canaries were included, where a fair coin decides")
    if strict.epsilon_lower > allowed:
        findings.append(
            f"{strict.correct} of {strict.guesses} guesses at canaries were correct, which shows ε ≥ "
            f"{strict.epsilon_lower:.3g} at δ = {delta:.2g}, but the record allows only {allowed:.3g}"
        )
    result = AttackResult(
        epsilon_lower=logged.epsilon_lower,
        confidence=logged.confidence,
        canaries=logged.canaries,
        guesses=logged.guesses,
        correct=logged.correct,
        delta=trial.target_delta,
    )
    return result, findings
