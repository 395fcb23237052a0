"""What a recalibration adds to the audit and the privacy statement of a trial."""

from __future__ import annotations

from typing import Any

import dp_accounting

from dp_core.accounting.epsilon import REPLACE_SPECIAL, epsilon_bound
from dp_core.audit.release_noise import GaussianNoise
from dp_core.evaluation.integer_noise import DISTANCE
from tasks.privacy.audit_evidence import Evidence
from tasks.training.finished import TrialRecord
from tasks.training.trial import Trial


def recalibration_epsilon(noise_multipliers: list[float], delta: float) -> float:
    """Returns what recalibrations cost a validation example together, in ε at δ, for emptying that example."""
    event = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(sigma) for sigma in noise_multipliers])
    # Draws are within that distance of their stated distribution, each time.
    left = delta - 2 * DISTANCE * len(noise_multipliers)
    return epsilon_bound(event, left, neighboring_relation=REPLACE_SPECIAL).epsilon


def recalibration_findings(trial: Trial, record: TrialRecord, evidence: Evidence) -> tuple[float | None, list[str]]:
    """Returns the ε of a private trial's recalibration, and what contradicts it; None if it was not recalibrated."""
    made, measured = record.get("recalibration"), evidence.get("recalibration")
    if record["test_loss"] is None:
        return None, []
    if (made is None) != (trial.recalibration == "none"):
        return None, [f"recalibration: {trial.recalibration} was asked for, which the record denies"]
    if made is None:
        return None, []
    if made["noise_multiplier"] is None or measured is None or trial.recalibration_epsilon is None:
        return None, ["the recalibration has no noise, or it was not measured"]
    epsilon = recalibration_epsilon([made["noise_multiplier"]], trial.target_delta)
    findings = _measured_findings(measured)
    if epsilon > trial.recalibration_epsilon:
        findings.append(
            f"the recalibration costs ε = {epsilon:.6g}, over its budget of {trial.recalibration_epsilon:g}"
        )
    return epsilon, findings


def _measured_findings(measured: dict[str, Any]) -> list[str]:
    findings = GaussianNoise.from_json(measured["drawn"]).defects("the recalibration's sums")
    findings += GaussianNoise.from_json(measured["probed"]).defects("another recalibration's sums")
    if not measured["largest_term"] <= 1:
        findings.append(
            f"a row adds up to {measured['largest_term']:.4g} to a sum of the recalibration, whose noise is for 1"
        )
    if not measured["only_the_bias"]:
        findings.append("the released parameters are not those of the last step with a shifted output bias")
    return findings


def recalibration_row(record: TrialRecord, epsilon: float | None, delta: float) -> str:
    """Returns the line of the statement's table that says what a recalibration is and costs; empty without one."""
    made = record.get("recalibration")
    if made is None or epsilon is None:
        return ""
    return (
        f"| Recalibration | the output bias was shifted by {made['shift']:.6g} so that the mean prediction on the "
        f"{made['rows']:,} validation examples is their mean label. The shift comes from {1 + made['rounds']} noisy "
        f"sums of labels and predictions. For an example of the validation split it costs **ε = {epsilon:.4f}** at δ = "
        f"{delta:.4g} (zeroing out; Gaussian noise of {made['noise_multiplier']:.6g} times the sensitivity of all sums "
        "together). For a training example it is post-processing and costs nothing: no example is in both splits, so "
        "the two do not add up. That choosing settings looked at validation losses without noise is outside of it |\n"
    )
