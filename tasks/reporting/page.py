"""Pages of HTML: renders the templates of this room, and the page of a report with them.

A page is self-contained: its style and script are inlined, and its policy lets the browser load nothing else. Jinja2
escapes every text; the only markup that a page takes from outside the templates is a plot of `tasks.reporting.plots`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.reporting.document import SIGNS, Document, numeric_columns

_TEMPLATES = Path(__file__).parent / "templates"


def report_page(document: Document) -> str:
    """Returns the page of a report; it links the files that `write_report` leaves in the same folder."""
    return render("report.html", document=document)


def render(template: str, **values: object) -> str:
    """Renders a template of this room. Every text among the values is escaped.

    Args:
        template: file name in ``templates/``.
        **values: the template's variables. A missing one raises ``jinja2.UndefinedError``.
    """
    return _environment().get_template(template).render(values)


def followable(target: str) -> str:
    """Returns a link's target if it is on the web or beside the page, and an empty text otherwise.

    >>> followable(" https://example.org/a"), followable("run/page.html"), followable("javascript:alert(1)")
    ('https://example.org/a', 'run/page.html', '')
    """
    target = target.strip()
    scheme = re.match(r"([a-z][a-z0-9+.-]*):", target, re.IGNORECASE)
    return "" if scheme and scheme[1].lower() not in ("http", "https") else target


def plot(svg: str) -> Markup:
    """Returns a plot of `tasks.reporting.plots` as markup: the only value that pages do not escape."""
    if not svg.startswith("<svg "):
        raise ValueError(f"a plot begins with '<svg ', not with {svg[:20]!r}")
    return Markup(svg)


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
        "numeric_columns": numeric_columns,
        "plot": plot,
        "sort_key": _sort_key,
        "url_part": _url_part,
    }
    return environment


def _printable(value: object) -> object:
    """Replaces control characters and lone surrogates, which have no place in HTML; line breaks stay."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(c if c.isprintable() or c == "\n" else " " if c.isspace() else "\ufffd" for c in value)


def _url_part(name: str) -> str:
    return quote(name, safe="", errors="replace")


def _sort_key(value: float) -> str:
    """Returns a number in JavaScript's spelling."""
    return repr(float(value)).replace("inf", "Infinity").replace("nan", "NaN")
