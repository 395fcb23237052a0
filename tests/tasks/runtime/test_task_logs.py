"""Task logs are followed while they are written: no line is lost, doubled or out of order."""

from __future__ import annotations

import json
from pathlib import Path

from tasks.runtime.task_logs import TaskLogs


def entry(second: int, message: str) -> bytes:
    stamp = f"2026-01-01T10:00:{second:02}.000000Z"
    return (json.dumps({"timestamp": stamp, "level": "info", "event": message}, ensure_ascii=False) + "\n").encode()


def append(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(content)


def test_no_log_yet(tmp_path: Path) -> None:
    assert TaskLogs(tmp_path / "nothing").new_lines() == []


def test_lines_come_once_and_in_the_order_of_their_times(tmp_path: Path) -> None:
    logs = TaskLogs(tmp_path)
    one = tmp_path / "task_id=train" / "map_index=0" / "attempt=1.log"
    two = tmp_path / "task_id=train" / "map_index=1" / "attempt=1.log"
    append(one, entry(1, "a") + entry(4, "d"))
    append(two, entry(2, "b") + entry(3, "c"))
    assert logs.new_lines() == ["a", "b", "c", "d"]
    assert logs.new_lines() == []
    append(two, entry(5, "e"))
    append(tmp_path / "task_id=train" / "map_index=1" / "attempt=2.log", entry(6, "f"))
    assert logs.new_lines() == ["e", "f"]


def test_every_cut_through_the_file_gives_the_same_lines(tmp_path: Path) -> None:
    """A line may be half written, in the middle of a character, when it is read."""
    messages = ["▸ ε = 1", 'with "quotes"', "other line ends: \u2028 \x85", "", "▸ last"]
    content = b"".join(entry(number, message) for number, message in enumerate(messages))
    for cut in range(len(content)):
        path = tmp_path / str(cut) / "attempt=1.log"
        logs = TaskLogs(path.parent)
        append(path, content[:cut])
        first = logs.new_lines()
        append(path, content[cut:])
        assert first + logs.new_lines() == messages, cut


def test_a_line_that_is_not_json(tmp_path: Path) -> None:
    append(tmp_path / "attempt=1.log", b"plain text\n")
    assert TaskLogs(tmp_path).new_lines() == ["plain text"]
