"""LabelDP trials of every kind of response, for tests of what they train on and of what that is worth."""

from __future__ import annotations

from typing import Any

from tasks.data.prepared import Prepared
from tasks.training.loop import run_trial
from tasks.training.trial import Trial
from tests.support.trials import evidence_of, record_of

COUNTS: dict[str, Any] = {"task": "pconvs", "largest_count": 5}
KINDS = {"binary": {}, "k_ary": {"response": "k_ary", **COUNTS}, "bins": {"response": "bins", **COUNTS}}


def run_once(trial: Trial, prepared: Prepared) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a trial's record and evidence, and trains it first if it is not trained yet."""
    if not trial.folder.exists():
        run_trial(trial, prepared)
    return record_of(trial), evidence_of(trial)


def draw_of(trial: Trial, prepared: Prepared) -> str:
    """Returns the hash of the responses that a trial was trained on."""
    return run_once(trial, prepared)[0]["mechanism"]["draw"]
