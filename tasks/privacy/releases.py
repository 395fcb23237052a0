"""What publishing several trained models costs, each of which has its own ε."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from dp_core.label_record import LabelRecord, composed_epsilon
from dp_core.mechanism import MechanismRecord
from tasks.budget import epsilon_of
from tasks.errors import UserError
from tasks.home import home, read_json
from tasks.trial import Trial

Record = MechanismRecord | LabelRecord


def read_mechanism(key: str) -> tuple[Trial, Record | None]:
    """A trained trial and the record of its mechanism; None for one without privacy."""
    path = home() / "trials" / key / "record.json"
    if not path.exists():
        raise UserError(f"no trained trial has the key {key!r}: there is no {path}")
    record = read_json(path)
    trial, mechanism = Trial.model_validate(record["trial"]), record["mechanism"]
    kind = LabelRecord if trial.mechanism == "label_dp" else MechanismRecord
    return trial, None if mechanism is None else kind.from_json(mechanism)


def releases(keys: Sequence[str], delta: float | None = None) -> list[dict[str, Any]]:
    """ε of publishing the models of several trials, for each dataset that they were trained on.

    Examples of one dataset are in all the models of it. Different datasets are taken to have no
    example in common. Models that protect whole examples and models that protect labels alone have no common ε.
    """
    by_dataset: dict[str, list[tuple[Trial, Record]]] = defaultdict(list)
    for key in dict.fromkeys(keys):
        trial, mechanism = read_mechanism(key)
        if mechanism is None:
            raise UserError(f"trial {key} ({trial.label()}) has no privacy guarantee: it must not be published")
        by_dataset[trial.dataset].append((trial, mechanism))
    results = []
    for dataset, published in by_dataset.items():
        mechanisms = {trial.mechanism for trial, _ in published}
        if len(mechanisms) > 1:
            raise UserError(
                f"{dataset}: some of these models protect whole examples (dp_sgd) and others labels alone (label_dp); "
                "ask for each kind by itself"
            )
        trials = [trial.key for trial, _ in published]
        labels = [record for _, record in published if isinstance(record, LabelRecord)]
        if labels:
            spent: dict[str, Any] = {"epsilon": composed_epsilon(labels), "delta": 0.0, "protects": "labels"}
            spent |= {"accountant": "randomised response", "converged": True}
        else:
            target_delta = delta or min(trial.target_delta for trial, _ in published)
            bound = epsilon_of([one for _, one in published if isinstance(one, MechanismRecord)], target_delta)
            spent = {"epsilon": bound.epsilon, "delta": target_delta, "protects": "examples"}
            spent |= {"accountant": bound.accountant, "converged": bound.converged}
        results.append({"dataset": dataset, "trials": trials, **spent})
    return results
