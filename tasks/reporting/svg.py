"""SVG elements of a plot: text, lines, polylines and markers, and the ``<svg>`` around them.

Colours are variables of the page's style, with the light colour as the fallback: a plot in a page follows the reader's
colour scheme, and `standalone` leaves only the light colours.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tasks.reporting.typesetting import typeset

# A page that is 400 pixels wide leaves 380 for a plot: text of 12 in 400 is then more than 11 pixels high.
WIDTH, FONT_SIZE = 400, 12
INK, GRID, PAPER = "var(--plot-ink, #222222)", "var(--plot-grid, #d9d9d9)", "var(--paper, #ffffff)"
# Mean width of a character in a wide font such as DejaVu Sans.
CHARACTER = 0.6 * FONT_SIZE


class Style(NamedTuple):
    """How a series is drawn: ``marker`` is an SVG path around the origin, ``dashes`` an SVG dash array or empty.

    A hollow marker has only its outline in the colour.
    """

    color: str
    marker: str
    dashes: str
    line_width: float
    marker_scale: float = 1.0
    hollow: bool = False


def escaped(value: object) -> str:
    """Returns text escaped for XML, with minus signs, and with unprintable characters replaced.

    >>> escaped('<b> & "c"\\x00')
    '&lt;b&gt; &amp; &quot;c&quot;�'
    """
    return html.escape("".join(c if c.isprintable() else "\ufffd" for c in typeset(str(value))))


def shortened(text: str, longest: int) -> str:
    """Returns text cut to ``longest`` characters, with an ellipsis if any are missing."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def line_element(x1: float, y1: float, x2: float, y2: float, color: str = INK, *, dashed: bool = False) -> str:
    """Returns a straight line."""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{dashes}/>'


def text_element(x: float, y: float, text: str, anchor: str = "start") -> str:
    """Returns text whose baseline is at ``y``; ``anchor`` is the part of it at ``x``: start, middle or end."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'


def vertical_text_element(x: float, y: float, text: str) -> str:
    """Returns text that reads upwards, centred at ``y``."""
    return f'<text transform="translate({x:g} {y:.1f}) rotate(-90)" text-anchor="middle">{escaped(text)}</text>'


def polyline_element(places: Sequence[str], style: Style) -> str:
    """Returns a line through places, each written as ``x,y``."""
    dashes = f' stroke-dasharray="{style.dashes}"' if style.dashes else ""
    stroke = f'stroke="{style.color}" stroke-width="{style.line_width:g}"{dashes}'
    return f'<polyline points="{" ".join(places)}" fill="none" {stroke}/>'


def marker_element(x: float, y: float, style: Style, note: str = "") -> str:
    """Returns the marker of a series; ``note`` is its tooltip."""
    size = f" scale({style.marker_scale:g})" if style.marker_scale != 1 else ""
    title = f"<title>{escaped(note)}</title>" if note else ""
    place = f"translate({x:.1f} {y:.1f}){size}"
    paint = f'fill="{PAPER}" stroke="{style.color}"' if style.hollow else f'fill="{style.color}"'
    return f'<path transform="{place}" d="{style.marker}" {paint}>{title}</path>'


def svg_element(parts: Iterable[str], height: int, title: str) -> str:
    """Returns a plot that is as wide as its place in the page; screen readers read the title, which is not drawn."""
    style = f'font-family="system-ui, sans-serif" font-size="{FONT_SIZE}" fill="{INK}"'
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="100%" role="img" aria-label="{escaped(title)}" {style}>'
        + "".join(parts)
        + "</svg>"
    )


def standalone(svg: str) -> str:
    """Returns a plot as the text of an SVG file: with a namespace, a size in pixels, light colours on white."""
    opening, rest = re.sub(r"var\(--[\w-]+, (#\w+)\)", r"\1", svg).split(">", 1)
    box = re.search(r'viewBox="0 0 (\d+) (\d+)"', opening)
    if box is None:
        raise ValueError("the plot has no viewBox of the form '0 0 width height'")
    opening = re.sub(r' (?:width|height|xmlns)="[^"]*"', "", opening).removeprefix("<svg")
    size = f'width="{box[1]}" height="{box[2]}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}{opening}><rect {size} fill="#ffffff"/>{rest}\n'
