"""The data of a night agrees with a slow and obvious oracle, and never shows the vocabulary the newest day."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.data.prepared import open_prepared
from tasks.data.stable_hash import stable_hash
from tasks.days.data_checks import check_day
from tasks.days.deliveries import delivery
from tasks.days.window import PreparedWindow, prepare_window
from tasks.runtime.errors import UserError
from tests.tasks.days.daily_logs import age, day, day_rows, deliver_day, nightly_config, write_rows

pytestmark = pytest.mark.usefixtures("own_home")

PRIVATE = {"vocabulary": "private", "vocabulary_buckets": None, "vocabulary_epsilon": 5.0}
THRESHOLD = {"vocabulary": "threshold", "vocabulary_buckets": None}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return tmp_path / "raw"


def deliver_pieces(raw: Path, seed: int, days: range) -> dict[int, list[pd.DataFrame]]:
    """Delivers days in several files each, unsorted, with ties and a few rows of other days; prices are unique."""
    rng = np.random.default_rng(seed)
    delivered: dict[int, list[pd.DataFrame]] = {}
    unique = 0
    for number in days:
        table = day_rows(number, int(rng.integers(150, 320)), rate=0.7, seed=seed)
        table["price"] = range(unique, unique + len(table))
        unique += len(table)
        strays = rng.choice(len(table), 2, replace=False)
        table.loc[strays, "when"] += pd.to_timedelta(rng.choice([-1, 1], 2), unit="D")
        cuts = np.sort(rng.integers(0, len(table), 2))
        delivered[number] = [table[: cuts[0]], table[cuts[0] : cuts[1]], table[cuts[1] :]]
        for at, piece in enumerate(delivered[number]):
            write_rows(raw / f"day={day(number)}" / f"{at}.parquet", piece)
    return delivered


def oracle(window: list[pd.DataFrame], newest: list[pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Returns the rows of each split in order."""
    train = pd.concat(window).sort_values("when", kind="stable")
    last = pd.concat(newest).sort_values("when", kind="stable")
    boundary = last["when"].iloc[int(0.1 * len(last)) - 1]
    return {"train": train, "validation": last[last["when"] <= boundary], "test": last[last["when"] > boundary]}


def assert_equals(path: Path, expected: dict[str, pd.DataFrame], ids: dict[str, Any]) -> None:
    prepared = open_prepared(path)
    for split, rows in expected.items():
        found = prepared.split(split, "pconvs")
        prices = np.round(np.expm1(found.integers[:, 0].astype(np.float64))).astype(int)
        assert prices.tolist() == rows["price"].tolist(), split
        assert found.labels.tolist() == rows["sales"].tolist()
        assert (prepared.split(split, "pcvr").labels > 0).tolist() == (rows["sales"] > 0).tolist()
        for column, name in enumerate(("site", "user")):
            assert found.categoricals[:, column].tolist() == [ids[name](token) for token in texts(rows[name])]


def texts(column: pd.Series) -> list[str]:
    return ["" if missing else token for token, missing in zip(column, column.isna(), strict=True)]


def bucket(name: str) -> Any:
    return lambda token: int(stable_hash(name, pa.array([token]))[0] % np.uint64(50)) + 1


@pytest.mark.parametrize("seed", range(4))
def test_splits_and_ids_equal_the_oracle(raw: Path, seed: int) -> None:
    config = nightly_config(raw / "day={day}" / "*.parquet", window_days=2 + seed % 2)
    delivered = deliver_pieces(raw, seed, range(5))
    for newest in (3, 4):
        before = range(newest - 2 - seed % 2, newest)
        found = prepare_window(config, "night", day(newest))
        expected = oracle([piece for number in before for piece in delivered[number]], delivered[newest])
        assert_equals(found.path, expected, {name: bucket(name) for name in ("site", "user")})
        assert found.window == tuple(day(number) for number in before)
        assert found.rows == {day(n): sum(map(len, delivered[n])) for n in (*before, newest)}
        assert found.examples == len(expected["train"])
        prepared = open_prepared(found.path)
        assert (found.fingerprint, prepared.data_card.exists()) == (prepared.fingerprint, True)
        assert prepared.split_by == (
            f"day: {day(before[0])} to {day(newest - 1)} train; of {day(newest)}, the first tenth in time validates "
            "and the rest tests"
        )
        assert f"split by</dt><dd>{prepared.split_by}" in prepared.data_card.read_text()


