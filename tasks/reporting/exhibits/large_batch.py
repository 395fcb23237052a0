"""Table 3: large batches and more epochs make a large clip norm work."""

from __future__ import annotations

from tasks.reporting.exhibits.common import (
    Exhibit,
    Sweep,
    judged,
    mean_text,
    score_figure,
    score_name,
    score_series,
    score_table,
    score_text,
    worse_by,
)
from tasks.reporting.exhibits.paper import paper_table
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit


def exhibit(sweep: Sweep) -> Exhibit:
    task = sweep.tasks[0]
    arms = sorted(sweep.arms(task), key=lambda arm: arm.value("batch_size"))
    small, large = arms[0], arms[-1]
    name, findings, ends = score_name(task), [], []
    for epsilon in sweep.epsilons:
        one, other = sweep.get(task, small, epsilon), sweep.get(task, large, epsilon)
        assert one is not None
        assert other is not None
        ends.append((one, other))
        if small != large:
            findings.append(
                judged(
                    f"At ε = {epsilon:g} large batches with more epochs beat small ones",
                    worse_by(one, other),
                    f"{name} {score_text(one)} with {small.label}, {score_text(other)} with {large.label}",
                )
            )
    first, last = ends[0]
    clip_norm = f"C = {first.trial.l2_clip_norm:g}"
    title = f"{name} by batch size and epochs at {clip_norm}"
    return Exhibit(
        headline=f"At ε = {sweep.epsilons[0]:g} and {clip_norm}, {name} goes from "
        f"{mean_text(first)} ({small.label}) to {mean_text(last)} ({large.label}).",
        figures=[
            score_figure(
                sweep,
                task,
                [score_series(sweep, task, arm) for arm in arms],
                title=title,
                caption="All methods have the same guarantee.",
                name="figure",
                paper=True,
            )
        ],
        tables=[
            score_table(sweep, task, title=title),
            *paper_table(
                sweep.pipeline, title="The paper's Table 3 (AUC, C = 30)", row="ε", format_value="{:.4f}".format
            ),
        ],
        findings=findings,
    )


register_exhibit(ExhibitSpec("large_batch", exhibit, columns=("batch_size", "epochs")))
