"""Ads logs with a planted model, made in chunks: any number of rows in the memory of one chunk.

Two kinds are made. ``display`` has the layout of Criteo's Kaggle challenge and a click label;
``clicks`` has a timestamp and the number of conversions that followed each click. In both, the
log-odds (of a click) or the log intensity (of conversions) is an intercept plus effects of tokens,
of integers, of missing values and of pairs of columns, some of which drift over time.

Nothing is stored for a token. Its text, its effects and its drift are outputs of a hash of the
seed, the column and the token's rank by frequency, and ranks come from the inverse of a truncated
power law's distribution function. So a vocabulary of ten million costs as much as one of ten.

``ceiling.json`` beside a log has the losses of the planted model itself on the test split, the last
rows. That is what the best possible model reaches *on average*: on one finite sample of labels a
model may be a little better by luck. The planted model also knows the drift up to the last row,
which no model trained on the first rows can. It is a bound to compare with, not a target.
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

from tasks.descriptions import SPLIT_FRACTIONS
from tasks.errors import UserError
from tasks.home import home, read_json, short_hash, whole_directory, write_json
from tasks.progress import Ticker, say
from tasks.synthetic_schemas import LOG_NAMES, SCHEMAS, Kind

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Part of every log's key: to be raised by any change that changes what is generated.
GENERATOR_VERSION = 1

ROWS_PER_CHUNK = 65_536
MIN_ROWS = 1000
MISSING = -1
DAYS = 30
START_MICROSECONDS = 1_696_118_400_000_000  # 2023-10-01, a Sunday, 00:00 UTC
DAY_MICROSECONDS = 86_400_000_000

_PILOT_ROWS = 32_768
_PILOT_STREAM = 2**40  # no chunk has this index
_AUC_BINS = 200_000
_HEX_PAIRS = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
_HOURS = pa.array([f"{hour:02d}" for hour in range(24)])


# The planted model's proportions. They are relative: `spread` sets the scale of the whole.
_ZIPF_EXPONENT = 1.25
_HALVING_RANK = 6.0  # a token of this rank has half the effect of the most frequent one
_LARGE_VOCABULARY, _LARGE_WEIGHT = 50_000, 0.4
_INTEGER_WEIGHT, _CURVATURE, _ABSENCE_WEIGHT = 1.5, 0.4, 0.5
_PAIR_WEIGHT = 0.8
_DRIFTING_SHARE, _DRIFT_WEIGHT, _BASE_DRIFT = 0.25, 0.4, 0.8


class Features(NamedTuple):
    """What a chunk's rows look like: integers with their gaps, and ranks, of which -1 is missing."""

    integers: dict[str, tuple[Integers, NDArray[np.bool_]]]
    ranks: dict[str, Integers]
    microseconds: Integers


class Chunk(NamedTuple):
    """Rows as they are written, with the planted score (log-odds or log intensity) of each."""

    table: pa.Table
    score: Floats
    label: Integers


