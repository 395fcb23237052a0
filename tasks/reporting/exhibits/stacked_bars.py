"""A chart of vertical bars that are stacked from signed parts.

Parts above zero are stacked upwards from the zero line and parts below it downwards, so that the length of every part
is its value. A mark at the sum shows what they add up to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tasks.reporting.axes import heights, number_text, scale, ticks
from tasks.reporting.series import COLORS, LEGEND_ROW
from tasks.reporting.svg import (
    CHARACTER,
    GRID,
    INK,
    WIDTH,
    escaped,
    line_element,
    svg_element,
    text_element,
    vertical_text_element,
)

_WIDEST_BAR = 44.0
# The share of the distance between two bars that is a bar.
_BAR_SHARE = 0.6


class Stack(NamedTuple):
    """A bar: its label under the axis, and its parts in the order of the legend; None for a part that has no value."""

    label: str
    parts: Sequence[float | None]

    @property
    def total(self) -> float:
        return sum(part for part in self.parts if part is not None)


def placed(parts: Sequence[float | None]) -> list[tuple[float, float] | None]:
    """Returns where each part begins and ends: positive parts upwards from zero, negative ones downwards.

    >>> placed([2.0, -1.0, 3.0, None])
    [(0.0, 2.0), (0.0, -1.0), (2.0, 5.0), None]
    """
    above, below = 0.0, 0.0
    places: list[tuple[float, float] | None] = []
    for part in parts:
        if part is None:
            places.append(None)
        elif part >= 0:
            places.append((above, above + part))
            above += part
        else:
            places.append((below, below + part))
            below += part
    return places


def stacked_bar_chart(
    stacks: Sequence[Stack], names: Sequence[str], *, title: str, x_label: str, y_label: str, height: int = 280
) -> str:
    """Returns a bar for each stack, with a mark at its sum.

    Args:
        stacks: from left to right.
        names: what the parts are, for the legend.
        title: text for screen readers; it is not drawn.
        x_label: text under the x axis.
        y_label: text beside the y axis.
        height: in pixels at a width of 400.
    """
    ends = [end for stack in stacks for place in placed(stack.parts) if place is not None for end in place]
    y_range = heights([*ends, *(stack.total for stack in stacks), 0.0], log=False, from_zero=True)
    texts = {value: number_text(value) for value in ticks(*y_range)}
    left, right = 30 + CHARACTER * max(map(len, texts.values())), WIDTH - 12.0
    top, bottom = 10.0 + LEGEND_ROW, height - 44.0
    scale_y = scale(y_range, (bottom, top), log=False)
    parts = list(_legend(names))
    for value, text in texts.items():
        parts.append(line_element(left, scale_y(value), right, scale_y(value), GRID))
        parts.append(text_element(left - 5, scale_y(value) + 4, text, "end"))
    step = (right - left) / len(stacks)
    for number, stack in enumerate(stacks):
        middle = left + (number + 0.5) * step
        parts += _bar(stack, names, middle, min(_BAR_SHARE * step, _WIDEST_BAR), scale_y)
        parts.append(text_element(middle, bottom + 17, stack.label, "middle"))
    parts += [
        line_element(left, scale_y(0.0), right, scale_y(0.0)),
        line_element(left, top, left, bottom),
        text_element((left + right) / 2, bottom + 36, x_label, "middle"),
        vertical_text_element(13, (top + bottom) / 2, y_label),
    ]
    return svg_element(parts, height, title)


def _bar(stack: Stack, names: Sequence[str], middle: float, width: float, scale_y: object) -> Iterator[str]:
    assert callable(scale_y)
    for name, part, place, color in zip(names, stack.parts, placed(stack.parts), COLORS, strict=False):
        if place is None:
            continue
        first, last = sorted(map(scale_y, place))
        note = f"{stack.label}, {name}: {part:.2f}"
        yield (
            f'<rect x="{middle - width / 2:.1f}" y="{first:.1f}" width="{width:.1f}" height="{last - first:.1f}" '
            f'fill="{color}"><title>{escaped(note)}</title></rect>'
        )
    y = scale_y(stack.total)
    yield (
        f'<path d="M{middle - width / 2 - 5:.1f},{y:.1f}h{width + 10:.1f}" stroke="{INK}" stroke-width="2">'
        f"<title>{escaped(f'{stack.label}, total: {stack.total:.2f}')}</title></path>"
    )


def _legend(names: Sequence[str]) -> Iterator[str]:
    place = 8.0
    for name, color in zip(names, COLORS, strict=False):
        yield f'<rect x="{place:.1f}" y="2" width="11" height="11" fill="{color}"/>'
        yield text_element(place + 16, 12, name)
        place += 30 + CHARACTER * len(name)
    yield f'<path d="M{place:.1f},8h16" stroke="{INK}" stroke-width="2"></path>'
    yield text_element(place + 21, 12, "total")
