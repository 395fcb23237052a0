"""Any sweep: the score of every combination of the pipeline's columns, and how much each setting matters.

The exhibit of pipelines that name none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dp_core.models.spec import ModelSpec
from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.reporting.document import Cell, Figure, Table
from tasks.reporting.exhibits.common import (
    Exhibit,
    Sweep,
    best_of,
    error_bars_text,
    mean_text,
    record_of,
    score,
    score_caption,
    score_cell,
    score_figure,
    score_name,
    score_series,
    validation_loss,
    with_points,
)
from tasks.reporting.exhibits.effects import effect_finding, effects_table, factors_of
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit
from tasks.reporting.exhibits.relative_loss import relative_percent
from tasks.reporting.plots import Level, line_chart
from tasks.reporting.results import Arm, Result
from tasks.reporting.series import Series
from tasks.reporting.wording import MECHANISM_TITLES, setting_title, value_text

# A figure has at most one line for each colour.
_MOST_LINES = 7


def exhibit(sweep: Sweep) -> Exhibit:
    figures, tables, details, findings = [], [], [], []
    for task in sweep.tasks:
        prefix = f"{TASK_TITLES[task]}: " if len(sweep.tasks) > 1 else ""
        suffix = "" if task == sweep.tasks[0] else f"_{task}"
        figures.append(_figure(sweep, task, prefix, f"figure{suffix}"))
        tables.append(_table(sweep, task, prefix + _title(sweep, task), f"table{suffix}"))
        if factors_of(sweep, task):
            title = f"{prefix}Which setting matters"
            details.append(effects_table(sweep, task, title=title, name=f"settings_that_matter{suffix}"))
        ends = dict.fromkeys((sweep.epsilons[0], sweep.epsilons[-1]))
        findings += [effect_finding(sweep, task, epsilon, prefix=prefix) for epsilon in ends]
    return Exhibit(
        headline="; ".join(_headline(sweep, task) for task in sweep.tasks) + ".",
        figures=figures,
        tables=[*tables, *details],
        findings=[finding for finding in findings if finding is not None],
        notes=_notes(sweep, tested=bool(details)),
    )


def _title(sweep: Sweep, task: TaskName) -> str:
    names = list(map(setting_title, sweep.pipeline.columns)) or ["mechanism"]
    return f"{score_name(task)} by {', '.join(names)} and ε"


def _headline(sweep: Sweep, task: TaskName) -> str:
    parts = []
    for epsilon in dict.fromkeys((sweep.epsilons[0], sweep.epsilons[-1])):
        best = best_of(sweep.at(task, epsilon))
        found = "every method diverges" if best.diverged else f"{_name(sweep, best.arm)} reaches {mean_text(best)}"
        parts.append(f"at ε = {epsilon:g} {found}")
    chosen = ", chosen by validation" if len(sweep.arms(task)) > 1 else ""
    return (
        f"{TASK_TITLES[task]}, test {score_name(task)}{chosen}: {', '.join(parts)}, "
        f"without privacy {mean_text(sweep.baseline(task))}"
    )


def _name(sweep: Sweep, arm: Arm) -> str:
    """Returns an arm's label, with the mechanism wherever the sweep has several."""
    several = len({result.arm.mechanism for result in sweep.results if result.epsilon is not None}) > 1
    title = MECHANISM_TITLES[arm.mechanism]
    named = arm.mechanism == "dp_sgd" and several and bool(arm.values)
    return f"{title} · {arm.label}" if named else arm.label


def _ranked(sweep: Sweep, task: TaskName) -> list[Arm]:
    """Returns the arms by their mean rank in validation loss over the budgets, best first."""
    ranks: dict[Arm, list[int]] = {arm: [] for arm in sweep.arms(task)}
    for epsilon in sweep.epsilons:
        for rank, result in enumerate(sorted(sweep.at(task, epsilon), key=validation_loss)):
            ranks[result.arm].append(rank)
    return sorted(ranks, key=lambda arm: sum(ranks[arm]) / len(ranks[arm]))


def _figure(sweep: Sweep, task: TaskName, prefix: str, name: str) -> Figure:
    arms = _ranked(sweep, task)
    # The winner at each budget, then the best on average.
    winners = [best_of(sweep.at(task, epsilon)).arm for epsilon in sweep.epsilons]
    drawn = list(dict.fromkeys([*winners, *arms]))[:_MOST_LINES]
    caption = "The dashed line is the non-private baseline."
    if len(arms) > len(drawn):
        picked = (
            "the winner by validation loss at each ε, then those with the best rank averaged over the budgets"
            if len(sweep.epsilons) > 1
            else "the best by validation loss"
        )
        caption = f"{len(drawn)} of {len(arms)} combinations: {picked}. The table has all of them. {caption}"
    shown = [arm for arm in arms if arm in drawn]
    if len(sweep.epsilons) == 1:
        return _figure_by_rank(sweep, task, shown, prefix, name, caption)
    series = [score_series(sweep, task, arm)._replace(name=_name(sweep, arm)) for arm in shown]
    title = f"{prefix}Test {score_name(task)} by privacy budget"
    return score_figure(sweep, task, series, title=title, caption=caption, name=name, height=340)


