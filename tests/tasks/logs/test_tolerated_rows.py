"""The tolerance for bad rows, and folders that an interruption left behind."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from tasks.config.dataset import Dataset
from tasks.data import parts as parts_module
from tasks.data.preparation import prepare
from tasks.data.prepared import open_prepared
from tasks.runtime.errors import UserError
from tests.support.raw_logs import (
    GOOD_ROW,
    HUGE,
    START,
    TEXTS,
    TINY,
    assert_nothing_half_written,
    assert_put_aside,
    described,
    good_lines,
    good_text,
    line_of,
    quarantine,
    with_line,
    write_text,
)

TSV, COMPANION = TEXTS["tsv"], b"1"


@pytest.fixture(autouse=True)
def home(own_home: Path) -> Path:
    return own_home


BAD_LINES = [
    (3, b"1\tx"),
    (8, line_of("tsv", GOOD_ROW, n="abc")),
    (9, line_of("tsv", GOOD_ROW, click="2")),
    (20, b"1\tx\t3"),
    (41, line_of("tsv", GOOD_ROW, time="")),
    (55, line_of("tsv", GOOD_ROW, n="inf")),
    (66, b""),
]
BAD_TEXT = functools.reduce(lambda text, bad: with_line(text, *bad), BAD_LINES[:-1], good_text()) + b"\n1\tx\n"


def _inodes(parts: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in [*parts.iterdir(), *parts.rglob("*.*")]}


def test_more_bad_rows_than_tolerated(tmp_path: Path, home: Path, good_fingerprint: str) -> None:
    """The error has the counts and the first rows; with a higher tolerance nothing is parsed again."""
    raw = tmp_path / "raw"
    raw.write_bytes(BAD_TEXT)
    for block_bytes in (TINY, HUGE):
        name = f"logs{block_bytes}"
        with pytest.raises(UserError) as caught:
            prepare(name, described("tsv", tolerated_bad_rows=0.1), raw, min_count=2, block_bytes=block_bytes)
        head, *first, last = str(caught.value).splitlines()
        assert head.startswith("8 of 68 rows are bad (4 wrong number of fields, 2 not a number, 1 ")
        assert all(f"1 {reason}" in head for reason in ("label not allowed", "bad time"))
        assert head.endswith("; `tolerated_bad_rows` allows a share of 0.1. The first ones:")
        numbers = [number for number, _ in BAD_LINES[:5]]
        assert [line.split(": ")[0] for line in first] == [f"  {raw}, line {number}" for number in numbers]
        assert first[1].endswith("column 'n' has 'abc', not a finite number")
        assert_nothing_half_written(home, name)
        listed = re.fullmatch(r"All of them are in (\S+)", last)
        assert listed
        kept = quarantine(Path(listed[1]).parent)
        before = _inodes(home / "data" / name / "parts")
        folder = prepare(name, described("tsv", tolerated_bad_rows=0.12), raw, min_count=2, block_bytes=block_bytes)
        assert_put_aside(folder, [bad._replace(problem="…") for bad in kept], good_fingerprint)
        assert [bad.line for bad in kept] == [*(number for number, _ in BAD_LINES[:6]), 67, 68]
        assert _inodes(home / "data" / name / "parts") == before


def test_tolerance_is_a_share_of_all_rows(tmp_path: Path) -> None:
    """The default tolerance is one in a thousand, counted over all files."""
    description = Dataset.model_validate({k: v for k, v in TSV.items() if k != "tolerated_bad_rows"})
    assert description.tolerated_bad_rows == 0.001
    lines = [line_of("tsv", GOOD_ROW, time=str(START + i)) for i in range(1998)]
    one = write_text(tmp_path / "one", "tsv", [*lines[:500], COMPANION, COMPANION])
    two = write_text(tmp_path / "two", "tsv", lines[500:])
    assert len(quarantine(prepare("logs", description, [one, two], min_count=2))) == 2
    with pytest.raises(UserError, match=r"2 of 502 rows are bad \(2 wrong number of fields\)"):
        prepare("logs", description, one, min_count=2)
    more = write_text(tmp_path / "more", "tsv", [*lines[500:], COMPANION])
    with pytest.raises(UserError, match=r"3 of 2,001 rows") as caught:
        prepare("logs", description, [one, more], min_count=2)
    assert "quarantine.csv and 1 more such files" in str(caught.value)
    none = Dataset.model_validate({**TSV, "tolerated_bad_rows": 0})
    assert not (prepare("logs", none, two, min_count=2) / "quarantine.csv").exists()


def test_tolerance_that_is_lowered_later_counts(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(BAD_TEXT)
    prepare("logs", described("tsv", tolerated_bad_rows=0.2), raw, min_count=2)
    with pytest.raises(UserError, match="8 of 68 rows are bad"):
        prepare("logs", described("tsv", tolerated_bad_rows=0.01), raw, min_count=2)


def test_nothing_half_written_is_taken_for_finished(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, good_fingerprint: str
) -> None:
    """Neither after an interrupt nor after a process was killed."""
    raw = write_text(tmp_path / "raw", "tsv", good_lines())

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for step in ("_summary", "_join_quarantine", "write_json"):
        with monkeypatch.context() as patch:
            patch.setattr(parts_module, step, interrupt)
            with pytest.raises(KeyboardInterrupt):
                prepare("logs", described("tsv"), raw, min_count=2)
        assert_nothing_half_written(home)
    folder = prepare("logs", described("tsv"), raw, min_count=2)
    part = next((folder.parent / "parts").iterdir())
    for finished in (part, folder):
        finished.rename(finished.with_name(f".{finished.name}.killed"))
    (part.with_name(f".{part.name}.killed") / "0.arrow").write_bytes(b"half")
    again = prepare("logs", described("tsv"), raw, min_count=2)
    assert again == folder
    assert open_prepared(again).fingerprint == good_fingerprint