@dataclass(frozen=True)
class Planted:
    """The model behind one log; ``scale`` and ``intercept`` put its schema's spread and rate right."""

    kind: Kind
    rows: int
    seed: int
    scale: float
    intercept: float

    def chunks(self) -> Iterator[Chunk]:
        return (self.chunk(index) for index in range(-(-self.rows // ROWS_PER_CHUNK)))

    def chunk(self, index: int) -> Chunk:
        """The rows of one chunk, whatever other chunks were made before."""
        rng = np.random.default_rng([self.seed, index])
        start = index * ROWS_PER_CHUNK
        t = np.arange(start, min(start + ROWS_PER_CHUNK, self.rows)) / self.rows
        features = _draw(self.kind, self.seed, t, 1 / self.rows, rng)
        score = self.intercept + self.scale * _score(self.kind, self.seed, features, t)
        if self.kind == "display":
            label = (rng.random(len(t)) < probability(self.kind, score)).astype(np.int64)
        else:
            label = rng.poisson(np.exp(score))
        return Chunk(_table(self.kind, self.seed, features, label), score, label)


def generate(kind: Kind, rows: int, seed: int) -> Path:
    """The log file of these values, made unless it is there; the same values give the same bytes.

    Rows are in order of time. The file appears whole, with its ``ceiling.json``, or not at all.
    """
    if rows < MIN_ROWS:
        raise UserError(f"a synthetic log of {rows} rows is too short: give {MIN_ROWS:,} rows or more")
    if seed < 0:
        raise UserError(f"a synthetic log cannot have the seed {seed}: give 0 or more")
    key = short_hash({"kind": kind, "rows": rows, "seed": seed, "version": GENERATOR_VERSION})
    final = home() / "raw" / f"synthetic_{kind}" / key
    if not final.is_dir():
        with whole_directory(final) as folder:
            _write(folder, kind, rows, seed)
    return final / LOG_NAMES[kind]


def read_ceiling(raw: Path) -> dict[str, Any] | None:
    """What the planted model reaches on the test split of a raw log; None for a log without one."""
    path = raw.parent / "ceiling.json"
    return read_json(path) if path.is_file() else None


def plant(kind: Kind, rows: int, seed: int) -> Planted:
    """The planted model, its scale and intercept set on a pilot sample of all times."""
    schema = SCHEMAS[kind]
    rng = np.random.default_rng([seed, _PILOT_STREAM])
    t = np.arange(_PILOT_ROWS) / _PILOT_ROWS
    score = _score(kind, seed, _draw(kind, seed, t, 1 / _PILOT_ROWS, rng), t)
    scale = schema.spread / float(score.std())
    low, high = -100.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        too_low = probability(kind, middle + scale * score).mean() < schema.rate
        low, high = (middle, high) if too_low else (low, middle)
    return Planted(kind, rows, seed, scale, (low + high) / 2)


def probability(kind: Kind, score: Floats) -> Floats:
    """The planted probability of a click, or of at least one conversion."""
    return 1 / (1 + np.exp(-score)) if kind == "display" else -np.expm1(-np.exp(score))


def _write(folder: Path, kind: Kind, rows: int, seed: int) -> None:
    started = time.monotonic()
    planted = plant(kind, rows, seed)
    ceiling = _Ceiling(kind)
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
    say(f"synthetic {kind}: {rows:,} rows made, {rate:,.0f} rows/s")


def _writer(path: Path, schema: pa.Schema) -> pa.csv.CSVWriter | pa.parquet.ParquetWriter:
    if path.suffix == ".parquet":
        return pa.parquet.ParquetWriter(path, schema)
    options = pa.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    return pa.csv.CSVWriter(path, schema, write_options=options)


def _table(kind: Kind, seed: int, features: Features, label: Integers) -> pa.Table:
    columns = {name: pa.array(values, mask=gaps) for name, (values, gaps) in features.integers.items()}
    for name, ranks in features.ranks.items():
        columns[name] = _HOURS.take(pa.array(ranks)) if name == "hour_of_day" else _tokens(seed, name, ranks)
    if kind == "display":
        return pa.table({"label": label, **columns})
    timestamp = pa.array(features.microseconds).cast(pa.timestamp("us"))
    return pa.table({"timestamp": timestamp, **columns, "conversions": label})


def _draw(kind: Kind, seed: int, t: Floats, row_time: float, rng: np.random.Generator) -> Features:
    """The features of rows at times ``t``, which are ``row_time`` apart."""
    schema, rows = SCHEMAS[kind], len(t)
    # Time runs faster past midnight than past noon, so that fewer rows fall into the night. A row may
    # come later than its even place, but by less than a row, so that rows stay in order.
    day = (t + 0.9 * row_time * rng.random(rows)) * DAYS
    day += 0.6 / (2 * np.pi) * np.sin(2 * np.pi * day)
    microseconds = START_MICROSECONDS + (day * DAY_MICROSECONDS).astype(np.int64)

    integers = {}
    activity = rng.standard_normal(rows)  # what makes the integers of one row go together
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
            ranks[categorical.name] = zipf_ranks(uniform, categorical.size)
        else:
            ranks[categorical.name] = zipf_ranks(rng.random(rows), categorical.size)
    for categorical in schema.categoricals:
        if categorical.missing:
            ranks[categorical.name][rng.random(rows) < categorical.missing] = MISSING
    return Features(integers, ranks, microseconds)


def zipf_ranks(uniform: Floats, size: int) -> Integers:
    """Uniform numbers in [0, 1) to ranks 0 … size - 1: rank k is about as frequent as (k + 1)^-1.25.

    >>> zipf_ranks(np.array([0.0, 0.5, 0.999]), 10_000_000).tolist()
    [0, 13, 8065005]
    """
    power = 1 - _ZIPF_EXPONENT
    rank = (1 + uniform * ((size + 1) ** power - 1)) ** (1 / power)
    return np.clip(rank.astype(np.int64) - 1, 0, size - 1)


def _score(kind: Kind, seed: int, features: Features, t: Floats) -> Floats:
    """The planted log-odds or log intensity, before it is scaled and shifted."""
    schema = SCHEMAS[kind]
    score = _BASE_DRIFT * (t - 0.5)
    levels = {}
    for column in schema.integers:
        values, missing = features.integers[column.name]
        # The signed logarithm, standardised, on a bounded scale.
        signed_log = np.copysign(np.log1p(np.abs(values)), values)
        level = np.tanh((signed_log - column.log_mean) / column.log_std)
        slope, bend, absence = _normal(seed, column.name, "curve", np.arange(3))
        curve = np.copysign(0.6 + 0.4 * abs(slope), slope) * level + _CURVATURE * bend * np.exp(-4 * level**2)
        score += _INTEGER_WEIGHT * np.where(missing, _ABSENCE_WEIGHT * absence, curve)
        levels[column.name] = np.where(missing, 0.0, level)
    for categorical in schema.categoricals:
        name, ranks = categorical.name, features.ranks[categorical.name]
        weight = _LARGE_WEIGHT if categorical.size > _LARGE_VOCABULARY else 1.0
        effect = _normal(seed, name, "effect", ranks)
        drifting = _uniform(seed, name, "drifts", ranks) < _DRIFTING_SHARE
        effect += drifting * _DRIFT_WEIGHT * _normal(seed, name, "drift", ranks) * (t - 0.5)
        score += weight * _prominence(ranks) * effect
    for number, (one, other) in enumerate(schema.token_pairs):
        score += _PAIR_WEIGHT * _factor(seed, number, one, features) * _factor(seed, number, other, features)
    token, integer = schema.integer_pair
    score += _PAIR_WEIGHT * _factor(seed, -1, token, features) * levels[integer]
    return score


def _prominence(ranks: Integers) -> Floats:
    """How much of an effect a token has: rare ones, which no model could learn, are near the average."""
    return 1 / (1 + np.maximum(ranks, 0) / _HALVING_RANK)


def _factor(seed: int, number: int, name: str, features: Features) -> Floats:
    """A token's hidden factor in one of the pairs of columns that act together.

    It fades twice as fast as the token's own effect: a pair of tokens is rarer than either.
    """
    ranks = features.ranks[name]
    return _prominence(ranks) ** 2 * _normal(seed, name, f"pair {number}", ranks)


def _bits(seed: int, column: str, purpose: str, ranks: Integers) -> NDArray[np.uint64]:
    """64 bits for each rank: the outputs of the splitmix64 generator that the other values seed."""
    start = hashlib.blake2b(f"{seed}/{column}/{purpose}".encode(), digest_size=8).digest()
    state = ranks.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.frombuffer(start, "<u8")
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _uniform(seed: int, column: str, purpose: str, ranks: Integers) -> Floats:
    return (_bits(seed, column, purpose, ranks) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _normal(seed: int, column: str, purpose: str, ranks: Integers) -> Floats:
    """Mean 0, variance 1 and never beyond ±√6: the sum of the two uniform halves of 64 bits."""
    halves = _bits(seed, column, purpose, ranks).view(np.uint32).reshape(-1, 2)
    return ((halves[:, 0].astype(np.float64) + halves[:, 1]) * 2.0**-32 - 1) * np.sqrt(6)


def _tokens(seed: int, column: str, ranks: Integers) -> pa.Array:
    """Eight hexadecimal digits for each rank, null where it is missing."""
    text = _HEX_PAIRS[_bits(seed, column, "token", ranks).view(np.uint8).reshape(-1, 8)[:, :4]]
    offsets = np.arange(0, 8 * len(ranks) + 1, 8, dtype=np.int32)
    present = np.packbits(ranks != MISSING, bitorder="little")
    return pa.StringArray.from_buffers(len(ranks), *map(pa.py_buffer, (offsets, text, present)))


class _Ceiling:
    """Sums of the planted model's losses, and histograms of its probabilities by label."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._rows = 0
        self._log_loss = self._poisson_log_loss = 0.0
        self._histograms = np.zeros((2, _AUC_BINS), np.int64)

    def add(self, score: Floats, label: Integers) -> None:
        p, positive = probability(self._kind, score), label > 0
        self._rows += len(label)
        self._log_loss -= float(np.log(np.where(positive, p, 1 - p)).sum())
        self._poisson_log_loss += float((np.exp(score) - label * score).sum())
        bins = np.minimum((p * _AUC_BINS).astype(np.int64), _AUC_BINS - 1)
        for side in (0, 1):
            self._histograms[side] += np.bincount(bins[positive == side], minlength=_AUC_BINS)

    def result(self) -> dict[str, Any]:
        negatives, positives = self._histograms
        # Pairs in one bin count as ties; bins are fine enough for that to be far below 1e-4.
        won = np.sum(positives * (np.cumsum(negatives) - negatives / 2))
        pairs = int(positives.sum()) * int(negatives.sum())
        auc = float(won / pairs)
        binary = {"auc": auc, "auc_loss": 1 - auc, "log_loss": self._log_loss / self._rows}
        if self._kind == "display":
            return {"test_rows": self._rows, "tasks": {"pctr": binary}}
        counts = {"poisson_log_loss": self._poisson_log_loss / self._rows}
        return {"test_rows": self._rows, "tasks": {"pcvr": binary, "pconvs": counts}}
