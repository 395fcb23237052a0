"""Measures agree with pandas; good days pass and bad ones are stopped, with a sentence and a page."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tasks.config.loading import load_config
from tasks.data.parts import parse_files
from tasks.days.checks_page import checks_page, page_path, write_checks_page
from tasks.days.data_checks import (
    CheckedDay,
    Measure,
    check_day,
    night_days,
    population_stability,
    record_path,
    sentence,
)
from tasks.days.delivered import look
from tasks.days.sketches import bin_of, sketch_parts
from tasks.runtime.errors import UserError
from tests.tasks.days.daily_logs import day, day_rows, deliver_day, nightly_config, write_rows

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return tmp_path / "raw"


def measures(checked: CheckedDay) -> dict[tuple[str, str], Measure]:
    return {(measure.check, measure.of): measure for measure in checked.measures}


def slow_index(day: dict[Any, int], window: dict[Any, int]) -> float:
    bins = {name for name in {*day, *window} if day.get(name, 0) + window.get(name, 0)}
    p, q = ({name: side.get(name, 0) + 0.5 for name in bins} for side in (day, window))
    p, q = ({name: count / sum(side.values()) for name, count in side.items()} for side in (p, q))
    return float(sum((p[name] - q[name]) * np.log(p[name] / q[name]) for name in bins))


def test_measures_equal_pandas(raw: Path) -> None:
    """Days in several files, with a bad row and rows of another day."""
    tables = {number: day_rows(number, 200 + 50 * number) for number in range(4)}
    tables[3].loc[0, "sales"] = -1
    tables[3].loc[1:4, "when"] = pd.Timestamp(day(1))
    for number, table in tables.items():
        for at, piece in enumerate((table[:77], table[77:])):
            write_rows(raw / f"day={day(number)}" / f"{at}.parquet", piece)
    config = nightly_config(raw / "day={day}" / "*.parquet")
    found = measures(check_day(config, "night", day(3)))
    newest, window = tables[3].drop(index=0), pd.concat([tables[number] for number in range(3)])
    assert found["bad_rows", ""].value == 1 / 350
    assert found["bad_rows", ""].note == "label not allowed"
    assert (found["other_days", ""].value, found["other_days", ""].note) == (4 / 349, day(1))
    assert (found["rows", ""].day, found["rows", ""].window) == (349, 250)
    rates = [(table["sales"] > 0).mean() for table in (newest, window)]
    assert (found["label_rate", ""].day, found["label_rate", ""].window) == pytest.approx(rates)
    assert found["label_rate", ""].value == pytest.approx(max(rates) / min(rates))
    for name in ("site", "user"):
        texts = [table[name].fillna("") for table in (newest, window)]
        assert found["unseen_tokens", name].value == pytest.approx(1 - texts[0].isin(set(texts[1])).mean())
        counts = [text.value_counts().to_dict() for text in texts]
        if name == "site":  # all its tokens are among the most frequent ones
            assert found["drift", name].value == pytest.approx(slow_index(counts[0], counts[1]))
    bins = []
    for table in (newest, window):
        price = table["price"].astype(float)
        halves = np.floor(2 * np.log2(1 + price.clip(lower=0)) + 1e-9)
        bins.append(halves.mask(price < 0, -1).fillna(-2).value_counts().to_dict())
    assert found["drift", "price"].value == pytest.approx(slow_index(*bins))
    assert found["drift", "price"].day == newest["price"].isna().mean()


def test_many_tokens_are_compared_as_the_most_frequent_ones_and_the_rest(raw: Path) -> None:
    rng = np.random.default_rng(3)
    for number in (0, 1):
        table = day_rows(number, 5000)
        table["user"] = [f"u{value}" for value in rng.zipf(1.3, 5000) + 7 * number]
        write_rows(raw / f"day={day(number)}" / "rows.parquet", table)
    config = nightly_config(raw / "day={day}" / "*.parquet")
    found = measures(check_day(config, "night", day(1)))["drift", "user"]
    window, newest = (pd.read_parquet(raw / f"day={day(number)}" / "rows.parquet")["user"] for number in (0, 1))
    ranked = window.value_counts()
    # Ties at the last place may be broken in another way, which moves at most a few rows.
    top = set(ranked.index[:50])
    sides = [text.where(text.isin(top), "others").value_counts().to_dict() for text in (newest, window)]
    assert found.value == pytest.approx(slow_index(*sides), rel=0.05)
    assert found.breach


def test_the_index_of_equal_and_disjoint_days() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, 20)
    assert population_stability(counts, 4 * counts) == pytest.approx(0, abs=0.01)
    assert population_stability(np.array([100, 0]), np.array([0, 100])) > 5
    assert population_stability(np.array([3, 0, 0]), np.array([9, 0, 0])) == 0


def test_bins_hold_every_float() -> None:
    values = np.array([np.nan, -1.0, -0.0, 0.0, 1e-30, 30.0, 44.3, 88.7, np.finfo(np.float32).max], np.float32)
    assert bin_of(values).tolist()[:5] == [0, 1, 2, 2, 2]
    assert bin_of(values).max() == 129


def test_sketches_are_computed_once_and_add_up(raw: Path) -> None:
    config = nightly_config(raw / "day={day}" / "*.parquet")
    path = deliver_day(raw, 0, 300)
    found = look(config, "logs", day(0))
    parts = found.parts("logs", config.dataset("logs"))
    first, again = sketch_parts(parts), sketch_parts(parts)
    assert first.rows == again.rows == 300
    assert first.tokens["user"].counts.sum() == 300
    assert first.tokens["site"].texts == again.tokens["site"].texts
    assert set(first.tokens["site"].texts.values()) == {"a", "b", "c", ""}
    blocks = parse_files("other", config.dataset("logs"), found.files, block_bytes=1)
    other = sketch_parts(blocks)
    assert all((other.histograms[name] == counts).all() for name, counts in first.histograms.items())
    assert (other.tokens["user"].hashes == first.tokens["user"].hashes).all()
    assert path.exists()


@pytest.mark.parametrize("number", [2, 40, 200, 321])
def test_a_normal_synthetic_day_passes(number: int) -> None:
    """Two hundred nights at two seeds passed, with no drift above 0.007; these are a sample."""
    config = load_config()
    checked = check_day(config, "conversions", str(datetime.date(2026, 1, 1) + datetime.timedelta(number)))
    assert checked.passed, sentence(checked)
    assert max(measure.value or 0 for measure in checked.measures if measure.check == "drift") < 0.03


def test_a_bad_synthetic_day_is_stopped_and_the_next_ones_do_without_it(own_home: Path) -> None:
    config = load_config()
    checked = check_day(config, "conversions", "2026-01-09")
    assert {measure.check for measure in checked.breaches} == {"label_rate", "drift", "unseen_tokens"}
    assert sentence(checked).startswith("stopped: the label rate of 2026-01-09 is 0.34")
    assert "times the window's 0.1" in sentence(checked)
    assert "(limit 2); and 6 more breaches, such as: the population stability index of campaign" in sentence(checked)
    following = check_day(config, "conversions", "2026-01-10")
    assert following.passed
    assert list(following.left_out) == ["2026-01-09"]
    again = CheckedDay.from_json(json.loads(record_path("conversions", "2026-01-09").read_text()))
    assert again == checked
    page = write_checks_page(checked).read_text()
    assert page_path("conversions", "2026-01-09") == (
        own_home / "reports" / "nightly_retrain_conversions" / "2026-01-09" / "checks.html"
    )
    assert page.count("<svg ") == 5
    assert "not for publication" in page
    assert page.count("✗ breach") == 6  # of the label rate and of five columns
    assert "left out, because its own night was" in checks_page(following)


def test_the_first_night_has_nothing_to_compare_with(raw: Path) -> None:
    config = nightly_config(raw / "day={day}" / "*.parquet")
    deliver_day(raw, 0)
    checked = check_day(config, "night", day(0))
    assert checked.passed
    assert [measure.check for measure in checked.measures] == ["bad_rows", "other_days"]
    assert "has no day to compare with" in sentence(checked)
    assert "no day to compare with" in checks_page(checked)


def test_empty_and_undelivered_days(raw: Path) -> None:
    config = nightly_config(raw / "day={day}" / "*.parquet")
    with pytest.raises(UserError, match="is not delivered"):
        check_day(config, "night", day(1))
    write_rows(raw / f"day={day(0)}" / "rows.parquet", day_rows(0, 10).head(0))
    assert sentence(check_day(config, "night", day(0))) == f"stopped: {day(0)} has no rows"
    deliver_day(raw, 1)
    assert check_day(config, "night", day(1)).passed
    write_rows(raw / f"day={day(2)}" / "rows.parquet", day_rows(2, 10).head(0))
    checked = check_day(config, "night", day(2))
    assert sentence(checked) == f"stopped: {day(2)} has 0 rows, but the window's usual 200 (limit 2)"
    assert "∞" in checks_page(checked)
    assert json.loads(json.dumps(checked.to_json(), allow_nan=False))["measures"][2]["value"] is None


def test_a_day_is_stopped_by_each_check(raw: Path) -> None:
    limits = {"unseen_tokens": 1.0, "drift": 100.0}
    config = nightly_config(raw / "day={day}" / "*.parquet", checks=limits)
    deliver_day(raw, 0, 400)

    def said(table: pd.DataFrame, **checks: Any) -> str:
        write_rows(raw / f"day={day(1)}" / "rows.parquet", table)
        changed = nightly_config(raw / "day={day}" / "*.parquet", checks={**limits, **checks}) if checks else config
        return sentence(check_day(changed, "night", day(1)))

    usual = day_rows(1, 400)
    assert said(usual) == f"{day(1)} is as usual: 400 rows, compared with one day"
    assert said(usual[:100]).startswith(
        f"stopped: {day(1)} has 100 rows, and the window's usual 400 is 4 times as much"
    )
    assert "the window's usual 400 (limit 2)" in said(pd.concat([day_rows(1, 400, seed=s) for s in range(3)]))
    assert said(usual.assign(sales=0)).startswith(f"stopped: the label rate of {day(1)} is 0, but the window's 0.2")
    bad = usual.assign(sales=usual["sales"].where(usual.index > 20, -1))
    expected = f"stopped: 5.25 % of the rows of {day(1)} are bad, most of them for: label not allowed (limit 1 %)"
    assert said(bad) == expected
    assert said(bad, bad_rows=0.1).startswith(f"{day(1)} is as usual")
    moved = usual.assign(when=usual["when"].where(usual.index > 20, pd.Timestamp(day(0))))
    assert said(moved).endswith(
        f"% of the rows of {day(1)} have a time on another day, most often {day(0)} (limit 1 %)"
    )
    users = usual.assign(user=[f"new{row}" for row in range(400)])
    assert said(users).startswith(f"{day(1)} is as usual")
    assert said(users, unseen_tokens=0.5).startswith("stopped: 100 % of the rows")
    own = {"user": {"unseen_tokens": 1.0, "drift": 50.0}}
    assert said(users, unseen_tokens=0.5, drift=0.25, columns=own).startswith(f"{day(1)} is as usual")
    prices = usual.assign(price=usual["price"].fillna(0) * 1000 + 10**7)
    assert said(prices, drift=0.25).startswith("stopped: the population stability index of price on")


def test_bad_rows_of_the_window_stop_the_night(raw: Path) -> None:
    config = nightly_config(raw / "day={day}" / "*.parquet")
    table = day_rows(0, 200)
    table.loc[:9, "sales"] = -1
    write_rows(raw / f"day={day(0)}" / "rows.parquet", table)
    deliver_day(raw, 1)
    assert f"5 % of the rows of {day(0)} are bad" in sentence(check_day(config, "night", day(1)))
    # After a night of its own, the day is left out.
    check_day(config, "night", day(0))
    assert [state.state for state in night_days(config, "night", day(1)).window] == ["missing", "missing", "refused"]


def test_tokens_are_escaped_on_the_page(raw: Path) -> None:
    config = nightly_config(raw / "day={day}" / "*.parquet")
    deliver_day(raw, 0)
    table = day_rows(1, 200).assign(site="<b>&\x00")
    write_rows(raw / f"day={day(1)}" / "rows.parquet", table)
    page = checks_page(check_day(config, "night", day(1)))
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
