"""Trials that one compiled program trains, put together so that one process compiles it once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tasks.home import short_hash
from tasks.trial import Trial

# A task in Airflow is retried and waited for as a whole: so many trials are enough to be worth its start.
MOST_TRIALS_IN_A_GROUP = 24

# The numbers that a compiled program is given with each run, and those that only name the run. All else it is made for.
_GIVEN = {
    "epsilon",
    "target_delta",  # it sizes batches together with the number of examples, which it is one over
    "accountant",
    "noise_multiplier",
    "l2_clip_norm",
    "clip_quantile",
    "sensitivity",
    "learning_rate",
    "evaluations",
    "seed",
    "randomness",
    "response",
    "debias",
    "largest_count",
}


def program_of(trial: Trial) -> str:
    """Trials with the same value of this run the same compiled program.

    LabelDP trains like the baseline does, on other labels.
    """
    made_for = trial.model_dump(mode="json", exclude={*_GIVEN, "mechanism"})
    return short_hash([made_for, trial.mechanism == "dp_sgd"])


def in_groups(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Planned trials by the program that trains them, in the order of the plan; each group has a name for a person."""
    by_program: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    trials: dict[str, Trial] = {}
    for item in items:
        trial = Trial.model_validate(item["trial"])
        program = program_of(trial)
        by_program[program].append(item)
        trials.setdefault(program, trial)
    groups = []
    for program, planned in by_program.items():
        parts = [planned[i : i + MOST_TRIALS_IN_A_GROUP] for i in range(0, len(planned), MOST_TRIALS_IN_A_GROUP)]
        for number, part in enumerate(parts, 1):
            which = f" · part {number} of {len(parts)}" if len(parts) > 1 else ""
            groups.append({"name": _name(trials[program], len(part)) + which, "items": part})
    return groups


def _name(trial: Trial, count: int) -> str:
    kind = "DP-SGD" if trial.mechanism == "dp_sgd" else "without noise in training"
    parts = [trial.task, kind, trial.optimizer, f"batch {trial.batch_size:,}"]
    parts += [f"microbatch {trial.microbatch_size}"] if trial.microbatch_size > 1 else []
    return " · ".join([*parts, f"{count} trial{'s' if count > 1 else ''}"])
