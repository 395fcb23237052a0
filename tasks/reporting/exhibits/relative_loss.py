"""Table 1: the relative loss increment over the non-private baseline at each privacy budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import stdev
from typing import Any

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
from tasks.reporting.exhibits.recipes import (
    ComparedRecipes,
    compared_recipes,
    has_recipes,
    ratio_cell,
    recipe_findings,
)
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit
from tasks.reporting.plots import line_chart
from tasks.reporting.results import CONFIDENCE, Result
from tasks.reporting.series import Point, Series
from tasks.reporting.wording import RECIPE_TITLES

_TITLE = "Relative loss increment (%)"
# Marks a number that a doubt is about.
DOUBT_MARK = "†"
# The results of one recipe, by task and budget.
Results = Mapping[tuple[TaskName, float | None], Result]


def relative_percent(result: Result, baseline: Result) -> tuple[float, float]:
    """Returns (L(ε) − L(∞))/|L(∞)| in percent: the mean and the standard deviation over seeds of L(ε).

    L(∞) is the baseline's mean loss. The absolute value keeps the sign right for a Poisson log loss below zero. NaN if
    the baseline's loss is zero.
    """
    if baseline.loss == 0:
        return math.nan, math.nan
    return 100 * (result.loss - baseline.loss) / abs(baseline.loss), 100 * result.spread / abs(baseline.loss)


def exhibit(sweep: Sweep) -> Exhibit:
    two = has_recipes(sweep)
    results = {(r.task, r.arm.recipe, r.epsilon): r for r in sweep.results}
    # Without a recipe of the paper, every private result is ours.
    ours = {(r.task, r.epsilon): r for r in sweep.results if r.arm.recipe != "paper_recipe"}
    theirs = {(task, epsilon): r for (task, recipe, epsilon), r in results.items() if recipe == "paper_recipe"}
    return Exhibit(
        headline=_headline(sweep, ours, theirs),
        figures=[_figure(sweep, ours, theirs)],
        tables=[_table_of_recipes(sweep, ours, theirs) if two else _table(sweep, ours)],
        findings=[
            *(_falls(sweep, task, ours) for task in sweep.tasks if len(sweep.epsilons) > 1),
            *recipe_findings(sweep),
        ],
        notes=[note for task in sweep.tasks for note in _ceiling(sweep, task)],
    )


def _table(sweep: Sweep, results: Results) -> Table:
    """Returns a row for each budget, with ours and the paper's number of each task."""
    rows = []
    for epsilon in sweep.epsilons:
        cells = [Cell(f"{epsilon:g}", epsilon)]
        for task in sweep.tasks:
            cells += [_cell(results.get((task, epsilon)), sweep), _papers(sweep, task, epsilon)]
        rows.append(cells)
    columns = ["ε", *(f"{TASK_TITLES[task]} {what}" for task in sweep.tasks for what in ("ours", "paper"))]
    caption = f"{_caption(sweep)} “paper” is the paper's Table 1, which is on other data."
    return Table("table", _TITLE, columns, rows, caption, [_record(sweep, result) for result in sweep.results])


def _table_of_recipes(sweep: Sweep, ours: Results, theirs: Results) -> Table:
    """Returns a row for each task and budget, so that two recipes and their ratio fit into a terminal's width."""
    compared = {(one.task, one.epsilon): one for one in compared_recipes(sweep)}
    papers = any(task in sweep.pipeline.paper for task in sweep.tasks)
    rows = []
    for task in sweep.tasks:
        for epsilon in sweep.epsilons:
            cells = [_cell(results.get((task, epsilon)), sweep) for results in (ours, theirs)]
            ratio = ratio_cell(compared.get((task, epsilon)))
            paper = [_papers(sweep, task, epsilon)] if papers else []
            rows.append([Cell(TASK_TITLES[task]), Cell(f"{epsilon:g}", epsilon), *cells, ratio, *paper])
    columns = ["task", "ε", "ours", "paper's recipe", "ours ÷ paper's recipe", *(["in the paper"] if papers else [])]
    several = max(len(result.chosen) for result in sweep.results) > 1
    interval = f", with its {100 * CONFIDENCE:g} % interval" if several else ""
    caption = (
        f"{_caption(sweep)} Both recipes are DP-SGD on this data against the same baseline; validation chose the "
        f"settings of each. “ours ÷ paper's recipe” is the ratio of their relative losses by seed{interval}; bold: "
        "ours loses less, by more than noise."
    )
    caption += " “in the paper” is the paper's Table 1, which is on other data." if papers else ""
    records = []
    for result in sweep.results:
        one = compared.get((result.task, result.epsilon or 0.0)) if result.arm.recipe == "ours" else None
        records.append({"recipe": result.arm.recipe, **_record(sweep, result), **_comparison_record(one)})
    return Table("table", _TITLE, columns, rows, caption, records)


def _caption(sweep: Sweep) -> str:
    marked = any(sweep.doubts_about(result) for result in sweep.results if result.epsilon is not None)
    mark = f" {DOUBT_MARK}: not the price of privacy yet, by what is said of it below." if marked else ""
    return f"(L(ε) − L(∞))/|L(∞)| on the test split, in percent, {seeds_text(sweep.results)}; δ = 1/N.{mark}"


