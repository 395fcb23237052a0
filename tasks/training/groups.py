"""Groups of trials that share one compiled program, so that one process compiles it once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tasks.config.dataset import TASK_TITLES
from tasks.runtime.home import short_hash
from tasks.runtime.progress import counted
from tasks.training.items import PlannedTrial, TrialGroup
from tasks.training.trial import Trial

# An Airflow task is retried and waited for as a whole. This many trials are enough to pay for starting one.
MOST_TRIALS_IN_A_GROUP = 24

# Settings that are not compiled into the program: its arguments, and settings that never reach it.
_NOT_COMPILED = {
    "epsilon",
    "target_delta",  # δ = 1/N, so it is determined by the number of examples
    "accountant",
    "noise_multiplier",
    "l2_clip_norm",
    "clip_quantile",
    "sensitivity",
    "learning_rate",
    "evaluations",
    "seed",
    "response",
    "debias",
    "largest_count",
}


def program_of(trial: Trial) -> str:
    """Returns a key that is equal for trials that run the same compiled program.

    LabelDP runs the baseline's program on other labels.
    """
    compiled = trial.model_dump(mode="json", exclude={*_NOT_COMPILED, "mechanism", "randomness"})
    # Secret noise has another generator. Programs without noise have none.
    return short_hash([compiled, trial.randomness if trial.mechanism == "dp_sgd" else None])


def in_groups(items: Iterable[PlannedTrial]) -> list[TrialGroup]:
    """Groups planned trials by their program, in the order of the plan, at most ``MOST_TRIALS_IN_A_GROUP`` a group."""
    by_program: dict[str, list[PlannedTrial]] = defaultdict(list)
    trials: dict[str, Trial] = {}
    for item in items:
        trial = Trial.model_validate(item["trial"])
        program = program_of(trial)
        by_program[program].append(item)
        trials.setdefault(program, trial)
    groups: list[TrialGroup] = []
    for program, planned in by_program.items():
        parts = [planned[i : i + MOST_TRIALS_IN_A_GROUP] for i in range(0, len(planned), MOST_TRIALS_IN_A_GROUP)]
        for number, part in enumerate(parts, 1):
            which = f" · part {number} of {len(parts)}" if len(parts) > 1 else ""
            groups.append({"name": _name(trials[program], len(part)) + which, "items": part})
    return groups


def _name(trial: Trial, count: int) -> str:
    kind = "DP-SGD" if trial.mechanism == "dp_sgd" else "without noise in training"
    parts = [TASK_TITLES[trial.task], kind, trial.optimizer, f"batch {trial.batch_size:,}"]
    parts += [f"microbatch {trial.microbatch_size}"] if trial.microbatch_size > 1 else []
    return " · ".join([*parts, counted(count, "trial")])
