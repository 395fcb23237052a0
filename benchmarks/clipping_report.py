"""Tables of the clipping benchmark, and the bars that its results must pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.command import Bar

if TYPE_CHECKING:
    from tasks.speed.programs import Form, MethodName


class FormResult(TypedDict):
    """One form of a method; the last two fields are there if memory was measured."""

    steps_per_second: float | None
    peak_memory_bytes: int
    rows_at_once: int
    largest_batch_size: NotRequired[int]
    memory_cap_bytes: NotRequired[int]


class Row(TypedDict):
    """A method at one batch size, in its faster form."""

    method: MethodName
    noise: bool
    parameters: int
    batch_size: int
    steps_per_second: float | None
    peak_memory_bytes: int
    median_steps_per_second: float | None
    resident_memory_bytes: int | None
    fits: bool
    model: str
    form: Form
    forms: dict[Form, FormResult]


Quantity = Literal["steps_per_second", "median_steps_per_second", "peak_memory_bytes", "resident_memory_bytes"]

# One-pass ghost clipping, without noise, against the non-private step of the same model.
LEAST_SPEED_RATIO = 0.90
MOST_MEMORY_RATIO = 1.3
SPEED_BATCH_SIZES = (64, 1024, 8192)
# At this batch size, vmap must take at least this multiple of the non-private memory, or not fit.
MEMORY_BATCH_SIZE = 8192
LEAST_VMAP_RATIO = 20.0


_METHOD_TITLES = {
    "non_private": "non-private",
    "vmap": "vmap",
    "two_pass_ghost": "two-pass ghost",
    "ghost": "one-pass ghost",
    "lazy_non_private": "non-private, lazy",
    "lazy": "one-pass, lazy",
}


def bars(rows: Sequence[Row]) -> list[Bar]:
    """Returns the bars that these rows can decide. The bars are for the paper's model."""
    rows = [row for row in rows if row["model"] == "paper"]
    result = []
    for batch_size in SPEED_BATCH_SIZES:
        ghost, plain = _pair(rows, "ghost", batch_size)
        ratio = _quotient(ghost, plain, "steps_per_second")
        median = _quotient(ghost, plain, "median_steps_per_second")
        if ratio is not None and median is not None:
            text = f"one-pass ghost at batch {batch_size:,}: {ratio:.2f} of the non-private steps per second at best, "
            text += f"{median:.2f} by medians"
            result.append(Bar(f"{text} (bar: at least {LEAST_SPEED_RATIO:.2f})", ratio >= LEAST_SPEED_RATIO))
    ghost, plain = _pair(rows, "ghost", MEMORY_BATCH_SIZE)
    if ghost and plain:
        ratio = ghost["peak_memory_bytes"] / plain["peak_memory_bytes"]
        text = f"one-pass ghost at batch {MEMORY_BATCH_SIZE:,}: {ratio:.2f} of the non-private peak memory"
        text += _measured(ghost, plain)
        result.append(Bar(f"{text} (bar: at most {MOST_MEMORY_RATIO})", ratio <= MOST_MEMORY_RATIO))
    naive, plain = _pair(rows, "vmap", MEMORY_BATCH_SIZE)
    if naive and plain:
        ratio = naive["peak_memory_bytes"] / plain["peak_memory_bytes"]
        text = f"vmap at batch {MEMORY_BATCH_SIZE:,}: {ratio:,.0f} times the non-private peak memory"
        if not naive["fits"]:
            text += ", more than there is"
        holds = ratio >= LEAST_VMAP_RATIO or not naive["fits"]
        result.append(Bar(f"{text} (bar: does not fit, or at least {LEAST_VMAP_RATIO:.0f} times)", holds))
    return result


def print_report(rows: Sequence[Row]) -> None:
    console = Console()
    console.print(_speed_table(rows))
    if any("largest_batch_size" in form for row in rows for form in row["forms"].values()):
        console.print(_largest_table(rows))
    for bar in bars(rows):
        console.print(f"{'✓' if bar.holds else '✗'} {bar.text}", highlight=False, soft_wrap=True)


def _speed_table(rows: Sequence[Row]) -> Table:
    table = Table(
        title=f"A training step, model of {rows[0]['parameters']:,} parameters",
        caption="Ratios are to the non-private step of the same batch size, the faster of a plain framework step and "
        "our trainer's. Memory: what XLA plans for a step, with parameters, optimizer and batch. Grown: measured peak "
        "growth of a process that ran the step.",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for title in ("batch", "method", "steps/s", "ratio", "memory", "ratio", "grown"):
        table.add_column(title, justify="left" if title == "method" else "right", no_wrap=True)
    previous = None
    for row in rows:
        if previous not in (None, row["batch_size"]):
            table.add_section()
        plain = _find(rows, "non_private", row["batch_size"])
        speed = row["steps_per_second"]
        table.add_row(
            f"{row['batch_size']:,}" if row["batch_size"] != previous else "",
            _METHOD_TITLES[row["method"]] + (" + noise" if row["noise"] else ""),
            "does not fit" if speed is None else f"{speed:,.2f}",
            _ratio(_quotient(row, plain, "steps_per_second")),
            _bytes(row["peak_memory_bytes"]),
            _ratio(_quotient(row, plain, "peak_memory_bytes")),
            "" if row["resident_memory_bytes"] is None else _bytes(row["resident_memory_bytes"]),
        )
        previous = row["batch_size"]
    return table


def _largest_table(rows: Sequence[Row]) -> Table:
    # The last row of a form has the largest batch, and so full pieces.
    found = {
        (row["method"], name): form
        for row in rows
        for name, form in row["forms"].items()
        if "largest_batch_size" in form
    }
    cap = next(iter(found.values()))["memory_cap_bytes"] / 2**30
    table = Table(title=f"Largest batch for which XLA plans at most {cap:g} GiB (powers of two)", box=SIMPLE_HEAD)
    for title in ("method", "computed", "largest batch"):
        table.add_column(title, justify="right" if title == "largest batch" else "left")
    for (method, name), form in found.items():
        computed = "at once" if name == "whole" else f"in pieces of at most {form['rows_at_once']:,}"
        table.add_row(_METHOD_TITLES[method], computed, f"{form['largest_batch_size']:,}")
    return table


def _quotient(row: Row | None, plain: Row | None, name: Quantity) -> float | None:
    """Returns the ratio of two rows' measurements; None if one of them was not measured or did not fit."""
    value, base = row and row[name], plain and plain[name]
    return value / base if value and base else None


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _measured(ghost: Row, plain: Row) -> str:
    grown = _quotient(ghost, plain, "resident_memory_bytes")
    return "" if grown is None else f", {grown:.2f} of the process's growth"


def _pair(rows: Sequence[Row], method: str, batch_size: int) -> tuple[Row | None, Row | None]:
    return _find(rows, method, batch_size), _find(rows, "non_private", batch_size)


def _find(rows: Sequence[Row], method: str, batch_size: int) -> Row | None:
    wanted = (method, batch_size, False)
    return next((row for row in rows if (row["method"], row["batch_size"], row["noise"]) == wanted), None)


def _bytes(count: int) -> str:
    """
    >>> _bytes(156_000_000), _bytes(3_000_000_000), _bytes(400_000_000_000)
    ('149 MiB', '2.8 GiB', '373 GiB')
    """
    if count < 1000 * 2**20:
        return f"{count / 2**20:,.0f} MiB"
    return f"{count / 2**30:.1f} GiB" if count < 10 * 2**30 else f"{count / 2**30:,.0f} GiB"
