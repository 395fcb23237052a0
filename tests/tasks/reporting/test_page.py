"""The page of a report: it is whole, it loads nothing, and whatever a document says stays text."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from tasks.document import Cell, Table
from tasks.html_page import html_table, link_to, numeric_columns
from tasks.report_page import report_page
from tests.documents import HOSTILE, SHOWN, Page, make_document, make_figure, make_table


def assert_needs_nothing(html: str) -> None:
    """Nothing is loaded from elsewhere, and only links lead there."""
    page = Page(html)
    assert [found.get("src") for _, found in page.tags if "src" in found] == []
    assert not {tag for tag, _ in page.tags} & {"img", "object", "embed", "base", "form", "audio", "video", "use"}
    assert [found["href"] for found in page.all("link")] == ["data:,"]
    assert all(
        tag == "a" or not re.search("https?://", value or "")
        for tag, found in page.tags
        for name, value in found.items()
        if name != "srcdoc"
    )
    for style in re.findall("<style>(.*?)</style>", html, re.DOTALL):
        assert not re.search(r"url\(|@import|https?:", style)
    assert "http" not in page.script
    assert not any(name.startswith("on") for _, found in page.tags for name in found)
    (policy,) = (found["content"] or "" for found in page.all("meta") if "http-equiv" in found)
    digest = base64.b64encode(hashlib.sha256(page.script.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


@pytest.mark.parametrize("text", ["words", HOSTILE])
def test_whatever_a_document_says_stays_text(text: str) -> None:
    html = report_page(make_document(text))
    assert_needs_nothing(html)
    page = Page(html)
    assert len(page.all("script")) == 1
    shown = SHOWN if text == HOSTILE else text
    # The title twice, two notes, three claims with evidence, and so on: it is everywhere.
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
    assert_needs_nothing(bare)


def test_verdicts_differ_without_colours() -> None:
    text = Page(report_page(make_document())).text
    assert text.count("✓ shown") == 2
    assert text.count("≈ within noise") == 1
    assert "✗" not in text


def test_a_command_of_several_lines_can_be_copied_as_it_is() -> None:
    html = report_page(make_document(command="make run \\\n  RAW='a & b'"))
    assert '<code id="command">make run \\\n  RAW=&#x27;a &amp; b&#x27;</code>' in html
    assert 'data-copies="command"' in html


def test_cells_have_their_notes_links_and_numbers_to_sort_by() -> None:
    html = html_table(make_table())
    page = Page(html)
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
    # A note can be reached with the keyboard, also where the link is one that must not be followed.
    assert [found["title"] for found in page.all("span")] == ["pcvr\nseeds: 3", "pcvr"]
    assert all(found["tabindex"] == "0" for found in page.all("span"))
    assert [found["href"] for found in page.all("a")] == ["http://127.0.0.1:5000/#/runs/1", "pcvr"]
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
    assert link_to(target, "<b>x</b>") == "<b>x</b>"
    assert link_to("a/page.html", "x") == '<a href="a/page.html">x</a>'


def test_names_of_files_stay_inside_the_folder() -> None:
    odd = '../"x'
    page = Page(report_page(make_document(figures=[make_figure(name=odd)], tables=[make_table(name=odd)])))
    hrefs = [found["href"] for found in page.all("a") if "download" in found]
    assert hrefs[:3] == ["..%2F%22x.svg", "..%2F%22x.png", "..%2F%22x.csv"]
