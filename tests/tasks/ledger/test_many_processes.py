"""Two processes that reserve at once cannot overspend, and a process that is killed loses no entry."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dp_accounting import get_epsilon_gaussian

from tasks.config.nightly import TotalBudget
from tasks.ledger.book import Ledger
from tests.tasks.ledger.support import DELTA, JANUARY, TAMPERED, TOTAL, metric, postgres, sql

CHECKOUT = Path(__file__).resolve().parent.parent.parent.parent
SIGMA = 9.0

pytestmark = pytest.mark.nights


@pytest.fixture(params=["sqlite", "postgresql"])
def url(
    request: pytest.FixtureRequest, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The address of an empty ledger, once in each database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db"
        return
    with postgres(monkeypatch, tmp_path) as address:
        yield address


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.tasks.ledger.processes", *map(str, arguments)]
    return subprocess.Popen(command, cwd=CHECKOUT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def answer(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return out.splitlines()[-1]


def test_two_processes_that_reserve_at_once_500_times_cannot_overspend(url: str) -> None:
    processes = [start("reserve", url, name, 500, SIGMA, TOTAL.epsilon, DELTA) for name in ("one", "other")]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    accepted = [json.loads(answer(process)) for process in processes]
    keys = [*accepted[0], *accepted[1]]
    # W releases with σ are one with σ/√W. As many are accepted as fit, and not one more.
    fit = max(n for n in range(1, 1000) if get_epsilon_gaussian(SIGMA / n**0.5, DELTA) <= TOTAL.epsilon)
    assert len(keys) == fit
    assert all(accepted), "both had a turn"
    ledger = Ledger.open(url)
    assert sorted(entry.key for entry in ledger.entries()) == sorted(keys)
    spent = ledger.spent("clicks", TOTAL)
    for day in JANUARY[:2]:
        assert spent[day].epsilon == pytest.approx(get_epsilon_gaussian(SIGMA / fit**0.5, DELTA), rel=1e-3)
        assert spent[day].epsilon <= TOTAL.epsilon
    found = ledger.verify()
    assert (found.problems, found.head.rows, found.anchored) == ((), fit, found.head)


def test_50_kills_lose_no_entry(url: str) -> None:
    told = json.loads(answer(start("kill", url, 50, 1)))
    assert told["broken"] == []
    ledger = Ledger.open(url)
    entries = {entry.key: entry for entry in ledger.entries()}
    assert len(told["reserved"]) >= 50
    assert set(told["reserved"]) <= set(entries)
    assert all(entries[key].state == "committed" for key in told["committed"])
    # What was not committed stands, counts, and is resolved by a person.
    standing = [entry for entry in entries.values() if entry.state == "reserved"]
    assert len(standing) > 5
    for entry in standing:
        (day,) = entry.days
        assert ledger.spent(day.dataset, TOTAL)[day.day].epsilon > 0
    ledger.resolve(standing[0].key, "commit", "the model had been published")
    ledger.resolve(standing[1].key, "give_back", "killed before training")
    assert ledger.verify().problems == ()


@pytest.mark.parametrize(("statements", "said"), [case[1:] for case in TAMPERED], ids=[case[0] for case in TAMPERED])
def test_a_changed_table_is_found_out_in_postgresql(
    statements: list[str], said: str, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres(monkeypatch, tmp_path) as url:
        ledger = Ledger.open(url)
        for number in range(2):
            ledger.reserve(f"night/{number}", [metric(9.0, JANUARY[number])], TotalBudget(epsilon=3.0, delta=DELTA))
            ledger.commit(f"night/{number}", [metric(9.0, JANUARY[number])])
        sql(url, *statements)
        assert any(said in problem for problem in ledger.verify().problems), ledger.verify()
