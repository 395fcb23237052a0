"""The shipped descriptions read files in the exact formats of Criteo's logs, compared with slow and obvious readers."""

from __future__ import annotations

import gzip
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tasks.config.loading import load_config
from tasks.data.preparation import prepare
from tasks.data.prepared import Prepared, open_prepared

pytestmark = pytest.mark.usefixtures("own_home")

ATTRIBUTION = [
    *("timestamp", "uid", "campaign", "conversion", "conversion_timestamp", "conversion_id", "attribution", "click"),
    *("click_pos", "click_nb", "cost", "cpo", "time_since_last_click", *(f"cat{i}" for i in range(1, 10))),
]
DAY = 86_400


def make(dataset: str, raw: Path, **options: Any) -> Prepared:
    return open_prepared(prepare(dataset, load_config().dataset(dataset), raw, min_count=3, **options))


def everything(prepared: Prepared, task: str) -> dict[str, np.ndarray]:
    """Returns all rows in chronological order."""
    splits = [prepared.split(name, task) for name in ("train", "validation", "test")]
    return {
        name: np.concatenate([getattr(split, name) for split in splits])
        for name in ("integers", "categoricals", "labels")
    }


def token_ids(prepared: Prepared, column: str, tokens: list[str]) -> list[int]:
    file = pd.read_parquet(prepared.path / "vocabulary.parquet")
    ids = {row.token: row.id for row in file.itertuples() if row.column == column}
    return [ids.get(token, 0) for token in tokens]


def logged(values: list[float | None]) -> np.ndarray:
    return np.array([math.nan if v is None else math.copysign(math.log1p(abs(v)), v) for v in values], np.float32)


def test_kaggle(tmp_path: Path) -> None:
    """40 columns, no header, empty fields for missing values, hexadecimal tokens, negative integers in I2."""
    draw, rows = random.Random(0), []
    for _ in range(500):
        integers = [draw.choice(["", "0", "1", "17", "-2", "48123"]) for _ in range(13)]
        rows.append([draw.choice("01"), *integers, *(draw.choice(["", "68fd1e64", "80e26c9b"]) for _ in range(26))])
    raw = tmp_path / "train.txt"
    raw.write_text("".join("\t".join(row) + "\n" for row in rows))
    prepared = make("criteo_kaggle", raw, block_bytes=5000)
    found = everything(prepared, "pctr")
    assert found["labels"].tolist() == [float(row[0]) for row in rows]
    for column in (0, 1, 12):
        wanted = logged([float(row[1 + column]) if row[1 + column] else None for row in rows])
        np.testing.assert_allclose(found["integers"][:, column], wanted, rtol=2e-7)
    assert found["categoricals"][:, 25].tolist() == token_ids(prepared, "C26", [row[39] for row in rows])
    assert prepared.split_by == "file order"


