"""Reliability plots: the mean label by prediction, of the baseline and of private models at a low and a high ε."""

from __future__ import annotations

from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.reporting.document import Figure
from tasks.reporting.exhibits.common import WIDE, Sweep, best_of
from tasks.reporting.exhibits.metrics import ReadRecord, read_record
from tasks.reporting.plots import line_chart
from tasks.reporting.results import Result
from tasks.reporting.series import Point, Series


def reliability_figures(sweep: Sweep, read: ReadRecord = read_record) -> list[Figure]:
    """Returns a plot for each task whose trials have bins; trials of earlier versions have none."""
    figures = (_figure(sweep, task, read) for task in sweep.tasks)
    return [figure for figure in figures if figure is not None]


def compared(sweep: Sweep, task: TaskName) -> list[Result]:
    """Returns the baseline, and the best private result by validation at the lowest and at the highest ε."""
    found = [sweep.baseline(task)]
    for epsilon in dict.fromkeys((sweep.epsilons[0], sweep.epsilons[-1])) if sweep.epsilons else ():
        private = [result for result in sweep.at(task, epsilon) if not result.diverged]
        found += [best_of(private)] if private else []
    return [result for result in found if not result.diverged]


def model_title(sweep: Sweep, result: Result) -> str:
    """Returns the name of a compared result: its budget, and its method if there are several."""
    if result.epsilon is None:
        return "non-private"
    several = len(sweep.arms(result.task)) > 1
    return f"ε = {result.epsilon:g}{f', {result.arm.label}' if several else ''}"


def _figure(sweep: Sweep, task: TaskName, read: ReadRecord) -> Figure | None:
    lines = [_series(model_title(sweep, result), result, read) for result in compared(sweep, task)]
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    places = [value for line in lines for point in line.points for value in (point.x, point.y) if value]
    log = min(places) > 0 and max(places) > WIDE * min(places)
    ends = [min(point.x for line in lines for point in line.points), max(p.x for line in lines for p in line.points)]
    diagonal = Series("as predicted", [Point(x, x) for x in ends], dashed=True)
    title = f"{TASK_TITLES[task]}: reliability"
    svg = line_chart(
        [*lines, diagonal],
        title=title,
        x_label="mean prediction of a bin",
        y_label="mean label of the bin",
        log_x=log,
        log_y=log,
        height=300,
    )
    kind = "Poisson" if task == "pconvs" else "Wilson"
    caption = (
        "Test rows in ten bins of about equal size by their prediction; seed 0 of the chosen settings. Points below "
        f"the dashed line: the model predicts too much. Error bars: 95 % intervals ({kind})"
        f"{', which are too short where counts vary more than Poisson variables do' if task == 'pconvs' else ''}. "
        f"{'Both axes are logarithmic. ' if log else ''}The number of rows of a bin is in its tooltip."
    )
    return Figure(f"reliability_{task}", title, svg, caption)


def _series(name: str, result: Result, read: ReadRecord) -> Series:
    # Here, because loading the configuration imports this module, and SciPy, which this needs, is slow to import.
    from dp_core.evaluation.reliability import interval

    points = []
    for one in read(result.trial).get("reliability", []):
        low, high = interval(result.task, one["rows"], one["observed"])
        note = (
            f"{name}: {one['rows']:,} rows, mean prediction {one['predicted']:.4g}, mean label {one['observed']:.4g} "
            f"({low:.4g} to {high:.4g})"
        )
        points.append(Point(one["predicted"], one["observed"], None, note, (low, high)))
    return Series(name, points)