def _figure_by_rank(sweep: Sweep, task: TaskName, arms: Sequence[Arm], prefix: str, name: str, caption: str) -> Figure:
    """Returns the figure at a single budget, where lines over ε would be points on top of each other."""
    epsilon, baseline = sweep.epsilons[0], score(task, sweep.baseline(task).loss)
    ranks = {float(rank): arm for rank, arm in enumerate(arms, 1)}
    series = []
    for rank, arm in ranks.items():
        points = [point._replace(x=rank) for point in score_series(sweep, task, arm).points]
        series.append(Series(_name(sweep, arm), points))
    title = f"{prefix}Test {score_name(task)} at ε = {epsilon:g}"
    svg = line_chart(
        with_points(series, baseline, list(ranks)),
        title=title,
        x_label="rank by validation loss",
        y_label=f"test {score_name(task)}",
        x_ticks={rank: f"{rank:g}" for rank in ranks},
        levels=[Level(baseline, "non-private")],
        height=340,
    )
    return Figure(name, title, svg, f"{caption} {error_bars_text(sweep.results)}")


def _table(sweep: Sweep, task: TaskName, title: str, name: str) -> Table:
    arms, columns = _ranked(sweep, task), sweep.pipeline.columns
    several = len({arm.mechanism for arm in arms}) > 1 or not columns
    best = {epsilon: best_of(sweep.at(task, epsilon)) for epsilon in sweep.epsilons}
    rows = []
    for arm in arms:
        cells = [Cell(MECHANISM_TITLES[arm.mechanism])] if several else []
        cells += [_setting_cell(arm, column) for column in columns]
        for epsilon in sweep.epsilons:
            result = sweep.get(task, arm, epsilon)
            cells.append(score_cell(result, best[epsilon]) if result else Cell("–"))
        rows.append(cells)
    headers = [
        *(["mechanism"] if several else []),
        *map(setting_title, columns),
        *(f"ε = {epsilon:g}" for epsilon in sweep.epsilons),
    ]
    found = [sweep.get(task, arm, epsilon) for epsilon in sweep.epsilons for arm in arms]
    records = [_record(sweep, result) for result in (sweep.baseline(task), *found) if result is not None]
    caption = score_caption(sweep, task, best_of="column")
    caption += " Rows are in the order of their rank by validation loss, averaged over the budgets, best first."
    caption += "".join(f" {sentence}" for sentence in _changes_too(sweep, task))
    return Table(name, title, headers, rows, caption, records)


def _setting_cell(arm: Arm, column: str) -> Cell:
    value = dict(arm.values).get(column)
    if value is None:
        return Cell("–", note=f"{MECHANISM_TITLES[arm.mechanism]} has no such setting here")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(value_text(column, value), float(value) if number else None)


def _record(sweep: Sweep, result: Result) -> dict[str, Any]:
    relative = None if result.diverged else relative_percent(result, sweep.baseline(result.task))[0]
    values = {column: getattr(result.trial, column) for column in sweep.pipeline.columns}
    return {
        **record_of(result),
        "mechanism": result.arm.mechanism,
        **{
            column: value_text(column, value) if isinstance(value, ModelSpec) else value
            for column, value in values.items()
        },
        "relative_loss_percent": relative,
    }


def _changes_too(sweep: Sweep, task: TaskName) -> list[str]:
    """Returns which settings change with a column without being one, because their lists are zipped with its list."""
    columns, together = sweep.pipeline.columns, sweep.pipeline.together
    trials = [trial for r in sweep.results if r.task == task and r.epsilon is not None for trial in r.tried]
    shown = [name for name in together if name in columns]
    hidden = [name for name in together if name not in columns and len({getattr(one, name) for one in trials}) > 1]
    if not shown or not hidden:
        return []
    shown_text, hidden_text = (" and ".join(map(setting_title, names)) for names in (shown, hidden))
    return [
        f"{hidden_text[0].upper()}{hidden_text[1:]} {'change' if _several(hidden) else 'changes'} with the "
        f"{shown_text} (`together`): a difference between values of the {shown_text} may be due to either."
    ]


def _several(names: Sequence[str]) -> bool:
    return len(names) > 1 or setting_title(names[0]).endswith("s")


def _notes(sweep: Sweep, *, tested: bool) -> list[str]:
    notes = list(dict.fromkeys(sentence for task in sweep.tasks for sentence in _changes_too(sweep, task)))
    if not tested:
        return notes
    notes.append(
        "A setting's best and worst values are picked by validation loss and compared on the test split. The t-test "
        "between them is not corrected for picking two out of several, or the setting with the largest difference, so "
        "distrust a difference that is barely shown."
    )
    zipped = [setting_title(column) for column in sweep.pipeline.columns if column in sweep.pipeline.together]
    if len(zipped) > 1:
        notes.append(f"The lists of {' and '.join(zipped)} are zipped (`together`), so they count as one setting.")
    return notes


register_exhibit(ExhibitSpec("comparison", exhibit, columns="any", several_tasks=True, several_mechanisms=True))
