"""Line and bar charts as SVG elements that stand in a page by themselves.

We draw SVG ourselves instead of using Matplotlib. A reader gets text in the page's own font that can be selected and
searched, a tooltip on every point, and a plot that scales with its column. The same input gives the same bytes on every
machine, so tests read a plot back as XML and compare exact places. Reports need two kinds of charts with few options; a
Matplotlib figure would take about as much code to style, and adds a second to the start of each task (it is installed
only because MLflow needs it). A chart that needs more than this module offers is a reason to decide anew.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish; in a dark page, lighter ones of the same
hues. Series also differ by marker, and by dashes where there are more series than colours, so plots can be read in
grey.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tasks.reporting.axes import extent, heights, log_ticks, number_text, scale, ticks
from tasks.reporting.svg import (
    CHARACTER,
    GRID,
    PAPER,
    WIDTH,
    Style,
    escaped,
    line_element,
    marker_element,
    polyline_element,
    shortened,
    svg_element,
    text_element,
    vertical_text_element,
)

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
_LEGEND_ROW, _LEGEND_LINE = 17, 24  # height of a row, length of the line beside a name
_MARK_ROW = 14
_BAR_STEP, _BAR_LABEL_CHARACTERS = 20, 24
_CAP = 3  # half the width of an error bar's cap
# Distance between the error bars of two series at one x; that of all of them; and the latter as a share of the gap to
# the next x.
_APART, _MOST_APART, _APART_SHARE = 8.0, 48.0, 0.6


class Point(NamedTuple):
    """A point of a series.

    ``y`` is None where the line breaks. ``error`` is half the length of the error bar. ``note`` is the tooltip.
    """

    x: float
    y: float | None
    error: float | None = None
    note: str = ""


class Series(NamedTuple):
    """A line. A highlighted one is black, thick and in front; the others are then thin.

    ``like`` is the name of another series: this one has its colour and marker, but is dashed with hollow markers. If
    there is no such series, it has a colour and a marker of its own.
    """

    name: str
    points: Sequence[Point]
    highlight: bool = False
    dashed: bool = False
    like: str = ""


class Mark(NamedTuple):
    """A labelled vertical line."""

    x: float
    label: str


class Level(NamedTuple):
    """A labelled horizontal line, such as the result without privacy."""

    y: float
    label: str


class Bar(NamedTuple):
    """A horizontal bar, with ``text`` to the right of its end."""

    label: str
    value: float
    text: str


class _Frame(NamedTuple):
    """The area between the axes, in pixels from the top left."""

    left: float
    top: float
    right: float
    bottom: float


_Scale = Callable[[float], float]


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_ticks: Mapping[float, str] | None = None,
    marks: Sequence[Mark] = (),
    levels: Sequence[Level] = (),
    log_x: bool = False,
    log_y: bool = False,
    from_zero: bool = False,
    height: int = 260,
) -> str:
    """Returns lines with markers and error bars on common axes.

    Lines break at values that are not finite, or not positive on a log axis. The y axis starts at zero unless that
    would leave half of the height or more empty. Several series with error bars are set apart, each a little to the
    right of the one before, so that no bar hides another.

    Args:
        series: the lines; at least one has a point to draw.
        title: text for screen readers; it is not drawn.
        x_label: text under the x axis.
        y_label: text beside the y axis.
        x_ticks: places and texts under the x axis; round numbers by default. Texts that would overlap are left out.
        marks: vertical lines.
        levels: horizontal lines.
        log_x: whether the x axis is logarithmic.
        log_y: whether the y axis is logarithmic.
        from_zero: whether the y axis starts at zero whatever the values.
        height: in pixels at a width of 400, with one row of legend; each further row adds to it.
    """
    series = [line._replace(points=[_drawable(p, log_x=log_x, log_y=log_y) for p in line.points]) for line in series]
    levels = [level for level in levels if level.y > 0 or not log_y]
    marks = sorted(marks, key=lambda mark: mark.x)
    points = [point for line in series for point in line.points if point.y is not None]
    if not points:
        raise ValueError("a line chart needs a point with finite values, positive on log axes")

    x_range = extent([*(point.x for point in points), *(mark.x for mark in marks)], log=log_x)
    ends = [*(end for point in points for end in _ends(point)), *(level.y for level in levels)]
    y_range = heights(ends, log=log_y, from_zero=from_zero)
    x_ticks = _tick_texts(x_range, log=log_x) if x_ticks is None else x_ticks
    y_ticks = _tick_texts(y_range, log=log_y)
    left = 30 + CHARACTER * max(map(len, y_ticks.values()))

    styles = _styles(series)
    legend, legend_rows = _legend([line.name for line in series], styles, left) if len(series) > 1 else ([], 0)
    height += _LEGEND_ROW * max(legend_rows - 1, 0)
    frame = _Frame(left, 8 + _LEGEND_ROW * legend_rows + _MARK_ROW * len(marks), WIDTH - 12, height - 44)
    apart = _apart(series)
    margin = 8 + apart * (len(_barred(series)) - 1) / 2 if apart else 8.0
    scale_x = scale(x_range, (frame.left + margin, frame.right - margin), log=log_x)
    scale_y = scale(y_range, (frame.bottom, frame.top), log=log_y)

    parts = [
        *_y_grid(y_ticks, frame, scale_y),
        *_x_ticks(x_ticks, frame, scale_x),
        *_axes(frame, x_label, y_label),
        *_mark_lines(marks, frame, scale_x),
        *(line_element(frame.left, scale_y(y), frame.right, scale_y(y), dashed=True) for y, _ in levels),
    ]
    drawn = zip(series, styles, _shifts(series, scale_x, apart), strict=True)
    for line, style, shift in sorted(drawn, key=lambda one: one[0].highlight):
        parts += _drawn(line.points, style, shift, scale_x, scale_y)
    places = [(scale_x(point.x), scale_y(point.y)) for point in points if point.y is not None]
    parts += _level_labels([(scale_y(level.y), level.label) for level in levels], places, frame)
    return svg_element([*parts, *legend], height, title)


def bar_chart(bars: Sequence[Bar], *, title: str, maximum: float | None = None) -> str:
    """Returns a horizontal bar for each value.

    Args:
        bars: from top to bottom.
        title: text for screen readers; it is not drawn.
        maximum: the value of a bar of full length; the largest value by default.
    """
    most = maximum or max((bar.value for bar in bars), default=0) or 1
    left = 12 + CHARACTER * max((min(len(bar.label), _BAR_LABEL_CHARACTERS) for bar in bars), default=0)
    right = WIDTH - 12 - CHARACTER * max((len(bar.text) for bar in bars), default=0)
    parts = []
    for number, bar in enumerate(bars):
        y, width = 2 + _BAR_STEP * number, (right - left) * min(bar.value / most, 1)
        label = shortened(bar.label, _BAR_LABEL_CHARACTERS)
        parts.append(
            f"<g><title>{escaped(f'{bar.label}: {bar.text}')}</title>{text_element(left - 6, y + 12, label, 'end')}"
            f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_BAR_STEP - 5}" fill="{COLORS[0]}"/>'
            f"{text_element(left + width + 5, y + 12, bar.text)}</g>"
        )
    parts.append(line_element(left, 0, left, _BAR_STEP * len(bars)))
    return svg_element(parts, _BAR_STEP * len(bars) + 2, title)


def _drawable(point: Point, *, log_x: bool, log_y: bool) -> Point:
    y = point.y
    if y is None or not math.isfinite(y) or (log_y and y <= 0) or (log_x and point.x <= 0):
        return point._replace(y=None)
    return point if math.isfinite(point.error or 0.0) else point._replace(error=None)


def _ends(point: Point) -> tuple[float, float]:
    """Returns the ends of a point's error bar."""
    assert point.y is not None
    return point.y - (point.error or 0.0), point.y + (point.error or 0.0)


