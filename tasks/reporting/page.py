"""A pipeline run's results as one HTML page that needs nothing from elsewhere.

Everything in a document is text, whatever it contains, except figures, which are plots of this project, and data
cards, which are shown in frames where no script runs.
"""

from __future__ import annotations

from collections.abc import Iterable

from tasks.document import Document, Figure, Finding, Table
from tasks.html_page import badge, beside, html_table, lines, link_to, one_line, page


def report_page(document: Document) -> str:
    """The page. Figures and tables are linked as files beside it, as ``report_files.write_report`` leaves them."""
    facts = [document.shows, f"profile {document.profile}", f"run {document.run}", f"finished {document.finished}"]
    sections = [
        f"<h1>{one_line(document.title)}</h1>",
        f'<p class="facts">{" · ".join(one_line(fact) for fact in facts if fact)}</p>',
        f'<p class="headline">{one_line(document.headline)}</p>',
        _section("Figures", _wrapped("div", "plots", map(_figure, document.figures))),
        _section("Tables", _wrapped("div", "tables", (html_table(table, csv=True) for table in document.tables))),
        _section("Findings", _wrapped("ul", "findings", map(_finding, document.findings))),
        _section("Notes", "\n".join(f'<p class="note">{one_line(note)}</p>' for note in document.notes)),
        _section("Command", _command(document.command)),
        _section("Details", "\n".join(_detail(table) for table in document.details)),
        _section("Data cards", "\n".join(_card(name, card) for name, card in document.cards.items())),
        _section("Provenance", _provenance(document)),
    ]
    return page(f"{document.title} · {document.run}", sections)


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>\n{content}" if content else ""


def _wrapped(tag: str, kind: str, parts: Iterable[str]) -> str:
    content = "\n".join(parts)
    return f'<{tag} class="{kind}">\n{content}\n</{tag}>' if content else ""


def _figure(figure: Figure) -> str:
    links = "".join(
        f'<a href="{beside(figure.name, ending)}" download>{ending.upper()}</a>' for ending in ("svg", "png")
    )
    caption = f"<figcaption>{one_line(figure.caption)}</figcaption>" if figure.caption else ""
    return f'<figure><h3>{one_line(figure.title)}</h3>{figure.svg}{caption}<p class="links">{links}</p></figure>'


def _finding(finding: Finding) -> str:
    return (
        f"<li>{badge(finding.verdict, finding.verdict)}{one_line(finding.claim)}"
        f'<br><span class="evidence">{one_line(finding.evidence)}</span></li>'
    )


def _command(command: str) -> str:
    button = '<p class="tools"><button type="button" class="copy" data-copies="command">Copy</button></p>'
    return f'<pre><code id="command">{lines(command)}</code></pre>\n{button}' if command else ""


def _detail(table: Table) -> str:
    rows = f"{len(table.rows):,} row{'s' * (len(table.rows) != 1)}"
    return (
        f"<details><summary>{one_line(table.title)} ({rows})</summary>\n"
        f"{html_table(table, csv=True, heading=False)}</details>"
    )


def _card(name: str, card: str) -> str:
    """A page in a frame without scripts. The origin is ours only so that the frame can be made as high as its page."""
    frame = (
        f'<iframe sandbox="allow-same-origin" loading="lazy" title="{one_line(name)}" srcdoc="{lines(card)}"></iframe>'
    )
    return f'<details class="card"><summary>Data card: {one_line(name)}</summary>\n{frame}</details>'


def _provenance(document: Document) -> str:
    rows = [
        f'<tr><th scope="row">{one_line(name)}</th><td class="value">{one_line(value)}</td></tr>'
        for name, value in document.provenance.items()
    ]
    table = f'<div class="scroll"><table><tbody>\n{chr(10).join(rows)}\n</tbody></table></div>' if rows else ""
    link = link_to(document.mlflow_link, f"This run in MLflow: {one_line(document.mlflow_link)}")
    return table + (f"\n<p>{link}</p>" if document.mlflow_link else "")
