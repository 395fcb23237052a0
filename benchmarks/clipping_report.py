"""The clipping benchmark's rows as tables, and the bars that they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.command import Bar

Row = dict[str, Any]

# One-pass ghost clipping, without noise, against the non-private step of the same model.
LEAST_SPEED_RATIO = 0.90
MOST_MEMORY_RATIO = 1.3
SPEED_BATCH_SIZES = (64, 1024, 8192)
# From here on batches are large, and a gradient for each example takes so much more memory.
MEMORY_BATCH_SIZE = 8192
LEAST_VMAP_RATIO = 20.0


_METHOD_TITLES = {
    "non_private": "non-private",
    "vmap": "vmap",
    "two_pass_ghost": "two-pass ghost",
    "one_pass_ghost": "one-pass ghost",
}


def bars(rows: Sequence[Row]) -> list[Bar]:
    """The bars that these rows can tell about: they are for the paper's model."""
    rows = [row for row in rows if row["model"] == "paper"]
    result = []
    for batch_size in SPEED_BATCH_SIZES:
        ghost, plain = _pair(rows, "one_pass_ghost", batch_size)
        if ghost and plain:
            ratio = ghost["steps_per_second"] / plain["steps_per_second"]
            median = ghost["median_steps_per_second"] / plain["median_steps_per_second"]
            text = f"one-pass ghost at batch {batch_size:,}: {ratio:.2f} of the non-private steps per second at best, "
            text += f"{median:.2f} by medians"
            result.append(Bar(f"{text} (bar: at least {LEAST_SPEED_RATIO:.2f})", ratio >= LEAST_SPEED_RATIO))
    ghost, plain = _pair(rows, "one_pass_ghost", MEMORY_BATCH_SIZE)
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
        caption="Ratios: to the non-private step of the same batch size, the faster of a plain framework step and our "
        "trainer's. Memory: what XLA plans for a step, with parameters, optimiser and batch. Grown: what a process "
        "that ran it really grew by.",
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
        speed, memory = row["steps_per_second"], row["peak_memory_bytes"]
        table.add_row(
            f"{row['batch_size']:,}" if row["batch_size"] != previous else "",
            _METHOD_TITLES[row["method"]] + (" + noise" if row["noise"] else ""),
            "does not fit" if speed is None else f"{speed:,.2f}",
            "" if speed is None or plain is None else _ratio(speed / plain["steps_per_second"]),
            _bytes(memory),
            "" if plain is None else _ratio(memory / plain["peak_memory_bytes"]),
            "" if row["resident_memory_bytes"] is None else _bytes(row["resident_memory_bytes"]),
        )
        previous = row["batch_size"]
    return table


def _largest_table(rows: Sequence[Row]) -> Table:
    # By method and form; of a form's rows the last has the largest batch, and so full pieces.
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


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _measured(ghost: Row, plain: Row) -> str:
    grown = ghost["resident_memory_bytes"], plain["resident_memory_bytes"]
    return f", {grown[0] / grown[1]:.2f} of what the process grew by" if all(grown) else ""


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
