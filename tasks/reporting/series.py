"""Series of a chart: their points, how they differ from each other, their legend, and how they are set apart.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish; in a dark page, lighter ones of the same
hues. Series also differ by marker, and by dashes where there are more series than colours, so plots can be read in
grey.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tasks.reporting.svg import CHARACTER, WIDTH, Style, marker_element, polyline_element, shortened, text_element

_LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
COLORS = tuple(f"var(--series-{number}, {color})" for number, color in enumerate(_LIGHT, 1))
_MARKERS = (
    "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0Z",
    "M-3,-3h6v6h-6Z",
    "M0,-4L4,3H-4Z",
    "M0,-4L4,0L0,4L-4,0Z",
    "M0,4L4,-3H-4Z",
    "M-1,-4h2v3h3v2h-3v3h-2v-3h-3v-2h3Z",
    "M-4,0L3,-4V4Z",
    "M0,-4L1,-1L4,-1L2,1L3,4L0,2L-3,4L-2,1L-4,-1L-1,-1Z",
)
# 5 dashes and 8 markers have no common factor, so 40 series differ without colours.
_DASHES = ("", "6 3", "2 2", "9 3 2 3", "4 2 1 2 1 2")
LEGEND_ROW, _LEGEND_LINE = 17, 24  # height of a row, length of the line beside a name
# Distance between the error bars of two series at one x; that of all of them; and the latter as a share of the gap to
# the next x.
_APART, _MOST_APART, _APART_SHARE = 8.0, 48.0, 0.6


class Point(NamedTuple):
    """A point of a series.

    ``y`` is None where the line breaks. ``error`` is half the length of the error bar. ``note`` is the tooltip.
    ``ends`` are those of an error bar that is not symmetric, in place of ``error``.
    """

    x: float
    y: float | None
    error: float | None = None
    note: str = ""
    ends: tuple[float, float] | None = None


class Series(NamedTuple):
    """A line. A highlighted one is black, thick and in front; the others are then thin.

    ``like`` is the name of another series: this one has its colour and marker, but is dashed with hollow markers. If
    there is no such series, it has a colour and a marker of its own. A series that is not ``listed`` is left out of the
    legend: the caption says what it is.
    """

    name: str
    points: Sequence[Point]
    highlight: bool = False
    dashed: bool = False
    like: str = ""
    listed: bool = True


def styles_of(series: Sequence[Series]) -> list[Style]:
    """Returns the style of each series. The first 40 differ by marker or dashes, so also without colours."""
    highlighted = any(line.highlight for line in series)
    colors = COLORS[:-1] if highlighted else COLORS
    many, number = sum(not line.like for line in series) > len(COLORS), 0
    styles, by_name = list[Style](), dict[str, Style]()
    for line in series:
        if line.like in by_name:
            styles.append(_compared(by_name[line.like]))
            continue
        dashes = "4 3" if line.dashed else ""
        if line.highlight:
            styles.append(Style(COLORS[-1], _MARKERS[0], dashes, 3.0, 1.3))
            by_name[line.name] = styles[-1]
            continue
        # The first marker belongs to the highlighted series.
        marker = _MARKERS[(number + highlighted) % len(_MARKERS)]
        dashes = dashes or (_DASHES[number % len(_DASHES)] if many else "")
        styles.append(Style(colors[number % len(colors)], marker, dashes, 1.0 if highlighted else 1.5))
        by_name[line.name] = styles[-1]
        if line.like:
            styles[-1] = _compared(styles[-1])
        number += 1
    return styles


def _compared(style: Style) -> Style:
    """Returns the style of what a series in ``style`` is compared with."""
    return style._replace(dashes="4 3", line_width=1.0, marker_scale=1.0, hollow=True)


def legend_of(names: Sequence[str], styles: Sequence[Style], left: float) -> tuple[list[str], int]:
    """Returns the legend and its number of rows: one if the names fit, and otherwise columns of equal width."""
    widths = [_LEGEND_LINE + 20 + CHARACTER * len(name) for name in names]
    if left + sum(widths) <= WIDTH:
        places = [(left + sum(widths[:number]), 0) for number in range(len(names))]
    else:
        columns = max(1, min(len(names), int((WIDTH - 8) / max(widths))))
        places = [(8 + (WIDTH - 8) / columns * (number % columns), number // columns) for number in range(len(names))]
    longest = int((WIDTH - 8 - _LEGEND_LINE - 20) / CHARACTER)
    parts = []
    for name, style, (x, row) in zip(names, styles, places, strict=True):
        y = 9 + LEGEND_ROW * row
        parts += [
            polyline_element([f"{x:.1f},{y}", f"{x + _LEGEND_LINE:.1f},{y}"], style),
            marker_element(x + _LEGEND_LINE / 2, y, style),
            text_element(x + _LEGEND_LINE + 5, y + 4, shortened(name, longest)),
        ]
    return parts, 1 + places[-1][1]


def barred(series: Sequence[Series]) -> list[int]:
    """Returns which series have error bars."""
    return [number for number, line in enumerate(series) if any(point.error or point.ends for point in line.points)]


def distance_apart(series: Sequence[Series]) -> float:
    """Returns the distance between the error bars of neighbouring series where there is room for it; 0 for one."""
    number = len(barred(series))
    return min(_APART, _MOST_APART / number) if number > 1 else 0.0


def shifts_of(series: Sequence[Series], scale_x: Callable[[float], float], apart: float) -> list[float]:
    """Returns how far to the right each series is drawn, so that error bars at the same x stand beside each other."""
    shifted = barred(series)
    xs = sorted({scale_x(point.x) for line in series for point in line.points if point.y is not None})
    gap = min((after - before for before, after in itertools.pairwise(xs)), default=math.inf)
    step = min(apart, _APART_SHARE * gap / max(len(shifted), 1))
    middle = (len(shifted) - 1) / 2
    return [step * (shifted.index(number) - middle) if number in shifted else 0.0 for number in range(len(series))]
