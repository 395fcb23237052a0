"""The table of metrics by segment: whether privacy costs small segments more than large ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.reporting.document import Cell, Finding, Table
from tasks.reporting.exhibits.common import Sweep, judged, ranks
from tasks.reporting.exhibits.reliability import compared, model_title
from tasks.reporting.results import Result
from tasks.training.trial import Trial

# Loading the configuration imports this module: it should not wait for NumPy.
if TYPE_CHECKING:
    from tasks.training.finished import SegmentFacts

# Returns a trial's segments, largest first; None if it has none.
ReadSegments = Callable[[Trial], "list[SegmentFacts] | None"]


class _Compared(NamedTuple):
    """A result with its name and the segments of each of its seeds."""

    result: Result
    title: str
    by_seed: Mapping[int, Sequence[SegmentFacts]]


def segments_table(sweep: Sweep, columns: Mapping[TaskName, str], read: ReadSegments) -> Table | None:
    """Returns the segments of the test split, with the baseline and private models at the lowest and the highest ε.

    Args:
        sweep: The results.
        columns: The segment column of each task that has one.
        read: Reads the segments of a trial.
    """
    found = {task: _compared(sweep, task, read) for task in sweep.tasks if task in columns}
    found = {task: models for task, models in found.items() if models}
    if not found:
        return None
    titles = list(dict.fromkeys(model.title for models in found.values() for model in models))
    rows, records = [], list[dict[str, Any]]()
    for task, models in found.items():
        segments = next(iter(models[0].by_seed.values()))
        by_title = {model.title: model for model in models}
        for place, segment in enumerate(segments):
            cells = [
                Cell(TASK_TITLES[task]),
                Cell(f"{columns[task]}: {segment['name']}"),
                Cell(f"{segment['rows']:,}", segment["rows"]),
                Cell(f"{segment['mean_label']:.4f}", segment["mean_label"]),
            ]
            scores = [_score(task, by_title.get(title), place) for title in titles]
            ratios = [_calibration(by_title.get(title), place) for title in titles]
            rows.append([*cells, *scores, *ratios])
            records += [_record(task, columns[task], model, place, segment) for model in models]
    caption = (
        "Segments of the test split with the most rows, largest first; rows of all others are one. Score: AUC, and for "
        "pConvs NE (the lower the better). “one class”: all labels are equal, so there is none. Calibration: the mean "
        "prediction over the mean label; ± is the standard error from the choice of rows, or the standard deviation "
        "over seeds if that is larger. These numbers come from held-out labels without noise, and no ε covers them."
    )
    header = [
        *("task", "segment", "rows", "mean label"),
        *(f"score, {title}" for title in titles),
        *(f"calibration, {title}" for title in titles),
    ]
    return Table("segments", "Segments", header, rows, caption, records)


def segment_findings(sweep: Sweep, columns: Mapping[TaskName, str], read: ReadSegments) -> list[Finding]:
    """Returns for each task whether the lowest ε costs the smaller segments more of their score than the larger ones.

    The segments are cut into the largest ones that have half of the rows, and the others. The loss of each part is the
    mean over its segments of what the private model's score loses, and is compared seed by seed.
    """
    findings = []
    for task in sweep.tasks:
        models = _compared(sweep, task, read) if task in columns else []
        if len(models) < 2 or models[0].result.epsilon is not None:
            continue
        baseline, private = models[:2]
        differences, parts = [], list[tuple[float, float]]()
        for seed in sorted(baseline.by_seed.keys() & private.by_seed.keys()):
            lost = [
                (one["rows"], cost)
                for one, other in zip(baseline.by_seed[seed], private.by_seed[seed], strict=True)
                if (cost := _lost(task, one, other)) is not None
            ]
            large, small = _halves(lost)
            if large and small:
                parts.append((fmean(small), fmean(large)))
                differences.append(fmean(small) - fmean(large))
        if differences:
            small_loss, large_loss = (fmean(values) for values in zip(*parts, strict=True))
            findings.append(
                judged(
                    f"{TASK_TITLES[task]}: privacy costs small segments of {columns[task]} more than large ones "
                    f"({private.title})",
                    differences,
                    f"{'AUC' if ranks(task) else 'NE'} is worse by {small_loss:.4f} in small segments and by "
                    f"{large_loss:.4f} in large ones",
                )
            )
    return findings


def _halves(lost: Sequence[tuple[int, float]]) -> tuple[list[float], list[float]]:
    """Cuts segments, given by rows and loss, into the largest ones with half of all rows and the others.

    >>> _halves([(60, 0.1), (30, 0.2), (10, 0.3)])
    ([0.1], [0.2, 0.3])
    """
    ordered = sorted(lost, key=lambda one: -one[0])
    large, small, before, half = list[float](), list[float](), 0, sum(rows for rows, _ in lost) / 2
    for rows, cost in ordered:
        (large if before < half else small).append(cost)
        before += rows
    return large, small


def _lost(task: TaskName, baseline: SegmentFacts, private: SegmentFacts) -> float | None:
    """Returns by how much a private model's score is worse in a segment; None without a score, or for the others."""
    name, sign = ("auc", 1) if ranks(task) else ("normalized_entropy", -1)
    ours, theirs = baseline[name], private[name]  # type: ignore[literal-required]
    return None if ours is None or theirs is None else sign * (ours - theirs)


def _compared(sweep: Sweep, task: TaskName, read: ReadSegments) -> list[_Compared]:
    models = []
    for result in compared(sweep, task):
        by_seed = {outcome.trial.seed: found for outcome in result.chosen if (found := read(outcome.trial))}
        models += [_Compared(result, model_title(sweep, result), by_seed)] if by_seed else []
    return models


def _score(task: TaskName, model: _Compared | None, place: int) -> Cell:
    name = "auc" if ranks(task) else "normalized_entropy"
    values = _values(model, place, name)
    if model is not None and not values:
        return Cell("one class", note="all labels of the segment are equal")
    return _cell(values, stdev(values) if len(values) > 1 else None)


def _calibration(model: _Compared | None, place: int) -> Cell:
    values, errors = _values(model, place, "calibration"), _values(model, place, "calibration_error")
    if model is not None and not values:
        return Cell("–", note="no label of the segment is above 0")
    spread = stdev(values) if len(values) > 1 else 0.0
    return _cell(values, max(spread, fmean(values) * fmean(errors)) if errors else None)


def _values(model: _Compared | None, place: int, name: str) -> list[float]:
    found = [segments[place].get(name) for segments in model.by_seed.values()] if model else []
    return [float(value) for value in found if isinstance(value, int | float) and math.isfinite(value)]


def _cell(values: Sequence[float], spread: float | None) -> Cell:
    if not values:
        return Cell("–")
    return Cell(f"{fmean(values):.3f}{'' if spread is None else f' ± {spread:.3f}'}", fmean(values))


def _record(task: TaskName, column: str, model: _Compared, place: int, segment: SegmentFacts) -> dict[str, Any]:
    record: dict[str, Any] = {
        "task": task,
        "column": column,
        "segment": segment["name"],
        "rows": segment["rows"],
        "mean_label": segment["mean_label"],
        "method": model.result.arm.label,
        "epsilon": model.result.trial.epsilon_label,
        "seeds": len(model.by_seed),
    }
    for name in ("auc", "normalized_entropy", "calibration", "calibration_error"):
        values = _values(model, place, name)
        record[f"{name}_mean"] = fmean(values) if values else None
        record[f"{name}_std"] = stdev(values) if len(values) > 1 else None
    return record
