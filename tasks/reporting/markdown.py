"""A report as Markdown, for a terminal and for GitHub."""

from __future__ import annotations

import re

from rich.cells import cell_len

from tasks.reporting.document import SIGNS, Caveat, Cell, Document, Table, flat, numeric_columns
from tasks.reporting.targets import IN_MLFLOW
from tasks.reporting.typesetting import Run, runs


def as_markdown(document: Document) -> str:
    """Returns the report as Markdown. Links and notes of cells are only on the page."""
    facts = [document.shows, f"profile {document.profile}", f"run {document.run}", f"finished {document.finished}"]
    findings = [
        f"- {SIGNS[finding.verdict]} **{finding.verdict}**: {_plain(finding.claim)}: {_plain(finding.evidence)}"
        for finding in document.findings
    ]
    provenance = [[Cell(name), Cell(text)] for name, text in document.provenance.items()]
    parts = [
        f"# {_plain(document.title)}",
        f"**{document.warning}**" if document.warning else "",
        _paragraph(" · ".join(fact for fact in facts if fact)),
        f"**{_plain(document.headline)}**" if document.headline.strip() else "",
        f"**{_plain(document.verdict)}**" if document.verdict else "",
        *map(_table_section, document.tables),
        _section("What else could explain the numbers", "\n".join(_caveat(caveat) for caveat in document.caveats)),
        _section("Findings", "\n".join(findings)),
        _section("Notes", "\n\n".join(map(_paragraph, document.notes))),
        _section("Command", _fenced(document.command)),
        *map(_table_section, document.details),
        _section("Provenance", table_text(Table("", "", ["name", "value"], provenance))),
        f"MLflow: {_plain(document.mlflow_link.removeprefix(IN_MLFLOW))}" if document.mlflow_link else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _caveat(caveat: Caveat) -> str:
    return f"- {'**†** ' if caveat.serious else ''}{_plain(caveat.claim)}: {_plain(caveat.consequence)}"


def _plain(text: str) -> str:
    r"""Escapes the characters that Markdown would interpret, and no more, so that a terminal shows the text well.

    Code between pairs of backquotes stays code.

    >>> print(_plain("a|b\nc <i> < 3 [x](y) `*p|q*`"))
    a\|b c \<i> < 3 [x]\(y) `*p\|q*`
    """
    return "".join(_escaped_run(run) for run in runs(flat(text)))


def _escaped_run(run: Run) -> str:
    if run.code:
        # A bar ends the cell of a table even inside code.
        return f"`{run.text.replace('|', chr(92) + '|')}`"
    text = re.sub(r"([\\|*`])", r"\\\1", run.text)
    return re.sub(r"<(?=[A-Za-z/!?])", r"\<", text).replace("](", r"]\(")


def _paragraph(text: str) -> str:
    r"""Escapes a paragraph, which must not start a heading, a quotation, a list or a rule.

    >>> print(_paragraph("1. May"), _paragraph("# 2"), _paragraph("0.5 is less"))
    1\. May \# 2 0.5 is less
    """
    return re.sub(r"^(\d*)([#>+.)=_-])(?=[\s#=_-]|$)", r"\1\\\2", _plain(text))


def _section(title: str, content: str) -> str:
    return f"## {title}\n\n{content}" if content else ""


def _fenced(command: str) -> str:
    if not command:
        return ""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
    return f"{fence}sh\n{command}\n{fence}"


def _table_section(table: Table) -> str:
    parts = [f"## {_plain(table.title)}", _paragraph(table.caption), table_text(table)]
    return "\n\n".join(part for part in parts if part)


def table_text(table: Table) -> str:
    """Returns the rows of a table.

    Pads columns to a common width, so that the text also reads as a table where Markdown is not rendered.
    """
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
