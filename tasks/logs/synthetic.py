"""Synthetic ads logs with a planted model, generated in chunks, so memory does not grow with rows.

There are two kinds. ``display`` has the layout of Criteo's Kaggle challenge and a click label;
``clicks`` has a timestamp and the number of conversions after each click. In both, the log-odds (of
a click) or the log intensity (of conversions) is an intercept plus effects of tokens, integers,
missing values and pairs of columns. Some effects drift over time. ``tails: heavy`` makes another log
of the same layout, with more rare tokens and large integers, and columns that have no effect.

Nothing is stored per token. Its text, effects and drift are a hash of the seed, the column and the
token's frequency rank; ranks are drawn by inverting the distribution function of a truncated power
law. So a vocabulary of ten million costs as much as one of ten.

``ceiling.json`` beside a log has the losses of the planted model on the test split, the last rows.
The best possible model reaches them *on average*: on a finite sample of labels a model may be a
little better by luck. The planted model also knows the drift up to the last row, which a model
trained on the first rows cannot. The losses are a bound to compare with, not a target.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from tasks.config.dataset import SPLIT_FRACTIONS
from tasks.logs.synthetic_ceiling import Ceiling, probability
from tasks.logs.synthetic_schemas import LOG_NAMES, Kind, Schema, Tails, schema_of
from tasks.owners.locks import one_at_a_time
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json, short_hash, whole_directory, write_json
from tasks.runtime.progress import Ticker, say

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Part of every log's cache key: raise it with any change to what is generated.
GENERATOR_VERSION = 1

ROWS_PER_CHUNK = 65_536
MIN_ROWS = 1000
MISSING = -1
DAYS = 30
START_MICROSECONDS = 1_696_118_400_000_000  # 2023-10-01, a Sunday, 00:00 UTC
DAY_MICROSECONDS = 86_400_000_000

_PILOT_ROWS = 32_768
_PILOT_STREAM = 2**40  # no chunk has this index
_HEX_PAIRS = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
_HOURS = pa.array([f"{hour:02d}" for hour in range(24)])


# Relative weights of the planted model; `spread` sets the overall scale.
_HALVING_RANK = 6.0  # a token of this rank has half the effect of the most frequent one
_LARGE_VOCABULARY, _LARGE_WEIGHT = 50_000, 0.4
_INTEGER_WEIGHT, _CURVATURE, _ABSENCE_WEIGHT = 1.5, 0.4, 0.5
_PAIR_WEIGHT = 0.8
_DRIFTING_SHARE, _DRIFT_WEIGHT, _BASE_DRIFT = 0.25, 0.4, 0.8


class Features(NamedTuple):
    """The features of a chunk: integers with masks of missing values, and token ranks, -1 if missing."""

    integers: dict[str, tuple[Integers, NDArray[np.bool_]]]
    ranks: dict[str, Integers]
    microseconds: Integers


class Chunk(NamedTuple):
    """Rows as they are written, with the planted score (log-odds or log intensity) of each row."""

    table: pa.Table
    score: Floats
    label: Integers


@dataclass(frozen=True)
class Planted:
    """The planted model of a log; ``scale`` and ``intercept`` give the spread and rate of its schema."""

    kind: Kind
    rows: int
    seed: int
    scale: float
    intercept: float
    tails: Tails = "usual"

    def chunks(self) -> Iterator[Chunk]:
        return (self.chunk(index) for index in range(-(-self.rows // ROWS_PER_CHUNK)))

    def chunk(self, index: int) -> Chunk:
        """Returns the rows of a chunk. They do not depend on which chunks were generated before."""
        rng = np.random.default_rng([self.seed, index])
        start = index * ROWS_PER_CHUNK
        t = np.arange(start, min(start + ROWS_PER_CHUNK, self.rows)) / self.rows
        schema = schema_of(self.kind, self.tails)
        features = draw_features(schema, self.seed, _times(t, 1 / self.rows, rng), rng)
        score = self.intercept + self.scale * planted_score(schema, self.seed, features, t)
        if self.kind == "display":
            label = (rng.random(len(t)) < probability(self.kind, score)).astype(np.int64)
        else:
            label = rng.poisson(np.exp(score))
        return Chunk(as_table(self.kind, self.seed, features, label), score, label)


def generate(kind: Kind, rows: int, seed: int, tails: Tails = "usual") -> Path:
    """Returns the path of a log, generating it unless it exists. Equal arguments give equal bytes.

    Rows are in the order of time. The file and its ``ceiling.json`` appear whole or not at all.
    """
    if rows < MIN_ROWS:
        raise UserError(f"a synthetic log needs at least {MIN_ROWS:,} rows, not {rows}")
    if seed < 0:
        raise UserError(f"the seed of a synthetic log must be 0 or more, not {seed}")
    described = {"kind": kind, "rows": rows, "seed": seed, "version": GENERATOR_VERSION}
    # Logs with usual tails keep the keys that they had before there were others.
    key = short_hash(described if tails == "usual" else {**described, "tails": tails})
    final = home() / "raw" / f"synthetic_{kind}" / key
    with one_at_a_time(f"log {final}", f"is generating the synthetic {kind} log"):
        if not final.is_dir():
            with whole_directory(final) as folder:
                _write(folder, kind, rows, seed, tails)
    return final / LOG_NAMES[kind]


def read_ceiling(raw: Path) -> dict[str, Any] | None:
    """Returns the losses of the planted model on the test split; None if the log is not synthetic."""
    path = raw.parent / "ceiling.json"
    return read_json(path) if path.is_file() else None


def plant(kind: Kind, rows: int, seed: int, tails: Tails = "usual") -> Planted:
    """Returns the planted model, with scale and intercept fitted to a pilot sample over all times."""
    schema = schema_of(kind, tails)
    rng = np.random.default_rng([seed, _PILOT_STREAM])
    t = np.arange(_PILOT_ROWS) / _PILOT_ROWS
    score = planted_score(schema, seed, draw_features(schema, seed, _times(t, 1 / _PILOT_ROWS, rng), rng), t)
    scale = schema.spread / float(score.std())
    low, high = -100.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        too_low = probability(kind, middle + scale * score).mean() < schema.rate
        low, high = (middle, high) if too_low else (low, middle)
    return Planted(kind, rows, seed, scale, (low + high) / 2, tails)


def _write(folder: Path, kind: Kind, rows: int, seed: int, tails: Tails) -> None:
    started = time.monotonic()
    planted = plant(kind, rows, seed, tails)
    ceiling = Ceiling(kind)
    ticker = Ticker(f"synthetic {kind}", rows, "rows")
    test_start, done = int(rows * (1 - SPLIT_FRACTIONS["test"])), 0
    chunks = planted.chunks()
    first = next(chunks)
    with _writer(folder / LOG_NAMES[kind], first.table.schema) as writer:
        for chunk in itertools.chain([first], chunks):
            writer.write_table(chunk.table)
            of_test = slice(max(test_start - done, 0), None)
            ceiling.add(chunk.score[of_test], chunk.label[of_test])
            done += len(chunk.label)
            ticker.update(done)
    write_json(folder / "ceiling.json", {"kind": kind, "rows": rows, "seed": seed, **ceiling.result()})
    rate = rows / (time.monotonic() - started)
    say(f"synthetic {kind}: {rows:,} rows generated, {rate:,.0f} rows/s")


def _writer(path: Path, schema: pa.Schema) -> pa.csv.CSVWriter | pa.parquet.ParquetWriter:
    if path.suffix == ".parquet":
        return pa.parquet.ParquetWriter(path, schema)
    options = pa.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    return pa.csv.CSVWriter(path, schema, write_options=options)


def as_table(kind: Kind, seed: int, features: Features, label: Integers) -> pa.Table:
    """Returns the rows as they are written."""
    columns = {name: pa.array(values, mask=gaps) for name, (values, gaps) in features.integers.items()}
    for name, ranks in features.ranks.items():
        columns[name] = _HOURS.take(pa.array(ranks)) if name == "hour_of_day" else _tokens(seed, name, ranks)
    if kind == "display":
        return pa.table({"label": label, **columns})
    timestamp = pa.array(features.microseconds).cast(pa.timestamp("us"))
    return pa.table({"timestamp": timestamp, **columns, "conversions": label})


def _times(t: Floats, row_time: float, rng: np.random.Generator) -> Integers:
    """Returns the times of rows at ``t``, ``row_time`` apart, in microseconds."""
    # The jitter is less than the distance between rows, so rows stay in order.
    return START_MICROSECONDS + in_microseconds((t + 0.9 * row_time * rng.random(len(t))) * DAYS)


def in_microseconds(days: Floats) -> Integers:
    """Returns days with fractions as microseconds. Fewer are at night: time runs faster around midnight."""
    days = days + 0.6 / (2 * np.pi) * np.sin(2 * np.pi * days)
    return (days * DAY_MICROSECONDS).astype(np.int64)


def draw_features(schema: Schema, seed: int, microseconds: Integers, rng: np.random.Generator) -> Features:
    """Draws the features of rows at given times."""
    rows = len(microseconds)
    integers = {}
    activity = rng.standard_normal(rows)  # correlates the integers of a row
    for column in schema.integers:
        normal = 0.4 * activity + np.sqrt(1 - 0.4**2) * rng.standard_normal(rows)
        values = np.exp(column.log_mean + column.log_std * normal).astype(np.int64) - column.shift
        integers[column.name] = (values, rng.random(rows) < column.missing)

    ranks: dict[str, Integers] = {}
    for categorical in schema.categoricals:
        if categorical.name == "hour_of_day":
            ranks[categorical.name] = microseconds % DAY_MICROSECONDS // (DAY_MICROSECONDS // 24)
        elif categorical.parent:
            uniform = _uniform(seed, categorical.name, "of parent", ranks[categorical.parent])
            ranks[categorical.name] = zipf_ranks(uniform, categorical.size, schema.zipf_exponent)
        else:
            ranks[categorical.name] = zipf_ranks(rng.random(rows), categorical.size, schema.zipf_exponent)
    for categorical in schema.categoricals:
        if categorical.missing:
            ranks[categorical.name][rng.random(rows) < categorical.missing] = MISSING
    return Features(integers, ranks, microseconds)


def zipf_ranks(uniform: Floats, size: int, exponent: float) -> Integers:
    """Maps uniform numbers in [0, 1) to ranks 0 … size - 1; rank k has a frequency of about (k + 1)^-exponent.

    >>> zipf_ranks(np.array([0.0, 0.5, 0.999]), 10_000_000, 1.25).tolist()
    [0, 13, 8065005]
    """
    power = 1 - exponent
    rank = (1 + uniform * ((size + 1) ** power - 1)) ** (1 / power)
    return np.clip(rank.astype(np.int64) - 1, 0, size - 1)


def planted_score(schema: Schema, seed: int, features: Features, t: Floats) -> Floats:
    """Returns the planted log-odds or log intensity at ``t`` of the drift, before scale and intercept."""
    idle = idle_columns(schema, seed)
    score = _BASE_DRIFT * (t - 0.5)
    levels = {}
    for column in schema.integers:
        if column.name in idle:
            continue
        values, missing = features.integers[column.name]
        # The signed logarithm, standardised and bounded.
        signed_log = np.copysign(np.log1p(np.abs(values)), values)
        level = np.tanh((signed_log - column.log_mean) / column.log_std)
        slope, bend, absence = _normal(seed, column.name, "curve", np.arange(3))
        curve = np.copysign(0.6 + 0.4 * abs(slope), slope) * level + _CURVATURE * bend * np.exp(-4 * level**2)
        score += _INTEGER_WEIGHT * np.where(missing, _ABSENCE_WEIGHT * absence, curve)
        levels[column.name] = np.where(missing, 0.0, level)
    for categorical in schema.categoricals:
        name, ranks = categorical.name, features.ranks[categorical.name]
        if name in idle:
            continue
        weight = _LARGE_WEIGHT if categorical.size > _LARGE_VOCABULARY else 1.0
        effect = _normal(seed, name, "effect", ranks)
        drifting = _uniform(seed, name, "drifts", ranks) < _DRIFTING_SHARE
        effect += drifting * _DRIFT_WEIGHT * _normal(seed, name, "drift", ranks) * (t - 0.5)
        score += weight * _prominence(ranks) * effect
    for number, (one, other) in enumerate(schema.token_pairs):
        if {one, other} & idle:
            continue
        score += _PAIR_WEIGHT * _factor(seed, number, one, features) * _factor(seed, number, other, features)
    token, integer = schema.integer_pair
    if not {token, integer} & idle:
        score += _PAIR_WEIGHT * _factor(seed, -1, token, features) * levels[integer]
    return score


def idle_columns(schema: Schema, seed: int) -> frozenset[str]:
    """Returns the columns that have no effect, neither alone nor in a pair: a share of all, drawn by the seed."""
    names = [*(column.name for column in schema.integers), *(column.name for column in schema.categoricals)]
    drawn = sorted(names, key=lambda name: float(_uniform(seed, name, "idle", np.zeros(1, np.int64))[0]))
    return frozenset(drawn[: int(schema.idle_share * len(names))])


def _prominence(ranks: Integers) -> Floats:
    """Returns the weight of a token's effect: near 0 for rare tokens, which no model could learn."""
    return 1 / (1 + np.maximum(ranks, 0) / _HALVING_RANK)


