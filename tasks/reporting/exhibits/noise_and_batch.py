"""Figure 2: the noise of the mean gradient by batch size, for the same guarantee."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.reporting.document import Cell, Figure, Finding, Table
from tasks.reporting.exhibits.common import Exhibit, Measurement
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit
from tasks.reporting.plots import Mark, line_chart
from tasks.reporting.series import Point, Series

# What is held fixed while the batch grows, in the order of Figure 2's parts.
_FIXED = ("epochs", "steps")
# Share of the noise that the last doubling of the batch must remove for the noise to be still falling, and the share
# below which it has reached a plateau.
_STILL_FALLS, _PLATEAU = 0.2, 0.1


def exhibit(measurement: Measurement) -> Exhibit:
    """Makes the exhibit from the noise curves that ``tasks.measure`` computed."""
    measured = measurement.numbers
    several = all(len(points) > 1 for points in measured["steps"].values())
    findings = [_falls(measured), _plateaus(measured)] if several else []
    headline = findings[1].evidence if several else "a single batch size shows no effect of the batch size"
    return Exhibit(
        headline=headline[0].upper() + headline[1:] + ".",
        figures=[_figure(measured, fixed, letter) for letter, fixed in zip("ab", _FIXED, strict=True)],
        tables=[_table(measured)],
        findings=findings,
        notes=["Nothing was trained: these are the accountant's numbers. The paper gives no numbers for its Figure 2."],
    )


def _figure(measured: Mapping[str, Any], fixed: str, letter: str) -> Figure:
    curves: Mapping[str, list[dict[str, Any]]] = measured[fixed]
    series = [
        Series(
            f"ε = {epsilon}",
            [Point(point["batch_size"], point["standard_deviation"], note=_note(point, epsilon)) for point in points],
        )
        for epsilon, points in curves.items()
    ]
    sizes = [point["batch_size"] for point in next(iter(curves.values()))]
    baseline = measured["baseline_batch_size"]
    title = f"Noise at fixed {fixed} ({measured['fixed'][fixed]:,g})"
    svg = line_chart(
        series,
        title=title,
        x_label="batch size",
        y_label="noise std of the mean gradient, in C",
        # At most eight labels fit below the axis.
        x_ticks={size: _short(size) for size in sizes[:: math.ceil(len(sizes) / 8)]},
        marks=[Mark(baseline, _short(baseline))],
        log_x=True,
        log_y=True,
        height=300,
    )
    caption = "The dashed line marks the batch size of the non-private baseline. 1k = 1,024."
    return Figure(f"figure_{letter}", f"({letter}) {title}", svg, caption)


def _table(measured: Mapping[str, Any]) -> Table:
    points = [
        (fixed, epsilon, point) for fixed in _FIXED for epsilon, curve in measured[fixed].items() for point in curve
    ]
    return Table(
        "table",
        "Noise by batch size",
        ["fixed", "ε", "batch size", "steps", "σ", "std of the mean"],
        [_row(*point) for point in points],
        f"For N = {measured['examples']:,} examples and δ = 1/N. The noise of the mean gradient has the standard "
        "deviation σ·C divided by the batch size, given here in units of C.",
        [{"fixed": fixed, "epsilon": epsilon, **point} for fixed, epsilon, point in points],
    )


def _row(fixed: str, epsilon: str, point: Mapping[str, Any]) -> list[Cell]:
    size, steps, sigma = point["batch_size"], point["steps"], point["noise_multiplier"]
    deviation = point["standard_deviation"]
    return [
        Cell(fixed),
        Cell(epsilon, float(epsilon)),
        Cell(f"{size:,}", size),
        Cell(f"{steps:,}", steps),
        Cell(f"{sigma:.4f}", sigma),
        Cell(f"{deviation:#.3g}", deviation),
    ]


def _last_doubling(points: Sequence[Mapping[str, Any]]) -> float:
    """Returns the share of the noise that the last doubling of the batch removes.

    If the last two sizes are further apart, it is the geometric mean over the doublings between them.
    """
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
        f"the last doubling of the batch removes {text}",
    )


def _plateaus(measured: Mapping[str, Any]) -> Finding:
    small = [_last_doubling(points[:2]) for points in measured["steps"].values()]
    large = [_last_doubling(points) for points in measured["steps"].values()]
    return Finding(
        "At fixed steps the benefit of large batches plateaus",
        "shown" if max(large) < _PLATEAU < min(small) else "not shown",
        f"at fixed steps the first doubling of the batch removes at least {100 * min(small):.0f} % of the noise, the "
        f"last one at most {100 * max(large):.0f} %",
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


register_exhibit(ExhibitSpec("noise_and_batch", exhibit, needs="curves"))
