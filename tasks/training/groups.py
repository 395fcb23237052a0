"""Groups of trials that one task trains: those of one compiled program together, so that it is compiled once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

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
    "learning_rate_per",
    "evaluations",
    "seed",
    "response",
    "debias",
    "largest_count",
    "averaging_share",
    "warmup",
    "weight_decay",
    "initial_bias",  # so are these
    "initial_bias_epsilon",
    "recalibration",
    "recalibration_epsilon",
    "start_from",  # initial parameters are arguments of the program
    "sampled_like",
}


def program_of(trial: Trial) -> str:
    """Returns a key that is equal for trials that run the same compiled program.

    LabelDP runs the baseline's program on other labels.
    """
    compiled = trial.model_dump(mode="json", exclude={*_NOT_COMPILED, "mechanism", "randomness"})
    # Secret noise has another generator. Programs without noise have none.
    noise = "none" if trial.mechanism == "clipped_only" else trial.randomness if trial.mechanism == "dp_sgd" else None
    return short_hash([compiled, noise])


def in_groups(items: Iterable[PlannedTrial]) -> list[TrialGroup]:
    """Groups planned trials, at most ``MOST_TRIALS_IN_A_GROUP`` a group.

    Trials of one program stand together, in the order of the plan. Small programs share a group: a task that starts
    costs more seconds than a small trial.
    """
    by_program: dict[str, list[PlannedTrial]] = defaultdict(list)
    trials: dict[str, Trial] = {}
    for item in items:
        trial = Trial.model_validate(item["trial"])
        program = program_of(trial)
        by_program[program].append(item)
        trials.setdefault(program, trial)
    groups: list[TrialGroup] = []
    shared: list[str] = []
    for program, planned in by_program.items():
        parts = [planned[i : i + MOST_TRIALS_IN_A_GROUP] for i in range(0, len(planned), MOST_TRIALS_IN_A_GROUP)]
        if len(parts) > 1:
            name = _name([trials[program]], len(planned))
            groups += [{"name": f"{name} · part {n} of {len(parts)}", "items": part} for n, part in enumerate(parts, 1)]
            continue
        if sum(len(by_program[other]) for other in [*shared, program]) > MOST_TRIALS_IN_A_GROUP:
            groups.append(_shared_group(shared, by_program, trials))
            shared = []
        shared.append(program)
    return [*groups, _shared_group(shared, by_program, trials)] if shared else groups


def _shared_group(
    programs: Sequence[str], by_program: Mapping[str, list[PlannedTrial]], trials: Mapping[str, Trial]
) -> TrialGroup:
    items = [item for program in programs for item in by_program[program]]
    return {"name": _name([trials[program] for program in programs], len(items)), "items": items}


def _name(trials: Sequence[Trial], count: int) -> str:
    """Returns the name of a group for people, given a trial of each program and the number of all trials.

    Programs that share a group are named by what they have in common.
    """
    values = [
        [TASK_TITLES[trial.task] for trial in trials],
        ["DP-SGD" if trial.mechanism == "dp_sgd" else "without noise in training" for trial in trials],
        [trial.optimizer for trial in trials],
        [f"batch {trial.batch_size:,}" for trial in trials],
        [f"microbatch {trial.microbatch_size}" if trial.microbatch_size > 1 else "" for trial in trials],
    ]
    tasks, *rest = [list(dict.fromkeys(column)) for column in values]
    common = [column[0] for column in rest if len(column) == 1 and column[0]]
    return " · ".join([", ".join(tasks), *common, counted(count, "trial")])
