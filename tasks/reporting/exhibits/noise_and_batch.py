"""Figure 2: how much noise a mean gradient has for the same guarantee, by batch size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from tasks.document import Cell, Figure, Finding, Table
from tasks.exhibits.common import Exhibit
from tasks.svg_plots import Mark, Point, Series, line_chart

_FIXED = {"epochs": "epochs", "steps": "steps"}
# The noise still falls if the last doubling of the batch takes off this share of it or more.
_STILL_FALLS, _PLATEAU = 0.2, 0.1


def exhibit(measured: Mapping[str, Any]) -> Exhibit:
    """Of what ``tasks.measure`` computed: points by ``epochs`` or ``steps`` fixed, and by ε."""
    figures, rows, records = [], [], []
    for letter, fixed in zip("ab", _FIXED, strict=True):
        curves: Mapping[str, list[dict[str, Any]]] = measured[fixed]
        title = f"Noise at fixed {fixed} ({measured['fixed'][fixed]:,g})"
        series = [
            Series(
                f"ε = {epsilon}",
                [
                    Point(point["batch_size"], point["standard_deviation"], note=_note(point, epsilon))
                    for point in points
                ],
            )
            for epsilon, points in curves.items()
        ]
        sizes = [point["batch_size"] for point in next(iter(curves.values()))]
        svg = line_chart(
            series,
            title=title,
            x_label="batch size",
            y_label="noise std of the mean gradient, in C",
            x_ticks={size: _short(size) for size in sizes[:: max(1, -(-len(sizes) // 8))]},
            marks=[Mark(measured["baseline_batch_size"], f"{measured['baseline_batch_size']:,}")],
            log_x=True,
            log_y=True,
            height=300,
        )
        caption = "The dotted line is the batch size of the non-private baseline."
        figures.append(Figure(f"figure_{letter}", f"({letter}) {title}", svg, caption))
        for epsilon, points in curves.items():
            for point in points:
                numbers = [point["steps"], point["noise_multiplier"], point["standard_deviation"]]
                texts = [f"{numbers[0]:,}", f"{numbers[1]:.4f}", f"{numbers[2]:.3g}"]
                rows.append(
                    [
                        Cell(fixed),
                        Cell(epsilon, float(epsilon)),
                        Cell(f"{point['batch_size']:,}", point["batch_size"]),
                        *(Cell(text, number) for text, number in zip(texts, numbers, strict=True)),
                    ]
                )
                records.append({"fixed": fixed, "epsilon": epsilon, **point})
    columns = ["fixed", "ε", "batch size", "steps", "σ", "std of the mean"]
    caption = f"For N = {measured['examples']:,} examples, δ = 1/N. The noise of the mean is σ·C over the batch size."
    several = all(len(points) > 1 for points in measured["steps"].values())
    findings = [_falls(measured), _plateaus(measured)] if several else []
    headline = findings[1].evidence if several else "one batch size alone shows no effect of it"
    return Exhibit(
        headline=headline[0].upper() + headline[1:] + ".",
        figures=figures,
        tables=[Table("table", "Noise by batch size", columns, rows, caption, records)],
        findings=findings,
        notes=[
            "Nothing was trained for this: it is what the accountant says. The paper gives no numbers for Figure 2."
        ],
    )


def _last_doubling(points: list[dict[str, Any]]) -> float:
    """The share of the noise that the last doubling of the batch takes off; where sizes are further apart, what each
    of the doublings between the last two takes off."""
    before, last = points[-2], points[-1]
    doublings = math.log2(last["batch_size"] / before["batch_size"])
    return 1 - (last["standard_deviation"] / before["standard_deviation"]) ** (1 / doublings)


def _falls(measured: Mapping[str, Any]) -> Finding:
    shares = {epsilon: _last_doubling(points) for epsilon, points in measured["epochs"].items()}
    falling = all(
        one["standard_deviation"] > other["standard_deviation"]
        for points in measured["epochs"].values()
        for one, other in itertools.pairwise(points)
    )
    text = ", ".join(f"{100 * share:.0f} % at ε = {epsilon}" for epsilon, share in shares.items())
    return Finding(
        "At fixed epochs the noise keeps falling as batches grow",
        "shown" if falling and min(shares.values()) > _STILL_FALLS else "not shown",
        f"the last doubling of the batch takes off {text}",
    )


def _plateaus(measured: Mapping[str, Any]) -> Finding:
    small, large = [], []
    for points in measured["steps"].values():
        small.append(_last_doubling(points[:2]))
        large.append(_last_doubling(points))
    holds = max(large) < _PLATEAU < min(small)
    return Finding(
        "At fixed steps the benefit of large batches plateaus",
        "shown" if holds else "not shown",
        f"at fixed steps the first doubling of the batch takes off {100 * min(small):.0f} % of the noise or more, the "
        f"last one {100 * max(large):.0f} % or less",
    )


def _note(point: Mapping[str, Any], epsilon: str) -> str:
    return (
        f"ε = {epsilon}, batch {point['batch_size']:,}, {point['steps']:,} steps: σ = {point['noise_multiplier']:.4g}"
    )


def _short(size: int) -> str:
    """
    >>> _short(512), _short(65536), _short(1048576)
    ('512', '64k', '1M')
    """
    if size % 2**20 == 0:
        return f"{size // 2**20}M"
    return f"{size // 2**10}k" if size % 2**10 == 0 else f"{size:,}"
