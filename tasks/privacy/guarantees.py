"""Whether a trained model has a guarantee at all, which whatever adds up several models must ask first."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tasks.training.finished import FinishedTrial

Kind = Literal["not private", "diverged", "not audited", "failed", "seeded", "by outcomes"]


class NoGuarantee(NamedTuple):
    """Why a trial has no guarantee: the kind of reason, and the reason with what to do, as the end of a sentence."""

    kind: Kind
    why: str


def no_guarantee(finished: FinishedTrial) -> NoGuarantee | None:
    """Returns why publishing a trial's model has no guarantee; None if it has the ε that its audit found."""
    trial = finished.trial
    if trial.mechanism == "clipped_only":
        return NoGuarantee(
            "not private", "it was clipped without noise, which proves nothing, and must not be published"
        )
    if trial.epsilon is None:
        return NoGuarantee("not private", "it is a non-private baseline, which must not be published")
    # LabelDP releases the responses, and no model that is trained on them costs more, however it ends.
    if finished.diverged and trial.mechanism == "dp_sgd":
        return NoGuarantee("diverged", "it diverged, which depends on the data: leave it out of what is published")
    if finished.is_audited and finished.audit["verdict"] != "passed":
        return NoGuarantee("failed", "its audit failed: see its privacy_statement.md, and train it again")
    if trial.randomness == "seeded":
        return NoGuarantee(
            "seeded", "its noise came from a seed, by which it can be subtracted: train with `randomness: secret`"
        )
    if not finished.is_audited:
        return NoGuarantee("not audited", "it was not audited: run `python -m tasks audit`")
    return None
