"""A report in the terminal and in a log: its first table, its verdict, its findings and its headline."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from tasks.reporting.document import SIGNS, Cell, Table, flat, numeric_columns
from tasks.reporting.files import SUMMARY, ReportSummary
from tasks.reporting.typesetting import typeset
from tasks.runtime.home import read_json
from tasks.runtime.progress import counted

# The width of a table in a log, where there is no terminal.
_LOG_WIDTH = 120
# The page has all of them.
_MOST_CAVEATS = 12


def print_report(folder: Path) -> None:
    """Prints the first table, the findings and the headline of the report in a folder."""
    _show(folder, Console())


def report_text(folder: Path) -> str:
    """Returns what `print_report` prints, without control sequences, for a log."""
    buffer = io.StringIO()
    _show(folder, Console(file=buffer, width=_LOG_WIDTH, color_system=None))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def print_tables(tables: Sequence[Table]) -> None:
    """Prints tables, folded to the width of the terminal as far as their words allow."""
    _show_tables(tables, Console())


def _show(folder: Path, console: Console) -> None:
    found: ReportSummary = read_json(folder / SUMMARY)
    lines = []
    if found["table"] is not None:
        rows = [[Cell(text, strong=strong) for text, strong in row] for row in found["table"]["rows"]]
        _show_tables([Table("table", found["table"]["title"], found["table"]["columns"], rows)], console)
    lines += _judgement(found)
    for claim in found["claims"]:
        lines.append(f"{SIGNS[claim['verdict']]} {claim['claim']}: {claim['evidence']}")
    lines.append(found["headline"])
    if found["only_for_tests"]:
        lines.append(f"The profile {found['profile']} is only for tests: these numbers mean nothing.")
    for line in lines:
        # Printed as it is: whoever searches or copies a sentence finds it on one line.
        console.out(typeset(flat(line)), highlight=False)


def _judgement(found: ReportSummary) -> list[str]:
    """Returns the verdict on whether the numbers are the price of privacy, and the caveats, serious ones first."""
    caveats, verdict = found.get("caveats", []), found.get("verdict", "")
    serious = any(caveat["serious"] for caveat in caveats)
    lines = [f"{SIGNS['not shown' if serious else 'shown']} {verdict}"] if verdict else []
    for caveat in caveats[:_MOST_CAVEATS]:
        sign = "†" if caveat["serious"] else "·"
        lines.append(f"{sign} {caveat['claim']} → {caveat['consequence']}")
    left = len(caveats) - _MOST_CAVEATS
    return [*lines, f"and {counted(left, 'more caveat')} on the page"] if left > 0 else lines


def _show_tables(tables: Sequence[Table], console: Console) -> None:
    for table in tables:
        shown = TerminalTable(title=Text(flat(table.title)), caption=Text(flat(table.caption)), box=box.SIMPLE_HEAD)
        shown.show_edge, shown.padding = False, (0, 1, 0, 0)
        numeric = numeric_columns(table)
        cells = [[_text(row[at]) for row in table.rows] for at in range(len(table.columns))]
        # Headers wrap at words before any number wraps.
        least = [
            max(map(cell_len, [*texts, *flat(column).split()]), default=0)
            for column, texts in zip(table.columns, cells, strict=True)
        ]
        fits = sum(least) + len(least) <= console.width
        for column, number, width in zip(table.columns, numeric, least, strict=True):
            most = width if number and fits else None
            shown.add_column(Text(flat(column)), justify="right" if number else "left", overflow="fold", width=most)
        for row in table.rows:
            shown.add_row(*(Text(_text(cell), style="bold" if cell.strong else "") for cell in row))
        console.print(shown)


def _text(cell: Cell) -> str:
    return typeset(flat(cell.text))
