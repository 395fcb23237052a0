"""The paper's numbers in ``pipelines.yaml``, as a table and as lines beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tasks.config.pipeline import Pipeline
from tasks.reporting.document import Cell, Table
from tasks.reporting.series import Point, Series
from tasks.reporting.wording import MECHANISM_TITLES


def paper_table(pipeline: Pipeline, *, title: str, row: str, format_value: Callable[[float], str]) -> list[Table]:
    """Returns the table of the paper's numbers in ``pipelines.yaml``, or nothing if there are none."""
    if not pipeline.paper:
        return []
    names = list(pipeline.paper)
    values = sorted({value for column in pipeline.paper.values() for value in column})
    rows = [
        [
            Cell(f"{value:,g}", value),
            *(
                Cell(format_value(pipeline.paper[name][value]), pipeline.paper[name][value])
                if value in pipeline.paper[name]
                else Cell("–")
                for name in names
            ),
        ]
        for value in values
    ]
    caption = "As reported in the paper, on other data and with larger models: compare effects, not numbers."
    titles: Mapping[str, str] = {str(name): text for name, text in MECHANISM_TITLES.items()}
    return [Table("paper", title, [row, *(titles.get(name, name) for name in names)], rows, caption)]


def beside(ours: Sequence[Series], theirs: Sequence[Series]) -> list[Series]:
    """Returns our lines, each followed by the paper's that is like it, then the paper's other lines."""
    pairs = [line for one in ours for line in (one, *(other for other in theirs if other.like == one.name))]
    return [*pairs, *(line for line in theirs if line not in pairs)]


def paper_series(
    pipeline: Pipeline, names: Mapping[str, str], *, within: tuple[float, float] = (-math.inf, math.inf)
) -> list[Series]:
    """Returns the paper's numbers in ``pipelines.yaml`` as dashed lines.

    Args:
        pipeline: The pipeline.
        names: Our series, by the name of the paper's that has the same colour. Others get colours of their own.
        within: The smallest and the largest x to draw.
    """
    series = []
    for name, values in pipeline.paper.items():
        points = [
            Point(x, y, note=f"the paper, {name}, {x:g}: {y:g}")
            for x, y in sorted(values.items())
            if within[0] <= x <= within[1]
        ]
        if points:
            series.append(Series(f"{name} in the paper", points, like=names.get(name, name)))
    return series
