"""The files of a report: a page, Markdown, a CSV for every table, every figure as SVG and PNG, and a summary."""

from __future__ import annotations

import csv
import importlib.util
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import resvg_py
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from tasks.document import Cell, Document, Table
from tasks.home import read_json, whole_file, write_json, write_text
from tasks.html_page import SIGNS, numeric_columns
from tasks.report_page import report_page
from tasks.svg_plots import standalone

PAGE, MARKDOWN, SUMMARY = "page.html", "report.md", "summary.json"
_ZOOM = 2  # for screens and print of a higher density
_FONT = "DejaVu Sans"


def write_report(folder: Path, document: Document) -> list[Path]:
    """Writes all files of a report into a folder that exists, each of them whole, and returns their paths.

    Raises ValueError before it writes anything if two tables or two figures have the same name, or a name is not one
    for a file.
    """
    tables = [*document.tables, *document.details]
    for named in (tables, document.figures):
        _check_names([item.name for item in named])
    texts = {PAGE: report_page(document), MARKDOWN: as_markdown(document)}
    texts |= {f"{table.name}.csv": as_csv(table) for table in tables}
    drawings = {figure.name: standalone(figure.svg) for figure in document.figures}
    texts |= {f"{name}.svg": svg for name, svg in drawings.items()}
    for name, text in texts.items():
        # Half of a character outside the basic plane can be in a str and not in a file.
        write_text(folder / name, text.encode("utf-8", "replace").decode())
    for name, svg in drawings.items():
        with whole_file(folder / f"{name}.png") as temporary:
            temporary.write_bytes(as_png(svg))
    # Last, because the index takes a folder with a summary for a finished report.
    write_json(folder / SUMMARY, summary(document))
    return [folder / name for name in (*texts, *(f"{name}.png" for name in drawings), SUMMARY)]


def summary(document: Document) -> dict[str, Any]:
    """What the index and the terminal say of a report."""
    names = ("pipeline", "profile", "run", "title", "shows", "headline", "finished")
    verdicts: Counter[str] = Counter(finding.verdict for finding in document.findings)
    return {name: getattr(document, name) for name in names} | {
        "findings": {verdict: verdicts[verdict] for verdict in SIGNS},
        "claims": [finding._asdict() for finding in document.findings],
        "table": _without_numbers(document.tables[0]) if document.tables else None,
    }


def report_files(folder: Path) -> dict[str, str]:
    """The files that a person or a program looks for first."""
    return {"page": str(folder / PAGE), "markdown": str(folder / MARKDOWN), "table": str(folder / "table.csv")}


def print_report(folder: Path) -> None:
    """Prints what a report found: its first table, its claims and its headline."""
    found = read_json(folder / SUMMARY)
    if found["table"] is not None:
        rows = [[Cell(text, strong=strong) for text, strong in row] for row in found["table"]["rows"]]
        print_document_tables([Table("table", found["table"]["title"], found["table"]["columns"], rows)])
    for claim in found["claims"]:
        print(_flat(f"{SIGNS[claim['verdict']]} {claim['claim']}: {claim['evidence']}"))
    print(_flat(found["headline"]))


def _without_numbers(table: Table) -> dict[str, Any]:
    rows = [[[cell.text, cell.strong] for cell in row] for row in table.rows]
    return {"title": table.title, "columns": list(table.columns), "rows": rows}


def as_png(svg: str) -> bytes:
    """A drawing as PNG at twice its size. It is the same everywhere: no font of the machine is used."""
    fonts = _fonts()
    return resvg_py.svg_to_bytes(
        svg_string=svg.encode("utf-8", "replace").decode(),
        zoom=_ZOOM,
        skip_system_fonts=True,
        font_files=[str(fonts / "DejaVuSans.ttf"), str(fonts / "DejaVuSans-Bold.ttf")],
        font_family=_FONT,
        sans_serif_family=_FONT,
    )


