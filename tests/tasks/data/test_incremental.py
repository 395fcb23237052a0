"""A log that grows day by day: what is recomputed, what is reused, and when the fingerprint changes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.config.dataset import Dataset
from tasks.data import encoding as encode
from tasks.data import parts
from tasks.data.preparation import prepare
from tasks.data.prepared import Prepared, open_prepared
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json

pytestmark = pytest.mark.usefixtures("own_home")

ROWS = 300


def dataset(**changes: Any) -> Dataset:
    described = {
        "format": "parquet",
        "time_column": "when",
        "integer_columns": ["price"],
        "categorical_columns": ["site"],
        "labels": {"pctr": {"column": "click", "kind": "binary"}},
    }
    return Dataset.model_validate({**described, **changes})


def write_day(folder: Path, day: int, rows: int = ROWS, *, shuffled: bool = True) -> Path:
    """Returns a day with frequent tokens of its own, not in chronological order."""
    draw = random.Random(day)
    seconds = [day * 86_400 + draw.randrange(86_400) for _ in range(rows)]
    table = pa.table(
        {
            "when": seconds if shuffled else sorted(seconds),
            "price": [draw.randint(0, 9) for _ in range(rows)],
            "site": [draw.choice(["always", f"day {day}", f"{draw.random()}"]) for _ in range(rows)],
            "click": [draw.randint(0, 1) for _ in range(rows)],
        }
    )
    path = folder / f"day={day}" / "part.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=100)
    return path


class Calls:
    """Counts the calls of the two functions that do the work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parsed = self.encoded = 0
        parse_block, encode_block = parts.parse_block, encode._encode_block

        def parse(*arguments: Any) -> Any:
            self.parsed += 1
            return parse_block(*arguments)

        def encoding(*arguments: Any) -> Any:
            self.encoded += 1
            return encode_block(*arguments)

        monkeypatch.setattr(parts, "parse_block", parse)
        monkeypatch.setattr(encode, "_encode_block", encoding)

    def since(self) -> tuple[int, int]:
        found = self.parsed, self.encoded
        self.parsed = self.encoded = 0
        return found


def make(folder: Path, name: str = "logs", *, refit: bool = False, **changes: Any) -> Prepared:
    # One block per row group.
    return open_prepared(prepare(name, dataset(**changes), folder, min_count=5, block_bytes=1, refit=refit))


def vocabulary(prepared: Prepared) -> dict[str, int]:
    file = pd.read_parquet(prepared.path / "vocabulary.parquet")
    return dict(zip(file["token"], file["id"], strict=True))


def rows_of(prepared: Prepared) -> np.ndarray:
    splits = [prepared.split(name, "pctr") for name in ("train", "validation", "test")]
    return np.concatenate([np.c_[split.integers, split.categoricals, split.labels] for split in splits])


def test_new_days_are_parsed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, raw = Calls(monkeypatch), tmp_path / "raw"
    for day in (8, 9):
        write_day(raw, day)
    make(raw)
    assert calls.since() == (6, 6)
    write_day(raw, 10)
    refitted = make(raw)
    assert calls.since() == (3, 9), "the vocabulary is refitted, so every row is encoded again, but not parsed"
    assert "day 9" in vocabulary(refitted)
    assert make(raw, "elsewhere").fingerprint == refitted.fingerprint, "as if made from nothing"