def _record(sweep: Sweep, result: Result) -> dict[str, Any]:
    """Returns a result's numbers for the CSV file."""
    mean, spread = relative_percent(result, sweep.baseline(result.task))
    several = len(result.losses) > 1
    return {
        "task": result.task,
        "epsilon": result.trial.epsilon_label,
        "loss_mean": result.loss,
        "loss_std": result.spread if several else None,
        "relative_loss_percent_mean": mean,
        "relative_loss_percent_std": spread if several else None,
        "seeds": len(result.losses),
    }


def _comparison_record(compared: ComparedRecipes | None) -> dict[str, Any]:
    found = {"ratio": compared.ratio, "difference_percent": compared.difference} if compared is not None else {}
    record: dict[str, Any] = {}
    for name in ("ratio", "difference_percent"):
        one = found.get(name)
        low, high = (one.interval if one is not None else None) or (None, None)
        record |= {name: None if one is None else one.mean, f"{name}_low": low, f"{name}_high": high}
    return record


def _cell(result: Result | None, sweep: Sweep) -> Cell:
    if result is None:
        return Cell("–")
    mean, spread = relative_percent(result, sweep.baseline(result.task))
    text = f" ± {spread:.2f}" if len(result.losses) > 1 else ""
    doubts = sweep.doubts_about(result)
    mark = f" {DOUBT_MARK}" if doubts else ""
    note = "; ".join([f"test loss {result.loss:.4f}", result.trial.label(), *(doubt.what for doubt in doubts)])
    return Cell(f"{mean:.2f}{text}{mark}", mean, note)


def _papers(sweep: Sweep, task: TaskName, epsilon: float) -> Cell:
    found = sweep.pipeline.paper.get(task, {}).get(epsilon)
    return Cell("–") if found is None else Cell(f"{found:.2f}", found)


def _headline(sweep: Sweep, ours: Results, theirs: Results) -> str:
    parts = []
    for task in sweep.tasks:
        with_paper = f" (paper's recipe {_ends(sweep, task, theirs)})" if (task, sweep.epsilons[0]) in theirs else ""
        parts.append(f"{TASK_TITLES[task]} {_ends(sweep, task, ours)}{with_paper}")
    budgets = " to ".join(f"{epsilon:g}" for epsilon in _first_and_last(sweep))
    where = f"from ε = {budgets}" if len(sweep.epsilons) > 1 else f"at ε = {budgets}"
    return f"Relative loss {where}: {', '.join(parts)}."


def _ends(sweep: Sweep, task: TaskName, results: Results) -> str:
    percents = (relative_percent(results[task, one], sweep.baseline(task))[0] for one in _first_and_last(sweep))
    return " to ".join(f"{percent:.1f} %" for percent in percents)


def _first_and_last(sweep: Sweep) -> list[float]:
    return list(dict.fromkeys((sweep.epsilons[0], sweep.epsilons[-1])))


def _series(sweep: Sweep, task: TaskName, results: Results, name: str, like: str = "") -> list[Series]:
    points = []
    for epsilon in sweep.epsilons:
        if (task, epsilon) in results:
            mean, spread = relative_percent(results[task, epsilon], sweep.baseline(task))
            points.append(Point(epsilon, mean, spread, f"{name}, ε = {epsilon:g}: {mean:.2f} %"))
    return [Series(name, points, like=like)] if points else []


def _figure(sweep: Sweep, ours: Results, theirs: Results) -> Figure:
    """Returns the curves over ε: ours beside the paper's recipe, or beside the paper's numbers without one."""
    titles = {task: TASK_TITLES[task] for task in sweep.tasks}
    series = [line for task, title in titles.items() for line in _series(sweep, task, ours, title)]
    others = [
        line
        for task, title in titles.items()
        for line in _series(sweep, task, theirs, f"{title}, {RECIPE_TITLES['paper_recipe']}", like=title)
    ]
    if not theirs:
        papers = paper_series(sweep.pipeline, {str(task): title for task, title in titles.items()})
        others = [line._replace(name=f"{line.like} in the paper") for line in papers if line.like in titles.values()]
    heights = [point.y for line in (*series, *others) for point in line.points if point.y is not None]
    log = min(heights) > 0 and max(heights) > WIDE * min(heights)
    title = "Relative loss increment by privacy budget"
    svg = line_chart(
        beside(series, others),
        title=title,
        x_label="privacy budget ε",
        y_label="relative loss increment (%)",
        x_ticks=epsilon_ticks([*sweep.epsilons, *(point.x for line in others for point in line.points)]),
        log_x=True,
        log_y=log,
        height=320,
    )
    caption = f"{'The y axis is logarithmic. ' if log else ''}{error_bars_text(sweep.results)}"
    if theirs:
        caption += " Dashed: the paper's recipe, on this data."
    elif others:
        caption += " Dashed: the paper's values, on other data: compare shapes, not values."
    return Figure("figure", title, svg, caption)


def _falls(sweep: Sweep, task: TaskName, results: Results) -> Finding:
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


register_exhibit(ExhibitSpec("relative_loss", exhibit, several_tasks=True, two_recipes=True, claims_price=True))