def _tick_texts(axis: tuple[float, float], *, log: bool) -> dict[float, str]:
    return {value: number_text(value) for value in (log_ticks(*axis) if log else ticks(*axis))}


def _styles(series: Sequence[Series]) -> list[Style]:
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


def _legend(names: Sequence[str], styles: Sequence[Style], left: float) -> tuple[list[str], int]:
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
        y = 9 + _LEGEND_ROW * row
        parts += [
            polyline_element([f"{x:.1f},{y}", f"{x + _LEGEND_LINE:.1f},{y}"], style),
            marker_element(x + _LEGEND_LINE / 2, y, style),
            text_element(x + _LEGEND_LINE + 5, y + 4, shortened(name, longest)),
        ]
    return parts, 1 + places[-1][1]


def _y_grid(y_ticks: Mapping[float, str], frame: _Frame, scale_y: _Scale) -> Iterator[str]:
    for value, text in y_ticks.items():
        y = scale_y(value)
        yield line_element(frame.left, y, frame.right, y, GRID)
        yield text_element(frame.left - 5, y + 4, text, "end")


def _x_ticks(x_ticks: Mapping[float, str], frame: _Frame, scale_x: _Scale) -> Iterator[str]:
    taken = 0.0
    for value, text in sorted(x_ticks.items()):
        x, half = scale_x(value), CHARACTER * len(text) / 2
        yield line_element(x, frame.bottom, x, frame.bottom + 4)
        middle = min(max(x, half + 2), WIDTH - half - 2)
        if middle - half > taken:
            yield text_element(middle, frame.bottom + 17, text, "middle")
            taken = middle + half


