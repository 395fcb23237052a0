"""Figure 5: randomised response on labels against DP-SGD at the same ε, and the ε at which it overtakes."""

from __future__ import annotations

import math
from statistics import fmean

from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.reporting.document import Finding
from tasks.reporting.exhibits.common import (
    Exhibit,
    Sweep,
    judged,
    score_figure,
    score_name,
    score_series,
    score_table,
    score_text,
    worse_by,
)
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit
from tasks.reporting.results import Arm, Result


def exhibit(sweep: Sweep) -> Exhibit:
    figures, tables, findings, crossings = [], [], [], []
    for task in sweep.tasks:
        title = f"{TASK_TITLES[task]}: {score_name(task)} of LabelDP and of DP-SGD"
        figures.append(
            score_figure(
                sweep,
                task,
                [score_series(sweep, task, arm, highlight=arm.mechanism == "dp_sgd") for arm in sweep.arms(task)],
                title=title,
                caption="The same ε, but not the same guarantee: DP-SGD (thick) protects whole examples with δ = 1/N; "
                "randomised response protects only the labels, with δ = 0, and treats features as public.",
                name=f"figure_{task}",
                height=320,
            )
        )
        name = "table" if task == sweep.tasks[0] else f"table_{task}"
        tables.append(score_table(sweep, task, title=title, name=name))
        for arm in [arm for arm in sweep.arms(task) if arm.mechanism == "label_dp"]:
            crossings.append(f"{TASK_TITLES[task]}, {arm.label}: {_crossing(sweep, task, arm)}.")
            findings += _findings(sweep, task, arm)
    return Exhibit(
        headline="Where LabelDP overtakes DP-SGD: " + (" ".join(crossings[:2]) or "no LabelDP was trained."),
        figures=figures,
        tables=tables,
        findings=findings,
        notes=[
            "Where LabelDP overtakes DP-SGD, interpolated from mean losses over log ε: " + " ".join(crossings),
            "All trainings on one draw of responses share its ε, so LabelDP chooses among learning rates for free, "
            "while every training of DP-SGD adds to its ε. Here trainings with the same seed share a draw; with "
            "`randomness: secret` each has its own.",
            "The paper gives no numbers for its Figure 5. There randomised response is ahead at large ε and DP-SGD at "
            "small ε.",
        ],
    )


def _pair(sweep: Sweep, task: TaskName, arm: Arm, epsilon: float) -> tuple[Result, Result] | None:
    private = next((r for r in sweep.at(task, epsilon) if r.arm.mechanism == "dp_sgd"), None)
    label = sweep.get(task, arm, epsilon)
    return None if private is None or label is None else (private, label)


def _findings(sweep: Sweep, task: TaskName, arm: Arm) -> list[Finding]:
    low, high = (_pair(sweep, task, arm, epsilon) for epsilon in (sweep.epsilons[0], sweep.epsilons[-1]))
    if low is None or high is None:
        return []
    method, name = f"{TASK_TITLES[task]}, {arm.label}", score_name(task)

    def text(pair: tuple[Result, Result]) -> str:
        return f"{name} {score_text(pair[0])} by DP-SGD, {score_text(pair[1])} by LabelDP"

    return [
        judged(f"{method}: at ε = {sweep.epsilons[0]:g} DP-SGD is better", worse_by(low[1], low[0]), text(low)),
        judged(f"{method}: at ε = {sweep.epsilons[-1]:g} LabelDP is better", worse_by(*high), text(high)),
    ]


def _crossing(sweep: Sweep, task: TaskName, arm: Arm) -> str:
    """Returns between which budgets LabelDP overtakes DP-SGD, and the interpolated ε."""
    ahead = []
    for epsilon in sweep.epsilons:
        pair = _pair(sweep, task, arm, epsilon)
        if pair is not None and (by_seed := worse_by(*pair)):
            ahead.append((epsilon, fmean(by_seed)))
    if not ahead:
        return "nothing to compare with"
    signs = [gain > 0 for _, gain in ahead]
    if all(signs):
        return f"ahead at every ε from {ahead[0][0]:g}"
    if not any(signs):
        return f"behind at every ε up to {ahead[-1][0]:g}"
    changes = [i for i in range(1, len(signs)) if signs[i] != signs[i - 1]]
    if len(changes) > 1 or signs[0]:
        return "no single crossing: ahead at ε = " + ", ".join(f"{e:g}" for e, gain in ahead if gain > 0)
    (before, behind), (after, gain) = ahead[changes[0] - 1], ahead[changes[0]]
    share = -behind / (gain - behind)
    where = math.exp(math.log(before) + share * (math.log(after) - math.log(before)))
    return f"between ε = {before:g} and {after:g}, at about {where:.2g}"


register_exhibit(
    ExhibitSpec("label_dp", exhibit, columns=("response", "debias"), several_tasks=True, several_mechanisms=True)
)
