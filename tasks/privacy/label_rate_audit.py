"""The audit of an initial bias: that the label rate was noisy, that its noise is charged, and that it was used."""

from __future__ import annotations

import math

from dp_core.accounting.mechanism import MechanismRecord
from dp_core.audit.release_noise import GaussianNoise
from dp_core.training.label_rate import bias_of, label_rate_noise_multiplier
from tasks.privacy.audit_evidence import Evidence
from tasks.training.trial import Trial

# A draw further away, in standard deviations, has a probability of 4·10⁻⁸.
_FARTHEST = 5.5
# The bias is a float32 number.
_ROUNDING = 1e-5


def label_rate_findings(trial: Trial, ran: MechanismRecord, evidence: Evidence) -> list[str]:
    """Returns what is wrong with the release of the label rate; nothing if the trial has none and released none."""
    charged, measured = ran.label_rate_noise_multiplier, evidence.get("label_rate")
    if trial.initial_bias == "zero":
        if charged is not None or measured is not None:
            return ["the label rate was released, which the trial did not ask for"]
        return []
    if charged is None:
        return ["the initial bias follows from the label rate, but the record charges nothing for it"]
    if measured is None:
        return ["the release of the label rate was not measured"]
    if trial.initial_bias_epsilon is None:
        return ["the trial does not say which ε the label rate has"]
    findings = GaussianNoise.from_json(measured["probed"]).defects("the sum of labels")
    asked = label_rate_noise_multiplier(epsilon=trial.initial_bias_epsilon, delta=trial.target_delta)
    if not charged <= asked * (1 + 1e-9):
        findings.append(
            f"the label rate is charged for a noise multiplier of {charged:.6g}, where {asked:.6g} was drawn"
        )
    if not abs(measured["away"]) <= _FARTHEST:
        findings.append(
            f"the noisy sum of labels is {measured['away']:.3g} standard deviations away from the exact one"
        )
    expected = bias_of(measured["noisy"], measured["examples"], trial.task)
    if not math.isclose(measured["bias"], expected, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        findings.append(
            f"training started with an output bias of {measured['bias']:.6g}, which is not {expected:.6g}, that of "
            "the noisy label rate"
        )
    return findings
