"""Which nights a run of the schedule or of asset events does."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from tasks.config.loading import Config, load_config
from tasks.nights.due import is_before_schedule, nights_of_events
from tasks.nights.record import end_night
from tasks.runtime.errors import UserError

NAME = "conversions"
DUE = datetime.datetime(2026, 1, 9, 3, tzinfo=datetime.UTC)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(Path(__file__).resolve().parents[3] / "pipelines.yaml")


def day(number: int) -> str:
    return f"2026-01-{number:02d}"


def event(*numbers: int) -> dict[str, object]:
    return {"day": day(numbers[0]), "then": [day(number) for number in numbers[1:]], "from_rest_api": True}


def test_all_days_that_events_name_are_done_in_order(config: Config) -> None:
    assert nights_of_events(config, NAME, [event(6)], []) == [day(6)]
    assert nights_of_events(config, NAME, [event(8), event(6, 7), event(8)], [event(9)]) == [
        day(n) for n in (6, 7, 8, 9)
    ]


def test_nights_that_are_done_are_left_out(config: Config) -> None:
    end_night({"name": NAME, "day": day(6)}, "kept", "kept")
    end_night({"name": NAME, "day": day(9)}, "stopped", "stopped")
    assert nights_of_events(config, NAME, [event(6, 7)], []) == [day(7)]
    assert nights_of_events(config, NAME, [event(6)], []) == [day(6)], "the run says that it is done"
    assert nights_of_events(config, NAME, [event(8)], [event(6), event(9)]) == [day(8)], "these had their runs"
    assert nights_of_events(config, NAME, [event(9)], []) == [day(9)], "was stopped, and is tried again"


@pytest.mark.parametrize("extra", [{}, {"day": None}, {"day": "6.1.2026"}, {"day": 6}, None])
def test_an_event_without_a_day_is_refused_unless_another_has_one(
    config: Config, extra: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"an event of the asset names no day: its extra is .* must be like"):
        nights_of_events(config, NAME, [extra], [event(7)])
    assert nights_of_events(config, NAME, [extra, event(6)], []) == [day(6)]
    assert "left out: an event of the asset names no day" in capsys.readouterr().out


def test_a_run_that_no_event_started_is_refused(config: Config) -> None:
    with pytest.raises(UserError, match="no event of new_day_conversions started this run"):
        nights_of_events(config, NAME, [], [])


def test_the_night_before_the_schedule_was_switched_on_is_not_run() -> None:
    hour, days = datetime.timedelta(hours=1), datetime.timedelta(days=1)
    switched_on = DUE + 7 * hour
    assert is_before_schedule(NAME, DUE, switched_on)
    assert is_before_schedule(NAME, DUE, switched_on + hour), "also when the run is cleared"
    assert not is_before_schedule(NAME, DUE + days, DUE + days)
    assert not is_before_schedule(NAME, DUE + 2 * days, DUE + 2 * days + 7 * hour), "the machine was off at night"


def test_a_first_night_on_time_is_run() -> None:
    assert not is_before_schedule(NAME, DUE, DUE + datetime.timedelta(seconds=20))
    assert not is_before_schedule(NAME, DUE, DUE + datetime.timedelta(hours=20)), "also when the run is cleared"
