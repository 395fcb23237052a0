"""Every case of a day's delivery, each with one sentence for a person."""

from __future__ import annotations

import gzip
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from tasks.config.loading import Config
from tasks.days.delivered import look, survey, window_days
from tasks.days.deliveries import deliveries, delivery, record_missed, record_use
from tasks.runtime.errors import UserError
from tests.tasks.days.daily_logs import age, day, day_rows, deliver_day, nightly_config, write_rows

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return tmp_path / "raw"


@pytest.fixture
def config(raw: Path) -> Config:
    return nightly_config(raw / "day={day}" / "*.parquet")


def test_a_delivered_day_is_registered(raw: Path, config: Config) -> None:
    path = deliver_day(raw, 0)
    found = look(config, "logs", day(0))
    assert (found.state, found.rows, found.sentence) == ("delivered", 200, f"{day(0)} has 200 rows")
    assert [file.path for file in found.files] == [path]
    known = delivery("logs", day(0))
    assert known is not None
    assert (known["rows"], known["changes"], known["missed"]) == (200, [], None)
    assert known["files"][0]["size"] == path.stat().st_size


def test_a_missing_day_and_one_that_comes_late(raw: Path, config: Config) -> None:
    deliver_day(raw, 1)
    found = survey(config, "night", day(1))
    assert list(found.left_out) == [day(-2), day(-1), day(0)]
    assert found.left_out[day(0)].startswith(f"{day(0)} is not delivered: ")
    assert "no file matches" in found.left_out[day(0)]
    assert list(deliveries("logs")) == [day(1)]
    deliver_day(raw, 0)
    assert f"{day(0)} has 200 rows; it came late (a night did without it on" in look(config, "logs", day(0)).sentence
    # A day that was only waited for is not late.
    assert look(config, "logs", day(2)).state == "missing"
    deliver_day(raw, 2)
    assert look(config, "logs", day(2)).sentence == f"{day(2)} has 200 rows"
    record_missed("logs", day(3))
    deliver_day(raw, 3)
    assert "came late" in look(config, "logs", day(3)).sentence


def test_an_empty_day(raw: Path, config: Config) -> None:
    """Days without rows have equal files, which are no duplicates."""
    for number in (0, 1):
        write_rows(raw / f"day={day(number)}" / "rows.parquet", day_rows(0, 10).head(0))
        write_rows(raw / f"day={day(number)}" / "more.parquet", day_rows(0, 10).head(0))
        found = look(config, "logs", day(number))
        assert (found.state, found.rows) == ("empty", 0)
        assert found.sentence == f"{day(number)} was delivered without a row that can be used"
    deliver_day(raw, 2)
    assert survey(config, "night", day(2)).present == ()
    nothing = raw / f"day={day(3)}" / "rows.parquet"
    nothing.parent.mkdir()
    nothing.touch()
    age(nothing)
    assert look(config, "logs", day(3)).state == "empty"


def test_a_file_that_may_still_be_written(raw: Path, config: Config) -> None:
    path = write_rows(raw / f"day={day(0)}" / "rows.parquet", day_rows(0, 50), settled=False)
    found = look(config, "logs", day(0))
    assert found.state == "missing"
    assert f"{path} changed 0 s ago and may still be written" in found.sentence
    age(path, -30)  # by a clock that is ahead
    assert look(config, "logs", day(0)).state == "missing"
    for seconds in (3600, -86_400):
        age(path, seconds)
        assert look(config, "logs", day(0)).state == "delivered"


