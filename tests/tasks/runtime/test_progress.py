"""Progress lines: one write each, and a time left that is known."""

from __future__ import annotations

import io
import sys
import threading

import pytest

import tasks.runtime.progress
from tasks.runtime.progress import Ticker, note, say, say_error


class Writes(io.StringIO):
    """A standard output that records what each call writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.written.append(text)
        return super().write(text)


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Writes()
    monkeypatch.setattr(sys, "stdout", output)
    say("one")
    note("two")
    say_error("three\nfour")
    assert output.written == ["▸ one\n", "two\n", "✗ three\n✗ four\n"]


def test_lines_of_threads_do_not_mix(capfd: pytest.CaptureFixture[str]) -> None:
    def speak(name: str) -> None:
        for _ in range(200):
            say(name * 50)

    threads = [threading.Thread(target=speak, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted(200 * [f"▸ {name * 50}" for name in "abcd"])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(tasks.runtime.progress.time, "monotonic", lambda: now[0])
    return now


class TestTicker:
    def test_compilation_is_not_counted(self, clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
        """The first steps come after 100 s of compiling, then 10 steps a second."""
        ticker = Ticker("trial", 1010, "steps")
        clock[0] = 100.0
        ticker.update(10)
        clock[0] = 101.0
        ticker.update(20)
        assert capsys.readouterr().out == "", "not known well yet"
        clock[0] = 110.0
        ticker.update(110)
        assert capsys.readouterr().out == "▸ trial: 110 of 1,010 steps (11 %), 10.0 steps/s, 1 min 30 s left\n"
        clock[0] = 115.0
        ticker.update(160)
        assert capsys.readouterr().out == "", "at most one report in ten seconds"
        clock[0] = 120.0
        ticker.update(210)
        assert capsys.readouterr().out == "▸ trial: 210 of 1,010 steps (21 %), 10.0 steps/s, 1 min 20 s left\n"

    def test_short_loops_are_silent(self, clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
        ticker = Ticker("trial", 3, "steps")
        for step in range(1, 4):
            clock[0] += 3
            ticker.update(step)
        assert capsys.readouterr().out == ""
