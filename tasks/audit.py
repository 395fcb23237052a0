"""The audit step: whether a run was what it says, and what that is worth.

ε is computed once more from the record of what ran. The record is held against what was measured on
the run: its batches, the contributions and the noise of its compiled step and, where there are
canaries, how well one can tell from the model which of them were in. A correct run fails by chance at
most about once in a thousand times with canaries, and once in a hundred thousand without.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dp_core.label_record import LabelRecord, response_defects
from dp_core.mechanism import MechanismRecord
from dp_core.one_run_audit import audit_scores
from dp_core.probe import Probe
from dp_core.sampling_checks import sampling_defects
from tasks.budget import epsilon_lower_of, epsilon_of
from tasks.errors import UserError
from tasks.home import home, read_json, write_json, write_text
from tasks.progress import note
from tasks.statement import label_statement, non_private_statement, private_statement, summary
from tasks.tracking import log_audit
from tasks.trial import Trial

STATEMENT = "privacy_statement.md"

# The attack's ε is logged at the trial's δ with the confidence that is usual for it. What fails a run is
# a stricter comparison: at a much smaller δ, which blunts the attack less, and with more confidence.
LOGGED_CONFIDENCE = 0.95
FAILING_CONFIDENCE = 0.999
FAILING_DELTA = 1e-8


class AuditFailure(UserError):
    """A run that does not keep its promise."""


def audit_group(trained: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Audits the trained trials of a group; raises when all were looked at, if one of them failed."""
    audited, failures = [], []
    for one in trained:
        try:
            audited.append(audit(one))
        except AuditFailure as failure:
            failures.append(str(failure))
    if failures:
        raise AuditFailure("\n".join(failures))
    return audited


