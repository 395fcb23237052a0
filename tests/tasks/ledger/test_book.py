"""The book: reservations, what is refused, and rows that were changed."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path

import pytest
from dp_accounting import get_epsilon_gaussian

from dp_core.accounting.mechanism import VocabularyRelease
from tasks.config.nightly import TotalBudget
from tasks.ledger import book
from tasks.ledger.book import Ledger, OverBudget, Release
from tasks.ledger.chain import Head
from tasks.ledger.release import dp_sgd, gaussian, vocabulary
from tasks.runtime.errors import UserError
from tests.tasks.ledger.support import DELTA, JANUARY, TAMPERED, TOTAL, metric, record, sql

SIGMA = 3.0


@pytest.fixture
def ledger(own_home: Path) -> Ledger:
    return Ledger.open()


def night(number: int, window: int = 4, sigma: float = SIGMA, dataset: str = "clicks") -> list[Release]:
    """What a night releases that trains on the days from ``number`` on."""
    return [Release("model", gaussian(sigma), dataset, tuple(JANUARY[number : number + window]))]


def play(ledger: Ledger, nights: int) -> None:
    for number in range(nights):
        ledger.reserve(f"night/{number}", night(number), TOTAL)
        ledger.commit(f"night/{number}", night(number))


def test_several_nights_by_hand(ledger: Ledger) -> None:
    play(ledger, 6)
    spent = ledger.spent("clicks", TotalBudget(epsilon=3.0, delta=DELTA, user_days=2))
    # Night n reads days n to n + 3, so that days are in 1, 2, 3, 4, 4, 4, 3, 2, 1 nights.
    for day, nights in zip(JANUARY, (1, 2, 3, 4, 4, 4, 3, 2, 1), strict=False):
        assert len(spent[day].by) == nights
        assert spent[day].epsilon == pytest.approx(get_epsilon_gaussian(SIGMA / math.sqrt(nights), DELTA), rel=1e-3)
        assert all(by.epsilon == pytest.approx(get_epsilon_gaussian(SIGMA, DELTA), rel=1e-3) for by in spent[day].by)
    # A user on the days 4 and 5: nights 2 to 4 read both, nights 1 and 5 one of them.
    user = SIGMA / math.sqrt(3 * 2**2 + 2 * 1**2)
    assert spent[JANUARY[4]].user_epsilon == pytest.approx(get_epsilon_gaussian(user, DELTA), rel=1e-3)
    assert ledger.verify().problems == ()
    assert [entry.state for entry in ledger.entries()] == ["committed"] * 6


def test_over_budget_is_refused_before_anything_is_written(ledger: Ledger) -> None:
    play(ledger, 4)
    head = ledger.verify().head
    with pytest.raises(OverBudget) as error:
        ledger.reserve("another", night(3, 2), TOTAL)
    told = error.value
    assert (told.day.day, told.free_after) == (JANUARY[3], 1)
    assert told.spent == pytest.approx(get_epsilon_gaussian(SIGMA / 2, DELTA), rel=1e-3)
    assert told.epsilon == pytest.approx(get_epsilon_gaussian(SIGMA / math.sqrt(5), DELTA), rel=1e-3)
    text = str(told)
    for part in ("2026-01-04 of clicks", "total of ε = 3", "night/0 (ε 1.33, committed)", "never comes back"):
        assert part in text
    assert "comes free 1 night later: the same releases fit on the days 2026-01-05 to 2026-01-06" in text
    assert ledger.verify().head == head
    with pytest.raises(OverBudget, match=r"alone is more than the total.*would fit on no later days"):
        ledger.reserve("large", [metric(0.5, JANUARY[20])], TOTAL)


def test_reservations_count_as_what_was_committed(ledger: Ledger) -> None:
    for number in range(4):
        ledger.reserve(f"night/{number}", night(0), TOTAL)
    with pytest.raises(OverBudget, match=r"night/3 .*reserved"):
        ledger.reserve("night/4", night(0), TOTAL)
    ledger.give_back("night/0", "the training failed")
    assert ledger.reserve("night/4", night(0), TOTAL).new


def test_entries_of_one_dataset_share_its_days(ledger: Ledger) -> None:
    for number in range(4):
        ledger.reserve(f"{'ab'[number % 2]}/{number}", night(0), TOTAL)
    with pytest.raises(OverBudget):
        ledger.reserve("b/9", night(0), TOTAL)
    assert ledger.reserve("b/10", night(0, dataset="another"), TOTAL).new


def test_a_key_stands_for_one_set_of_releases(ledger: Ledger) -> None:
    first = ledger.reserve("k", night(0), TOTAL)
    again = ledger.reserve("k", night(0), TOTAL)
    assert (first.new, again.new, again.state, again.head) == (True, False, "reserved", first.head)
    renamed = [Release("model", gaussian(SIGMA), "clicks", tuple(reversed(JANUARY[:4])), run="second attempt")]
    assert not ledger.reserve("k", renamed, TOTAL).new
    for other in (night(1), night(0, sigma=4.0), night(0, dataset="another")):
        with pytest.raises(UserError, match="'k' is reserved with other releases"):
            ledger.reserve("k", other, TOTAL)
    ledger.commit("k", night(0))
    done = ledger.reserve("k", night(0), TOTAL)
    assert (done.done, done.new) == (True, False)
    assert not ledger.commit("k", night(0)).new
    with pytest.raises(UserError, match="cannot be taken back"):
        ledger.give_back("k", "changed my mind")
    with pytest.raises(UserError, match="nothing else can be committed"):
        ledger.commit("k", night(0, sigma=5.0))


def test_what_was_given_back_may_be_reserved_anew(ledger: Ledger) -> None:
    ledger.reserve("k", night(0), TOTAL)
    assert ledger.give_back("k", "no data").state == "given back"
    assert not ledger.give_back("k", "no data").new
    assert ledger.spent("clicks", TOTAL) == {}
    assert ledger.reserve("k", night(2), TOTAL).new
    assert list(ledger.spent("clicks", TOTAL)) == JANUARY[2:6]


def test_a_commit_must_not_cost_more(ledger: Ledger) -> None:
    ledger.reserve("k", night(0), TOTAL)
    with pytest.raises(UserError, match=r"costs more than was reserved.*stands"):
        ledger.commit("k", night(0, sigma=2.9))
    with pytest.raises(UserError, match="costs more"):
        ledger.commit("k", night(0) * 2)
    with pytest.raises(UserError, match="was not reserved on 2026-01-05"):
        ledger.commit("k", night(1))
    assert [entry.state for entry in ledger.entries()] == ["reserved"]
    # Cheaper, of another kind, and on fewer days.
    ledger.commit("k", [metric(6.0, *JANUARY[:2]), metric(6.0, JANUARY[0])])
    spent = ledger.spent("clicks", TOTAL)
    assert list(spent) == JANUARY[:2]
    assert spent[JANUARY[0]].epsilon == pytest.approx(get_epsilon_gaussian(6 / math.sqrt(2), DELTA), rel=1e-3)
    with pytest.raises(UserError, match="nothing is reserved under 'other'"):
        ledger.commit("other", night(0))


def test_a_vocabulary_is_an_entry_and_a_part_of_its_models(ledger: Ledger) -> None:
    drawn = VocabularyRelease(20.0, 1e-7, "ab")
    both = [
        Release("vocabulary", vocabulary(drawn), "clicks", tuple(JANUARY[:2])),
        Release("model", dp_sgd(record(vocabulary=drawn)), "clicks", tuple(JANUARY[:2])),
    ]
    ledger.reserve("k", both, TOTAL)
    two_days = TotalBudget(epsilon=3.0, delta=DELTA, user_days=2)
    with_both = ledger.spent("clicks", two_days)[JANUARY[0]]
    assert with_both.user_epsilon is None
    assert "private vocabulary" in with_both.user_note
    ledger.commit("k", both[1:])
    assert ledger.spent("clicks", TOTAL)[JANUARY[0]].epsilon == with_both.epsilon


def test_the_total_of_a_user_refuses_too(ledger: Ledger) -> None:
    """A user on two days in a row: both are read by a night with a group of two, whose σ is half as large."""
    of_both = get_epsilon_gaussian(SIGMA / 2, DELTA)
    total = TotalBudget(epsilon=3.0, delta=DELTA, user_days=2, user_epsilon=of_both * 1.01)
    ledger.reserve("night/0", night(0, 2), total)
    head = ledger.verify().head
    with pytest.raises(OverBudget) as error:
        ledger.reserve("night/1", night(1, 2), total)
    # The first night reads one or both days of the user, and the second both or one.
    of_three = get_epsilon_gaussian(SIGMA / math.sqrt(2**2 + 1), DELTA)
    assert error.value.epsilon == pytest.approx(of_three, rel=1e-3)
    assert error.value.spent == pytest.approx(of_both, rel=1e-3)
    assert error.value.free_after == 1
    text = str(error.value)
    assert "a user with up to 1 example on each of 2 days from 2026-01-01 of clicks on would have ε = " in text
    assert f"and the total of one user is ε = {total.user_epsilon:g} at δ = 5e-06" in text
    assert "the same releases fit on the days 2026-01-03 to 2026-01-04" in text
    assert ledger.verify().head == head
    assert ledger.reserve("night/2", night(2, 2), total).new
    assert ledger.reserve("night/1", night(1, 2), TOTAL).new, "which is one of single examples"


def test_a_user_without_a_number_has_no_budget(ledger: Ledger) -> None:
    drawn = VocabularyRelease(20.0, 1e-7, "ab")
    releases = [Release("vocabulary", vocabulary(drawn), "clicks", tuple(JANUARY[:2]))]
    limited = TotalBudget(epsilon=3.0, delta=DELTA, user_days=2, user_epsilon=100.0)
    with pytest.raises(OverBudget, match=r"would have no ε, .*There is none: the guarantee of a private vocabulary"):
        ledger.reserve("k", releases, limited)


def test_a_raised_total_is_told(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    ledger.reserve("a", night(0), TOTAL)
    assert "smaller total" not in capsys.readouterr().out
    ledger.reserve("b", night(3), TotalBudget(epsilon=5.0, delta=DELTA))
    assert "b is reserved under a total of ε = 5 at δ = 5e-06, but a was under 3 at 5e-06" in capsys.readouterr().out
    ledger.reserve("c", night(12), TotalBudget(epsilon=5.0, delta=DELTA))
    assert "smaller total" not in capsys.readouterr().out


def test_a_raised_delta_is_told(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """At a larger δ the same releases have a smaller ε, so that more would fit."""
    ledger.reserve("a", night(0), TOTAL)
    ledger.reserve("b", night(3), TotalBudget(epsilon=3.0, delta=10 * DELTA))
    assert "at δ = 5e-05, but a was under 3 at 5e-06: the smaller total no longer holds" in capsys.readouterr().out


def test_a_row_has_the_delta_that_a_release_uses(ledger: Ledger) -> None:
    trained = record(max_batch_size=520, vocabulary=VocabularyRelease(20.0, 1e-7, "ab"))
    ledger.reserve("k", [Release("model", dp_sgd(trained), "clicks", (JANUARY[0],))], TOTAL)
    with sqlite3.connect(ledger.name) as connection:
        ((body,),) = connection.execute("SELECT body FROM dp_ads_ledger")
    assert json.loads(body)["releases"][0]["delta"] == pytest.approx(trained.truncation_delta() + 1e-7, rel=1e-12)


def test_a_release_without_an_epsilon_is_refused_by_name(ledger: Ledger) -> None:
    used_up = Release("statistic", gaussian(9.0, delta=DELTA), "clicks", (JANUARY[0],))
    with pytest.raises(UserError, match="statistic of clicks: it has no finite ε"):
        ledger.reserve("k", [used_up], TOTAL)
    assert ledger.entries() == []


@pytest.mark.parametrize("reason", ["", "   ", "\u200b", "…", "\ud800 x"])
def test_a_resolution_needs_words(ledger: Ledger, reason: str) -> None:
    ledger.reserve("k", night(0), TOTAL)
    with pytest.raises(UserError, match=r"say why|plain text"):
        ledger.resolve("k", "commit", reason)


def test_a_standing_reservation_is_resolved(ledger: Ledger) -> None:
    for key in ("a", "b"):
        ledger.reserve(key, night(0), TOTAL)
    ledger.resolve("a", "commit", "Möglicherweise veröffentlicht: 模型 🙂\n(siehe Protokoll)")
    ledger.resolve("b", "give_back", "the machine stopped before training")
    found = {entry.key: entry for entry in ledger.entries()}
    assert [(found[key].state, found[key].resolved) for key in "ab"] == [("committed", True), ("given back", True)]
    assert found["a"].reason == "Möglicherweise veröffentlicht: 模型 🙂 (siehe Protokoll)"
    assert len(ledger.spent("clicks", TOTAL)[JANUARY[0]].by) == 1
    with pytest.raises(UserError, match="'b' is given back, not reserved"):
        ledger.resolve("b", "commit", "again")
    assert ledger.verify().problems == ()


def test_a_resolved_commit_covers_what_costs_no_more(ledger: Ledger) -> None:
    """The night that a person charged goes on, and commits what really ran."""
    ledger.reserve("a", night(1), TOTAL)
    ledger.resolve("a", "commit", "it may have been released")
    done = ledger.commit("a", night(1, sigma=1.01 * SIGMA))
    assert (done.state, done.new) == ("committed", False)
    with pytest.raises(UserError, match="costs more than was reserved"):
        ledger.commit("a", night(1, sigma=0.9 * SIGMA))


@pytest.mark.parametrize(("statements", "said"), [case[1:] for case in TAMPERED], ids=[case[0] for case in TAMPERED])
def test_a_changed_table_is_found_out(ledger: Ledger, statements: list[str], said: str) -> None:
    play(ledger, 2)
    sql(f"sqlite:///{ledger.name}", *statements)
    assert any(said in problem for problem in ledger.verify().problems), ledger.verify()
    for use in (ledger.entries, lambda: ledger.reserve("new", night(9), TOTAL), lambda: ledger.give_back("x", "why")):
        with pytest.raises(UserError, match="is not as it was written"):
            use()


def test_a_chain_that_was_written_anew_is_found_out_by_a_kept_head(ledger: Ledger, own_home: Path) -> None:
    play(ledger, 2)
    kept = ledger.verify().head
    for file in (own_home / "ledger").iterdir():
        file.unlink()
    assert ledger.verify().problems == ()
    play(ledger, 1)
    assert "the end is missing" in ledger.verify(kept).problems[0]
    ledger.reserve("x", night(8), TOTAL)
    ledger.reserve("y", night(9), TOTAL)
    assert "rows up to it were written anew" in ledger.verify(kept).problems[0]
    assert ledger.verify(Head.parse(str(ledger.verify().head))).problems == ()
    # With the anchor kept and the table gone, nothing can be charged.
    Path(ledger.name).unlink()
    with pytest.raises(UserError, match="the anchor has seen 4 rows, and there are 0"):
        ledger.reserve("z", night(0), TOTAL)


def test_an_anchor_that_is_behind_or_damaged(ledger: Ledger) -> None:
    play(ledger, 1)
    earlier = ledger.anchor_path.read_text()
    play(ledger, 2)
    ledger.anchor_path.write_text(earlier)  # a crash between the row and the anchor
    assert ledger.verify().problems == ()
    ledger.reserve("next", night(5), TOTAL)
    assert ledger.verify().anchored == ledger.verify().head
    ledger.anchor_path.write_text("")
    assert "damaged" in ledger.verify().problems[0]
    with pytest.raises(UserError, match="damaged"):
        ledger.reserve("more", night(6), TOTAL)
    ledger.anchor_path.unlink()
    (remark,) = ledger.verify().remarks
    assert f"there is no anchor {ledger.anchor_path} of these rows, so that a cut end would not be noticed" in remark


def test_a_row_that_no_ledger_writes_is_found_out(ledger: Ledger) -> None:
    """Somebody appends a good row that takes a commit back, and moves the anchor."""
    from tasks.ledger.chain import next_row

    play(ledger, 1)
    row = next_row(ledger.verify().head, {"action": "give_back", "key": "night/0", "time": "", "reason": "x"})
    with sqlite3.connect(ledger.name) as connection:
        connection.execute("INSERT INTO dp_ads_ledger VALUES (?, ?, ?)", row)
    assert ledger.verify().problems == ("row 3 wants to give_back 'night/0', which is committed",)


def test_a_clock_that_goes_back_changes_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    play(ledger, 1)

    class Earlier(book.datetime.datetime):
        @classmethod
        def now(cls, tz: object = None) -> book.datetime.datetime:
            return cls(1999, 1, 1, tzinfo=book.datetime.UTC)

    monkeypatch.setattr(book.datetime, "datetime", Earlier)
    ledger.reserve("later", night(1), TOTAL)
    found = ledger.verify()
    assert (found.problems, len(found.remarks)) == ((), 1)
    assert "a clock went back" in found.remarks[0]
    assert [entry.key for entry in ledger.entries()] == ["night/0", "later"]