@pytest.mark.parametrize("kind", ["keep", "hash"])
def test_with_stable_ids_old_rows_are_not_encoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    changes: dict[str, Any] = {"keep_vocabulary": True} if kind == "keep" else {"vocabulary": "hash"}
    calls, raw = Calls(monkeypatch), tmp_path / "raw"
    for day in (8, 9, 10):
        write_day(raw, day)
    first = make(raw, **changes)
    assert calls.since() == (9, 9)
    write_day(raw, 11)
    second = make(raw, **changes)
    assert calls.since() == (3, 3)
    assert vocabulary(second) == vocabulary(first)
    np.testing.assert_array_equal(rows_of(second)[: 3 * ROWS], rows_of(first))
    assert sum(split["rows"] for split in second.splits.values()) == 4 * ROWS
    days = second.statistics["by_day"]
    assert [row[0] for row in days.values()] == [ROWS] * 4
    assert make(raw, **changes).path == second.path

    # From scratch with the same vocabulary: all rows are encoded anew.
    for path in (second.path, first.path):
        path.rename(path.with_name("away " + path.name))
        (path.with_name("away " + path.name) / "schema.json").unlink()
    again = make(raw, **changes)
    assert calls.since() == (0, 12)
    assert again.fingerprint == second.fingerprint
    np.testing.assert_array_equal(rows_of(again), rows_of(second))
    assert again.statistics == second.statistics


def test_the_fingerprint_tells_whether_the_vocabulary_was_kept(tmp_path: Path) -> None:
    """Even if a refitted vocabulary has the same tokens."""
    raw, described = tmp_path / "raw", dataset(keep_vocabulary=True)
    for day in (8, 9):
        path = write_day(raw, day)
        table = pq.read_table(path)
        pq.write_table(table.set_column(2, "site", pa.repeat("the only one", len(table))), path)

    def made(name: str, *, refit: bool = False) -> Prepared:
        return open_prepared(prepare(name, described, raw, min_count=5, refit=refit))

    day_9 = raw / "day=9" / "part.parquet"
    hidden = day_9.rename(tmp_path / "hidden")
    first = made("logs")
    hidden.rename(day_9)
    kept = made("logs")
    refitted = made("logs", refit=True)
    assert vocabulary(kept) == vocabulary(first) == vocabulary(refitted)
    np.testing.assert_array_equal(rows_of(kept), rows_of(refitted))
    assert kept.fingerprint != refitted.fingerprint
    origin = read_json(kept.path / "schema.json")["vocabulary_kept_from"]
    assert origin["fingerprint"] == first.fingerprint
    assert read_json(refitted.path / "schema.json")["vocabulary_kept_from"] is None
    assert made("logs").path == refitted.path, "from now on the new one is kept"


def test_a_vocabulary_of_the_data_at_hand_is_not_called_kept(tmp_path: Path) -> None:
    """After its folder was deleted, the saved vocabulary gives the same data under the same name."""
    raw = tmp_path / "raw"
    write_day(raw, 8)
    first = make(raw, keep_vocabulary=True)
    shutil.rmtree(first.path)
    again = make(raw, keep_vocabulary=True)
    assert again.path == first.path
    assert again.fingerprint == first.fingerprint
    assert read_json(again.path / "schema.json")["vocabulary_kept_from"] is None


def test_late_rows_are_sorted_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a new file has rows of an old day, nothing is copied and the order is still right."""
    calls, raw = Calls(monkeypatch), tmp_path / "raw"
    for day in (8, 9):
        write_day(raw, day)
    make(raw, vocabulary="hash")
    calls.since()
    late = write_day(tmp_path / "late", 8, 50)
    late.rename(raw / "late.parquet")
    second = make(raw, vocabulary="hash")
    assert calls.since() == (1, 7)
    assert [row[0] for row in second.statistics["by_day"].values()] == [ROWS + 50, ROWS]


def test_a_private_vocabulary_of_few_rows_is_not_kept_for_many(tmp_path: Path) -> None:
    raw, changes = tmp_path / "raw", {"vocabulary": "private", "keep_vocabulary": True}
    write_day(raw, 1, 100)
    make(raw, **changes)
    write_day(raw, 2, 300)
    second = make(raw, **changes)
    first_draw = second.vocabulary["draw"]
    write_day(raw, 3, 3000)
    with pytest.raises(UserError, match="make a new one with --refit"):
        make(raw, **changes)
    refitted = make(raw, refit=True, **changes)
    assert refitted.vocabulary["draw"] != first_draw
