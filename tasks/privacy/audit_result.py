"""The audit's result: what the audit of one trial found, as ``audit.json`` stores it.

Every key is always present, but for that of a recalibration. A value that does not apply to the trial's mechanism is
None, and so is an infinite ε, because JSON has no infinity.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class AttackResult(TypedDict):
    """The lower bound on ε from guessing which canaries were in the training data, at the trial's δ."""

    epsilon_lower: float
    confidence: float
    canaries: int
    guesses: int
    correct: int
    delta: float


class AuditResult(TypedDict):
    """The verdict on one trial and the numbers behind it.

    Attributes:
        verdict: "failed" if there are findings; "diverged" for a DP-SGD run that diverged, which has no guarantee and
            releases nothing; "passed" otherwise.
        findings: Why the run does not keep its promise, one sentence fragment each.
        budget: The ε that the trial was given; None for a non-private baseline.
        target_delta: The δ at which ε holds; 0 for LabelDP.
        accountant: Where ε comes from: "PLD", "RDP" or "randomised response".
        truncation_delta: The part of δ that truncating large batches uses up.
        epsilon: The upper bound on ε, computed from the record of what ran; None if the run diverged.
        pld_epsilon: The PLD accountant's upper bound.
        rdp_epsilon: The RDP accountant's upper bound.
        interval: The PLD's discretisation interval.
        further_change: Estimate of the share of ε that a finer interval could still remove.
        converged: False if the PLD ran out of time before that share was small.
        epsilon_lower: No accounting of this mechanism can be below this; None if no such number is known.
        claimed_epsilon: What the paper's noise scaling claims, if its sensitivity is below the proven one.
        probe: ``dp_core.audit.probe.Probe.to_json``, the measurements of the compiled step.
        attack: What guessing at canaries showed, if the trial had any.
        recalibration_epsilon: What the recalibration costs an example of the validation split; only if there was one.
    """

    verdict: Literal["passed", "failed", "diverged"]
    findings: list[str]
    budget: float | None
    target_delta: float
    accountant: str | None
    truncation_delta: float | None
    epsilon: float | None
    pld_epsilon: float | None
    rdp_epsilon: float | None
    interval: float | None
    further_change: float | None
    converged: bool | None
    epsilon_lower: float | None
    claimed_epsilon: float | None
    probe: dict[str, Any] | None
    attack: AttackResult | None
    recalibration_epsilon: NotRequired[float]
