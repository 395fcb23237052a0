"""The page of a report: complete, self-contained, and every text of a document escaped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError

import tasks
from tasks.reporting.document import Cell, Table, numeric_columns
from tasks.reporting.page import followable, plot, render, report_page
from tests.support.documents import HOSTILE, SHOWN, Page, assert_self_contained, make_document, make_figure, make_table

TASKS = Path(tasks.__file__).parent


@pytest.mark.parametrize("text", ["words", HOSTILE])
def test_every_text_of_a_document_is_escaped(text: str) -> None:
    html = report_page(make_document(text))
    assert_self_contained(html)
    page = Page(html)
    assert len(page.all("script")) == 1
    shown = SHOWN if text == HOSTILE else text
    # Twice in titles, in notes, in claims and their evidence, and so on.
    assert " ".join(page.text.split()).count(shown) > 25
    for found in page.all("a"):
        assert re.match(r"http://127\.0\.0\.1:5000/|curves\.|auc\.|trials\.|words$|<script>", found["href"] or "")
    html.encode()


def test_a_data_card_is_in_a_frame_without_scripts() -> None:
    card = "<!DOCTYPE html>\n<p title='a \"b\"'>&amp; <b>&lt;i&gt;</b></p>\n<script>alert(1)</script>"
    page = Page(report_page(make_document(cards={"logs": card, "clicks": "<p>"})))
    first, second = page.all("iframe")
    assert first["srcdoc"] == card
    assert second["srcdoc"] == "<p>"
    assert first["sandbox"] == "allow-same-origin"
    assert "allow-scripts" not in str(page.tags)
    assert page.open == []


def test_contents_come_in_the_order_of_the_contract() -> None:
    html = report_page(make_document(mlflow_link="http://host/run"))
    headings = re.findall("<h2>(.*?)</h2>", html)
    assert headings == [
        "Figures",
        "Tables",
        "Findings",
        "Notes",
        "Command",
        "Details",
        "Data cards",
        "Provenance",
    ]
    links = [found["href"] for found in Page(html).all("a") if "download" in found]
    assert links == ["curves.svg", "curves.png", "auc.csv", "trials.csv"]
    assert '<a href="http://host/run">' in html
    empty = dict.fromkeys(("figures", "tables", "findings", "notes", "details", "cards", "provenance"), ())
    bare = report_page(make_document(**{**empty, "cards": {}, "provenance": {}}, command="", mlflow_link=""))
    assert "<h2>" not in bare
    assert_self_contained(bare)


def test_verdicts_differ_without_colours() -> None:
    text = Page(report_page(make_document())).text
    assert text.count("✓ shown") == 2
    assert text.count("≈ within noise") == 1
    assert "✗" not in text


def test_a_command_of_several_lines_can_be_copied_as_it_is() -> None:
    html = report_page(make_document(command="make run \\\n  RAW='a & b'"))
    assert '<code id="command">make run \\\n  RAW=&#39;a &amp; b&#39;</code>' in html
    assert 'data-copies="command"' in html


def test_cells_have_their_notes_links_and_numbers_to_sort_by() -> None:
    page = Page(report_page(make_document("pcvr", figures=[], details=[], findings=[], mlflow_link="", command="")))
    assert page.tables["table-auc"] == [
        ["ε", "loss", "pcvr"],
        ["∞", "0.2412 ± 0.0012", "pcvr"],
        ["1", "–", "pcvr"],
        ["0.5", "0.2600", "< 3"],
    ]
    cells = page.all("td")
    assert [cell.get("data-sort") for cell in cells] == ["Infinity", "0.2412", *[None] * 7]
    assert [cell.get("class") for cell in cells[:3]] == ["number", "number", None]
    assert page.all("strong")
    # The keyboard reaches notes, also where the link must not be followed.
    assert [found["title"] for found in page.all("span")] == ["pcvr\nseeds: 3", "pcvr"]
    assert all(found["tabindex"] == "0" for found in page.all("span"))
    assert [found["href"] for found in page.all("a")] == ["http://127.0.0.1:5000/#/runs/1", "pcvr", "auc.csv"]
    assert [header["aria-sort"] for header in page.all("th")] == ["none"] * 3
    assert len(page.all("button")) == 4


def test_columns_of_numbers() -> None:
    columns = {
        "loss": ("0.25", "1,024.5", "–"),
        "spread": ("0.2412 ± 0.0012", "-3 %", "1e-5"),
        "budget": ("0.5", "∞", "none"),
        "day": ("2024-02-01", "2024-02-02", "2024-02-03"),
        "hash": ("0a3efb80", "53c617eb", "12345678"),
        "empty": ("", "", ""),
        "sparse": ("", "3 (of 4)", ""),
    }
    rows = [[Cell(texts[at]) for texts in columns.values()] for at in range(3)]
    found = dict(zip(columns, numeric_columns(Table("t", "", list(columns), rows)), strict=True))
    assert [name for name, number in found.items() if number] == ["loss", "spread", "budget", "sparse"]


@pytest.mark.parametrize("target", ["javascript:alert(1)", " JavaScript:x", "data:text/html,x", "file:///etc", "", " "])
def test_links_lead_only_to_the_web_or_beside_the_page(target: str) -> None:
    assert followable(target) == ""
    assert followable("a/page.html") == "a/page.html"
    table = Table("t", "", ["a"], [[Cell("<b>x</b>", link=target)], [Cell("y", link="a/page.html")]])
    page = Page(report_page(make_document(tables=[table], details=[], figures=[], mlflow_link=target)))
    assert [found["href"] for found in page.all("a")] == ["a/page.html", "t.csv"]
    assert page.tables["table-t"] == [["a"], ["<b>x</b>"], ["y"]]


def test_names_of_files_stay_inside_the_folder() -> None:
    odd = '../"x'
    page = Page(report_page(make_document(figures=[make_figure(name=odd)], tables=[make_table(name=odd)])))
    hrefs = [found["href"] for found in page.all("a") if "download" in found]
    assert hrefs[:3] == ["..%2F%22x.svg", "..%2F%22x.png", "..%2F%22x.csv"]


def test_markup_comes_only_from_plots() -> None:
    assert str(plot("<svg viewBox=''></svg>")) == "<svg viewBox=''></svg>"
    with pytest.raises(ValueError, match="begins with '<svg '"):
        plot("<script>alert(1)</script>")
    with pytest.raises(ValueError, match="begins with '<svg '"):
        report_page(make_document(figures=[make_figure()._replace(svg="<b>bold</b>")]))


def test_a_template_with_a_missing_value_fails() -> None:
    with pytest.raises(UndefinedError):
        render("report.html")


def test_code_in_notes() -> None:
    page = Page(report_page(make_document(notes=["see `a<b>` and `c`", "one ` alone"], command="")))
    assert len(page.all("code")) == 2
    assert "see a<b> and c" in page.text
    assert "one ` alone" in page.text


def test_markup_is_in_templates() -> None:
    """No module writes HTML itself; the modules of plots write only SVG."""
    tag = re.compile(r"</?(?:a|body|div|h\d|html|iframe|li|p|script|section|span|style|t[dhr]|table|ul)\b[^>\n]*>")
    for module in sorted(TASKS.rglob("*.py")):
        assert not tag.search(module.read_text(encoding="utf-8")), module
    templates = {path.name for path in (TASKS / "reporting" / "templates").iterdir()}
    assert templates == {
        *("base.html", "parts.html", "style.css", "script.js"),
        *("report.html", "index.html", "data_card.html"),
    }
