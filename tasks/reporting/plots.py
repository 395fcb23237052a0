"""Line and bar charts as SVG elements that stand in a page by themselves.

We draw SVG ourselves instead of using Matplotlib. A reader gets text in the page's own font that can be selected and
searched, a tooltip on every point, and a plot that scales with its column. The same input gives the same bytes on every
machine, so tests read a plot back as XML and compare exact places. Reports need two kinds of charts with few options; a
Matplotlib figure would take about as much code to style, and adds a second to the start of each task (it is installed
only because MLflow needs it). A chart that needs more than this module offers is a reason to decide anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tasks.reporting.axes import extent, heights, log_ticks, number_text, scale, ticks
from tasks.reporting.series import (
    COLORS,
    LEGEND_ROW,
    Point,
    Series,
    barred,
    distance_apart,
    legend_of,
    shifts_of,
    styles_of,
)
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

_MARK_ROW = 14
_BAR_STEP, _BAR_LABEL_CHARACTERS = 20, 24
_PAIR_STEP, _PAIR_BAR = 34, 14
_CAP = 3  # half the width of an error bar's cap


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


class PairedBar(NamedTuple):
    """Two horizontal bars of one row, with texts to the right of their ends."""

    label: str
    values: tuple[float, float]
    texts: tuple[str, str]


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
    # On a log axis an error bar may end below zero; the point itself must still be inside.
    ends = [*(y for point in points for y in (*_ends(point), point.y or 0.0)), *(level.y for level in levels)]
    y_range = heights(ends, log=log_y, from_zero=from_zero)
    x_ticks = _tick_texts(x_range, log=log_x) if x_ticks is None else x_ticks
    y_ticks = _tick_texts(y_range, log=log_y)
    left = 30 + CHARACTER * max(map(len, y_ticks.values()))

    styles = styles_of(series)
    names = [line.name for line in series if line.listed]
    listed = [style for line, style in zip(series, styles, strict=True) if line.listed]
    legend, legend_rows = legend_of(names, listed, left) if len(names) > 1 else ([], 0)
    height += LEGEND_ROW * max(legend_rows - 1, 0)
    frame = _Frame(left, 8 + LEGEND_ROW * legend_rows + _MARK_ROW * len(marks), WIDTH - 12, height - 44)
    apart = distance_apart(series)
    margin = 8 + apart * (len(barred(series)) - 1) / 2 if apart else 8.0
    scale_x = scale(x_range, (frame.left + margin, frame.right - margin), log=log_x)
    scale_y = scale(y_range, (frame.bottom, frame.top), log=log_y)

    parts = [
        *_y_grid(y_ticks, frame, scale_y),
        *_x_ticks(x_ticks, frame, scale_x),
        *_axes(frame, x_label, y_label),
        *_mark_lines(marks, frame, scale_x),
        *(line_element(frame.left, scale_y(y), frame.right, scale_y(y), dashed=True) for y, _ in levels),
    ]
    drawn = zip(series, styles, shifts_of(series, scale_x, apart), strict=True)
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


def paired_bar_chart(rows: Sequence[PairedBar], names: tuple[str, str], *, title: str) -> str:
    """Returns two horizontal bars for each row, the first above the second, on a common scale.

    Args:
        rows: from top to bottom.
        names: what the two bars are, for the legend.
        title: text for screen readers; it is not drawn.
    """
    most = max((value for row in rows for value in row.values), default=0) or 1
    left = 12 + CHARACTER * max((min(len(row.label), _BAR_LABEL_CHARACTERS) for row in rows), default=0)
    right = WIDTH - 12 - CHARACTER * max((len(text) for row in rows for text in row.texts), default=0)
    parts, place = list[str](), 8.0
    for name, color in zip(names, COLORS, strict=False):
        parts.append(f'<rect x="{place:.1f}" y="2" width="11" height="11" fill="{color}"/>')
        parts.append(text_element(place + 16, 12, name))
        place += 32 + CHARACTER * len(name)
    for number, row in enumerate(rows):
        top = LEGEND_ROW + 4 + _PAIR_STEP * number
        both = " and ".join(f"{text} ({name})" for text, name in zip(row.texts, names, strict=True))
        parts.append(f"<g><title>{escaped(f'{row.label}: {both}')}</title>")
        parts.append(text_element(left - 6, top + 17, shortened(row.label, _BAR_LABEL_CHARACTERS), "end"))
        for at, (value, text, color) in enumerate(zip(row.values, row.texts, COLORS, strict=False)):
            y, width = top + _PAIR_BAR * at, (right - left) * value / most
            parts.append(
                f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_PAIR_BAR - 1}" fill="{color}"/>'
                f"{text_element(left + width + 5, y + 11, text)}"
            )
        parts.append("</g>")
    bottom = LEGEND_ROW + 4 + _PAIR_STEP * len(rows)
    return svg_element([*parts, line_element(left, LEGEND_ROW + 2, left, bottom)], bottom + 2, title)


def _drawable(point: Point, *, log_x: bool, log_y: bool) -> Point:
    y = point.y
    if y is None or not math.isfinite(y) or (log_y and y <= 0) or (log_x and point.x <= 0):
        return point._replace(y=None)
    if log_y and point.ends is not None and point.ends[0] <= 0:
        # A bar that reaches zero has no end on a log axis: it is drawn upwards only.
        point = point._replace(ends=(y, point.ends[1]))
    return point if math.isfinite(point.error or 0.0) else point._replace(error=None)


def _ends(point: Point) -> tuple[float, float]:
    """Returns the ends of a point's error bar."""
    assert point.y is not None
    if point.ends is not None:
        return point.ends
    return point.y - (point.error or 0.0), point.y + (point.error or 0.0)


def _tick_texts(axis: tuple[float, float], *, log: bool) -> dict[float, str]:
    return {value: number_text(value) for value in (log_ticks(*axis) if log else ticks(*axis))}


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


def _drawn(points: Sequence[Point], style: Style, shift: float, scale_x: _Scale, scale_y: _Scale) -> list[str]:
    """Returns a series: its line, broken where ``y`` is None, and above it markers and error bars with caps."""
    parts, pieces = list[str](), [list[str]()]
    for point in points:
        if point.y is None:
            pieces.append([])
            continue
        x, y = scale_x(point.x) + shift, scale_y(point.y)
        pieces[-1].append(f"{x:.1f},{y:.1f}")
        if point.error or point.ends:
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
