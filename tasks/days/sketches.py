"""Sketches of parsed files: what the data checks compare, small enough to keep for every day of a window.

A sketch counts rows, bad rows, labels, days and missing values, and has a histogram of every column. Sketches of files
add up to those of days, and those of days to that of a window. They are computed from parsed blocks under Dask, once
for a file, and kept beside its blocks. Their numbers are exact, and no ε covers them.

- Integer columns: bins of equal width on the scale of log(1 + x), two for every doubling, the same for all data.
  Missing and negative values have bins of their own.
- Categorical columns: every token as a 64-bit hash with its count. Two tokens share a hash with a probability of about
  5e-20. The texts of the most frequent tokens are kept for people.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np

from tasks.data.parsed_blocks import ParsedBlock
from tasks.data.parts import Part
from tasks.data.stable_hash import stable_hash
from tasks.data.statistics import DAY_SECONDS, UNITS_PER_SECOND
from tasks.runtime.home import whole_file
from tasks.runtime.parallel import Phase, cluster

# Part of the name of a sketch's file: raise it when sketches of an earlier version must no longer be used.
SKETCH_VERSION = 1

# Bins of an integer column: missing, negative, then half doublings of 1 + x up to 2^64 and all above.
MISSING_BIN, NEGATIVE_BIN, FIRST_BIN = 0, 1, 2
_BIN_WIDTH = np.log(2) / 2
BINS = FIRST_BIN + 128
# Of so many tokens of a column, the most frequent ones of a file, the texts are kept.
_TEXTS = 200


@dataclass(frozen=True)
class TokenCounts:
    """The distinct tokens of a column: sorted hashes, their counts, and the texts of some."""

    hashes: np.ndarray
    counts: np.ndarray
    texts: Mapping[int, str]


@dataclass(frozen=True)
class Sketch:
    """What is known of a set of rows.

    Attributes:
        lines: Rows of the raw files, with the bad ones and those that ``keep_rows`` drops.
        bad: Bad rows by reason.
        rows: The rows that are used. The rest of the sketch is about these.
        labels: For each task whose label is a column, the sum of its labels.
        by_day: For each day since 1970, the rows with a time on it.
        missing: For each feature column, the rows without a value.
        histograms: For each integer column the rows in each bin.
        tokens: For each categorical column its tokens.
    """

    lines: int
    bad: Counter[str]
    rows: int
    labels: dict[str, float]
    by_day: Counter[int]
    missing: Counter[str]
    histograms: dict[str, np.ndarray]
    tokens: dict[str, TokenCounts]


def bin_of(values: np.ndarray) -> np.ndarray:
    """Returns the bins of values on the scale of sign(x)·log(1 + |x|), NaN if missing.

    >>> bin_of(np.log1p(np.array([np.nan, 0, 1, 3, 7]))).tolist()
    [0, 2, 4, 6, 8]
    """
    with np.errstate(invalid="ignore"):
        # float32 may have rounded a power of two down.
        steps = np.floor(values.astype(np.float64) / _BIN_WIDTH + 1e-5)
    bins = FIRST_BIN + np.nan_to_num(np.clip(steps, 0, BINS - FIRST_BIN - 1)).astype(np.int64)
    return np.where(np.isnan(values), MISSING_BIN, np.where(values < 0, NEGATIVE_BIN, bins))


def bin_name(number: int) -> str:
    """Returns the values of a bin for people.

    >>> [bin_name(number) for number in (0, 1, 2, 4, 5)]
    ['missing', 'negative', '0 to 0.4', '1 to 1.8', '1.8 to 3']
    """
    if number < FIRST_BIN:
        return "missing" if number == MISSING_BIN else "negative"
    low, high = (np.expm1((number - FIRST_BIN + step) * _BIN_WIDTH) for step in (0, 1))
    return f"{_short(low)} to {_short(high)}"


def sketch_parts(parts: Sequence[Part]) -> Sketch:
    """Returns the sketch of parsed files, computing those that were not computed before."""
    todo = [part for part in parts if not _file(part).exists()]
    if todo:
        phase = Phase("sketch")
        work = [(part, block) for part in todo for block in part.blocks()]
        with cluster():
            found = phase.compute(
                [dask.delayed(_sketch_block)(block, part.summary["time_unit"]) for part, block in work],
                [block.rows for _, block in work],
            )
        for part in todo:
            own = [sketch for (of, _), sketch in zip(work, found, strict=True) if of is part]
            _save(_file(part), _of_part(part, own))
    return together([_load(_file(part)) for part in parts])


def together(sketches: Sequence[Sketch]) -> Sketch:
    """Returns the sketch of all rows of several sketches."""
    integers = dict.fromkeys(name for sketch in sketches for name in sketch.histograms)
    categoricals = dict.fromkeys(name for sketch in sketches for name in sketch.tokens)
    tasks = dict.fromkeys(task for sketch in sketches for task in sketch.labels)
    return Sketch(
        lines=sum(sketch.lines for sketch in sketches),
        bad=_summed(sketch.bad for sketch in sketches),
        rows=sum(sketch.rows for sketch in sketches),
        labels={task: sum(sketch.labels.get(task, 0.0) for sketch in sketches) for task in tasks},
        by_day=_summed(sketch.by_day for sketch in sketches),
        missing=_summed(sketch.missing for sketch in sketches),
        histograms={
            name: np.sum([s.histograms[name] for s in sketches if name in s.histograms], axis=0) for name in integers
        },
        tokens={name: _merged([s.tokens[name] for s in sketches if name in s.tokens]) for name in categoricals},
    )


def _sketch_block(block: ParsedBlock, time_unit: str) -> Sketch:
    batch, dataset = block.load(), block.dataset
    histograms = {}
    for number, name in enumerate(dataset.integer_columns):
        bins = bin_of(batch.column(f"integer {number}").to_numpy(zero_copy_only=False))
        histograms[name] = np.bincount(bins, minlength=BINS)
    tokens = {}
    for name, (indices, dictionary) in zip(dataset.categorical_columns, block.tokens(), strict=True):
        counts = np.bincount(indices, minlength=len(dictionary))
        top = np.argsort(-counts, kind="stable")[:_TEXTS]
        hashes = stable_hash(name, dictionary)
        texts = {int(hashes[place]): dictionary[int(place)].as_py() for place in top if counts[place]}
        seen = counts > 0
        tokens[name] = _merged([TokenCounts(hashes[seen], counts[seen], texts)])
    days: Counter[int] = Counter()
    if dataset.time_column:
        found, rows = np.unique(
            np.floor_divide(block.times(), DAY_SECONDS * UNITS_PER_SECOND[time_unit]).astype(np.int64),
            return_counts=True,
        )
        days.update(dict(zip(found.tolist(), rows.tolist(), strict=True)))
    labels: dict[str, float] = {
        task: float(batch.column(f"label {task}").to_numpy().sum(dtype=np.float64))
        for task, label in dataset.labels.items()
        if label.column is not None
    }
    return Sketch(0, Counter(), block.rows, labels, days, Counter(), histograms, tokens)


def _of_part(part: Part, blocks: Sequence[Sketch]) -> Sketch:
    """Returns the sketch of a file: of its blocks, with what its summary knows."""
    summary, dataset, sketch = part.summary, part.dataset, together(blocks)
    empty = TokenCounts(np.empty(0, np.uint64), np.empty(0, np.int64), {})
    return Sketch(
        lines=summary["lines"],
        bad=Counter(summary["bad"]),
        rows=sketch.rows,
        labels={t: sketch.labels.get(t, 0.0) for t, label in dataset.labels.items() if label.column is not None},
        by_day=sketch.by_day,
        missing=Counter({name: summary["missing"].get(name, 0) for name in _features(part)}),
        histograms={name: sketch.histograms.get(name, np.zeros(BINS, np.int64)) for name in dataset.integer_columns},
        tokens={name: sketch.tokens.get(name, empty) for name in dataset.categorical_columns},
    )


def _features(part: Part) -> list[str]:
    return [*part.dataset.integer_columns, *part.dataset.categorical_columns]


def _merged(columns: Sequence[TokenCounts]) -> TokenCounts:
    """Adds up the counts of equal tokens. A token may be in a dictionary twice."""
    hashes, places = np.unique(np.concatenate([column.hashes for column in columns]), return_inverse=True)
    counts = np.concatenate([column.counts for column in columns])
    summed = np.bincount(places, counts, minlength=len(hashes)).astype(np.int64)
    texts = {value: text for column in columns for value, text in column.texts.items()}
    if len(texts) > _TEXTS:
        known = np.array(sorted(texts), np.uint64)
        order = np.argsort(-summed[np.searchsorted(hashes, known)], kind="stable")[:_TEXTS]
        texts = {int(value): texts[int(value)] for value in known[order]}
    return TokenCounts(hashes, summed, texts)


def _summed(counters: Iterable[Counter[Any]]) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for counter in counters:
        total.update(counter)
    return total


def _file(part: Part) -> Path:
    return part.folder / f"sketch_{SKETCH_VERSION}.npz"


def _save(path: Path, sketch: Sketch) -> None:
    facts = {
        "lines": sketch.lines,
        "bad": sketch.bad,
        "rows": sketch.rows,
        "labels": sketch.labels,
        "by_day": {str(day): rows for day, rows in sketch.by_day.items()},
        "missing": sketch.missing,
        "integers": list(sketch.histograms),
        "texts": {name: {str(v): text for v, text in column.texts.items()} for name, column in sketch.tokens.items()},
    }
    arrays: dict[str, np.ndarray] = {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}
    arrays |= {f"histogram {number}": histogram for number, histogram in enumerate(sketch.histograms.values())}
    for number, column in enumerate(sketch.tokens.values()):
        arrays |= {f"hashes {number}": column.hashes, f"counts {number}": column.counts}
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _load(path: Path) -> Sketch:
    with np.load(path, allow_pickle=False) as saved:
        facts = json.loads(saved["facts"].tobytes())
        return Sketch(
            lines=facts["lines"],
            bad=Counter(facts["bad"]),
            rows=facts["rows"],
            labels=facts["labels"],
            by_day=Counter({int(day): rows for day, rows in facts["by_day"].items()}),
            missing=Counter(facts["missing"]),
            histograms={name: saved[f"histogram {number}"] for number, name in enumerate(facts["integers"])},
            tokens={
                name: TokenCounts(
                    saved[f"hashes {number}"], saved[f"counts {number}"], {int(v): text for v, text in texts.items()}
                )
                for number, (name, texts) in enumerate(facts["texts"].items())
            },
        )


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or abs(value - round(value)) < 1e-6 else f"{value:.1f}"
