"""The walk: what the recorder sees, and what counts as entered again."""

from __future__ import annotations

import json
import sys
import threading
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.walk.__main__ import main, numbers
from benchmarks.walk.figure import draw
from benchmarks.walk.trace import Recorder
from benchmarks.walk.visits import NEEDED, SERVICES, walk

CHECKOUT = Path(__file__).resolve().parent.parent.parent
MODULES = {
    "first": "def start(other):\n    return other(lambda: inner())\n\ndef inner():\n    return 1\n",
    "second": "def call(function):\n    return function() + helper()\n\ndef helper():\n    return 2\n",
    "third": "def entered():\n    return 3\n",
}


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A recorder of a small package, which is found under a name of its own."""
    (tmp_path / "tasks" / "toy").mkdir(parents=True)
    for name, source in MODULES.items():
        (tmp_path / "tasks" / "toy" / f"walk_{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path / "tasks" / "toy")
    for name in MODULES:
        monkeypatch.delitem(sys.modules, f"walk_{name}", raising=False)
    return Recorder(tmp_path)


def test_calls_across_module_borders_are_recorded(recorder: Recorder) -> None:
    first, second = import_module("walk_first"), import_module("walk_second")
    assert recorder.run("plan", first.start, second.call) == 3
    assert list(recorder.calls) == [
        ("plan", "tasks.toy.walk_first"),
        ("plan", "tasks.toy.walk_first", "tasks.toy.walk_second"),
        ("plan", "tasks.toy.walk_first", "tasks.toy.walk_second", "tasks.toy.walk_first"),
    ]


def test_a_callback_is_no_second_entry(recorder: Recorder) -> None:
    first, second = import_module("walk_first"), import_module("walk_second")
    recorder.run("plan", first.start, second.call)
    found = walk(recorder.calls, [])
    assert found.steps == {"plan": ["tasks.toy.walk_first", "tasks.toy.walk_second"]}
    assert found.callers == {("plan", "tasks.toy.walk_first"): 1, ("plan", "tasks.toy.walk_second"): 1}


def test_work_on_another_thread_belongs_to_the_module_that_waits(recorder: Recorder) -> None:
    second, third = import_module("walk_second"), import_module("walk_third")

    def in_a_thread() -> int:
        thread = threading.Thread(target=third.entered)
        thread.start()
        thread.join()
        return 1

    recorder.run("train", second.call, in_a_thread)
    assert ("train", "tasks.toy.walk_second", "tasks.toy.walk_third") in recorder.calls


def test_imports_are_no_entries(recorder: Recorder) -> None:
    recorder.run("plan", import_module, "walk_third")
    assert recorder.calls == {}


def test_reads_of_shared_files_are_counted_inside_steps_only(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("{}")
    path.read_text()
    recorder.run("audit", path.read_text)
    recorder.run("report", path.read_text)
    path.read_text()
    assert recorder.reads == {("audit", "record.json"): 1, ("report", "record.json"): 1}


def test_a_module_that_a_later_step_need_not_enter_is_found() -> None:
    found = walk(
        [
            ("prepare", "tasks.prepare", "tasks.reporting.data_card"),
            ("plan", "tasks.plan", "tasks.reporting.data_card"),
            ("plan", "tasks.plan", "dp_core.accounting.epsilon"),
            ("plan", "tasks.runtime.home"),
            ("audit", "tasks.runtime.home"),
            ("audit", "tasks.audit", "dp_core.accounting.epsilon"),
        ],
        [],
    )
    assert found.entered_again == {
        "tasks.reporting.data_card": ["prepare", "plan"],
        "dp_core.accounting.epsilon": ["plan", "audit"],
    }
    assert found.without_need == {"tasks.reporting.data_card": ["plan"]}
    assert "again without need: 1" in draw(found)
    assert numbers(found)["services"] == 1


def test_the_command_fails_where_a_module_is_entered_again_without_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [["plan", "tasks.plan", 1], ["report", "tasks.report", 1], ["report", "tasks.report", "tasks.plan", 1]]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"calls": calls, "reads": [["report", "record.json", 4]]}))
    assert main(["--trace", str(trace), "--output", str(tmp_path / "docs")]) == 1
    assert "entered again without need: tasks.plan by report" in capsys.readouterr().out
    kept = json.loads((tmp_path / "docs" / "walk.json").read_text())
    assert (kept["modules"], kept["reads"]) == (2, {"record.json": 4})


@pytest.mark.parametrize("name", [*NEEDED, *SERVICES])
def test_every_reason_is_about_a_module_or_room_that_exists(name: str) -> None:
    place = CHECKOUT / name.replace(".", "/")
    assert place.with_suffix(".py").exists() or (place / "__init__.py").exists()
