"""Table 3: with large batches and more epochs, a clip norm that drowned in noise becomes the better one."""

from __future__ import annotations

from tasks.exhibits.common import (
    Exhibit,
    Sweep,
    judged,
    paper_table,
    score,
    score_figure,
    score_series,
    score_table,
    score_text,
    worse_by,
)


def exhibit(sweep: Sweep) -> Exhibit:
    task = sweep.tasks[0]
    arms = sorted(sweep.arms(task), key=lambda arm: arm.value("batch_size"))
    small, large = arms[0], arms[-1]
    findings, ends = [], []
    for epsilon in sweep.epsilons:
        one, other = sweep.get(task, small, epsilon), sweep.get(task, large, epsilon)
        if one is None or other is None:
            continue
        ends.append((score(task, one.loss) if one.losses else 0.5, score(task, other.loss) if other.losses else 0.5))
        findings.append(
            judged(
                f"At ε = {epsilon:g} large batches with more epochs beat the small ones",
                worse_by(one, other),
                f"AUC {score_text(one)} with {small.label}, {score_text(other)} with {large.label}",
            )
        )
    clip_norm = sweep.get(task, small, sweep.epsilons[0])
    assert clip_norm is not None
    title = f"AUC by batch size and epochs at C = {clip_norm.trial.l2_clip_norm:g}"
    return Exhibit(
        headline=f"At ε = {sweep.epsilons[0]:g} and C = {clip_norm.trial.l2_clip_norm:g} the AUC goes from "
        f"{ends[0][0]:.4f} ({small.label}) to {ends[0][1]:.4f} ({large.label}).",
        figures=[
            score_figure(
                sweep,
                task,
                [score_series(sweep, task, arm) for arm in arms],
                title=title,
                caption="The same guarantee for each. Error bars: one standard deviation over seeds.",
                name="figure",
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
