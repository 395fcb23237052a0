"""The index of all reports: newest first, and robust against other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.reporting.files import write_report
from tasks.reporting.index import index_page, read_data_cards, read_summaries, write_index
from tests.support.documents import HOSTILE, Page, assert_self_contained, make_document


def add(reports: Path, pipeline: str, run: str, finished: str, **changes: Any) -> Path:
    folder = reports / pipeline / run
    folder.mkdir(parents=True)
    write_report(folder, make_document(**{"pipeline": pipeline, "run": run, "finished": finished, **changes}))
    return folder


def test_the_newest_run_is_first_in_any_time_zone(tmp_path: Path) -> None:
    add(tmp_path, "audit", "a", "2026-03-01 12:00 UTC")
    add(tmp_path, "loss", "b", "2026-03-01T13:30:00+02:00")
    add(tmp_path, "loss", "c", "2026-03-02 00:00 UTC", headline="Best yet.")
    add(tmp_path, "loss", "d", "some day")
    assert [run.run for run in read_summaries(tmp_path)] == ["c", "a", "b", "d"]
    path = write_index(tmp_path)
    assert path == tmp_path / "index.html"
    html = path.read_text()
    assert_self_contained(html)
    page = Page(html)
    head, *rows = page.tables["table-runs"]
    assert [row[head.index("run")] for row in rows] == ["c", "a", "b", "d"]
    assert [row[head.index("✓ shown")] for row in rows] == ["2"] * 4
    assert rows[0][head.index("headline")] == "Best yet."
    hrefs = [found["href"] or "" for found in page.all("a")]
    assert hrefs == [
        "loss/c/page.html",
        "audit/a/page.html",
        "loss/c/page.html",
        "audit/a/page.html",
        "loss/b/page.html",
        "loss/d/page.html",
    ]
    assert all((tmp_path / href).is_file() for href in hrefs)


def test_folders_that_are_not_reports_are_skipped(tmp_path: Path) -> None:
    folder = add(tmp_path, "loss", "real", "2026-03-01 12:00 UTC")
    (tmp_path / "loss" / "latest").symlink_to("real")
    (tmp_path / "copy").symlink_to("loss")
    add(tmp_path, "loss", ".real.half", "2026-03-01 12:00 UTC")
    add(tmp_path, ".hidden", "run", "2026-03-01 12:00 UTC")
    good = json.loads((folder / "summary.json").read_text())
    rubbish = {
        "broken": "{",
        "list": "[]",
        "nothing": "null",
        "deep": "[" * 100_000,
        "missing": json.dumps({**good, "headline": None}),
        "counts": json.dumps({**good, "findings": {"shown": "many"}}),
        "no_counts": json.dumps({**good, "findings": 3}),
    }
    for name, text in rubbish.items():
        (tmp_path / "loss" / name).mkdir()
        (tmp_path / "loss" / name / "summary.json").write_text(text)
    (tmp_path / "loss" / "binary").mkdir()
    (tmp_path / "loss" / "binary" / "summary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "loss" / "folder" / "summary.json").mkdir(parents=True)
    (tmp_path / "loss" / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "summary.json").write_text(json.dumps(good))
    write_index(tmp_path)
    assert [run.run for run in read_summaries(tmp_path)] == ["real"]


def test_hostile_summaries_and_folders_stay_text(tmp_path: Path) -> None:
    folder = add(tmp_path, "a b", '#"1" & %', "2026-03-01 12:00 UTC")
    texts = dict.fromkeys(("pipeline", "profile", "run", "title", "shows", "headline", "finished"), HOSTILE)
    (folder / "summary.json").write_text(json.dumps({**texts, "findings": {"shown": 10**30, "x": 1}}))
    html = write_index(tmp_path).read_text()
    assert_self_contained(html)
    page = Page(html)
    assert len(page.all("script")) == 1
    assert {found["href"] for found in page.all("a")} == {"a%20b/%23%221%22%20%26%20%25/page.html"}


def test_a_run_without_its_page_has_no_link(tmp_path: Path) -> None:
    (add(tmp_path, "loss", "a", "2026-03-01") / "page.html").unlink()
    assert Page(write_index(tmp_path).read_text()).all("a") == []


def test_no_runs_yet(tmp_path: Path) -> None:
    for reports in (tmp_path, tmp_path / "none"):
        page = Page(write_index(reports).read_text())
        assert "There are no reports yet" in page.text
        assert "make run" in page.text
        assert page.tables == {}


def test_a_result_that_means_nothing_does_not_replace_one_that_does(tmp_path: Path) -> None:
    add(tmp_path, "loss", "a", "2026-03-01 12:00 UTC", headline="Real.")
    add(tmp_path, "loss", "b", "2026-03-02 12:00 UTC", headline="Tried.", only_for_tests=True, profile="smoke")
    add(tmp_path, "clip", "c", "2026-03-03 12:00 UTC", headline="Only tried.", only_for_tests=True)
    newest = write_index(tmp_path).read_text().split("<h2>All runs")[0]
    assert "Real." in newest
    assert "Tried." not in newest
    assert "Only tried." in newest
    assert newest.count("its numbers mean nothing") == 1
    rows = Page(write_index(tmp_path).read_text()).tables["table-runs"][1:]
    assert [row[2] for row in rows] == ["words, only a test", "smoke, only a test", "words"]


def test_data_cards_and_servers_are_linked(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    for dataset, fingerprint in (("logs", "0a"), ("my clicks", "1b")):
        (tmp_path / "data" / dataset / fingerprint).mkdir(parents=True)
        (tmp_path / "data" / dataset / fingerprint / "data_card.html").write_text("<p>")
    (tmp_path / "data" / "logs" / "parts").mkdir()
    add(reports, "loss", "a", "2026-03-01 12:00 UTC")
    links = [found["href"] or "" for found in Page(write_index(reports).read_text()).all("a")]
    assert {"../data/logs/0a/data_card.html", "../data/my%20clicks/1b/data_card.html"} <= set(links)
    assert not any("/go/" in link for link in links)
    cards = read_data_cards(tmp_path, served=True)
    page = Page(index_page(read_summaries(reports), served=True, data_cards=cards))
    links = [found["href"] or "" for found in page.all("a")]
    assert {"/go/airflow", "/go/mlflow", "/data/logs/0a/data_card.html", "/data/my%20clicks/1b/data_card.html"} <= set(
        links
    )
    assert {card.file.read_text() for card in cards} == {"<p>"}
    empty = Page(index_page([], served=True))
    assert "/go/airflow" in [found["href"] for found in empty.all("a")]


def test_terms_of_headlines_are_explained(tmp_path: Path) -> None:
    add(tmp_path, "loss", "a", "2026-03-01 12:00 UTC", headline="pCVR -2.5 % at ε = 1")
    page = Page(write_index(tmp_path).read_text())
    assert "predicted conversion rate" in page.text
    assert "pCVR −2.5 % at ε = 1" in page.text
