"""Plots as SVG that stands in a page by itself: lines with error bars, and bars.

No scripts, fonts or styles from elsewhere. Colours are Okabe and Ito's, which colour-blind readers tell apart, and
series have markers of their own for print in grey; where there are more series than colours, also dashes of their own.
A plot is as wide as its place in the page.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tasks.svg_axes import extent, heights, log_ticks, number_text, scale, ticks

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_INK, _GRID = "#222222", "#d9d9d9"
_WIDTH, _FONT = 520, 12
_CHARACTER = 0.6 * _FONT  # the mean width of one in wide fonts, as DejaVu Sans
_SHAPES = (
    "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0Z",
    "M-3,-3h6v6h-6Z",
    "M0,-4L4,3H-4Z",
    "M0,-4L4,0L0,4L-4,0Z",
    "M0,4L4,-3H-4Z",
    "M-1,-4h2v3h3v2h-3v3h-2v-3h-3v-2h3Z",
    "M-4,0L3,-4V4Z",
    "M0,-4L1,-1L4,-1L2,1L3,4L0,2L-3,4L-2,1L-4,-1L-1,-1Z",
)
# Their number has no common factor with that of the shapes, so that 40 series differ without colours.
_DASHES = ("", "6 3", "2 2", "9 3 2 3", "4 2 1 2 1 2")
_ROW, _SAMPLE = 17, 24  # in the legend: the height of a row, and the width of a piece of line


class Point(NamedTuple):
    """``y`` is None where a line is to be broken; ``error`` is half the length of an error bar; a reader who points at
    it sees the ``note``."""

    x: float
    y: float | None
    error: float | None = None
    note: str = ""


class Series(NamedTuple):
    """One that is to ``highlight`` is black, thick and in front of the others, which are then thin."""

    name: str
    points: Sequence[Point]
    highlight: bool = False
    dashed: bool = False


class Mark(NamedTuple):
    """A vertical line with a word beside it."""

    x: float
    label: str


class Level(NamedTuple):
    """A horizontal line with words beside it, such as the result without privacy."""

    y: float
    label: str


class Bar(NamedTuple):
    """``text`` is what stands behind the bar."""

    label: str
    value: float
    text: str


def escaped(value: object) -> str:
    """Text for a page or a plot, whatever is in it.

    >>> escaped('<b> & "c"\\x00')
    '&lt;b&gt; &amp; &quot;c&quot;�'
    """
    return html.escape("".join(c if c.isprintable() else "\ufffd" for c in str(value)))


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
    height: int = 260,
) -> str:
    """Lines with markers and error bars over a common axis.

    ``title`` is read aloud, and not drawn. ``x_ticks`` are the places and texts under the axis, if round numbers will
    not do; a text that has no room beside the one before is left out. Values begin at zero unless that takes half of
    the height or more. A line is broken where a value is not finite, or not positive on a logarithmic axis. Names in
    the legend take as many rows as they need, and the plot is higher by all rows but the first.
    """
    series = [line._replace(points=[_drawable(p, log_x=log_x, log_y=log_y) for p in line.points]) for line in series]
    levels = [level for level in levels if level.y > 0 or not log_y]
    points = [point for line in series for point in line.points if point.y is not None]
    if not points:
        raise ValueError("a plot needs a point")
    x_axis = extent([*(point.x for point in points), *(mark.x for mark in marks)], log=log_x)
    y_axis = heights([*(end for point in points for end in _ends(point)), *(level.y for level in levels)], log=log_y)
    y_ticks = {y: number_text(y) for y in (log_ticks(*y_axis) if log_y else ticks(*y_axis))}
    left, right = 30 + _CHARACTER * max(map(len, y_ticks.values())), _WIDTH - 12
    marks = sorted(marks, key=lambda mark: mark.x)
    styles = _styles(series)
    legend, rows = _legend([line.name for line in series], styles, left) if len(series) > 1 else ([], 0)
    above, height = 8 + _ROW * rows, height + _ROW * max(rows - 1, 0)
    top, bottom = above + 14 * len(marks), height - 44
    scale_x = scale(x_axis, (left + 10, right - 6), log=log_x)
    scale_y = scale(y_axis, (bottom, top), log=log_y)

    if x_ticks is None:
        x_ticks = {x: number_text(x) for x in (log_ticks(*x_axis) if log_x else ticks(*x_axis))}
    parts = []
    for y, text in y_ticks.items():
        parts += [_line(left, scale_y(y), right, scale_y(y), _GRID), _text(left - 5, scale_y(y) + 4, text, "end")]
    taken = 0.0
    for x, text in sorted(x_ticks.items()):
        half = _CHARACTER * len(text) / 2
        middle = min(max(scale_x(x), half + 2), _WIDTH - half - 2)
        parts += [_line(scale_x(x), bottom, scale_x(x), bottom + 4)]
        if middle - half > taken:
            parts += [_text(middle, bottom + 17, text, "middle")]
            taken = middle + half
    parts += [_line(left, bottom, right, bottom), _line(left, top, left, bottom)]
    parts += [_text((left + right) / 2, height - 8, x_label, "middle")]
    parts += [
        f'<text transform="translate(13 {(top + bottom) / 2:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escaped(y_label)}</text>"
    ]
    for number, mark in enumerate(marks):
        # Later marks stand higher, so that no line goes through the word of another.
        x, y = scale_x(mark.x), above + 14 * (len(marks) - number)
        fits = x - _CHARACTER * len(mark.label) > 6
        word = _text(x - 4 if fits else x + 4, y - 3, mark.label, "end" if fits else "start")
        parts += [_line(x, y - 12, x, bottom, dashed=True), word]
    parts += [_line(left, scale_y(level.y), right, scale_y(level.y), dashed=True) for level in levels]
    for line, style in sorted(zip(series, styles, strict=True), key=lambda pair: pair[0].highlight):
        parts += _drawn(line.points, style, scale_x, scale_y)
    places = [(scale_x(point.x), scale_y(point.y)) for point in points if point.y is not None]
    parts += _level_labels([(scale_y(level.y), level.label) for level in levels], places, (left, top, right, bottom))
    return _svg([*parts, *legend], height, title)


def bar_chart(bars: Sequence[Bar], *, title: str, maximum: float | None = None) -> str:
    """A bar to the right for each value, from zero to ``maximum``, which is the largest value if not given.

    ``title`` is read aloud, and not drawn.
    """
    longest = 24
    most = maximum or max((bar.value for bar in bars), default=0) or 1
    left = 12 + _CHARACTER * max((min(len(bar.label), longest) for bar in bars), default=0)
    right = _WIDTH - 12 - _CHARACTER * max((len(bar.text) for bar in bars), default=0)
    step, parts = 20, []
    for number, bar in enumerate(bars):
        y, width = 2 + step * number, (right - left) * min(bar.value / most, 1)
        label = _shortened(bar.label, longest)
        parts.append(
            f"<g><title>{escaped(f'{bar.label}: {bar.text}')}</title>{_text(left - 6, y + 12, label, 'end')}"
            f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{step - 5}" fill="{COLORS[0]}"/>'
            f"{_text(left + width + 5, y + 12, bar.text)}</g>"
        )
    parts.append(_line(left, 0, left, step * len(bars)))
    return _svg(parts, step * len(bars) + 2, title)


def standalone(svg: str) -> str:
    """A plot of this module as a file of its own: with a namespace, a size in pixels and a white background."""
    opening, rest = svg.split(">", 1)
    box = re.search(r'viewBox="0 0 (\d+) (\d+)"', opening)
    if box is None:
        raise ValueError("a plot has a viewBox")
    opening = re.sub(r' (?:width|height|xmlns)="[^"]*"', "", opening).removeprefix("<svg")
    size = f'width="{box[1]}" height="{box[2]}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}{opening}><rect {size} fill="#ffffff"/>{rest}\n'


class _Style(NamedTuple):
    color: str
    shape: str
    dashes: str
    width: float
    size: float = 1.0


def _styles(series: Sequence[Series]) -> list[_Style]:
    """How each series looks. The first 40 differ by marker or dashes, also without colours."""
    highlighted = any(line.highlight for line in series)
    colors = COLORS[:-1] if highlighted else COLORS
    many, styles, number = len(series) > len(COLORS), [], 0
    for line in series:
        dashes = "4 3" if line.dashed else ""
        if line.highlight:
            styles.append(_Style(COLORS[-1], _SHAPES[0], dashes, 3.0, 1.3))
            continue
        # A highlighted series has the first marker, so the others begin with the second.
        shape = _SHAPES[(number + highlighted) % len(_SHAPES)]
        dashes = dashes or (_DASHES[number % len(_DASHES)] if many else "")
        styles.append(_Style(colors[number % len(colors)], shape, dashes, 1.0 if highlighted else 1.5))
        number += 1
    return styles


def _drawable(point: Point, *, log_x: bool, log_y: bool) -> Point:
    y = point.y
    if y is None or not math.isfinite(y) or (log_y and y <= 0) or (log_x and point.x <= 0):
        return point._replace(y=None)
    return point if math.isfinite(point.error or 0.0) else point._replace(error=None)


def _ends(point: Point) -> tuple[float, float]:
    assert point.y is not None
    return point.y - (point.error or 0.0), point.y + (point.error or 0.0)


def _drawn(
    points: Sequence[Point],
    style: _Style,
    scale_x: Callable[[float], float],
    scale_y: Callable[[float], float],
) -> list[str]:
    parts, pieces = list[str](), [list[str]()]
    for point in points:
        if point.y is None:
            pieces.append([])
            continue
        x, y = scale_x(point.x), scale_y(point.y)
        pieces[-1].append(f"{x:.1f},{y:.1f}")
        if point.error:
            low, high = map(scale_y, _ends(point))
            parts.append(_line(x, low, x, high, style.color))
        parts.append(_marker(x, y, style, point.note))
    return [*(_polyline(piece, style) for piece in pieces), *parts]


def _polyline(places: Sequence[str], style: _Style) -> str:
    dashes = f' stroke-dasharray="{style.dashes}"' if style.dashes else ""
    stroke = f'stroke="{style.color}" stroke-width="{style.width:g}"{dashes}'
    return f'<polyline points="{" ".join(places)}" fill="none" {stroke}/>'


def _marker(x: float, y: float, style: _Style, note: str = "") -> str:
    size = f" scale({style.size:g})" if style.size != 1 else ""
    title = f"<title>{escaped(note)}</title>" if note else ""
    place = f"translate({x:.1f} {y:.1f}){size}"
    return f'<path transform="{place}" d="{style.shape}" fill="{style.color}">{title}</path>'


def _legend(names: Sequence[str], styles: Sequence[_Style], left: float) -> tuple[list[str], int]:
    """The legend and its number of rows: one if there is room, and else columns of equal width."""
    widths = [_SAMPLE + 20 + _CHARACTER * len(name) for name in names]
    if left + sum(widths) <= _WIDTH:
        places = [(left + sum(widths[:number]), 0) for number in range(len(names))]
    else:
        columns = max(1, min(len(names), int((_WIDTH - 8) / max(widths))))
        places = [(8 + (_WIDTH - 8) / columns * (number % columns), number // columns) for number in range(len(names))]
    longest = int((_WIDTH - 8 - _SAMPLE - 20) / _CHARACTER)
    parts = []
    for name, style, (x, row) in zip(names, styles, places, strict=True):
        y = 9 + _ROW * row
        parts.append(_polyline([f"{x:.1f},{y}", f"{x + _SAMPLE:.1f},{y}"], style))
        parts += [_marker(x + _SAMPLE / 2, y, style), _text(x + _SAMPLE + 5, y + 4, _shortened(name, longest))]
    return parts, 1 + places[-1][1]


def _level_labels(
    labels: Sequence[tuple[float, str]],
    points: Sequence[tuple[float, float]],
    frame: tuple[float, float, float, float],
) -> list[str]:
    """Words at levels, each above or below its line, to the left or right, wherever they hide the fewest points.

    They have a white edge, to be read also where lines pass behind them."""
    left, top, right, bottom = frame
    parts, taken = list[str](), list(points)
    for y, label in labels:
        width = _CHARACTER * len(label)
        places = [(x, base) for x in (left + 6, right - 4 - width) for base in (y - 5, y + 13)]
        inside = [(x, base) for x, base in places if top + 9 < base < bottom] or places
        hidden = [
            sum(x - 5 < other_x < x + width + 5 and base - 15 < other_y < base + 6 for other_x, other_y in taken)
            for x, base in inside
        ]
        x, base = inside[hidden.index(min(hidden))]
        # Words on words are worse than words on any number of points.
        taken += [(x + part * width / 8, base - 5) for part in range(9)] * len(points)
        parts.append(f'<g stroke="#ffffff" stroke-width="3" paint-order="stroke">{_text(x, base, label)}</g>')
    return parts


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _line(x1: float, y1: float, x2: float, y2: float, color: str = _INK, *, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{dashes}/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'


def _svg(parts: Iterable[str], height: int, title: str) -> str:
    style = f'font-family="system-ui, sans-serif" font-size="{_FONT}" fill="{_INK}"'
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="100%" role="img" aria-label="{escaped(title)}" {style}>'
        + "".join(parts)
        + "</svg>"
    )
