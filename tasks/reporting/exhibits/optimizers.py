"""Figure 1: the best optimiser and learning rate without privacy are not the best ones with privacy."""

from __future__ import annotations

from tasks.reporting.document import Finding
from tasks.reporting.exhibits.common import (
    Exhibit,
    Sweep,
    best_of,
    judged,
    score_figure,
    score_name,
    score_series,
    score_table,
    score_text,
    worse_by,
)
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit
from tasks.reporting.results import Arm


def exhibit(sweep: Sweep) -> Exhibit:
    task = sweep.tasks[0]
    arms = sweep.arms(task)
    baseline = sweep.baseline(task).trial
    reused = Arm("dp_sgd", (("optimizer", baseline.optimizer), ("learning_rate", baseline.learning_rate)))
    best = {epsilon: best_of(sweep.at(task, epsilon)) for epsilon in sweep.epsilons}
    low = sweep.epsilons[0]
    chosen = f"they are {best[low].arm.label}" if not best[low].diverged else "every method diverges"
    title = f"{score_name(task)} by optimiser, learning rate and privacy budget"
    return Exhibit(
        headline=f"Without privacy the best optimiser and learning rate are {reused.label}; at ε = {low:g} {chosen}.",
        figures=[
            score_figure(
                sweep,
                task,
                [score_series(sweep, task, arm, highlight=arm == reused) for arm in arms],
                title=title,
                caption=f"The thick line is {reused.label}, which validation chooses without privacy. Diverged "
                "trainings are left out.",
                name="figure",
                height=420,
            )
        ],
        tables=[score_table(sweep, task, title=title)],
        findings=_findings(sweep, reused),
        notes=[
            "The paper gives no numbers for its Figure 1. It says that the settings of its non-private baseline (Yogi, "
            "0.01) do much worse under DP-SGD, and that SGD with 0.1 beats 0.01 at large ε and loses at small ε."
        ],
    )


def _findings(sweep: Sweep, reused: Arm) -> list[Finding]:
    task = sweep.tasks[0]
    findings = []
    for epsilon in sweep.epsilons:
        best, same = best_of(sweep.at(task, epsilon)), sweep.get(task, reused, epsilon)
        claim = f"At ε = {epsilon:g} the non-private choice of optimiser and learning rate is not the best private one"
        if same is None:
            findings.append(Finding(claim, "not shown", f"{reused.label} was not tried with privacy"))
        elif best.arm == reused:
            findings.append(Finding(claim, "not shown", f"{reused.label} is the best private choice too"))
        else:
            text = (
                f"{score_name(task)} {score_text(best)} with {best.arm.label}, {score_text(same)} with {reused.label}"
            )
            findings.append(judged(claim, worse_by(same, best), text))
    return findings


register_exhibit(ExhibitSpec("optimizers", exhibit, columns=("optimizer", "learning_rate")))
