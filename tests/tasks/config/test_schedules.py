"""Schedules of nights: cron expressions that come, at times that stay the same."""

from __future__ import annotations

import pytest

from tasks.config.nightly import Nightly
from tests.tasks.days.daily_logs import NIGHTLY


@pytest.mark.parametrize("schedule", ["0 3 * * *", "30 2 29 2 *", "0 3 * MAR-APR FRI", "0 3 * * 1#5"])
def test_schedules_that_come(schedule: str) -> None:
    assert Nightly.model_validate({**NIGHTLY, "schedule": schedule}).schedule == schedule


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("@daily", "is not a cron schedule of five fields"),
        ("0 3 * * * *", "is not a cron schedule of five fields"),
        ("0 24 * * *", "is not a cron schedule of five fields"),
        ("R 3 * * *", "is not a cron schedule of five fields"),
        ("r(0-30) 3 * * *", "is not a cron schedule of five fields"),
        ("0 3 31 2 *", "never comes: there is no such date"),
    ],
)
def test_schedules_that_do_not(schedule: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Nightly.model_validate({**NIGHTLY, "schedule": schedule})