def as_csv(table: Table) -> str:
    """The numbers behind a table with 8 significant digits, or its texts where it has no records.

    >>> print(as_csv(Table("t", "", ["ε"], [], records=[{"epsilon": 1 / 3, "loss": None}])), end="")
    epsilon,loss
    0.33333333,
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if table.records:
        writer.writerow(table.records[0])
        writer.writerows([_csv_value(record[name]) for name in table.records[0]] for record in table.records)
    else:
        writer.writerow(table.columns)
        writer.writerows([cell.text for cell in row] for row in table.rows)
    return buffer.getvalue()


def as_markdown(document: Document) -> str:
    """The report for a terminal and for GitHub. Links of single cells, and their notes, are only on the page."""
    facts = [document.shows, f"profile {document.profile}", f"run {document.run}", f"finished {document.finished}"]
    parts = [
        f"# {_plain(document.title)}",
        _paragraph(" · ".join(fact for fact in facts if fact)),
        f"**{_plain(document.headline)}**" if document.headline.strip() else "",
        *(_markdown_section(table) for table in document.tables),
        *_headed(
            "Findings",
            "\n".join(
                f"- {SIGNS[finding.verdict]} **{finding.verdict}**: {_plain(finding.claim)} {_plain(finding.evidence)}"
                for finding in document.findings
            ),
        ),
        *_headed("Notes", "\n\n".join(_paragraph(note) for note in document.notes)),
        *_headed("Command", _fenced(document.command)),
        *(_markdown_section(table) for table in document.details),
        *_headed(
            "Provenance",
            _markdown_table(
                Table(
                    "", "", ["name", "value"], [[Cell(name), Cell(text)] for name, text in document.provenance.items()]
                )
            ),
        ),
        f"MLflow: {_plain(document.mlflow_link)}" if document.mlflow_link else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def print_document_tables(tables: Sequence[Table]) -> None:
    """Prints tables to the terminal; they fit 80 columns unless a word does not."""
    console = Console()
    for table in tables:
        shown = TerminalTable(title=Text(_flat(table.title)), caption=Text(_flat(table.caption)), box=box.SIMPLE_HEAD)
        shown.show_edge, shown.padding = False, (0, 1, 0, 0)
        numeric = numeric_columns(table)
        cells = [[_flat(row[at].text) for row in table.rows] for at in range(len(table.columns))]
        # Headers are folded between words before numbers are.
        least = [
            max(map(cell_len, [*texts, *_flat(column).split()]), default=0)
            for column, texts in zip(table.columns, cells, strict=True)
        ]
        fits = sum(least) + len(least) <= console.width
        for column, number, width in zip(table.columns, numeric, least, strict=True):
            most = width if number and fits else None
            shown.add_column(Text(_flat(column)), justify="right" if number else "left", overflow="fold", width=most)
        for row in table.rows:
            shown.add_row(*(Text(_flat(cell.text), style="bold" if cell.strong else "") for cell in row))
        console.print(shown)


def _fonts() -> Path:
    """The fonts that come with Matplotlib, which MLflow needs. To import it would make a folder in the user's home."""
    found = importlib.util.find_spec("matplotlib")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "mpl-data" / "fonts" / "ttf"


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
            raise ValueError(f"{name!r} is no name for a file")
    if len(set(map(str.lower, names))) < len(names):
        raise ValueError(f"names are not distinct: {', '.join(names)}")


def _csv_value(value: Any) -> Any:
    return f"{value:.8g}" if isinstance(value, float) else value


def _flat(text: str) -> str:
    """Text on one line, without characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def _plain(text: str) -> str:
    r"""Text that Markdown shows as it is, and that a terminal still shows well.

    >>> print(_plain("a|b\nc <i> < 3 [x](y)"))
    a\|b c \<i> < 3 [x]\(y)
    """
    text = re.sub(r"([\\|*`])", r"\\\1", _flat(text))
    return re.sub(r"<(?=[A-Za-z/!?])", r"\<", text).replace("](", r"]\(")


def _paragraph(text: str) -> str:
    r"""The same at the beginning of a line, where it must not be a heading, a quotation, a list or a rule.

    >>> print(_paragraph("1. May"), _paragraph("# 2"), _paragraph("0.5 is less"))
    1\. May \# 2 0.5 is less
    """
    return re.sub(r"^(\d*)([#>+.)=_-])(?=[\s#=_-]|$)", r"\1\\\2", _plain(text))


def _headed(title: str, content: str) -> Iterable[str]:
    return [f"## {title}", content] if content else []


def _fenced(command: str) -> str:
    if not command:
        return ""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
    return f"{fence}sh\n{command}\n{fence}"


def _markdown_section(table: Table) -> str:
    parts = [f"## {_plain(table.title)}", _paragraph(table.caption), _markdown_table(table)]
    return "\n\n".join(part for part in parts if part)


def _markdown_table(table: Table) -> str:
    """Columns have a common width, so that the text is a table also where Markdown is not read."""
    if not table.rows:
        return ""
    texts = [[_plain(column) for column in table.columns]]
    texts += [[f"**{_plain(cell.text)}**" if cell.strong else _plain(cell.text) for cell in row] for row in table.rows]
    numeric = numeric_columns(table)
    widths = [max(3, *map(cell_len, column)) for column in zip(*texts, strict=True)]
    rules = ["-" * (width - 1) + ":" if number else "-" * width for width, number in zip(widths, numeric, strict=True)]
    rows = []
    for row in [texts[0], rules, *texts[1:]]:
        cells = []
        for text, width, number in zip(row, widths, numeric, strict=True):
            space = " " * (width - cell_len(text))
            cells.append(space + text if number else text + space)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
