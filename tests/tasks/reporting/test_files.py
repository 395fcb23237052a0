"""The files of a report, each read back by a parser of its format."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tasks.reporting.document import Caveat, Cell, Table
from tasks.reporting.files import as_csv, as_png, write_report
from tasks.reporting.markdown import as_markdown
from tasks.reporting.page import card_files
from tasks.reporting.svg import standalone
from tasks.reporting.terminal import print_report, print_tables
from tests.support.documents import HOSTILE, SHOWN, make_document, make_figure, make_table

NAMES = [
    "page.html",
    "report.md",
    "statements.html",
    "auc.csv",
    "trials.csv",
    "curves.svg",
    "curves.png",
    "summary.json",
]


@pytest.mark.parametrize("text", ["words", HOSTILE])
def test_every_file_is_written_and_can_be_read(tmp_path: Path, text: str) -> None:
    document = make_document(text)
    paths = write_report(tmp_path, document)
    (card,) = card_files(document).values()
    assert re.fullmatch(r"data_card_[\w]+\.html", card, re.ASCII)
    assert sorted(path.name for path in paths) == sorted([*NAMES, card])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*NAMES, card])
    for path in paths:
        if path.suffix != ".png":
            path.read_text(encoding="utf-8")
    ET.parse(tmp_path / "curves.svg")
    assert next(csv.reader(io.StringIO((tmp_path / "auc.csv").read_text()))) == ["epsilon", "loss", "task"]


def test_the_summary_holds_what_the_index_and_the_terminal_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    caveats = [Caveat("The best rate is the largest tried", "not yet", True), Caveat("A remark", "uncertain", False)]
    document = make_document("words", headline="It works.", finished="2026-01-02 03:04 UTC")
    document = document._replace(verdict="Not the price.", caveats=caveats)
    write_report(tmp_path, document)
    summary = json.loads((tmp_path / "summary.json").read_text())
    claims, table = summary.pop("claims"), summary.pop("table")
    assert claims == [finding._asdict() for finding in document.findings]
    assert table["rows"] == [[[cell.text, cell.strong] for cell in row] for row in document.tables[0].rows]
    print_report(tmp_path)
    printed = capsys.readouterr().out
    assert "It works." in printed
    for finding in document.findings:
        assert finding.evidence in printed
    assert summary.pop("caveats") == [caveat._asdict() for caveat in caveats]
    assert summary.pop("verdict") == "Not the price."
    assert "✗ Not the price.\n† The best rate is the largest tried → not yet\n· A remark → uncertain\n" in printed
    page, text = ((tmp_path / name).read_text() for name in ("page.html", "report.md"))
    for written in (page, text):
        assert written.index("Not the price.") < written.index("The best rate is the largest tried")
    assert summary == {
        **dict.fromkeys(("pipeline", "profile", "run", "title", "shows"), "words"),
        "headline": "It works.",
        "finished": "2026-01-02 03:04 UTC",
        "findings": {"shown": 2, "within noise": 1, "not shown": 0},
        "only_for_tests": False,
    }


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "ä"])
def test_a_name_that_is_not_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not a file name"):
        write_report(tmp_path, make_document(tables=[make_table(name=name)]))
    with pytest.raises(ValueError, match="is not a file name"):
        write_report(tmp_path, make_document(figures=[make_figure(name=name)]))
    assert list(tmp_path.iterdir()) == []


def test_two_tables_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not distinct"):
        write_report(tmp_path, make_document(details=[make_table(name="AUC")]))


def test_csv_of_records_has_eight_digits_and_empty_missing_values() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(make_table(HOSTILE)))))
    assert [row["loss"] for row in rows] == ["0.24123457", ""]
    assert [float(row["epsilon"]) for row in rows] == [math.inf, 1.0]
    assert rows[0]["task"] == HOSTILE


def test_csv_without_records_has_the_texts_of_the_cells() -> None:
    table = make_table('a,"b"\nc')._replace(records=())
    head, *rows = csv.reader(io.StringIO(as_csv(table)))
    assert head == list(table.columns)
    assert rows == [[cell.text for cell in row] for row in table.rows]


def markdown_tables(text: str) -> list[list[list[str]]]:
    """Returns tables as rows of cells, split at pipes that are not escaped."""
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines()]
        for block in blocks
    ]


@pytest.mark.parametrize("text", ["words", HOSTILE])
def test_rows_of_markdown_tables_have_equally_many_cells(text: str) -> None:
    markdown = as_markdown(make_document(text))
    tables = markdown_tables(markdown)
    assert [[len(row) for row in table] for table in tables] == [[3] * 5, [3] * 5, [2] * 3]
    auc = tables[0]
    assert auc[1][0].endswith("-:")
    assert not auc[1][2].endswith(":")
    assert auc[2][1] == "**0.2412 ± 0.0012**"
    # Rows are equally long, for readers in a terminal.
    if text == "words":
        lines = [line for line in markdown.splitlines() if line.startswith("|")]
        assert len({len(line) for line in lines[:5]}) == 1


def test_markdown_escapes_hostile_text() -> None:
    markdown = as_markdown(make_document(HOSTILE, command="make run"))
    assert not re.search(r"(?<!\\)<[A-Za-z/!]", markdown)
    assert "](" not in markdown
    assert not set(markdown) & {"\x00", "\x1b", "\ud800"}
    assert re.sub(r"\\(.)", r"\1", markdown).count(SHOWN) > 20
    assert re.findall("^(#+) ", markdown, re.MULTILINE) == ["#", *["##"] * 6]


def test_markdown_escapes_text_that_looks_like_markup() -> None:
    notes = ["# no heading", "1. no list", "- no list", "---", "0.5 is a number", "> no quotation"]
    markdown = as_markdown(make_document(notes=notes, command="echo '```'"))
    for line in (r"\# no heading", r"1\. no list", r"\- no list", r"\---", "0.5 is a number", r"\> no quotation"):
        assert f"\n\n{line}\n\n" in markdown
    assert "\n````sh\necho '```'\n````\n" in markdown


def test_a_png_has_three_times_the_size_and_all_texts() -> None:
    figure = make_figure("AUC loss")
    svg = standalone(figure.svg)
    root = ET.fromstring(svg)
    png = as_png(svg)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", png[16:24]) == (3 * int(root.get("width", "")), 3 * int(root.get("height", "")))
    without = re.sub(r"<text.*?</text>", "", svg)
    assert as_png(without) != png
    # The font has each of these characters.
    for text in ("a", "ε", "10⁻⁵", "±", "✓"):
        one = standalone(f'<svg viewBox="0 0 50 20"><text y="15">{text}</text></svg>')
        assert as_png(one) != as_png(re.sub("<text.*</text>", "", one))


def test_tables_fit_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cells = [Cell("0.5"), *[Cell("0.2412 ± 0.0012"), Cell("0.243")] * 3]
    columns = ["ε", *[name for task in ("pCTR", "pCVR", "pConvs") for name in (f"{task}, AUC loss", "paper")]]
    print_tables([Table("auc", "AUC loss [bold]", columns, [cells] * 3), make_table(HOSTILE)])
    shown = capsys.readouterr().out
    assert "AUC loss [bold]" in shown
    assert shown.count("0.2412 ± 0.0012") == 10
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b[31m" not in shown