def test_a_file_that_cannot_be_read_to_its_end(raw: Path, config: Config) -> None:
    path = deliver_day(raw, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    age(path)
    found = look(config, "logs", day(0))
    assert found.state == "missing"
    assert "is not a complete Parquet file" in found.sentence
    assert deliveries("logs") == {}
    path.write_bytes(whole)
    age(path)
    assert look(config, "logs", day(0)).state == "delivered"


def test_a_compressed_file_that_is_cut(raw: Path) -> None:
    text = {"format": "csv", "header": True, "time_format": "iso8601", "day_marker": "_SUCCESS"}
    config = nightly_config(raw / "{day}", text)
    path = raw / day(0) / "rows.csv.gz"
    path.parent.mkdir(parents=True)
    packed = gzip.compress(day_rows(0, 300).to_csv(index=False, date_format="%Y-%m-%dT%H:%M:%S").encode())
    path.write_bytes(packed[:-20])
    (path.parent / "_SUCCESS").touch()
    assert "is not a complete gzip file" in look(config, "logs", day(0)).sentence
    path.write_bytes(packed)
    assert look(config, "logs", day(0)).rows == 300


def test_a_marker_says_that_a_day_is_complete(raw: Path) -> None:
    config = nightly_config(raw / "day={day}" / "*", {"day_marker": "_SUCCESS"})
    path = write_rows(raw / f"day={day(0)}" / "rows.parquet", day_rows(0, 50), settled=False)
    assert f"there is no _SUCCESS beside {path}" in look(config, "logs", day(0)).sentence
    (path.parent / "_SUCCESS").touch()
    assert look(config, "logs", day(0)).state == "delivered"


def test_a_touched_file_is_no_new_work(raw: Path, config: Config) -> None:
    path = deliver_day(raw, 0)
    first = look(config, "logs", day(0))
    parts = set((path.parents[2] / "home" / "data" / "logs" / "parts").iterdir())
    age(path, 7200)
    second = look(config, "logs", day(0))
    assert (second.contents, second.sentence) == (first.contents, first.sentence)
    assert second.files[0].identity == first.files[0].identity
    assert set((path.parents[2] / "home" / "data" / "logs" / "parts").iterdir()) == parts


def test_a_day_that_is_delivered_again_with_other_rows(raw: Path, config: Config) -> None:
    deliver_day(raw, 0)
    first = look(config, "logs", day(0))
    record_use("logs", {day(0): first.contents}, f"night of {day(1)}")
    deliver_day(raw, 0, rows=180, seed=5)
    second = look(config, "logs", day(0))
    assert (second.state, second.rows) == ("delivered", 180)
    assert second.contents != first.contents
    assert f"{day(0)} has 180 rows; it was delivered again with other contents, found on " in second.sentence
    assert second.sentence.endswith(f"(200 rows before); night of {day(1)} used earlier rows")
    known = delivery("logs", day(0))
    assert known is not None
    assert [(change["contents"], change["rows"]) for change in known["changes"]] == [(first.contents, 200)]
    record_use("logs", {day(0): second.contents}, f"night of {day(2)}")
    assert look(config, "logs", day(0)).sentence.endswith(f"night of {day(1)} used earlier rows")


def test_the_same_contents_for_two_days(raw: Path, config: Config) -> None:
    one = deliver_day(raw, 0)
    look(config, "logs", day(0))
    other = raw / f"day={day(1)}" / "copy.parquet"
    other.parent.mkdir()
    shutil.copy(one, other)
    age(other)
    deliver_day(raw, 1)  # beside a file of its own
    found = look(config, "logs", day(1))
    assert found.state == "refused"
    assert f"{other} has the same contents as {one} of {day(0)}" in found.sentence
    assert list(deliveries("logs")) == [day(0)]
    deliver_day(raw, 2)
    assert survey(config, "night", day(2)).left_out[day(1)] == found.sentence
    other.unlink()
    assert look(config, "logs", day(1)).state == "delivered"


def test_the_same_contents_twice_within_a_day(raw: Path, config: Config) -> None:
    one = deliver_day(raw, 0)
    other = one.with_name("again.parquet")
    shutil.copy(one, other)
    age(other)
    found = look(config, "logs", day(0))
    assert found.state == "refused"
    assert f"{other} and {one} have the same contents" in found.sentence


def test_a_pattern_that_finds_a_file_for_several_days(raw: Path) -> None:
    config = nightly_config(raw / "*{day}*" / "*.parquet")
    path = write_rows(raw / f"{day(0)}_to_{day(1)}" / "rows.parquet", day_rows(0, 50))
    assert look(config, "logs", day(0)).state == "delivered"
    found = look(config, "logs", day(1))
    assert found.state == "refused"
    assert f"`raw` finds {path} for {day(1)} and for {day(0)}" in found.sentence


def test_a_pattern_without_a_day_beside_one_with(raw: Path) -> None:
    with pytest.raises(ValueError, match="would be in every day"):
        nightly_config(raw, {"raw": [f"{raw}/day={{day}}/*.parquet", f"{raw}/extra.parquet"]})
    with pytest.raises(ValueError, match="`day_marker` is for logs that come by days"):
        nightly_config(raw, {"raw": f"{raw}/all.parquet", "day_marker": "_SUCCESS"})


def test_a_day_that_cannot_be_read_is_refused_and_left_out(raw: Path, config: Config) -> None:
    table = day_rows(0, 50)
    path = raw / f"day={day(0)}" / "rows.parquet"
    path.parent.mkdir(parents=True)
    table.drop(columns="sales").to_parquet(path)
    age(path)
    deliver_day(raw, 1)
    found = survey(config, "night", day(1))
    assert f"{day(0)} is refused, because it cannot be read: " in found.left_out[day(0)]
    assert "'sales'" in found.left_out[day(0)]


def test_a_file_in_an_unknown_compression_is_refused(raw: Path, config: Config) -> None:
    path = raw / f"day={day(0)}" / "rows.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PK\x03\x04 and so on")
    age(path)
    found = look(config, "logs", day(0))
    assert found.state == "refused"
    assert "is compressed with zip" in found.sentence


def test_processes_that_register_at_once(raw: Path, config: Config) -> None:
    """Days that look at each other's records while these are written."""
    for number in range(6):
        deliver_day(raw, number)
    with ThreadPoolExecutor(6) as pool:
        states = list(pool.map(lambda number: look(config, "logs", day(number % 6)), range(18)))
    assert {state.state for state in states} == {"delivered"}
    assert list(deliveries("logs")) == [day(number) for number in range(6)]


def test_files_that_are_gone(raw: Path, config: Config) -> None:
    path = deliver_day(raw, 0)
    look(config, "logs", day(0))
    os.unlink(path)
    assert look(config, "logs", day(0)).sentence.startswith(f"{day(0)} is not delivered any more: ")


def test_days_are_checked() -> None:
    assert window_days("2024-03-01", 2) == ["2024-02-28", "2024-02-29"]
    with pytest.raises(UserError, match="is not a day"):
        window_days("2026-02-30", 1)


def test_files_of_a_day_add_up(raw: Path, config: Config) -> None:
    table = day_rows(0, 90)
    for number, piece in enumerate((table[:30], table[30:35], table[35:])):
        write_rows(raw / f"day={day(0)}" / f"{number}.parquet", pd.DataFrame(piece))
    found = look(config, "logs", day(0))
    assert (found.rows, len(found.files)) == (90, 3)
