"""Synthetic logs that come in one file a day, with the accidents that happen to daily logs.

A day has the columns and the planted model of ``clicks``. Its drift swings to and fro with a period of 28 days, so that
day 300 is as plausible as day 3. The rows of a day depend on the seed and the day alone.

``deliver`` stands for whoever writes the files: it makes those files appear that would be there by a given night.

| day | what is delivered |
|---|---|
| normal | its file, by its own night |
| ``late`` | its file, by the night after |
| ``changed`` | its file; a night later the same file with late conversions on some rows |
| ``bad`` | a file with other traffic, most of it rare tokens, and several times as many conversions |
| ``empty`` | a file without rows |
"""

from __future__ import annotations

import datetime
import functools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from tasks.config.dataset import Dataset, Synthetic, SyntheticDays
from tasks.logs.synthetic import (
    DAY_MICROSECONDS,
    GENERATOR_VERSION,
    MISSING,
    Features,
    Planted,
    as_table,
    draw_features,
    in_microseconds,
    plant,
    planted_score,
)
from tasks.logs.synthetic_schemas import LOG_NAMES, SCHEMAS, Kind
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, short_hash, whole_file

# Part of what a file is recognized by: raise it with any change to what is generated.
DAYS_VERSION = 1

_KIND: Kind = "clicks"
_PERIOD_DAYS = 28
# On a changed day, the share of rows that get a late conversion.
_LATE_CONVERSIONS = 0.03
# On a bad day, these columns have their frequent tokens and their rare ones exchanged, and conversions are this many
# times as frequent.
_OTHER_TRAFFIC = ("campaign", "publisher", "placement", "device", "country")
_TOO_MANY = 5.0
# Apart from the random streams of whole logs, which begin with a chunk's number.
_DAY_STREAM, _CHANGE_STREAM = 2**41, 2**42
_TAG = b"delivery"


def day_file(name: str, day: str) -> Path:
    """Returns the path of a day's file, whether it exists or not."""
    return home() / "raw" / name / f"day={day}" / LOG_NAMES[_KIND]


def deliver(name: str, dataset: Dataset, day: str, *, window_days: int = 0) -> list[Path]:
    """Writes the files that would be there by the night of ``day``, unless they are; returns those that are there.

    Args:
        name: The name of the dataset.
        dataset: Its description, with ``synthetic.days``.
        day: The newest day, such as 2026-01-09.
        window_days: How many days before it to deliver as well.
    """
    synthetic = dataset.synthetic
    if synthetic is None or synthetic.days is None:
        raise UserError(f"{name} is not a synthetic log that comes by days: it has no `synthetic.days`")
    newest = _index(synthetic.days, day)
    found = []
    for index in range(max(0, newest - window_days), newest + 1):
        wanted = _version(synthetic.days, index, by=newest)
        if wanted is None:
            continue
        path = day_file(name, str(synthetic.days.start + datetime.timedelta(index)))
        _write(path, synthetic, index, wanted)
        found.append(path)
    return found


def day_table(synthetic: Synthetic, index: int, version: str = "normal") -> pa.Table:
    """Returns the rows of a day, counted from 0: ``normal``, ``changed``, ``bad`` or ``empty``."""
    assert synthetic.days is not None
    rows, seed = synthetic.days.rows, synthetic.seed
    planted = _planted(rows, seed)
    rng = np.random.default_rng([seed, _DAY_STREAM + index])
    fraction = (np.arange(rows) + 0.9 * rng.random(rows)) / rows
    since_1970 = (synthetic.days.start - datetime.date(1970, 1, 1)).days + index
    features = draw_features(SCHEMAS[_KIND], seed, since_1970 * DAY_MICROSECONDS + in_microseconds(fraction), rng)
    if version == "bad":
        features = _other_traffic(features)
    t = 0.5 + 0.5 * np.sin(2 * np.pi * (index + fraction) / _PERIOD_DAYS)
    score = planted.intercept + planted.scale * planted_score(SCHEMAS[_KIND], seed, features, t)
    label = rng.poisson(np.exp(score) * (_TOO_MANY if version == "bad" else 1.0))
    if version == "changed":
        late = np.random.default_rng([seed, _CHANGE_STREAM + index]).random(rows) < _LATE_CONVERSIONS
        label = label + late
    table = as_table(_KIND, seed, features, label)
    return table.slice(0, 0) if version == "empty" else table


@functools.lru_cache(maxsize=4)
def _planted(rows: int, seed: int) -> Planted:
    return plant(_KIND, rows, seed)


def _index(days: SyntheticDays, day: str) -> int:
    return (datetime.date.fromisoformat(day) - days.start).days


def _version(days: SyntheticDays, index: int, *, by: int) -> str | None:
    """Returns the version of a day that has been delivered by the night of day ``by``, None if none has."""
    first = index + 1 if index in days.late else index
    if by < first:
        return None
    if index in days.empty:
        return "empty"
    if index in days.bad:
        return "bad"
    return "changed" if index in days.changed and by > first else "normal"


def _write(path: Path, synthetic: Synthetic, index: int, version: str) -> None:
    """Writes a day's file, unless it has this version, or the changed one, which is never taken back."""
    assert synthetic.days is not None
    key = short_hash([GENERATOR_VERSION, DAYS_VERSION, synthetic.seed, str(synthetic.days.start), synthetic.days.rows])
    there = _tag(path)
    if there == f"{key} {version}" or (there == f"{key} changed" and version == "normal"):
        return
    table = day_table(synthetic, index, version).replace_schema_metadata({_TAG: f"{key} {version}"})
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        pa.parquet.write_table(table, temporary)


def _tag(path: Path) -> str | None:
    """Returns what a file says that it is; None if there is none, or it is not ours."""
    try:
        metadata = pa.parquet.read_schema(path).metadata
    except (OSError, pa.ArrowException):
        return None
    return (metadata or {}).get(_TAG, b"").decode()


def _other_traffic(features: Features) -> Features:
    sizes = {column.name: column.size for column in SCHEMAS[_KIND].categoricals}
    ranks = dict(features.ranks)
    for name in _OTHER_TRAFFIC:
        ranks[name] = np.where(ranks[name] == MISSING, MISSING, sizes[name] - 1 - ranks[name])
    return features._replace(ranks=ranks)
