"""Table 4 and Figure 4(b): steps and examples per second of private training, by batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from tasks.config.pipeline import Pipeline
from tasks.reporting.document import Cell, Figure, Finding, Table
from tasks.reporting.exhibits.common import Exhibit, Measurement
from tasks.reporting.exhibits.paper import beside, paper_series, paper_table
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit
from tasks.reporting.plots import line_chart
from tasks.reporting.series import Point, Series
from tasks.runtime.errors import UserError
from tasks.speed.results import Throughput, ThroughputRow

_TITLES = {
    ("non_private", False): "non-private",
    ("vmap", False): "vmap, no noise",
    ("vmap", True): "vmap DP-SGD",
    ("ghost", False): "ghost, no noise",
    ("ghost", True): "ghost DP-SGD",
}
# Shares of the non-private speed: above the first ghost clipping is near it, below the second vmap is far from it.
_NEAR, _FAR = 0.5, 0.25


class _Speeds(NamedTuple):
    """The measured rows by method, noise and batch size; the methods in the order of the table."""

    rows: dict[tuple[str, bool, int], ThroughputRow]
    methods: Sequence[tuple[str, bool]]
    sizes: Sequence[int]

    def fitting(self, method: tuple[str, bool], size: int) -> ThroughputRow | None:
        """Returns a row that has a speed; None if it was not measured or does not fit into memory."""
        row = self.rows.get((*method, size))
        return row if row is not None and row["fits"] else None

    def share(self, method: str, size: int, *, noise: bool) -> float | None:
        """Returns a method's speed as a share of the non-private one.

        Both are at their fastest, because other programs may slow the machine down for a while.
        """
        row, baseline = self.fitting((method, noise), size), self.fitting(("non_private", False), size)
        if row is None or baseline is None:
            return None
        assert row["best_steps_per_second"] is not None
        assert baseline["best_steps_per_second"] is not None
        return row["best_steps_per_second"] / baseline["best_steps_per_second"]


def exhibit(measurement: Measurement) -> Exhibit:
    """Makes the exhibit from what ``tasks.speed.throughput`` measured."""
    measured = cast(Throughput, measurement.numbers)
    speeds = _speeds(measured)
    findings = [_ghost_is_near(speeds), _vmap_falls_away(speeds), _largest(measured)]
    paper = paper_table(
        measurement.pipeline,
        title="The paper's Table 4 (steps per second on a P100)",
        row="batch size",
        format_value="{:.2f}".format,
    )
    return Exhibit(
        headline=findings[0].evidence[0].upper() + findings[0].evidence[1:] + ".",
        figures=[_figure(measurement.pipeline, measured, speeds)],
        tables=[_steps_table(measured, speeds), _largest_table(measured), *paper],
        findings=findings,
        notes=[
            "A step goes from the examples of one batch to new parameters; drawing and loading the batch is not part "
            "of it. The measurement is of this machine and is cached: delete `measurements/` in the home folder to "
            "measure again."
        ],
    )


def _speeds(measured: Throughput) -> _Speeds:
    rows = {(str(row["method"]), row["noise"], row["batch_size"]): row for row in measured["rows"]}
    found = {(method, noise) for method, noise, _ in rows}
    return _Speeds(rows, [key for key in _TITLES if key in found], sorted({size for _, _, size in rows}))


def _figure(pipeline: Pipeline, measured: Throughput, speeds: _Speeds) -> Figure:
    series = [Series(_TITLES[method], _points(speeds, method)) for method in speeds.methods]
    drawn = [line for line in series if line.points]
    if not drawn:
        raise UserError(f"nothing fits into {_cap(measured)}: raise memory_cap_gib, or give smaller batch_sizes")
    title = "Examples per second by batch size"
    theirs = _paper(pipeline, speeds.sizes)
    svg = line_chart(
        beside(drawn, theirs),
        title=title,
        x_label="batch size",
        y_label="examples per second",
        x_ticks={size: f"{size:,}" for size in speeds.sizes},
        log_x=True,
        log_y=True,
        height=320,
    )
    caption = "Table 4 as the paper's Figure 4(b) draws it."
    caption += " Dashed: the paper's values, on a P100." if theirs else ""
    return Figure("figure", title, svg, caption)


def _paper(pipeline: Pipeline, sizes: Sequence[int]) -> list[Series]:
    """Returns the paper's steps per second as examples per second, at the batch sizes within ours."""
    names = {name: _TITLES[name, name != "non_private"] for name in ("non_private", "vmap", "ghost")}
    return [
        line._replace(
            name=f"{line.like} in the paper",
            points=[point._replace(y=point.x * (point.y or 0.0)) for point in line.points],
        )
        for line in paper_series(pipeline, names, within=(min(sizes), max(sizes)))
        if line.like in names.values()
    ]