def _factor(seed: int, number: int, name: str, features: Features) -> Floats:
    """Returns a token's latent factor in a pair of interacting columns.

    It fades twice as fast as the token's own effect, because a pair of tokens is rarer than either.
    """
    ranks = features.ranks[name]
    return _prominence(ranks) ** 2 * _normal(seed, name, f"pair {number}", ranks)


def _bits(seed: int, column: str, purpose: str, ranks: Integers) -> NDArray[np.uint64]:
    """Returns 64 bits for each rank: outputs of SplitMix64, seeded by the other arguments."""
    start = hashlib.blake2b(f"{seed}/{column}/{purpose}".encode(), digest_size=8).digest()
    state = ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.frombuffer(start, "<u8")
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _uniform(seed: int, column: str, purpose: str, ranks: Integers) -> Floats:
    return (_bits(seed, column, purpose, ranks) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _normal(seed: int, column: str, purpose: str, ranks: Integers) -> Floats:
    """Returns numbers of mean 0 and variance 1 within ±√6: sums of two uniform 32-bit halves."""
    halves = _bits(seed, column, purpose, ranks).view(np.uint32).reshape(-1, 2)
    return ((halves[:, 0].astype(np.float64) + halves[:, 1]) * 2.0**-32 - 1) * np.sqrt(6)


def _tokens(seed: int, column: str, ranks: Integers) -> pa.Array:
    """Returns eight hexadecimal digits for each rank, null if it is missing."""
    text = _HEX_PAIRS[_bits(seed, column, "token", ranks).view(np.uint8).reshape(-1, 8)[:, :4]]
    offsets = np.arange(0, 8 * len(ranks) + 1, 8, dtype=np.int32)
    present = np.packbits(ranks != MISSING, bitorder="little")
    return pa.StringArray.from_buffers(len(ranks), *map(pa.py_buffer, (offsets, text, present)))
