"""A small report with every kind of content, and a strict parser of pages with checks for all of them."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

from tasks.reporting.document import Cell, Document, Figure, Finding, Table
from tasks.reporting.plots import Level, line_chart
from tasks.reporting.series import Point, Series

HOSTILE = "<script>alert(1)</script> \"q\" 's' a|b & `c` *d*\n# e [f](javascript:g) \x00\x1b[31m \ud800 ε"
SHOWN = " ".join(HOSTILE.split()).replace("\x00", "\ufffd").replace("\x1b", "\ufffd").replace("\ud800", "\ufffd")
VOID = ("meta", "br", "link")


def make_figure(text: str = "AUC loss", name: str = "curves") -> Figure:
    lines = [Series(f"{text} {k}", [Point(x, 0.3 + 0.01 * k / x, 0.001) for x in (1, 2, 4)]) for k in range(2)]
    svg = line_chart(lines, title=text, x_label=text, y_label=text, levels=[Level(0.3, text)])
    return Figure(name, text, svg, text)


def make_table(text: str = "pcvr", name: str = "auc") -> Table:
    rows = [
        [
            Cell("∞", sort=float("inf")),
            Cell("0.2412 ± 0.0012", 0.2412, note=f"{text}\nseeds: 3", strong=True),
            Cell(text),
        ],
        [Cell("1"), Cell("–"), Cell(text, link="mlflow:experiments/1/runs/1")],
        [Cell("0.5"), Cell("0.2600", note=text, link=f"javascript:{text}"), Cell("< 3", link=text)],
    ]
    records = [
        {"epsilon": float("inf"), "loss": 0.241234567891, "task": text},
        {"epsilon": 1, "loss": None, "task": ""},
    ]
    return Table(name, text, ["ε", "loss", text], rows, text, records)


def make_document(text: str = "words", **changes: Any) -> Document:
    """Returns a document in which every text is ``text``."""
    values: dict[str, Any] = {
        **dict.fromkeys(("pipeline", "profile", "run", "title", "shows", "headline", "finished", "command"), text),
        "figures": [make_figure(text)],
        "tables": [make_table(text)],
        "findings": [Finding(text, "shown", text), Finding(text, "within noise", text), Finding(text, "shown", text)],
        "notes": [text, text],
        "details": [make_table(text, "trials")._replace(records=())],
        "cards": {text: f"<!DOCTYPE html>\n<p title='a \"b\"'>card &amp; {text}</p>\n"},
        "statements": {"trial-1": f"# Statement\n\n{text}\n"},
        "provenance": {text: text},
        "mlflow_link": f"mlflow:experiments/1/runs/{text}",
        "compare_link": f"mlflow:compare-runs?runs={text}",
    }
    return Document(**{**values, **changes})


class Page(HTMLParser):
    """Parses a page, fails on tags closed out of order, and collects tags, text, and tables by id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.script = self.text = ""
        self._rows: list[list[str]] = []
        self.feed(html)
        self.close()
        assert not self.open
        ids = [found["id"] for _, found in self.tags if "id" in found]
        assert len(set(ids)) == len(ids)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert len(found) == len(attrs)
        self.tags.append((tag, found))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self._rows = self.tables[found.get("id") or ""] = []
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.script += data
        elif "style" not in self.open:
            self.text += data
            if {"td", "th"} & set(self.open):
                self._rows[-1][-1] += data


def assert_self_contained(html: str) -> None:
    """Checks that a page loads nothing, runs only its own script, and names other hosts only in links."""
    page = Page(html)
    assert [found.get("src") for _, found in page.tags if "src" in found] == []
    assert not {tag for tag, _ in page.tags} & {"img", "object", "embed", "base", "form", "audio", "video", "use"}
    assert [found["href"] for found in page.all("link")] == ["data:,"]
    assert all(
        tag == "a" or not re.search("https?://", value or "")
        for tag, found in page.tags
        for name, value in found.items()
    )
    for style in re.findall("<style>(.*?)</style>", html, re.DOTALL):
        assert not re.search(r"url\(|@import|https?:", style)
    assert "://" not in page.script
    assert not any(name.startswith("on") for _, found in page.tags for name in found)
    (policy,) = (found["content"] or "" for found in page.all("meta") if "http-equiv" in found)
    digest = base64.b64encode(hashlib.sha256(page.script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