def _points(speeds: _Speeds, method: tuple[str, bool]) -> list[Point]:
    points = []
    for size in speeds.sizes:
        row = speeds.fitting(method, size)
        if row is not None:
            spread = row["steps_per_second_std"]
            error = None if spread is None else spread * size
            points.append(Point(size, row["examples_per_second"], error, f"{_TITLES[method]}, batch {size:,}"))
    return points


def _steps_table(measured: Throughput, speeds: _Speeds) -> Table:
    cores = f"{measured['cpus']} CPU core{'s' if measured['cpus'] > 1 else ''}"
    caption = (
        f"A model of {measured['parameters']:,} parameters on {measured['device']} ({cores}), measured on "
        f"{measured['measured'][:10]}: {_rounds(measured)}. “–”: the compiler (XLA) "
        f"plans more memory than the allowed {_cap(measured)}. “no noise” is clipping alone, which is not private."
    )
    rows = [
        [Cell(f"{size:,}", size), *(_cell(speeds.fitting(method, size)) for method in speeds.methods)]
        for size in speeds.sizes
    ]
    columns = ["batch size", *(_TITLES[method] for method in speeds.methods)]
    return Table("table", "Steps per second", columns, rows, caption, measured["rows"])


def _rounds(measured: Throughput) -> str:
    """Returns what the speeds of the table are over."""
    if all(row["steps_per_second_std"] is None for row in measured["rows"]):
        return "one round"
    return "mean ± standard deviation over rounds in which all methods take turns"


def _largest_table(measured: Throughput) -> Table:
    rows = [
        [Cell(_TITLES[name, False]), Cell(f"{size:,}", size)] for name, size in measured["largest_batch_size"].items()
    ]
    caption = (
        f"The largest power of two for which the compiler (XLA) plans at most {_cap(measured)}. Ghost clipping and "
        "our non-private step split large batches into physical batches."
    )
    return Table("largest_batch", "The largest batch that fits", ["method", "largest batch"], rows, caption)


def _cap(measured: Throughput) -> str:
    return f"{measured['memory_cap_bytes'] / 2**30:g} GiB"


def _cell(row: ThroughputRow | None) -> Cell:
    if row is None or row["steps_per_second"] is None:
        return Cell("–")
    spread = row["steps_per_second_std"]
    text = _speed(row["steps_per_second"]) + ("" if spread is None else f" ± {_speed(spread)}")
    return Cell(text, row["steps_per_second"])


def _speed(steps_per_second: float) -> str:
    """
    >>> _speed(2429.3), _speed(61.113), _speed(0.9631)
    ('2,429', '61.1', '0.963')
    """
    return f"{steps_per_second:,.0f}" if steps_per_second >= 100 else f"{steps_per_second:.3g}"


def _ghost_is_near(speeds: _Speeds) -> Finding:
    shares = {size: speeds.share("ghost", size, noise=True) for size in speeds.sizes}
    # The largest size at which both were measured.
    largest = max((size for size, share in shares.items() if share is not None), default=speeds.sizes[-1])
    share, without = shares[largest], speeds.share("ghost", largest, noise=False)
    return Finding(
        "Ghost clipping stays near the non-private speed at large batches",
        "shown" if share is not None and share >= _NEAR else "not shown",
        f"at batch {largest:,} DP-SGD with ghost clipping has {_percent(share)} of the non-private speed "
        f"({_percent(without)} without the noise)",
    )


def _vmap_falls_away(speeds: _Speeds) -> Finding:
    shares = {size: share for size in speeds.sizes if (share := speeds.share("vmap", size, noise=False)) is not None}
    claim = "Per-example gradients (vmap) fall far behind the non-private speed"
    if not shares:
        return Finding(claim, "shown", "no batch size fits into memory")
    last = max(shares)
    text = f"vmap has {_percent(shares[min(shares)])} at batch {min(shares):,} and {_percent(shares[last])} at {last:,}"
    without = [size for size in speeds.sizes if size not in shares]
    text += f"; batches of {', '.join(f'{size:,}' for size in without)} do not fit" if without else ""
    return Finding(claim, "shown" if shares[last] < _FAR or without else "not shown", text)


def _largest(measured: Throughput) -> Finding:
    largest = measured["largest_batch_size"]
    holds = largest["ghost"] >= largest["non_private"] > largest["vmap"]
    text = ", ".join(f"{_TITLES[name, False].split(',')[0]} {size:,}" for name, size in largest.items())
    return Finding(
        "Ghost clipping fits batches as large as non-private training does", "shown" if holds else "not shown", text
    )


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.0f} %"


register_exhibit(ExhibitSpec("throughput", exhibit, needs="speed"))
