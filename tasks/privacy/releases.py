"""The total ε of publishing several trained models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, TypedDict

from dp_core.accounting.mechanism import MechanismRecord
from dp_core.labels.record import LabelRecord, composed_epsilon
from tasks.privacy.cached_accounting import epsilon_of
from tasks.privacy.guarantees import no_guarantee
from tasks.privacy.recalibrated import recalibration_epsilon
from tasks.runtime.errors import UserError
from tasks.training.finished import FinishedTrial
from tasks.training.trial import Trial

Record = MechanismRecord | LabelRecord


class Published(TypedDict):
    """The guarantee of publishing models that were trained on one dataset."""

    dataset: str
    trials: list[str]
    epsilon: float
    delta: float
    protects: Literal["examples", "labels"]
    accountant: str
    converged: bool


def releases(keys: Sequence[str], delta: float | None = None) -> list[Published]:
    """Returns ε of publishing the models of several trials, for each dataset that they were trained on.

    Models of the same dataset are taken to see the same examples, and different datasets to have no example in common.
    ``delta`` defaults to the smallest δ of the trials.

    Raises ``UserError`` if a trial has no guarantee (``tasks.privacy.guarantees``), and for a dataset with both DP-SGD
    and LabelDP models, which have no common ε.
    """
    opened = [FinishedTrial.open(key) for key in dict.fromkeys(keys)]
    reasons = [
        f"trial {finished.folder.name} ({finished.trial.label()}): {reason.why}"
        for finished in opened
        if (reason := no_guarantee(finished)) is not None
    ]
    if reasons:
        raise UserError("publishing these models has no privacy guarantee:\n" + "\n".join(reasons))
    by_dataset: dict[str, list[tuple[Trial, Record]]] = defaultdict(list)
    for finished in opened:
        assert finished.mechanism is not None
        by_dataset[finished.trial.dataset].append((finished.trial, finished.mechanism))
    results = []
    for dataset, published in by_dataset.items():
        mechanisms = {trial.mechanism for trial, _ in published}
        if len(mechanisms) > 1:
            raise UserError(
                f"{dataset}: some of these models protect whole examples (dp_sgd) and others only labels (label_dp); "
                "ask about each kind separately"
            )
        trials = [trial.key for trial, _ in published]
        labels = [record for _, record in published if isinstance(record, LabelRecord)]
        if labels:
            results.append(
                Published(
                    dataset=dataset,
                    trials=trials,
                    epsilon=composed_epsilon(labels),
                    delta=0.0,
                    protects="labels",
                    accountant="randomised response",
                    converged=True,
                )
            )
        else:
            target_delta = delta or min(trial.target_delta for trial, _ in published)
            bound = epsilon_of([one for _, one in published if isinstance(one, MechanismRecord)], target_delta)
            shifts = [FinishedTrial.open(trial).record.get("recalibration") for trial in trials]
            noise = [one["noise_multiplier"] for one in shifts if one is not None]
            # No example is in the training split and in the validation split, so the two do not add up.
            of_validation = recalibration_epsilon(noise, target_delta) if noise else 0.0
            results.append(
                Published(
                    dataset=dataset,
                    trials=trials,
                    epsilon=max(bound.epsilon, of_validation),
                    delta=target_delta,
                    protects="examples",
                    accountant=bound.accountant,
                    converged=bound.converged,
                )
            )
    return results
