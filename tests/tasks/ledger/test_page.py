"""The page of the budget, and the verbs of the ledger."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from dp_accounting import get_epsilon_gaussian

from tasks.cli import main
from tasks.config.loading import load_config
from tasks.ledger.book import Ledger
from tasks.ledger.heat_map import heat_map
from tasks.ledger.page import forecast_of, ledger_page, page_path, write_page
from tasks.ledger.release import Release, gaussian
from tests.tasks.ledger.support import DELTA, JANUARY

THREE_NIGHTS = f"{get_epsilon_gaussian(4.0 / 3**0.5, DELTA):.3f}"


@pytest.fixture
def ledger(own_home: Path) -> Ledger:
    """Three nights of the entry that is shipped: two committed, one standing."""
    ledger, total = Ledger.open(), load_config().night("conversions").total
    for number in range(3):
        releases = [Release("model", gaussian(4.0), "synthetic_days", tuple(JANUARY[number : number + 4]))]
        ledger.reserve(f"conversions/{JANUARY[number + 4]}", releases, total)
        if number < 2:
            ledger.commit(f"conversions/{JANUARY[number + 4]}", releases)
    return ledger


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_the_page_shows_days_nights_total_and_forecast(ledger: Ledger) -> None:
    text = write_page("conversions", load_config()).read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert page_path("conversions").parent.parent.name == "nightly_retrain_conversions"
    # Four nights of σ = 4 are one of σ = 2.
    assert f"At this rate no day exceeds ε = {get_epsilon_gaussian(2.0, DELTA):.3g} of 3." in text
    assert "neither committed nor given back: conversions/2026-01-07" in text
    (picture,) = re.findall(r"<svg .*?</svg>", text, re.DOTALL)[:1]
    titles = [node.text or "" for node in ElementTree.fromstring(picture).iter("title")]
    assert len(titles) == 12
    assert f"2026-01-03, night of 2026-01-07: ε = {THREE_NIGHTS} of 3" in titles
    assert "total 3" in text
    assert str(ledger.verify().head) in text


def test_a_page_without_nights(own_home: Path) -> None:
    text = write_page("conversions", load_config()).read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "Nothing has been released" in text
    assert "At this rate no day exceeds ε = 2.22 of 3." in text


def test_entries_of_other_datasets_are_no_rate(own_home: Path) -> None:
    """The ledger has nights of another dataset only, and the first night of this one had no data."""
    other = [Release("model", gaussian(4.0), "other", tuple(JANUARY[:4]))]
    Ledger.open().reserve("other/2026-01-05", other, load_config().night("conversions").total)
    config = load_config()
    assert forecast_of("conversions", config, Ledger.open().entries()) == "At this rate no day exceeds ε = 2.22 of 3."


def test_a_dataset_that_shares_a_budget_shows_all_of_it(ledger: Ledger) -> None:
    config = load_config()
    days = config.dataset("synthetic_days")
    renamed = days.model_copy(update={"shares_budget_with": "synthetic_days"})
    entry = config.night("conversions").model_copy(update={"dataset": "second"})
    sharing = config.model_copy(
        update={"datasets": {"synthetic_days": days, "second": renamed}, "nightly": {"conversions": entry}}
    )
    assert ledger_page("conversions", sharing, ledger) == ledger_page("conversions", config, ledger)


def test_a_heat_map_keeps_its_cells_within_its_frame() -> None:
    nights = JANUARY[:10]
    cells = {(day, night): 3.0 for day in JANUARY[:5] for night in nights}
    picture = ElementTree.fromstring(heat_map(cells, JANUARY[:5], nights, total=3.0, title="<ε>"))
    places = [(float(node.attrib["x"]), float(node.attrib["width"])) for node in picture.iter("rect")]
    assert len(places) == 50
    assert max(x + width for x, width in places) <= 400


def test_the_verbs(ledger: Ledger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = said(capsys, "ledger", "list")
    assert "conversions/2026-01-05" in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert [entry["state"] for entry in json.loads(said(capsys, "ledger", "list", "--json"))] == [
        *["committed"] * 2,
        "reserved",
    ]
    assert "conversions/2026-01-05" not in said(capsys, "ledger", "list", "--standing")
    assert THREE_NIGHTS in said(capsys, "ledger", "spent")
    days = json.loads(said(capsys, "ledger", "spent", "--since", JANUARY[5], "--json"))["conversions"]["days"]
    assert list(days) == [JANUARY[5]]
    played = json.loads(said(capsys, "ledger", "simulate", "--nightly", "conversions", "--nights", "2", "--json"))
    assert [night["day"] for night in played["nights"]] == [JANUARY[7], JANUARY[8]]
    assert "At this rate" in said(capsys, "ledger", "simulate", "--nightly", "conversions", "--nights", "1")
    verified = json.loads(said(capsys, "ledger", "verify", "--json"))
    assert (verified["rows"], verified["valid"]) == (5, True)
    assert "all as they were written" in said(capsys, "ledger", "verify", "--head", verified["head"])
    key = "conversions/2026-01-07"
    assert "is committed" in said(capsys, "ledger", "resolve", key, "--commit", "--reason", "it was published")
    assert "it was published" in said(capsys, "ledger", "list")
    assert main(["ledger", "resolve", key, "--commit", "--reason", "again"]) == 2
    assert "is committed, not reserved" in capsys.readouterr().err
    assert main(["ledger", "verify", "--head", "nonsense"]) == 2
    assert "is not a head of a ledger" in capsys.readouterr().err
    assert said(capsys, "ledger", "page", "--nightly", "conversions").strip() == str(page_path("conversions"))


def test_the_verb_of_a_nights_cost(
    own_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = said(capsys, "nightly-cost", "--window", "7", "--epsilon", "1", "--total", "3")
    assert "2.890" in text
    assert "largest" in text
    answer = json.loads(said(capsys, "nightly-cost", "--window", "7", "--epsilon", "1", "--json"))
    assert [round(scheme["day_epsilon"], 2) for scheme in answer["schemes"]] == [2.89, 1.0, 1.0]
    assert main(["nightly-cost", "--window", "7", "--epsilon", "1", "--epochs", "3"]) == 2
    assert "all three of" in capsys.readouterr().err
