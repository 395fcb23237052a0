"""Logs to draft descriptions of, and ways to read a draft."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import yaml

from tasks.config.dataset import Dataset
from tasks.logs.draft import Draft

Write = Callable[[str, str | bytes], str]
ROWS = 600
RNG = np.random.default_rng(0)


def text(rows: Sequence[Sequence[Any]], delimiter: str = ",", header: Sequence[str] = ()) -> str:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([header] * bool(header) + list(rows))
    return file.getvalue()


def clicks(rows: int = ROWS) -> list[list[Any]]:
    """Returns rows of a time in milliseconds, a site, a price and a click."""
    sites = RNG.choice(["a.com", "b.com", 'c "quoted", d'], rows)
    return [
        [1_700_000_000_000 + 1000 * i, sites[i], round(0.01 * i % 7, 2), int(RNG.random() < 0.3)] for i in range(rows)
    ]


CLICKS = ("ts", "site", "price", "click")


def drafted(found: Draft) -> Dataset:
    """Parses the draft as a user would paste it."""
    json.dumps(found, allow_nan=False)
    assert max(map(len, found["yaml"].splitlines())) <= 120 or "raw" in found["yaml"]
    return Dataset.model_validate(yaml.safe_load(f"datasets:\n{found['yaml']}")["datasets"][found["name"]])


def roles(found: Draft) -> dict[str, str]:
    return {column["name"]: column["role"] for column in found["columns"]}
