"""Pages of HTML: renders the templates of this room, and the page of a report with them.

A page is self-contained: its style and script are inlined, and its policy lets the browser load nothing else. Jinja2
escapes every text. The only markup that a page takes from outside the templates is a plot of `tasks.reporting.plots`
and a privacy statement, in which HTML stays text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.reporting.document import SIGNS, Document, Table, numeric_columns
from tasks.reporting.targets import IN_MLFLOW
from tasks.reporting.terms import terms_in
from tasks.reporting.typesetting import held_together, runs, typeset

_LONG_TEXT = 90
_TEMPLATES = Path(__file__).parent / "templates"


def report_page(document: Document) -> str:
    """Returns the page of a report; it links the files that `write_report` leaves in the same folder."""
    terms = terms_in(_texts(document))
    folded = terms_in(text for table in document.details for text in _table_texts(table))
    return render(
        "report.html",
        document=document,
        terms=terms,
        terms_of_details={term: text for term, text in folded.items() if term not in terms},
        card_files=card_files(document),
    )


def statements_page(document: Document) -> str:
    """Returns the page of the privacy statements of a report's trials."""
    return render("statements.html", document=document)


def card_files(document: Document) -> dict[str, str]:
    """Returns the file beside the page that holds each dataset's card.

    >>> _card_file("my logs/ε", 2)
    'data_card_2_my_logs.html'
    """
    return {name: _card_file(name, number) for number, name in enumerate(document.cards, 1)}


def _card_file(dataset: str, number: int) -> str:
    plain = re.sub(r"[^A-Za-z0-9]+", "_", dataset).strip("_")[:60]
    return f"data_card_{plain}.html" if plain == dataset else f"data_card_{number}_{plain}.html"


def _texts(document: Document) -> Iterator[str]:
    """Yields the texts that a reader sees without unfolding anything."""
    yield from (document.title, document.headline, *document.notes)
    for figure in (*document.figures, *document.more_figures):
        yield from (figure.title, figure.caption, figure.svg)
    for table in document.tables:
        yield from _table_texts(table)
    for finding in document.findings:
        yield from (finding.claim, finding.evidence)
    for caveat in document.caveats:
        yield from (caveat.claim, caveat.consequence)


def _table_texts(table: Table) -> Iterator[str]:
    yield from (table.title, table.caption, *table.columns, *(cell.text for row in table.rows for cell in row))


def render(template: str, **values: object) -> str:
    """Renders a template of this room. Every text among the values is escaped.

    Args:
        template: file name in ``templates/``.
        **values: the template's variables. A missing one raises ``jinja2.UndefinedError``.
    """
    return _environment().get_template(template).render(values)


def path_in_mlflow(target: str) -> str:
    """Returns the path of a target in MLflow (`tasks.reporting.targets`), and an empty text for other targets.

    >>> path_in_mlflow("mlflow:experiments/1"), path_in_mlflow("https://example.org")
    ('experiments/1', '')
    """
    return target.removeprefix(IN_MLFLOW) if target.startswith(IN_MLFLOW) else ""


def followable(target: str) -> str:
    """Returns a link's target if it is on the web or beside the page, and an empty text otherwise.

    >>> followable(" https://example.org/a"), followable("run/page.html"), followable("javascript:alert(1)")
    ('https://example.org/a', 'run/page.html', '')
    """
    target = target.strip()
    scheme = re.match(r"([a-z][a-z0-9+.-]*):", target, re.IGNORECASE)
    return "" if scheme and scheme[1].lower() not in ("http", "https") else target


def plot(svg: str) -> Markup:
    """Returns a plot of `tasks.reporting.plots` as markup, which pages do not escape."""
    if not svg.startswith("<svg "):
        raise ValueError(f"a plot begins with '<svg ', not with {svg[:20]!r}")
    return Markup(svg)


def as_markup(text: str) -> Markup:
    """Returns Markdown as markup, typeset, with headings one level lower. HTML in it stays text."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{int(token.tag[1]) + 1}"
        for child in token.children or ():
            if child.type == "text":
                child.content = held_together(typeset(child.content))
    return Markup(reader.renderer.render(tokens, reader.options, {}))


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    style, script = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {
        "style": Markup(style),
        "script": Markup(script),
        "script_digest": digest,
        "signs": SIGNS,
    }
    environment.filters |= {
        "followable": followable,
        "held_together": held_together,
        "has_long_text": _has_long_text,
        "numeric_columns": numeric_columns,
        "path_in_mlflow": path_in_mlflow,
        "plot": plot,
        "runs": runs,
        "typeset": typeset,
        "as_markup": as_markup,
        "sort_key": _sort_key,
        "url_part": _url_part,
    }
    return environment


def _printable(value: object) -> object:
    """Replaces control characters and lone surrogates, which have no place in HTML.

    Line breaks and no-break spaces stay.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(
        c if c.isprintable() or c in "\n\N{NO-BREAK SPACE}" else " " if c.isspace() else "\ufffd" for c in value
    )


def _has_long_text(table: Table) -> bool:
    """Returns whether a cell has so much text that its row would be very high on a narrow screen.

    A table of names and values has room for it.
    """
    return len(table.columns) > 2 and any(len(cell.text) > _LONG_TEXT for row in table.rows for cell in row)


def _url_part(name: str) -> str:
    return quote(name, safe="", errors="replace")


def _sort_key(value: float) -> str:
    """Returns a number in JavaScript's spelling."""
    return repr(float(value)).replace("inf", "Infinity").replace("nan", "NaN")
