"""The page of a report: complete, self-contained, and every text of a document escaped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError

import tasks
from tasks.reporting.document import Cell, Table, numeric_columns
from tasks.reporting.page import followable, plot, render, report_page, statements_page
from tests.support.documents import HOSTILE, SHOWN, Page, assert_self_contained, make_document, make_figure, make_table

TASKS = Path(tasks.__file__).parent


@pytest.mark.parametrize("text", ["words", HOSTILE])
def test_every_text_of_a_document_is_escaped(text: str) -> None:
    html = report_page(make_document(text))
    assert_self_contained(html)
    page = Page(html)
    assert len(page.all("script")) == 1
    # In prose, what stands between backquotes is code; in cells and titles the quotes are text.
    shown, prose = (SHOWN, SHOWN.replace("`", "")) if text == HOSTILE else (text, text)
    said = " ".join(page.text.split())
    # Twice in titles, in notes, in claims and their evidence, and so on.
    assert said.count(shown) > 10
    assert said.count(shown) + (said.count(prose) if prose != shown else 0) > 25
    for found in page.all("a"):
        assert re.match(r"\.\./\.\./index|curves\.|auc\.|trials\.|data_card_|words$|<script>", found["href"] or "")
    html.encode()


def test_a_statement_is_rendered_and_its_html_stays_text() -> None:
    text = (
        "# Privacy statement\n\n## Setting\n\n| | |\n|---|---|\n| ε | `1` **<b>x</b>** |\n\n<script>alert(1)</script>\n"
    )
    html = statements_page(make_document(statements={"trial-1": text, "trial-2": HOSTILE}))
    assert_self_contained(html)
    page = Page(html)
    assert len(page.all("script")) == 1
    assert [found["id"] for found in page.all("section")] == ["trial-1", "trial-2"]
    assert "<b>x</b>" in page.text
    assert not page.all("b")
    assert "`" not in page.text.split("trial-2")[0].split("<script>")[0]
    assert not re.search(r"<h1>(?!Privacy statements)", html)
    assert not [found for found in page.all("a") if "javascript" in (found["href"] or "")]


def test_a_result_that_means_nothing_says_so_first() -> None:
    html = report_page(make_document(profile="smoke", only_for_tests=True))
    assert "only for tests" in html.split("<main>")[1].split('class="headline"')[0]
    assert "only for tests" not in report_page(make_document(profile="smoke"))


def test_paths_in_mlflow_wait_for_the_script() -> None:
    """Where nothing serves the page there is no address to link: the text stays, and a note says how to get there."""
    html = report_page(make_document())
    page = Page(html)
    paths = [found["data-mlflow"] for found in page.all("span") if "data-mlflow" in found]
    assert paths == [
        "experiments/1/runs/1",
        "compare-runs?runs=words",
        "experiments/1/runs/1",
        "experiments/1/runs/words",
    ]
    assert "127.0.0.1" not in html
    assert "/go/mlflow/" in page.script
    assert "start make up and open this page from the reports server" in page.text
    absolute = report_page(make_document(mlflow_link="https://host/#/experiments/1/runs/2"))
    assert '<a href="https://host/#/experiments/1/runs/2">' in absolute


def test_numbers_have_minus_signs_but_not_code_or_sort_keys() -> None:
    rows = [[Cell("-4.3 ± 0.1", -4.3), Cell("2024-02-01")]]
    table = Table("t", "from -1", ["-2", "day"], rows, "a -3 `-4`")
    html = report_page(make_document(tables=[table], headline="-5.5 % to -0.1 %", command="make run EPSILONS=-6"))
    page = Page(html)
    assert page.tables["table-t"] == [["−2", "day"], ["−4.3 ± 0.1", "2024-02-01"]]
    assert 'data-sort="-4.3"' in html
    for said in ("−5.5 % to −0.1 %", "a −3 -4", "from −1", "EPSILONS=-6"):
        assert said in " ".join(page.text.split())


def test_terms_are_explained_before_they_are_used() -> None:
    html = report_page(make_document(headline="pCTR at ε = 1", title="Losses"))
    terms = re.findall("<dt>(.*?)</dt>", html.split("<h2>")[0])
    assert terms == ["pCTR", "ε"]


def test_terms_of_folded_tables_are_explained_above_them() -> None:
    details = [make_table("C = 8, σ = 3")]
    html = report_page(make_document(headline="pCTR at ε = 1", details=details))
    above, below = html.split("<h2>Details</h2>")
    assert re.findall("<dt>(.*?)</dt>", above) == ["pCTR", "ε"]
    assert re.findall("<dt>(.*?)</dt>", below.split("<details>")[0]) == ["C", "σ"]


def test_no_line_breaks_within_a_value() -> None:
    html = report_page(make_document(headline="AUC 0.61 ± 0.02 at ε = 1, 5 % less with `a = 1`"))
    assert "AUC 0.61\xa0±\xa00.02 at ε\xa0=\xa01, 5\xa0% less with <code>a = 1</code>" in html


def test_the_page_follows_the_readers_colour_scheme() -> None:
    html = report_page(make_document())
    assert "prefers-color-scheme: dark" in html
    style = html.split("<style>")[1].split("</style>")[0]
    # Outside of the lists of variables, no rule has a colour of its own.
    rules = re.sub(r"--[\w-]+: #\w+;", "", style)
    assert not re.search(r"#[0-9a-f]{3,6}\b", rules)


def test_data_cards_are_linked() -> None:
    page = Page(report_page(make_document(cards={"logs": "<p>", "my clicks": "<p>"})))
    assert [found["href"] for found in page.all("a") if "data_card" in (found["href"] or "")] == [
        "data_card_logs.html",
        "data_card_2_my_clicks.html",
    ]
    assert page.all("iframe") == []


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
        "Data",
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
    noted = [found for found in page.all("span") if "title" in found]
    assert [found["title"] for found in noted] == ["pcvr\nseeds: 3", "pcvr"]
    assert all(found["tabindex"] == "0" for found in noted)
    assert [found["href"] for found in page.all("a")][1:] == ["pcvr", "auc.csv", "data_card_pcvr.html"]
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
    assert [found["href"] for found in page.all("a")][1:] == ["a/page.html", "t.csv", "data_card_words.html"]
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
    html = report_page(make_document(notes=["see `a<b>` and `c`", "one ` alone"], command=""))
    page = Page(html)
    assert [html.count(f"<code>{code}</code>") for code in ("a&lt;b&gt;", "c")] == [1, 1]
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
        *("report.html", "index.html", "data_card.html", "data_checks.html", "ledger.html", "statements.html"),
    }
