"""The files of a report: page, Markdown, CSV tables, figures as SVG and PNG, data cards, statements and a summary."""

from __future__ import annotations

import csv
import importlib.util
import io
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import resvg_py

from tasks.reporting.document import SIGNS, Document, Table, Verdict
from tasks.reporting.markdown import as_markdown
from tasks.reporting.page import card_files, report_page, statements_page
from tasks.reporting.svg import standalone
from tasks.runtime.home import whole_file, write_json, write_text

PAGE, MARKDOWN, SUMMARY, STATEMENTS = "page.html", "report.md", "summary.json", "statements.html"
_PNG_ZOOM = 3  # for print and screens of high density
_FONT = "DejaVu Sans"


class Claim(TypedDict):
    """A finding in a summary."""

    claim: str
    verdict: Verdict
    evidence: str


class SummaryCaveat(TypedDict):
    """A caveat in a summary."""

    claim: str
    consequence: str
    serious: bool


class SummaryTable(TypedDict):
    """The text of a table; each cell is a pair of its text and whether it is strong."""

    title: str
    columns: list[str]
    rows: list[list[list[Any]]]


class ReportSummary(TypedDict):
    """``summary.json``: what the index and the terminal show of a report.

    Summaries of earlier versions have no ``verdict`` and no ``caveats``.
    """

    pipeline: str
    profile: str
    run: str
    title: str
    shows: str
    headline: str
    finished: str
    findings: dict[Verdict, int]
    claims: list[Claim]
    table: SummaryTable | None
    only_for_tests: bool
    verdict: NotRequired[str]
    caveats: NotRequired[list[SummaryCaveat]]


def write_report(folder: Path, document: Document) -> list[Path]:
    """Writes all files of a report and returns their paths.

    Args:
        folder: an existing folder. Each file appears in it complete, under its final name.
        document: the report.

    Raises:
        ValueError: a table's or figure's name is not a file name, or two of them share one. Nothing is written then.
    """
    tables = [*document.tables, *document.details]
    figures = [*document.figures, *document.more_figures]
    for named in (tables, figures):
        _check_names([item.name for item in named])
    texts = {PAGE: report_page(document), MARKDOWN: as_markdown(document)}
    texts |= {file: document.cards[name] for name, file in card_files(document).items()}
    texts |= {STATEMENTS: statements_page(document)} if document.statements else {}
    texts |= {f"{table.name}.csv": as_csv(table) for table in tables}
    drawings = {figure.name: standalone(figure.svg) for figure in figures}
    texts |= {f"{name}.svg": svg for name, svg in drawings.items()}
    for name, text in texts.items():
        # A str may hold half a surrogate pair, which UTF-8 cannot encode.
        write_text(folder / name, text.encode("utf-8", "replace").decode())
    for name, svg in drawings.items():
        with whole_file(folder / f"{name}.png") as temporary:
            temporary.write_bytes(as_png(svg))
    # Written last, because the index counts a folder with a summary as a finished report.
    write_json(folder / SUMMARY, summary(document))
    return [folder / name for name in (*texts, *(f"{name}.png" for name in drawings), SUMMARY)]


def summary(document: Document) -> ReportSummary:
    """Returns what the index and the terminal show of a report."""
    verdicts = Counter(finding.verdict for finding in document.findings)
    return {
        "pipeline": document.pipeline,
        "profile": document.profile,
        "run": document.run,
        "title": document.title,
        "shows": document.shows,
        "headline": document.headline,
        "finished": document.finished,
        "findings": {verdict: verdicts[verdict] for verdict in SIGNS},
        "claims": [
            {"claim": finding.claim, "verdict": finding.verdict, "evidence": finding.evidence}
            for finding in document.findings
        ],
        "table": _summary_table(document.tables[0]) if document.tables else None,
        "only_for_tests": document.only_for_tests,
        "verdict": document.verdict,
        "caveats": [
            {"claim": one.claim, "consequence": one.consequence, "serious": one.serious} for one in document.caveats
        ],
    }


def report_files(folder: Path) -> dict[str, str]:
    """Returns the paths of the files that a person or a program opens first."""
    return {"page": str(folder / PAGE), "markdown": str(folder / MARKDOWN), "table": str(folder / "table.csv")}


def as_csv(table: Table) -> str:
    """Returns the records of a table as CSV, floats with 8 significant digits; its cell texts if it has no records.

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


def as_png(svg: str) -> bytes:
    """Returns an SVG as PNG at three times its size. It uses no system font, so it is the same on every machine."""
    fonts = _fonts()
    return resvg_py.svg_to_bytes(
        svg_string=svg.encode("utf-8", "replace").decode(),
        zoom=_PNG_ZOOM,
        skip_system_fonts=True,
        font_files=[str(fonts / "DejaVuSans.ttf"), str(fonts / "DejaVuSans-Bold.ttf")],
        font_family=_FONT,
        sans_serif_family=_FONT,
    )


def _fonts() -> Path:
    """Returns the folder of the fonts that come with Matplotlib, which MLflow depends on.

    Matplotlib is located but not imported: importing it creates a folder in the user's home.
    """
    found = importlib.util.find_spec("matplotlib")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "mpl-data" / "fonts" / "ttf"


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
            raise ValueError(f"{name!r} is not a file name: use ASCII letters, digits, '_', '-' and '.'")
    if len(set(map(str.lower, names))) < len(names):
        raise ValueError(f"file names are not distinct: {', '.join(names)}")


def _summary_table(table: Table) -> SummaryTable:
    rows: list[list[list[Any]]] = [[[cell.text, cell.strong] for cell in row] for row in table.rows]
    return {"title": table.title, "columns": list(table.columns), "rows": rows}


def _csv_value(value: Any) -> Any:
    return f"{value:.8g}" if isinstance(value, float) else value
