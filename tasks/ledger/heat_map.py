"""A heat map of spent budget: a row for each day of data, a column for each night, as an SVG element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.reporting.svg import (
    CHARACTER,
    GRID,
    WIDTH,
    escaped,
    line_element,
    svg_element,
    text_element,
    vertical_text_element,
)

# The labels of days stand to the left of the cells, those of nights above them.
_LEFT, _TOP, _ROW = 84.0, 64.0, 22.0
_WIDEST = 60.0
# Text on the darkest cell must be readable in both colour schemes.
_DARKEST = 0.62
_COLOR = "var(--series-1, #0072b2)"


def heat_map(
    cells: Mapping[tuple[str, str], float], days: Sequence[str], nights: Sequence[str], *, total: float, title: str
) -> str:
    """Returns a heat map of ε, from white at 0 to the full colour at the total.

    Args:
        cells: ε by day and night; pairs that are missing stay empty.
        days: The rows, from the top.
        nights: The columns, from the left; at most ten fit.
        total: The ε of the full colour.
        title: Text for screen readers; it is not drawn.
    """
    width = min((WIDTH - _LEFT) / max(len(nights), 1), _WIDEST)
    bottom, right = _TOP + _ROW * len(days), _LEFT + width * len(nights)
    parts = [text_element(_LEFT - 8, _TOP - 8, "data of", "end"), text_element(_LEFT, 12, "night of")]
    for column, night in enumerate(nights):
        # Without the year: the caption has it.
        parts.append(vertical_text_element(_LEFT + width * (column + 0.5) + 4, _TOP - 24, night[-5:]))
    for row, day in enumerate(days):
        parts.append(text_element(_LEFT - 8, _TOP + _ROW * (row + 0.5) + 4, day, "end"))
    for (day, night), value in cells.items():
        if day in days and night in nights:
            parts.append(_cell(value, total, days.index(day), nights.index(night), width, f"{day}, night of {night}"))
    parts += [line_element(_LEFT, _TOP + _ROW * row, right, _TOP + _ROW * row, GRID) for row in range(len(days) + 1)]
    parts += [
        line_element(_LEFT + width * column, _TOP, _LEFT + width * column, bottom, GRID)
        for column in range(len(nights) + 1)
    ]
    return svg_element(parts, round(bottom + 8), title)


def _cell(value: float, total: float, row: int, column: int, width: float, where: str) -> str:
    x, y = _LEFT + width * column, _TOP + _ROW * row
    share = min(value / total, 1.0)
    text = f"{value:.2f}" if width >= 4 * CHARACTER else f"{value:.1f}"
    note = f"<title>{escaped(f'{where}: ε = {value:.3f} of {total:g}')}</title>"
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_ROW:.1f}"'
    return (
        f'<g><rect {place} fill="{_COLOR}" fill-opacity="{_DARKEST * share:.3f}">{note}</rect>'
        + text_element(x + width / 2, y + _ROW / 2 + 4, text, "middle")
        + "</g>"
    )
