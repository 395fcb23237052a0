"""Records of nights that someone has damaged."""

from __future__ import annotations

import pytest

from tasks.nights.overview import _news
from tasks.nights.record import Night, end_night, night_folder, read_night, read_nights
from tasks.runtime.errors import UserError
from tasks.runtime.home import write_text


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_record_is_named(own_home: object, text: str) -> None:
    path = night_folder("rates", "2026-01-05") / "night.json"
    path.parent.mkdir(parents=True)
    write_text(path, text)
    with pytest.raises(UserError, match=r"night\.json is damaged"):
        print([night["day"] for night in read_nights("rates")])


def test_a_decision_stays_when_another_run_of_the_night_ends_without_one(own_home: object) -> None:
    end_night({"name": "rates", "day": "2026-01-05"}, "kept", "kept night 2026-01-04")
    end_night({"name": "rates", "day": "2026-01-05"}, "stopped", "data changed while it was being read")
    found = read_night("rates", "2026-01-05")
    assert found is not None
    assert found["status"] == "kept"


def test_the_overview_tells_what_happened_to_a_day_once() -> None:
    nights: list[Night] = [
        {"day": "2026-01-09", "said": ["8 came late", "9 is empty"]},
        {"day": "2026-01-08", "said": ["8 came late"]},
        {"day": "2026-01-07"},
    ]
    assert _news(nights) == {"2026-01-07": [], "2026-01-08": ["8 came late"], "2026-01-09": ["9 is empty"]}
