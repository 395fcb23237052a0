"""One log under two names has one budget, or is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tasks.config.dataset import Dataset
from tasks.config.loading import Config
from tasks.days.delivered import look, survey
from tasks.days.deliveries import record_use
from tasks.days.shared_files import budget_of_files
from tests.tasks.days.daily_logs import COLUMNS, age, day, day_rows, deliver_day, nightly_config, write_rows

pytestmark = pytest.mark.usefixtures("own_home")


def two_names(raw: Path, elsewhere: Path | None = None, **changes: str) -> Config:
    """A configuration in which ``other`` reads the files of ``logs``, or those in another folder."""
    config = nightly_config(raw / "day={day}" / "*.parquet")
    where = f"{elsewhere or raw}/day={{day}}/*.parquet"
    other = Dataset.model_validate({**COLUMNS, "raw": where, "keep_rows": {"site": ["a"]}, **changes})
    return config.model_copy(update={"datasets": {**config.datasets, "other": other}})


def test_a_second_name_for_the_same_files_is_refused(tmp_path: Path) -> None:
    path = deliver_day(tmp_path, 0)
    config = two_names(tmp_path)
    assert look(config, "logs", day(0)).state == "delivered"
    found = look(config, "other", day(0))
    assert found.state == "refused"
    assert f"{path} is also in {day(0)} of the dataset logs, which has a budget of its own" in found.sentence
    assert "write `shares_budget_with: logs` in the dataset other" in found.sentence
    assert look(config, "logs", day(0)).state == "delivered", "the first stays as it was"


def test_so_is_a_copy_of_the_files_and_another_day(tmp_path: Path) -> None:
    copy = tmp_path / "copy" / f"day={day(3)}" / "renamed.parquet"
    copy.parent.mkdir(parents=True)
    shutil.copy(deliver_day(tmp_path / "raw", 0), copy)
    age(copy)
    config = two_names(tmp_path / "raw", tmp_path / "copy")
    look(config, "logs", day(0))
    assert f"{copy} is also in {day(0)} of the dataset logs" in look(config, "other", day(3)).sentence


def test_a_dataset_that_was_renamed_names_its_earlier_name(tmp_path: Path) -> None:
    deliver_day(tmp_path, 0)
    look(two_names(tmp_path), "logs", day(0))
    renamed, sharing = two_names(tmp_path), two_names(tmp_path, shares_budget_with="logs")
    for config, state in ((renamed, "refused"), (sharing, "delivered")):
        only = config.model_copy(update={"datasets": {"other": config.datasets["other"]}})
        assert look(only, "other", day(0)).state == state
    assert sharing.budget_name("other") == sharing.budget_name("logs") == "logs"


def test_datasets_that_share_a_budget_share_files(tmp_path: Path) -> None:
    paths = [deliver_day(tmp_path, number) for number in range(2)]
    config = two_names(tmp_path, shares_budget_with="logs")
    assert survey(config, "night", day(1)).newest.state == "delivered"
    assert look(config, "other", day(1)).state == "delivered"
    assert budget_of_files(config, "experiment", [str(paths[1])]) == "logs"
    assert budget_of_files(config, "experiment", [str(tmp_path / "unknown.parquet")]) is None


def test_a_shared_budget_is_one_of_days(tmp_path: Path) -> None:
    """The same file as one day here and as another there would be charged to two days, half of it to each."""
    path = deliver_day(tmp_path, 0)
    config = two_names(tmp_path, shares_budget_with="logs")
    look(config, "logs", day(0))
    copy = tmp_path / f"day={day(5)}" / "rows.parquet"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    age(copy)
    assert f"{copy} is also in {day(0)} of the dataset logs, which shares its budget" in (
        look(config, "other", day(5)).sentence
    )


@pytest.mark.parametrize("used", [True, False])
def test_rows_that_were_used_under_another_date_are_refused(tmp_path: Path, used: bool) -> None:
    """The dates of files were corrected, but the rows have spent the budget of the first date."""
    config = nightly_config(tmp_path / "day={day}" / "*.parquet")
    path = deliver_day(tmp_path, 1)
    first = look(config, "logs", day(1))
    if used:
        record_use("logs", {day(1): first.contents}, f"night of {day(2)}")
    moved = tmp_path / f"day={day(0)}" / "rows.parquet"
    moved.parent.mkdir()
    shutil.move(path, moved)
    age(moved)
    deliver_day(tmp_path, 1, seed=1)
    assert look(config, "logs", day(1)).state == "delivered"
    found = look(config, "logs", day(0))
    assert found.state == ("refused" if used else "delivered")
    if used:
        assert f"its rows were delivered as {day(1)} before, and night of {day(2)} used them there" in found.sentence


def test_a_file_that_was_used_under_another_date_is_refused(tmp_path: Path) -> None:
    """The other files of the first date stay there: only one was moved."""
    config = nightly_config(tmp_path / "day={day}" / "*.parquet")
    deliver_day(tmp_path, 0)
    path = write_rows(tmp_path / f"day={day(0)}" / "second.parquet", day_rows(0, 60, seed=9))
    record_use("logs", {day(0): look(config, "logs", day(0)).contents}, "a night")
    deliver_day(tmp_path, 1)
    moved = shutil.move(path, tmp_path / f"day={day(1)}" / "second.parquet")
    assert look(config, "logs", day(0)).state == "delivered"
    found = look(config, "logs", day(1))
    assert found.state == "refused"
    assert f"the rows of {moved} were delivered as {day(0)} before, and a night used them there" in found.sentence
    moved.unlink()
    assert look(config, "logs", day(1)).state == "delivered"


@pytest.mark.parametrize("used", [True, False])
def test_a_copy_of_files_that_were_replaced_since_is_refused_if_nights_used_them(tmp_path: Path, used: bool) -> None:
    config = two_names(tmp_path / "raw", tmp_path / "copy")
    copy = tmp_path / "copy" / f"day={day(0)}" / "rows.parquet"
    copy.parent.mkdir(parents=True)
    shutil.copy(deliver_day(tmp_path / "raw", 0), copy)
    age(copy)
    first = look(config, "logs", day(0))
    if used:
        record_use("logs", {day(0): first.contents}, "a night")
    deliver_day(tmp_path / "raw", 0, seed=1)
    assert "again with other contents" in look(config, "logs", day(0)).sentence
    found = look(config, "other", day(0))
    assert found.state == ("refused" if used else "delivered")
    if used:
        assert f"{copy} was in {day(0)} of the dataset logs, which has a budget of its own" in found.sentence
