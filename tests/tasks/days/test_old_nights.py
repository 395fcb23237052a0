"""Old nights are deleted, and nothing that a later night or another pipeline needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.data.preparation import prepare
from tasks.days.delivered import look
from tasks.days.old_nights import delete_old_nights
from tasks.days.window import prepare_window
from tests.tasks.days.daily_logs import day, deliver_day, nightly_config

pytestmark = pytest.mark.usefixtures("own_home")


def test_the_last_nights_and_what_they_hold_are_kept(tmp_path: Path, own_home: Path) -> None:
    raw = tmp_path / "raw"
    config = nightly_config(raw / "day={day}" / "*.parquet", window_days=2)
    for number in range(8):
        deliver_day(raw, number)
    nights = {number: prepare_window(config, "night", day(number)) for number in range(1, 8)}
    whole = prepare("logs", config.dataset("logs"), f"{raw}/day={{day}}/*.parquet", min_count=1)
    assert delete_old_nights("logs", keep=2) == []  # all were made just now
    before = {path.name for path in (own_home / "data" / "logs" / "parts").iterdir()}
    deleted = delete_old_nights("logs", keep=2, spared_seconds=0)
    assert {path for path in deleted if path.parent.name != "parts"} == {nights[n].path for n in range(1, 6)}
    assert [n for n in nights if nights[n].path.exists()] == [6, 7]
    assert whole.exists()
    # Days 4 to 7 are in the kept nights. The other pipeline parsed every day too, under keys of its own.
    after = {path.name for path in (own_home / "data" / "logs" / "parts").iterdir()}
    assert (len(before), len(before - after)) == (16, 4)
    assert before - after == {path.name for path in deleted if path.parent.name == "parts"}
    assert look(config, "logs", day(0)).rows == 200  # parsed again
    assert prepare_window(config, "night", day(7)).path == nights[7].path
    assert prepare_window(config, "night", day(3)).path == nights[3].path
    assert delete_old_nights("nothing", spared_seconds=0) == []
