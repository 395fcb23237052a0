"""Plots as SVG that stands in a page by itself: lines with error bars, and bars.

No scripts, fonts or styles from elsewhere. Colours are Okabe and Ito's, which colour-blind readers tell apart, and
series have markers of their own for print in grey. A plot is as wide as its place in the page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_INK, _GRID = "#222222", "#d9d9d9"
_WIDTH, _FONT = 520, 12
_CHARACTER = 0.56 * _FONT  # the mean width of one in common fonts
_TICKS = 5


class Point(NamedTuple):
    """``y`` is None where a line is to be broken; ``error`` is half the length of an error bar; a reader who points at
    it sees the ``note``."""

    x: float
    y: float | None
    error: float | None = None
    note: str = ""


class Series(NamedTuple):
    name: str
    points: Sequence[Point]


class Mark(NamedTuple):
    """A vertical line with a word beside it."""

    x: float
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


def ticks(low: float, high: float, count: int = _TICKS) -> list[float]:
    """Round numbers between two numbers, about ``count`` of them.

    >>> ticks(0, 0.37)
    [0.0, 0.1, 0.2, 0.3]
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * rough)
    digits = max(0, -math.floor(math.log10(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, digits) for number in range(first, last + 1)]


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_ticks: Mapping[float, str] | None = None,
    marks: Sequence[Mark] = (),
    log_x: bool = False,
    height: int = 260,
) -> str:
    """Lines with markers and error bars over a common axis.

    ``title`` is read aloud, and not drawn. ``x_ticks`` are the places and texts under the axis, if round numbers will
    not do; they are needed for ``log_x``. Values begin at zero unless that takes half of the height or more.
    """
    points = [point for line in series for point in line.points if point.y is not None]
    if not points:
        raise ValueError("a plot needs a point")
    x_low, x_high = _range([*(point.x for point in points), *(mark.x for mark in marks)], log=log_x)
    y_low, y_high = _heights(points)
    y_ticks = {y: f"{y:,.10g}" for y in ticks(y_low, y_high)}
    legend = len(series) > 1
    left, right = 30 + _CHARACTER * max(map(len, y_ticks.values())), _WIDTH - 12
    marks = sorted(marks, key=lambda mark: mark.x)
    above = 8 + 18 * legend
    top, bottom = above + 14 * len(marks), height - 44
    first, last = left + 10, right - 6

    def scale_x(x: float) -> float:
        if log_x:
            return first + (last - first) * (math.log(x / x_low) / math.log(x_high / x_low))
        return first + (last - first) * (x - x_low) / (x_high - x_low)

    def scale_y(y: float) -> float:
        return bottom - (bottom - top) * (y - y_low) / (y_high - y_low)

    if x_ticks is None:
        x_ticks = {x: f"{x:,.10g}" for x in ticks(x_low, x_high)}
    parts = []
    for y, text in y_ticks.items():
        parts += [_line(left, scale_y(y), right, scale_y(y), _GRID), _text(left - 5, scale_y(y) + 4, text, "end")]
    for x, text in x_ticks.items():
        half = _CHARACTER * len(text) / 2
        middle = min(max(scale_x(x), half + 2), _WIDTH - half - 2)
        parts += [_line(scale_x(x), bottom, scale_x(x), bottom + 4), _text(middle, bottom + 17, text, "middle")]
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
    for number, line in enumerate(series):
        parts += _drawn(line.points, number, scale_x, scale_y)
    parts += _legend([line.name for line in series], left) if legend else []
    return _svg(parts, height, title)


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
        label = bar.label if len(bar.label) <= longest else bar.label[: longest - 1] + "…"
        parts.append(
            f"<g><title>{escaped(f'{bar.label}: {bar.text}')}</title>{_text(left - 6, y + 12, label, 'end')}"
            f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{step - 5}" fill="{COLORS[0]}"/>'
            f"{_text(left + width + 5, y + 12, bar.text)}</g>"
        )
    parts.append(_line(left, 0, left, step * len(bars)))
    return _svg(parts, step * len(bars) + 2, title)


def _range(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high > low:
        return low, high
    return (low / 2, high * 2) if log else (low - 1, high + 1)


def _heights(points: Iterable[Point]) -> tuple[float, float]:
    ends = [(point.y or 0.0) + sign * (point.error or 0.0) for point in points for sign in (-1, 1)]
    low, high = min(ends), max(ends)
    if not 0 < high - low < high / 2:
        low, high = min(low, 0.0), max(high, 0.0)
    span = (high - low) or 1.0
    return low - 0.1 * span * (low != 0), high + 0.15 * span


def _drawn(
    points: Sequence[Point], number: int, scale_x: Callable[[float], float], scale_y: Callable[[float], float]
) -> list[str]:
    color, parts, pieces = COLORS[number % len(COLORS)], list[str](), [list[str]()]
    for point in points:
        if point.y is None:
            pieces.append([])
            continue
        x, y = scale_x(point.x), scale_y(point.y)
        pieces[-1].append(f"{x:.1f},{y:.1f}")
        if point.error:
            parts.append(_line(x, scale_y(point.y - point.error), x, scale_y(point.y + point.error), color))
        parts.append(_marker(x, y, number, point.note))
    lines = [
        f'<polyline points="{" ".join(piece)}" fill="none" stroke="{color}" stroke-width="1.5"/>' for piece in pieces
    ]
    return [*lines, *parts]


def _marker(x: float, y: float, number: int, note: str = "") -> str:
    shapes = ("M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0Z", "M-3,-3h6v6h-6Z", "M0,-4L4,3H-4Z", "M0,-4L4,0L0,4L-4,0Z")
    path = f'd="{shapes[number % len(shapes)]}" fill="{COLORS[number % len(COLORS)]}"'
    title = f"<title>{escaped(note)}</title>" if note else ""
    return f'<path transform="translate({x:.1f} {y:.1f})" {path}>{title}</path>'


def _legend(names: Sequence[str], left: float) -> list[str]:
    parts = []
    for number, name in enumerate(names):
        parts += [_marker(left + 6, 9, number), _text(left + 14, 13, name)]
        left += 30 + _CHARACTER * len(name)
    return parts


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
