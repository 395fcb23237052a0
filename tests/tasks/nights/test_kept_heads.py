"""A ledger that has forgotten what nights were charged is found out by the nights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks.cli import main
from tasks.ledger.book import Ledger
from tasks.nights.kept_heads import check_kept_heads, kept_heads
from tasks.nights.record import end_night
from tasks.runtime.errors import UserError
from tests.tasks.ledger.support import JANUARY, TOTAL, metric, sql


@pytest.fixture
def ledger(own_home: Path) -> Ledger:
    """A ledger with the entries of two nights, whose records have its head; the first ended before it was charged."""
    ledger = Ledger.open()
    end_night({"name": "rates", "day": JANUARY[0]}, "missing", "no data")
    for day in JANUARY[1:3]:
        ledger.reserve(f"rates/{day}", [metric(9.0, day)], TOTAL)
        head = ledger.commit(f"rates/{day}", [metric(9.0, day)]).head
        end_night({"name": "rates", "day": day, "ledger_head": str(head)}, "kept", "kept")
    return ledger


def test_a_ledger_that_goes_on_agrees(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    ledger.reserve("another", [metric(9.0, JANUARY[9])], TOTAL)
    assert [head.rows for head in kept_heads().values()] == [2, 4]
    check_kept_heads(ledger)
    assert main(["ledger", "verify"]) == 0
    assert "and 2 nights of this home agree" in capsys.readouterr().out


def forgotten(ledger: Ledger) -> None:
    shutil.rmtree(ledger.anchor_path.parent)


def cut(ledger: Ledger) -> None:
    """The last entry is deleted, and the anchor with it."""
    sql(f"sqlite:///{ledger.name}", "DELETE FROM dp_ads_ledger WHERE number > 2")
    ledger.anchor_path.unlink()


def written_anew(ledger: Ledger) -> None:
    forgotten(ledger)
    for number in range(5):
        Ledger.open().reserve(f"other/{number}", [metric(20.0, JANUARY[20])], TOTAL)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (forgotten, f"the end is missing: night {JANUARY[1]} of rates has seen 2 rows, and there are 0"),
        (cut, f"the end is missing: night {JANUARY[2]} of rates has seen 4 rows, and there are 2"),
        (written_anew, f"row 2 is not the one that night {JANUARY[1]} of rates has seen"),
    ],
)
def test_one_that_has_forgotten_is_found_out(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], change: object, said: str
) -> None:
    assert callable(change)
    change(ledger)
    assert Ledger.open().verify().problems == (), "the chain and its anchor are good"
    with pytest.raises(UserError, match="is not the one that earlier nights were charged to") as error:
        check_kept_heads(Ledger.open())
    assert said in str(error.value)
    assert main(["ledger", "verify"]) == 2
    assert said in capsys.readouterr().err


def test_without_nights_there_is_nothing_to_compare(own_home: Path) -> None:
    assert kept_heads() == {}
    check_kept_heads(Ledger.open())
