"""A report in the terminal: its first table, its findings and its headline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from tasks.reporting.document import SIGNS, Cell, Table, flat, numeric_columns
from tasks.reporting.files import SUMMARY, ReportSummary
from tasks.runtime.home import read_json


def print_report(folder: Path) -> None:
    """Prints the first table, the findings and the headline of the report in a folder."""
    found: ReportSummary = read_json(folder / SUMMARY)
    if found["table"] is not None:
        rows = [[Cell(text, strong=strong) for text, strong in row] for row in found["table"]["rows"]]
        print_tables([Table("table", found["table"]["title"], found["table"]["columns"], rows)])
    for claim in found["claims"]:
        print(flat(f"{SIGNS[claim['verdict']]} {claim['claim']}: {claim['evidence']}"))
    print(flat(found["headline"]))


def print_tables(tables: Sequence[Table]) -> None:
    """Prints tables, folded to the width of the terminal as far as their words allow."""
    console = Console()
    for table in tables:
        shown = TerminalTable(title=Text(flat(table.title)), caption=Text(flat(table.caption)), box=box.SIMPLE_HEAD)
        shown.show_edge, shown.padding = False, (0, 1, 0, 0)
        numeric = numeric_columns(table)
        cells = [[flat(row[at].text) for row in table.rows] for at in range(len(table.columns))]
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
            shown.add_row(*(Text(flat(cell.text), style="bold" if cell.strong else "") for cell in row))
        console.print(shown)