def attribution_rows(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Impressions in chronological order; several impressions of a user and campaign carry the same conversion."""
    draw, now, table, conversions = random.Random(seed), 0, [], {}
    for _ in range(rows):
        now += draw.choice([0, 30, 600, 9000])
        key = draw.randint(1, 40), draw.choice([10341182, 30801593, 17686799])
        if draw.random() < 0.15:
            conversions.setdefault(key, []).append((draw.randint(10**6, 10**9), now + draw.randint(0, 40 * DAY)))
        known = [c for c in conversions.get(key, []) if 0 <= c[1] - now <= 30 * DAY]
        event = draw.choice(known) if known and draw.random() < 0.8 else (-1, -1)
        values = [now, *key, int(event[0] > 0), event[1], event[0], draw.randint(0, 1), int(draw.random() < 0.4)]
        values += [draw.randint(-1, 5), draw.randint(-1, 9), f"{draw.expovariate(1):.18g}", f"{draw.random():.17g}"]
        values += [draw.choice([-1, draw.randint(1, 100_000)]), *(draw.randint(1, 30) * 10_007 for _ in range(9))]
        table.append(dict(zip(ATTRIBUTION, values, strict=True)))
    return table


def write_attribution(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = ["\t".join(ATTRIBUTION), *("\t".join(str(row[name]) for name in ATTRIBUTION) for row in rows)]
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path


@pytest.mark.parametrize("block_bytes", [3000, 1 << 20])
def test_attribution(tmp_path: Path, block_bytes: int) -> None:
    """Header, gzip, -1 for missing values, clicks only; conversions of a user and campaign from all impressions."""
    rows = attribution_rows(2000)
    prepared = make("criteo_attribution", write_attribution(tmp_path / "logs.tsv.gz", rows), block_bytes=block_bytes)
    clicks = [row for row in rows if row["click"]]
    found = everything(prepared, "pconvs")

    events = {
        (row["uid"], row["campaign"], row["conversion_id"], row["conversion_timestamp"])
        for row in rows
        if row["conversion_id"] != -1
    }
    followed = [
        sum(
            (uid, campaign) == (click["uid"], click["campaign"]) and 0 <= when - click["timestamp"] <= 30 * DAY
            for uid, campaign, _, when in events
        )
        for click in clicks
    ]
    assert found["labels"].tolist() == followed
    assert max(followed) > 1
    carried_elsewhere = [count for count, click in zip(followed, clicks, strict=True) if count > click["conversion"]]
    assert carried_elsewhere, "the label is more than the row's own column"
    assert everything(prepared, "pcvr")["labels"].tolist() == [click["conversion"] for click in clicks]

    missing = [None if c["time_since_last_click"] == -1 else c["time_since_last_click"] for c in clicks]
    np.testing.assert_allclose(found["integers"][:, 1], logged(missing), rtol=2e-7)
    np.testing.assert_allclose(found["integers"][:, 0], logged([float(c["cost"]) for c in clicks]), rtol=2e-7)
    assert found["categoricals"][:, 3].tolist() == token_ids(prepared, "cat3", [str(c["cat3"]) for c in clicks])
    assert prepared.statistics["by_day"]["1970-01-01"][0] == sum(c["timestamp"] < DAY for c in clicks)


def test_search(tmp_path: Path) -> None:
    """23 columns, no header, -1 for missing numbers and tokens, not in order, compressed with zstd."""
    draw, rows = random.Random(0), []
    columns = load_config().dataset("criteo_search").columns or ()
    hashed = ["4C90FD52FC53D2C1C205844CB69575AB", "-1", "D7D1FB49049702BF6338894757E0D959"]
    for _ in range(600):
        sale = draw.random() < 0.1
        amount = f"{draw.uniform(1, 90):.2f}" if sale else "-1.0"
        values = [
            str(int(sale)),
            amount,
            str(draw.randint(1, 90) if sale else -1),
            str(1_598_918_400 + draw.randint(0, 9**6)),
        ]
        values += [
            draw.choice(["-1", "12"]),
            draw.choice(["0.0", "-1.0", "19.99"]),
            *(draw.choice(hashed) for _ in range(14)),
        ]
        values += [
            draw.choice(["-1", f"{draw.choice(hashed)} {draw.choice(hashed)}"]),
            *(draw.choice(hashed) for _ in range(2)),
        ]
        rows.append(values)
    assert {len(row) for row in rows} == {len(columns)} == {23}
    text = "".join("\t".join(row) + "\n" for row in rows).encode()
    raw = tmp_path / "CriteoSearchData.zst"
    raw.write_bytes(pa.Codec("zstd").compress(text, asbytes=True))
    prepared = make("criteo_search", raw, block_bytes=20_000)
    in_order = sorted(rows, key=lambda row: int(row[3]))
    found = everything(prepared, "pcvr")
    assert found["labels"].tolist() == [float(row[0]) for row in in_order]
    prices = [None if float(row[5]) == -1 else float(row[5]) for row in in_order]
    np.testing.assert_allclose(found["integers"][:, 1], logged(prices), rtol=2e-7)
    ages = ["" if row[6] == "-1" else row[6] for row in in_order]
    assert found["categoricals"][:, 0].tolist() == token_ids(prepared, "product_age_group", ages)
    assert 0 not in token_ids(prepared, "product_age_group", [""]), "a missing value is a token of its own"
    assert prepared.statistics["missing"]["product_price"] == prices.count(None)
