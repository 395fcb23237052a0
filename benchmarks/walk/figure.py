"""Draws a walk as an SVG: one column a step, in it the modules by room, in order of first entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.walk.visits import Walk, is_service, needs

FIRST, AGAIN, NO_NEED = "#0072B2", "#8c8c8c", "#D55E00"
_COLUMN, _LEFT, _TOP, _ROW = 232, 20, 84, 16


def draw(found: Walk) -> str:
    """Returns the figure as the text of an SVG file."""
    seen: set[str] = set()
    parts: list[str] = []
    bottoms = []
    for number, (step, modules) in enumerate(found.steps.items()):
        left = _LEFT + number * _COLUMN
        drawn, bottom = _column(step, modules, left, seen)
        parts += drawn
        bottoms.append(bottom)
        seen.update(modules)
    width, height = 2 * _LEFT + len(found.steps) * _COLUMN - 12, max(bottoms) + 20
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="system-ui, sans-serif" font-size="12">',
            "<title>The modules that a raw row passes on its way to a cell of the table</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *_legend(found),
            *parts,
            "</svg>\n",
        ]
    )


def _legend(found: Walk) -> Iterator[str]:
    yield _text(
        _LEFT, 24, "From a raw row to a cell of the table: modules in order of first entry", weight=600, size=15
    )
    words = [
        (FIRST, "entered here first"),
        (AGAIN, "entered again, with a reason (docs/walk.md)"),
        (NO_NEED, f"entered again without need: {len(found.without_need) or 'none'}"),
    ]
    left = _LEFT
    for color, text in words:
        yield f'<circle cx="{left + 4}" cy="40" r="4" fill="{color}"/>'
        yield _text(left + 14, 44, text)
        left += 40 + 7 * len(text)


def _column(step: str, modules: Sequence[str], left: int, seen: set[str]) -> tuple[list[str], int]:
    """Returns the parts of a step's column, and where it ends."""
    title = f"{step}: {len(modules)} modules"
    parts = [
        f'<rect x="{left}" y="{_TOP - 22}" width="{_COLUMN - 12}" height="26" rx="4" fill="#eef3f8"/>',
        _text(left + 8, _TOP - 4, title, weight=600, size=13),
    ]
    y = _TOP + 8
    order = {module: number for number, module in enumerate(modules, 1)}
    for room, members in _by_room(modules).items():
        y += _ROW + 4
        parts.append(_text(left + 8, y, room.replace(".", "/"), weight=600, color="#444444"))
        for module in members:
            y += _ROW
            color = FIRST if module not in seen else AGAIN if needs(step, module) else NO_NEED
            parts.append(f'<circle cx="{left + 16}" cy="{y - 4}" r="4" fill="{color}"/>')
            parts.append(
                _text(left + 26, y, module.rpartition(".")[2], color="#111111" if color != AGAIN else "#666666")
            )
            parts.append(_text(left + _COLUMN - 22, y, str(order[module]), color="#999999", anchor="end"))
    return parts, y


def _by_room(modules: Sequence[str]) -> dict[str, list[str]]:
    """Groups modules by their package, in order of first entry; services come last."""
    rooms: dict[str, list[str]] = {}
    for module in sorted(modules, key=is_service):
        rooms.setdefault(module.rpartition(".")[0], []).append(module)
    return rooms


def _text(
    x: int, y: int, text: str, *, weight: int = 400, size: int = 12, color: str = "#111111", anchor: str = "start"
) -> str:
    style = f'font-weight="{weight}" font-size="{size}" fill="{color}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'