def audit(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Audits a trained trial, writes its privacy statement and logs both.

    Raises ``AuditFailure`` when the trial is over its budget or was not what its record says.
    """
    folder = home() / "trials" / trained["trial"]
    record = read_json(folder / "record.json")
    trial = Trial.model_validate(record["trial"])
    evidence = folder / "evidence.json"
    if not evidence.exists():
        raise AuditFailure(
            f"audit of {trial.label()} failed: there is no {evidence}. Delete its folder and train again"
        )
    result, statement = judge(trial, record, read_json(evidence))
    write_text(folder / STATEMENT, statement)
    write_json(folder / "audit.json", result)
    log_audit(trained["mlflow_run"], result, folder / STATEMENT)
    if result["verdict"] != "passed":
        raise AuditFailure(f"audit of {trial.label()} failed: {'; '.join(result['findings'])}. See {folder}")
    note(f"audited {trial.label()}: {summary(result)}")
    return {**trained, "epsilon": result["epsilon"]}


def judge(trial: Trial, record: Mapping[str, Any], evidence: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The audit's verdict and statement for a trial's record and evidence, without touching any of its files."""
    mechanism = record["mechanism"]
    if trial.epsilon is None:
        result: dict[str, Any] = {
            "verdict": "passed",
            "findings": [],
            "epsilon": None,
            "target_delta": trial.target_delta,
        }
        return result, non_private_statement(trial)
    if mechanism is None:
        raise AuditFailure(f"audit of {trial.label()} failed: a private trial left no record of its mechanism")
    if trial.mechanism == "label_dp":
        return _judge_labels(trial, LabelRecord.from_json(mechanism), evidence)

    ran = MechanismRecord.from_json(mechanism)
    bound = epsilon_of(ran, trial.target_delta)
    claimed, claim = bound, ran.as_claimed()
    findings = []
    if claim is not None:
        claimed = epsilon_of(claim, trial.target_delta)
        if trial.sensitivity != "paper":
            findings.append(f"noise was scaled to {ran.sensitivity:g} clip norms, which one example can exceed")
    if claimed.epsilon > trial.epsilon:
        findings.append(f"ε = {claimed.epsilon:.6g} is over the budget of {trial.epsilon:g}")
    if trial.target_delta > 1 / ran.examples:
        findings.append(f"δ = {trial.target_delta:g} is more than 1/N = {1 / ran.examples:g}")
    findings += _batch_findings(ran, evidence)
    findings += _step_findings(ran, record, evidence)
    attack, attack_findings = _attack(trial, ran, evidence)
    findings += attack_findings

    result = {
        "verdict": "failed" if findings else "passed",
        "findings": findings,
        "budget": trial.epsilon,
        "target_delta": trial.target_delta,
        "accountant": bound.accountant,
        "truncation_delta": ran.truncation_delta(),
        **{name: None if value == math.inf else value for name, value in bound._asdict().items()},
        "epsilon_lower": epsilon_lower_of(ran, trial.target_delta),
        "claimed_epsilon": None if claim is None else claimed.epsilon,
        "probe": evidence["probe"],
        "attack": attack,
    }
    return result, private_statement(trial, ran, bound, result, record["vocabulary"])


def _judge_labels(trial: Trial, ran: LabelRecord, evidence: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Of a LabelDP trial: what its responses were worth, and whether labels were kept as often as they say."""
    findings = []
    # Parts of a budget may add up to a last digit more than it.
    if ran.epsilon > (trial.epsilon or 0.0) * (1 + 1e-12):
        findings.append(f"ε = {ran.epsilon:.6g} is over the budget of {trial.epsilon:g}")
    if (ran.kind, ran.debiased) != (trial.response, trial.debias):
        findings.append(f"the responses are of kind {ran.kind}, debiased: {ran.debiased}, which is not what was asked")
    findings += response_defects(ran, np.asarray(evidence["label_transitions"]))
    result = {
        "verdict": "failed" if findings else "passed",
        "findings": findings,
        "budget": trial.epsilon,
        "target_delta": 0.0,
        "accountant": "randomised response",
        "epsilon": None if ran.epsilon == math.inf else ran.epsilon,
        "epsilon_lower": None,
        "pld_epsilon": None,
        "rdp_epsilon": None,
        "claimed_epsilon": None,
        "attack": None,
    }
    return result, label_statement(trial, ran, result)


def _batch_findings(ran: MechanismRecord, evidence: Mapping[str, Any]) -> list[str]:
    sizes = evidence["batch_sizes"]
    findings = sampling_defects(ran.stated_sampler, sizes, evidence["participations"])
    if len(sizes) != ran.steps:
        findings.append(f"{ran.steps:,} steps are recorded, but {len(sizes):,} batches were seen")
    return findings


def _step_findings(ran: MechanismRecord, record: Mapping[str, Any], evidence: Mapping[str, Any]) -> list[str]:
    if evidence["probe"] is None:
        # There is nothing to release of a run that diverged, and nothing finite to measure.
        return [] if record["test_loss"] is None else ["the step's clipping and noise were not measured"]
    return Probe.from_json(evidence["probe"]).defects(ran.noise_multiplier * ran.sensitivity)


def _attack(trial: Trial, ran: MechanismRecord, evidence: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[str]]:
    """What guessing at the canaries shows, and whether it shows more than is allowed."""
    if evidence["canaries"] is None:
        return None, []
    scores, included = list(evidence["canaries"]["attacks"].values()), evidence["canaries"]["included"]
    logged = audit_scores(scores, included, delta=trial.target_delta, confidence=LOGGED_CONFIDENCE)
    delta = min(FAILING_DELTA + ran.truncation_delta(), trial.target_delta)
    strict = audit_scores(scores, included, delta=delta, confidence=FAILING_CONFIDENCE)
    # The canaries came after the vocabulary, which tells nothing of them.
    allowed = epsilon_of(dataclasses.replace(ran, vocabulary=None), delta).epsilon
    findings = []
    if strict.epsilon_lower > allowed:
        findings.append(
            f"{strict.correct} of {strict.guesses} guesses at canaries were right, which shows ε ≥ "
            f"{strict.epsilon_lower:.3g} at δ = {delta:.2g}, but the record is worth {allowed:.3g}"
        )
    return {**logged._asdict(), "delta": trial.target_delta}, findings
