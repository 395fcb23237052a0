"""Table 4 and Figure 4(b): steps and examples per second of private training, by batch size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.document import Cell, Figure, Finding, Table
from tasks.errors import UserError
from tasks.exhibits.common import Exhibit, paper_table
from tasks.grids import Pipeline
from tasks.svg_plots import Point, Series, line_chart

_TITLES = {
    ("non_private", False): "non-private",
    ("vmap", False): "vmap, no noise",
    ("vmap", True): "vmap DP-SGD",
    ("ghost", False): "ghost, no noise",
    ("ghost", True): "ghost DP-SGD",
}
# Ghost clipping is near the non-private speed if it has this share of it, and vmap far from it below this one.
_NEAR, _FAR = 0.5, 0.25


def exhibit(measured: Mapping[str, Any], pipeline: Pipeline) -> Exhibit:
    """Of what ``tasks.speed.throughput`` measured."""
    rows = {(row["method"], row["noise"], row["batch_size"]): row for row in measured["rows"]}
    methods = [key for key in _TITLES if any((row["method"], row["noise"]) == key for row in measured["rows"])]
    sizes = sorted({row["batch_size"] for row in measured["rows"]})
    findings = [_ghost_is_near(rows, sizes), _vmap_falls_away(rows, sizes), _largest(measured)]
    series = [
        Series(
            _TITLES[method],
            [
                Point(size, row["examples_per_second"], _examples_error(row), f"{_TITLES[method]}, batch {size:,}")
                for size in sizes
                if (row := rows.get((*method, size))) is not None and row["fits"]
            ],
        )
        for method in methods
    ]
    drawn = [line for line in series if line.points]
    if not drawn:
        cap = measured["memory_cap_bytes"] / 2**30
        raise UserError(f"nothing fits into {cap:g} GiB: raise memory_cap_gib, or give smaller batch_sizes")
    svg = line_chart(
        drawn,
        title="Examples per second by batch size",
        x_label="batch size",
        y_label="examples per second",
        x_ticks={size: f"{size:,}" for size in sizes},
        log_x=True,
        log_y=True,
        height=320,
    )
    cores = f"{measured['cpus']} CPU core{'s' if measured['cpus'] > 1 else ''}"
    caption = (
        f"A model of {measured['parameters']:,} parameters on {measured['device']} ({cores}), measured "
        f"{measured['measured'][:10]}; mean ± standard deviation over rounds in which all take turns. “–”: XLA plans "
        f"more than the {measured['memory_cap_bytes'] / 2**30:g} GiB that were allowed. “No noise” is clipping alone, "
        "which is not private."
    )
    steps = Table(
        "table",
        "Steps per second",
        ["batch size", *(_TITLES[method] for method in methods)],
        [[Cell(f"{size:,}", size), *(_cell(rows.get((*method, size))) for method in methods)] for size in sizes],
        caption,
        measured["rows"],
    )
    largest = Table(
        "largest_batch",
        "The largest batch that fits",
        ["method", "largest batch"],
        [
            [Cell(_TITLES[name, False]), Cell(f"{size:,}", size)]
            for name, size in measured["largest_batch_size"].items()
        ],
        f"The largest power of two for which XLA plans no more than {measured['memory_cap_bytes'] / 2**30:g} GiB. "
        "Ghost clipping and our non-private step cut a batch into pieces where it is large.",
    )
    return Exhibit(
        headline=findings[0].evidence[0].upper() + findings[0].evidence[1:] + ".",
        figures=[
            Figure("figure", "Examples per second by batch size", svg, "Table 4 as the paper's Figure 4(b) draws it.")
        ],
        tables=[
            steps,
            largest,
            *paper_table(
                pipeline,
                title="The paper's Table 4 (steps per second on a P100)",
                row="batch size",
                format_value="{:.2f}".format,
            ),
        ],
        findings=findings,
        notes=[
            "A step is what training does with one batch: from its examples to new parameters, without drawing and "
            "loading the batch. The measurement is of this machine and is remembered; deleting `measurements/` below "
            "the home folder makes it anew."
        ],
    )


def _cell(row: Mapping[str, Any] | None) -> Cell:
    if row is None or not row["fits"]:
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


def _examples_error(row: Mapping[str, Any]) -> float | None:
    spread = row["steps_per_second_std"]
    return None if spread is None else spread * row["batch_size"]


def _share(rows: Mapping[Any, Mapping[str, Any]], method: str, size: int, *, noise: bool) -> float | None:
    """A method's speed as a share of the non-private step's, each at its best moment: others may use the machine."""
    row, baseline = rows.get((method, noise, size)), rows.get(("non_private", False, size))
    if row is None or baseline is None or not (row["fits"] and baseline["fits"]):
        return None
    return row["best_steps_per_second"] / baseline["best_steps_per_second"]


def _ghost_is_near(rows: Mapping[Any, Mapping[str, Any]], sizes: list[int]) -> Finding:
    # The largest at which both were measured.
    largest = max((size for size in sizes if _share(rows, "ghost", size, noise=True) is not None), default=sizes[-1])
    share, without = (_share(rows, "ghost", largest, noise=noise) for noise in (True, False))
    near = share is not None and share >= _NEAR
    return Finding(
        "Ghost clipping's steps per second stay near the non-private ones at large batches",
        "shown" if near else "not shown",
        f"at batch {largest:,} DP-SGD by ghost clipping has {_percent(share)} of the non-private speed "
        f"({_percent(without)} without the noise)",
    )


def _vmap_falls_away(rows: Mapping[Any, Mapping[str, Any]], sizes: list[int]) -> Finding:
    shares = {size: share for size in sizes if (share := _share(rows, "vmap", size, noise=False)) is not None}
    claim = "Those of per-example gradients (vmap) fall away"
    if not shares:
        return Finding(claim, "shown", "no batch size fits into memory")
    last = max(shares)
    text = f"vmap has {_percent(shares[min(shares)])} at batch {min(shares):,} and {_percent(shares[last])} at {last:,}"
    without = [size for size in sizes if size not in shares]
    text += f"; batches of {', '.join(f'{size:,}' for size in without)} do not fit" if without else ""
    return Finding(claim, "shown" if shares[last] < _FAR or without else "not shown", text)


def _largest(measured: Mapping[str, Any]) -> Finding:
    largest = measured["largest_batch_size"]
    holds = largest["ghost"] >= largest["non_private"] > largest["vmap"]
    text = ", ".join(f"{_TITLES[name, False].split(',')[0]} {size:,}" for name, size in largest.items())
    return Finding(
        "Ghost clipping holds batches as large as non-private training", "shown" if holds else "not shown", text
    )


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.0f} %"