@pytest.mark.parametrize("keep", [False, True], ids=["fitted every night", "kept"])
def test_counted_vocabularies_equal_the_oracle(raw: Path, keep: bool) -> None:
    """With a threshold, which nights do not allow in the file, ids are known exactly."""
    config = nightly_config(raw / "day={day}" / "*.parquet", {**THRESHOLD, "keep_vocabulary": keep}, window_days=2)
    least = config.profile("smoke").min_count
    delivered = deliver_pieces(raw, 11, range(5))

    def ids_of(days: range) -> dict[str, Any]:
        rows, ids = pd.concat([piece for number in days for piece in delivered[number]]), {}
        for name in ("site", "user"):
            counts = Counter(texts(rows[name]))
            kept = sorted((-count, token) for token, count in counts.items() if count >= least)
            known = {token: number for number, (_, token) in enumerate(kept, start=1)}
            ids[name] = lambda token, known=known: known.get(token, 0)
        return ids

    for newest in (2, 3, 4):
        found = prepare_window(config, "night", day(newest))
        fitted = range(2) if keep else range(newest - 2, newest)
        window = [piece for number in range(newest - 2, newest) for piece in delivered[number]]
        assert_equals(found.path, oracle(window, delivered[newest]), ids_of(fitted))
        assert found.vocabulary_days == tuple(day(number) for number in fitted)
        assert found.vocabulary_is_reused == (keep and newest > 2)
    again = prepare_window(config, "night", day(2))
    assert (again.vocabulary_is_reused, again.vocabulary_days) == (False, (day(0), day(1)))


def tokens_in(found: PreparedWindow) -> set[str]:
    return set(pq.read_table(found.path / "vocabulary.parquet")["token"].to_pylist())


def test_a_private_vocabulary_never_sees_the_newest_day(raw: Path) -> None:
    """Each day has a token of its own, on so many rows that every vocabulary of that day has it."""
    for number in range(6):
        table = day_rows(number, 400)
        table["site"] = [f"only {number}" if row % 2 else "a" for row in range(400)]
        write_rows(raw / f"day={day(number)}" / "rows.parquet", table)
    config = nightly_config(raw / "day={day}" / "*.parquet", PRIVATE, window_days=2)
    found = prepare_window(config, "night", day(4))
    assert {token for token in tokens_in(found) if token.startswith("only")} == {"only 2", "only 3"}
    assert open_prepared(found.path).vocabulary["kind"] == "private"
    kept = nightly_config(raw / "day={day}" / "*.parquet", {**PRIVATE, "keep_vocabulary": True}, window_days=2)
    first = prepare_window(kept, "night", day(4))
    after, before = prepare_window(kept, "night", day(5)), prepare_window(kept, "night", day(3))
    assert tokens_in(after) == tokens_in(first)
    draws = [open_prepared(window.path).vocabulary["draw"] for window in (first, after, before)]
    assert draws[0] == draws[1] != draws[2]
    # A night before those that the vocabulary was made from has one of its own.
    assert {token for token in tokens_in(before) if token.startswith("only")} == {"only 1", "only 2"}
    assert prepare_window(kept, "night", day(5)).vocabulary_days == (day(2), day(3))


def test_a_kept_vocabulary_of_far_fewer_rows_is_made_anew(raw: Path) -> None:
    for number, rows in enumerate((120, 150, 4000, 200)):
        deliver_day(raw, number, rows)
    config = nightly_config(
        raw / "day={day}" / "*.parquet", {**PRIVATE, "keep_vocabulary": True}, checks={"rows": 100.0}
    )
    assert prepare_window(config, "night", day(1)).vocabulary_days == (day(0),)
    assert prepare_window(config, "night", day(2)).vocabulary_days == (day(0),)
    assert prepare_window(config, "night", day(3)).vocabulary_days == (day(0), day(1), day(2))


