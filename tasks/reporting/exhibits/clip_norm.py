"""Table 2: a small clip norm biases gradients, a large one adds noise; which is worse depends on ε."""

from __future__ import annotations

from statistics import fmean

from tasks.reporting.document import Finding
from tasks.reporting.exhibits.common import (
    Exhibit,
    Sweep,
    best_of,
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
    arms = sweep.arms(task)
    low, high = sweep.epsilons[0], sweep.epsilons[-1]
    best_low, best_high = (best_of(sweep.at(task, epsilon)) for epsilon in (low, high))
    name = score_name(task)
    title = f"{name} by clip norm C and privacy budget ε"
    return Exhibit(
        headline=f"At ε = {low:g} the best clip norm is {best_low.trial.l2_clip_norm:g} ({name} "
        f"{mean_text(best_low)}), at ε = {high:g} it is {best_high.trial.l2_clip_norm:g} ({name} "
        f"{mean_text(best_high)}).",
        figures=[
            score_figure(
                sweep,
                task,
                [score_series(sweep, task, arm) for arm in arms],
                title=title,
                caption="A large clip norm needs a large budget.",
                name="figure",
                paper=True,
            )
        ],
        tables=[
            score_table(sweep, task, title=title),
            *paper_table(sweep.pipeline, title="The paper's Table 2 (AUC)", row="ε", format_value="{:.4f}".format),
        ],
        findings=_findings(sweep),
    )


def _findings(sweep: Sweep) -> list[Finding]:
    task = sweep.tasks[0]
    arms = sorted(sweep.arms(task), key=lambda arm: arm.value("l2_clip_norm"))
    if len(arms) < 2:
        return []
    low, high = sweep.epsilons[0], sweep.epsilons[-1]
    large = [sweep.get(task, arms[-1], epsilon) for epsilon in (low, high)]
    # The best of the other clip norms at the same budget.
    others = [best_of([r for r in sweep.at(task, epsilon) if r.arm != arms[-1]]) for epsilon in (low, high)]
    assert large[0] is not None
    assert large[1] is not None
    at_low, at_high = worse_by(large[0], others[0]), worse_by(large[1], others[1])
    name = score_name(task)
    text = f"{name} {score_text(large[0])} with {arms[-1].label}, {score_text(others[0])} with {others[0].arm.label}"
    findings = [judged(f"At ε = {low:g} a large clip norm is worse than a small one", at_low, text)]
    if low < high and at_low and at_high:
        findings.append(
            judged(
                f"At ε = {high:g} the gap is smaller",
                [one - other for one, other in zip(at_low, at_high, strict=True)],
                f"the large clip norm's {name} is {_gap(fmean(at_low))} at ε = {low:g}, "
                f"{_gap(fmean(at_high))} at ε = {high:g}",
            )
        )
    return findings


def _gap(worse_by: float) -> str:
    """
    >>> _gap(0.01234), _gap(-0.01), _gap(-0.00001)
    ('worse by 0.0123', 'better by 0.0100', 'worse by 0.0000')
    """
    return f"{'worse' if round(worse_by, 4) >= 0 else 'better'} by {abs(worse_by):.4f}"


register_exhibit(ExhibitSpec("clip_norm", exhibit, columns=("l2_clip_norm",)))
