"""The benchmark of the noise generators, run for real on small arrays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import noise
from benchmarks.noise import Row, bars, measure, print_report


def test_every_generator_is_measured_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = measure(1, sizes=(1000,))
    assert [row["generator"] for row in rows] == ["jax.random.normal", "seeded", "secret"]
    assert rows[0]["ratio"] == 1
    assert all(row["normals_per_second"] > 0 for row in rows)
    print_report(rows)
    shown = capsys.readouterr().out
    assert "secret (ChaCha20, four draws of 64 bits)" in shown
    assert "…" not in shown, "a column is cut off at 80 characters"


def test_the_bar_is_on_seeded_noise() -> None:
    rows: list[Row] = [
        {"generator": name, "size": 10, "normals_per_second": 1.0, "ratio": ratio}
        for name, ratio in (("jax.random.normal", 1.0), ("seeded", 2.1), ("secret", 9.0))
    ]
    (bar,) = bars(rows)
    assert not bar.holds
    rows[1]["ratio"] = 1.9
    assert bars(rows)[0].holds


def test_the_command_writes_its_result(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_measure", lambda rounds, size: [])
    assert noise.main(["--rounds", "2"]) == 0
    assert json.loads((own_home / "bench" / "noise.json").read_text()) == []
