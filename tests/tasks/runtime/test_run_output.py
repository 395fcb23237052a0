"""What is shown of a run's log."""

from __future__ import annotations

import pytest

import tasks.runtime.run_output
from tasks.runtime.run_output import RunOutput


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(tasks.runtime.run_output.time, "monotonic", lambda: now[0])
    return now


def test_progress_is_printed_and_the_rest_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    output = RunOutput()
    for line in ("▸ one\n", "a library's line\n", "✗ wrong\n", "✗ wrong\n", 'result: {"page": "p"}\n', "▸ two"):
        output.take(line)
    assert capsys.readouterr().out == "▸ one\n▸ two\n"
    assert output.reasons() == "wrong"
    assert output.result == {"page": "p"}


def test_the_time_left_does_not_count_compilation(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """Two groups, each compiled in 300 s before trials that take 10 s."""
    output = RunOutput()
    output.take("▸ planned 12 trials, 2 of them already trained")
    shown = []
    for number, seconds in enumerate([300.0, 300, 10, 10, 10, 10, 10, 10, 10, 10], 3):
        clock[0] += seconds
        output.take(f"▸ trial {number} of 12, pctr")
        shown.append(capsys.readouterr().out.splitlines()[-1].rpartition("(")[2])
    assert shown == [
        "1 of 10 done)",
        "2 of 10 done)",
        "3 of 10 done)",
        "4 of 10 done, about 1 min 0 s left)",
        "5 of 10 done, about 50.0 s left)",
        "6 of 10 done, about 40.0 s left)",
        "7 of 10 done, about 30.0 s left)",
        "8 of 10 done, about 20.0 s left)",
        "9 of 10 done, about 10.0 s left)",
        "10 of 10 done)",
    ]
