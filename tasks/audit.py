"""The audit step: ε once more, from what training says it ran and not from what it was told to run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dp_core.mechanism import MechanismRecord
from tasks.budget import epsilon_of
from tasks.errors import UserError
from tasks.home import home, read_json, write_json, write_text
from tasks.progress import note
from tasks.statement import non_private_statement, private_statement, summary
from tasks.tracking import log_audit
from tasks.trial import Trial

STATEMENT = "privacy_statement.md"


class AuditFailure(UserError):
    """A run that does not keep its promise."""


def audit(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Recomputes a trial's ε from its record, writes its privacy statement and logs both.

    Raises ``AuditFailure`` when the trial is over its budget or its record contradicts itself.
    """
    folder = home() / "trials" / trained["trial"]
    record = read_json(folder / "record.json")
    trial = Trial.model_validate(record["trial"])
    result, statement = judge(trial, record)
    write_text(folder / STATEMENT, statement)
    write_json(folder / "audit.json", result)
    log_audit(trained["mlflow_run"], result, folder / STATEMENT)
    if result["verdict"] != "passed":
        raise AuditFailure(f"audit of {trial.label()} failed: {'; '.join(result['findings'])}. See {folder}")
    note(f"audited {trial.label()}: {summary(result)}")
    return {**trained, "epsilon": result["epsilon"]}


def judge(trial: Trial, record: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The audit's verdict and statement for a trial's record, without touching any file."""
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
    defect = ran.sampling_defect()
    if defect is not None:
        findings.append(defect)
    result = {
        "verdict": "failed" if findings else "passed",
        "findings": findings,
        "budget": trial.epsilon,
        "target_delta": trial.target_delta,
        "accountant": bound.accountant,
        "truncation_delta": ran.truncation_delta(),
        **{name: None if value == math.inf else value for name, value in bound._asdict().items()},
        "claimed_epsilon": None if claim is None else claimed.epsilon,
    }
    return result, private_statement(trial, ran, bound, result["verdict"], result["claimed_epsilon"])
