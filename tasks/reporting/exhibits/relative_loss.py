"""Table 1: the relative loss increment over the non-private baseline at each privacy budget."""

from __future__ import annotations

import math
from statistics import stdev

from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.reporting.document import Cell, Figure, Finding, Table
from tasks.reporting.exhibits.common import (
    WIDE,
    Exhibit,
    Sweep,
    epsilon_ticks,
    error_bars_text,
    judged,
    seeds_text,
    worse_by,
)
from tasks.reporting.exhibits.paper import beside, paper_series
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit
from tasks.reporting.plots import line_chart
from tasks.reporting.results import Result
from tasks.reporting.series import Point, Series


def relative_percent(result: Result, baseline: Result) -> tuple[float, float]:
    """Returns (L(ε) − L(∞))/|L(∞)| in percent: the mean and the standard deviation over seeds of L(ε).

    L(∞) is the baseline's mean loss. The absolute value keeps the sign right for a Poisson log loss below zero. NaN if
    the baseline's loss is zero.
    """
    if baseline.loss == 0:
        return math.nan, math.nan
    return 100 * (result.loss - baseline.loss) / abs(baseline.loss), 100 * result.spread / abs(baseline.loss)


def exhibit(sweep: Sweep) -> Exhibit:
    results = {(r.task, r.epsilon): r for r in sweep.results}
    rows, records = [], []
    for epsilon in sweep.epsilons:
        cells = [Cell(f"{epsilon:g}", epsilon)]
        for task in sweep.tasks:
            result = results.get((task, epsilon))
            cells.append(_cell(result, sweep.baseline(task)) if result else Cell("–"))
            theirs = sweep.pipeline.paper.get(task, {}).get(epsilon)
            cells.append(Cell("–") if theirs is None else Cell(f"{theirs:.2f}", theirs))
        rows.append(cells)
    for result in sweep.results:
        mean, spread = relative_percent(result, sweep.baseline(result.task))
        several = len(result.losses) > 1
        records.append(
            {
                "task": result.task,
                "epsilon": result.trial.epsilon_label,
                "loss_mean": result.loss,
                "loss_std": result.spread if several else None,
                "relative_loss_percent_mean": mean,
                "relative_loss_percent_std": spread if several else None,
                "seeds": len(result.losses),
            }
        )
    columns = ["ε", *(f"{TASK_TITLES[task]} {what}" for task in sweep.tasks for what in ("ours", "paper"))]
    caption = (
        f"(L(ε) − L(∞))/|L(∞)| on the test split, in percent, {seeds_text(sweep.results)}; δ = 1/N. "
        "“paper” is the paper's Table 1, which is on other data."
    )
    table = Table("table", "Relative loss increment (%)", columns, rows, caption, records)
    return Exhibit(
        headline=_headline(sweep, results),
        figures=[_figure(sweep, results)],
        tables=[table],
        findings=[_falls(sweep, task, results) for task in sweep.tasks if len(sweep.epsilons) > 1],
        notes=[note for task in sweep.tasks for note in _ceiling(sweep, task)],
    )


def _cell(result: Result, baseline: Result) -> Cell:
    mean, spread = relative_percent(result, baseline)
    text = f" ± {spread:.2f}" if len(result.losses) > 1 else ""
    return Cell(f"{mean:.2f}{text}", mean, f"test loss {result.loss:.4f}; {result.trial.label()}")


def _headline(sweep: Sweep, results: dict[tuple[TaskName, float | None], Result]) -> str:
    low, high = sweep.epsilons[0], sweep.epsilons[-1]
    parts = []
    for task in sweep.tasks:
        ends = [relative_percent(results[task, epsilon], sweep.baseline(task))[0] for epsilon in (low, high)]
        parts.append(f"{TASK_TITLES[task]} {ends[0]:.1f} % to {ends[1]:.1f} %")
    return f"Relative loss from ε = {low:g} to {high:g}: {', '.join(parts)}."


def _figure(sweep: Sweep, results: dict[tuple[TaskName, float | None], Result]) -> Figure:
    series = []
    for task in sweep.tasks:
        points = []
        for epsilon in sweep.epsilons:
            if (task, epsilon) in results:
                mean, spread = relative_percent(results[task, epsilon], sweep.baseline(task))
                points.append(Point(epsilon, mean, spread, f"{TASK_TITLES[task]}, ε = {epsilon:g}: {mean:.2f} %"))
        series.append(Series(TASK_TITLES[task], points))
    names: dict[str, str] = {task: TASK_TITLES[task] for task in sweep.tasks}
    theirs = [
        line._replace(name=f"{line.like} in the paper")
        for line in paper_series(sweep.pipeline, names)
        if line.like in names.values()
    ]
    heights = [point.y for line in (*series, *theirs) for point in line.points if point.y is not None]
    log = min(heights) > 0 and max(heights) > WIDE * min(heights)
    title = "Relative loss increment by privacy budget"
    svg = line_chart(
        beside(series, theirs),
        title=title,
        x_label="privacy budget ε",
        y_label="relative loss increment (%)",
        x_ticks=epsilon_ticks([*sweep.epsilons, *(point.x for line in theirs for point in line.points)]),
        log_x=True,
        log_y=log,
        height=320,
    )
    caption = f"{'The y axis is logarithmic. ' if log else ''}{error_bars_text(sweep.results)}"
    caption += " Dashed: the paper's values, on other data: compare shapes, not values." if theirs else ""
    return Figure("figure", title, svg, caption)


def _falls(sweep: Sweep, task: TaskName, results: dict[tuple[TaskName, float | None], Result]) -> Finding:
    low, high = sweep.epsilons[0], sweep.epsilons[-1]
    most, least = results[task, low], results[task, high]
    claim = f"{TASK_TITLES[task]}: the loss is lower with a larger budget (ε = {high:g} against {low:g})"
    return judged(
        claim, worse_by(most, least), f"test loss {most.loss:.4f} at ε = {low:g}, {least.loss:.4f} at {high:g}"
    )


def _ceiling(sweep: Sweep, task: TaskName) -> list[str]:
    """Returns how close the baseline comes to the planted model, if there is one."""
    planted, baseline = sweep.ceilings.get(task), sweep.baseline(task)
    if planted is None:
        return []
    if "auc" in planted:
        share = (1 - baseline.loss - 0.5) / (planted["auc"] - 0.5)
        return [
            f"{TASK_TITLES[task]}: the AUC of the model that generated the labels is {planted['auc']:.4f}; the "
            f"non-private model covers {100 * share:.1f} % of the way from 0.5 to it."
        ]
    spread = f" ± {stdev(baseline.losses):.4f}" if len(baseline.losses) > 1 else ""
    return [
        f"{TASK_TITLES[task]}: the loss of the model that generated the labels is {planted['poisson_log_loss']:.4f}, "
        f"the non-private model's {baseline.loss:.4f}{spread}."
    ]


register_exhibit(ExhibitSpec("relative_loss", exhibit, several_tasks=True))
