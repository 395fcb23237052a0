"""Synthetic days are the same for the same seed and day, plausible on every date, and have their accidents."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.config.dataset import Dataset
from tasks.config.loading import load_config
from tasks.logs.files import find_files
from tasks.logs.synthetic_days import day_file, day_table, deliver
from tasks.prepare import raw_log
from tasks.runtime.errors import UserError


def dataset(**days: object) -> Dataset:
    described = load_config().dataset("synthetic_days").model_dump(exclude_unset=True)
    described["synthetic"]["days"] = {"start": described["synthetic"]["days"]["start"], "rows": 2000, **days}
    return Dataset.model_validate(described)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_equal_days_have_equal_bytes_and_other_days_other_rows(own_home: Path) -> None:
    described = dataset()
    first = [digest(path) for path in deliver("one", described, "2026-01-03", window_days=2)]
    again = [digest(path) for path in deliver("two", described, "2026-01-03", window_days=9)]
    assert first == again  # there are no days before the start
    assert len(set(first)) == 3
    assert day_file("one", "2026-01-03").parent == own_home / "raw" / "one" / "day=2026-01-03"


@pytest.mark.parametrize("index", [0, 1, 300, 3000])
def test_rows_are_within_their_day_and_in_order(index: int) -> None:
    synthetic = dataset().synthetic
    assert synthetic is not None
    assert synthetic.days is not None
    times = day_table(synthetic, index)["timestamp"].to_numpy()
    start = np.datetime64(synthetic.days.start) + np.timedelta64(index, "D")
    assert times.min() >= start
    assert times.max() < start + np.timedelta64(1, "D")
    assert (np.diff(times) >= np.timedelta64(0)).all()
    assert len(times) == 2000


def test_the_drift_is_bounded() -> None:
    """Rates of ten thousand rows swing by a fifth, in the year's last weeks as in its first; 5σ are 0.015."""
    synthetic = dataset(rows=10_000).synthetic
    assert synthetic is not None
    rates = {
        index: (day_table(synthetic, index)["conversions"].to_numpy() > 0).mean() for index in (0, 7, 14, 21, 357, 364)
    }
    assert all(0.07 < rate < 0.13 for rate in rates.values())
    assert rates[7] > rates[21] + 0.01
    assert abs(rates[357] - rates[21]) < 0.015


def test_late_changed_bad_and_empty_days(own_home: Path) -> None:
    described = dataset(late=[1], changed=[2], bad=[3], empty=[4])
    day = [f"2026-01-0{number}" for number in range(1, 7)]
    deliver("logs", described, day[1], window_days=1)
    assert not day_file("logs", day[1]).exists()
    deliver("logs", described, day[2], window_days=2)
    assert day_file("logs", day[1]).exists()
    before = pq.read_table(day_file("logs", day[2]))
    deliver("logs", described, day[3], window_days=1)
    after, changed = pq.read_table(day_file("logs", day[2])), digest(day_file("logs", day[2]))
    different = (before["conversions"].to_numpy() != after["conversions"].to_numpy()).mean()
    assert 0.01 < different < 0.06
    assert before.drop_columns("conversions").equals(after.drop_columns("conversions"))
    deliver("logs", described, day[2])  # a night that is played again finds the rows as they are now
    assert digest(day_file("logs", day[2])) == changed
    assert (pq.read_table(day_file("logs", day[3]))["conversions"].to_numpy() > 0).mean() > 0.25
    deliver("logs", described, day[4])
    assert pq.read_table(day_file("logs", day[4])).num_rows == 0


def test_other_settings_give_other_rows(own_home: Path) -> None:
    path = deliver("logs", dataset(), "2026-01-01")[0]
    first = digest(path)
    deliver("logs", dataset(rows=3000), "2026-01-01")
    assert digest(path) != first
    with pytest.raises(UserError, match=r"it has no `synthetic\.days`"):
        deliver("logs", load_config().dataset("synthetic_clicks"), "2026-01-01")


def test_other_pipelines_read_a_log_by_days_as_a_whole(own_home: Path, tmp_path: Path) -> None:
    config = load_config()
    [whole] = raw_log(config, "synthetic_days", "smoke")
    assert pq.read_metadata(whole).num_rows == config.profile("smoke").synthetic_rows
    for day in ("2026-01-02", "2026-01-10"):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "a.csv").write_text("1")
    names = [file.path.parent.name for file in find_files([f"{tmp_path}/day={{day}}/*.csv"])]
    assert names == ["day=2026-01-02", "day=2026-01-10"]