def _axes(frame: _Frame, x_label: str, y_label: str) -> list[str]:
    return [
        line_element(frame.left, frame.bottom, frame.right, frame.bottom),
        line_element(frame.left, frame.top, frame.left, frame.bottom),
        text_element((frame.left + frame.right) / 2, frame.bottom + 36, x_label, "middle"),
        vertical_text_element(13, (frame.top + frame.bottom) / 2, y_label),
    ]


def _mark_lines(marks: Sequence[Mark], frame: _Frame, scale_x: _Scale) -> Iterator[str]:
    """Yields marks with their labels on top, over what begins at the mark as far as the plot is wide enough.

    Later marks stand lower, so that no line crosses the label of another.
    """
    for number, mark in enumerate(reversed(marks)):
        x, y = scale_x(mark.x), frame.top - _MARK_ROW * number
        yield line_element(x, y, x, frame.bottom, dashed=True)
        yield text_element(max(2.0, min(x - 3, WIDTH - 2 - CHARACTER * len(mark.label))), y - 3, mark.label)


def _barred(series: Sequence[Series]) -> list[int]:
    """Returns which series have error bars."""
    return [number for number, line in enumerate(series) if any(point.error for point in line.points)]


def _apart(series: Sequence[Series]) -> float:
    """Returns the distance between the error bars of neighbouring series where there is room for it; 0 for one."""
    barred = len(_barred(series))
    return min(_APART, _MOST_APART / barred) if barred > 1 else 0.0


def _shifts(series: Sequence[Series], scale_x: _Scale, apart: float) -> list[float]:
    """Returns how far to the right each series is drawn, so that error bars at the same x stand beside each other."""
    barred = _barred(series)
    xs = sorted({scale_x(point.x) for line in series for point in line.points if point.y is not None})
    gap = min((after - before for before, after in itertools.pairwise(xs)), default=math.inf)
    step = min(apart, _APART_SHARE * gap / max(len(barred), 1))
    middle = (len(barred) - 1) / 2
    return [step * (barred.index(number) - middle) if number in barred else 0.0 for number in range(len(series))]


def _drawn(points: Sequence[Point], style: Style, shift: float, scale_x: _Scale, scale_y: _Scale) -> list[str]:
    """Returns a series: its line, broken where ``y`` is None, and above it markers and error bars with caps."""
    parts, pieces = list[str](), [list[str]()]
    for point in points:
        if point.y is None:
            pieces.append([])
            continue
        x, y = scale_x(point.x) + shift, scale_y(point.y)
        pieces[-1].append(f"{x:.1f},{y:.1f}")
        if point.error:
            low, high = map(scale_y, _ends(point))
            parts.append(line_element(x, low, x, high, style.color))
            parts += [line_element(x - _CAP, end, x + _CAP, end, style.color) for end in (low, high)]
        parts.append(marker_element(x, y, style, point.note))
    return [*(polyline_element(piece, style) for piece in pieces), *parts]


def _level_labels(
    labels: Sequence[tuple[float, str]], points: Sequence[tuple[float, float]], frame: _Frame
) -> list[str]:
    """Returns the labels of levels, each above or below its line, left or right, where it hides the fewest points.

    An edge in the colour of the page keeps labels legible where lines pass behind them.
    """
    parts, taken = list[str](), list(points)
    for y, label in labels:
        width = CHARACTER * len(label)
        places = [(x, base) for x in (frame.left + 6, frame.right - 4 - width) for base in (y - 5, y + 13)]
        inside = [(x, base) for x, base in places if frame.top + 9 < base < frame.bottom] or places
        hidden = [
            sum(x - 5 < other_x < x + width + 5 and base - 15 < other_y < base + 6 for other_x, other_y in taken)
            for x, base in inside
        ]
        x, base = inside[hidden.index(min(hidden))]
        # A label on a label is worse than a label on any number of points.
        taken += [(x + part * width / 8, base - 5) for part in range(9)] * len(points)
        parts.append(f'<g stroke="{PAPER}" stroke-width="3" paint-order="stroke">{text_element(x, base, label)}</g>')
    return parts