def test_the_same_night_is_prepared_once_and_a_changed_day_anew(raw: Path) -> None:
    config = nightly_config(raw / "day={day}" / "*.parquet")
    for number in range(4):
        deliver_day(raw, number)
    first = prepare_window(config, "night", day(3))
    made = (first.path / "schema.json").stat().st_mtime_ns
    age(raw / f"day={day(1)}" / "rows.parquet", 100)
    second = prepare_window(config, "night", day(3))
    assert (second, (second.path / "schema.json").stat().st_mtime_ns) == (first, made)
    deliver_day(raw, 1, 210, seed=9)
    third = prepare_window(config, "night", day(3))
    assert third.path != first.path
    assert third.rows[day(1)] == 210
    known = delivery("logs", day(1))
    assert known is not None
    assert [use["night"] for use in known["uses"]] == [f"night {day(3)} of night"] * 2
    night = json.loads((third.path / "schema.json").read_text())["night"]
    assert night["days"][day(1)] == {"rows": 210, "contents": known["contents"]}


def test_missing_empty_and_stopped_days_are_left_out(raw: Path) -> None:
    config = nightly_config(raw / "day={day}" / "*.parquet", window_days=4)
    deliver_day(raw, 0, 300)
    write_rows(raw / f"day={day(1)}" / "rows.parquet", day_rows(1, 10).head(0))
    deliver_day(raw, 3, 300, rate=3.0)
    assert not check_day(config, "night", day(3)).passed
    deliver_day(raw, 4, 300)
    found = prepare_window(config, "night", day(4))
    assert found.window == (day(0),)
    assert list(found.left_out) == [day(1), day(2), day(3)]
    assert "its own night was stopped: the label rate" in found.left_out[day(3)]
    # The day comes again, with other rows.
    deliver_day(raw, 3, 300)
    assert prepare_window(config, "night", day(4)).window == (day(0), day(3))


def test_bad_rows_are_left_to_the_checks(raw: Path) -> None:
    """Far more of them than `tolerated_bad_rows`, 0.001: the preparation goes on, and the checks stop the night."""
    config = nightly_config(raw / "day={day}" / "*.parquet")
    deliver_day(raw, 0)
    table = day_rows(1, 200)
    table.loc[:19, "sales"] = -1
    write_rows(raw / f"day={day(1)}" / "rows.parquet", table)
    checked = check_day(config, "night", day(1))
    assert checked.breaches[0].check == "bad_rows"
    found = prepare_window(config, "night", day(1))
    assert (found.rows[day(1)], len(pd.read_csv(found.path / "quarantine.csv"))) == (180, 20)


def test_days_that_cannot_be_used(raw: Path) -> None:
    config = nightly_config(raw / "day={day}" / "*.parquet")
    with pytest.raises(UserError, match=f"{day(1)} is not delivered"):
        prepare_window(config, "night", day(1))
    deliver_day(raw, 1)
    with pytest.raises(UserError, match=f"there is no day to train on before {day(1)}: {day(-2)} is not delivered"):
        prepare_window(config, "night", day(1))
    deliver_day(raw, 2, 60)
    with pytest.raises(UserError, match=f"{day(2)} has 60 rows, too few to judge a model"):
        prepare_window(config, "night", day(2))
    deliver_day(raw, 3, 300, rate=0)
    with pytest.raises(UserError, match=r"has 3\d rows, all without a positive label for pCVR"):
        prepare_window(config, "night", day(3))
    table = day_rows(4, 300)
    table["when"] = pd.Timestamp(day(4))
    write_rows(raw / f"day={day(4)}" / "rows.parquet", table)
    with pytest.raises(UserError, match="would be 0 of 300, because too many rows have the same value of 'when'"):
        prepare_window(config, "night", day(4))
    write_rows(raw / f"day={day(5)}" / "rows.parquet", table.head(0))
    with pytest.raises(UserError, match="was delivered without a row"):
        prepare_window(config, "night", day(5))
