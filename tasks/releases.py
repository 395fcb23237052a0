"""What publishing several trained models costs, each of which has its own ε."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from dp_core.mechanism import MechanismRecord
from tasks.budget import epsilon_of
from tasks.errors import UserError
from tasks.home import home, read_json
from tasks.trial import Trial


def read_mechanism(key: str) -> tuple[Trial, MechanismRecord | None]:
    """A trained trial and the record of its mechanism; None for one without privacy."""
    path = home() / "trials" / key / "record.json"
    if not path.exists():
        raise UserError(f"no trained trial has the key {key!r}: there is no {path}")
    record = read_json(path)
    mechanism = record["mechanism"]
    return Trial.model_validate(record["trial"]), None if mechanism is None else MechanismRecord.from_json(mechanism)


def releases(keys: Sequence[str], delta: float | None = None) -> list[dict[str, Any]]:
    """ε of publishing the models of several trials, for each dataset that they were trained on.

    Examples of one dataset are in all the models of it. Different datasets are taken to have no
    example in common.
    """
    by_dataset: dict[str, list[tuple[Trial, MechanismRecord]]] = defaultdict(list)
    for key in dict.fromkeys(keys):
        trial, mechanism = read_mechanism(key)
        if mechanism is None:
            raise UserError(f"trial {key} ({trial.label()}) has no privacy guarantee: it must not be published")
        by_dataset[trial.dataset].append((trial, mechanism))
    results = []
    for dataset, published in by_dataset.items():
        target_delta = delta or min(trial.target_delta for trial, _ in published)
        bound = epsilon_of([mechanism for _, mechanism in published], target_delta)
        results.append(
            {
                "dataset": dataset,
                "trials": [trial.key for trial, _ in published],
                "epsilon": bound.epsilon,
                "delta": target_delta,
                "accountant": bound.accountant,
                "converged": bound.converged,
            }
        )
    return results
