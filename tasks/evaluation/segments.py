"""Metrics of a trained model on segments of the test split: the rows with one token, or with numbers in one range.

They are computed from the released parameters, so a dataset's ``segment_column`` can be set or changed after training,
and are kept in the trial's folder. They are exact functions of private labels, which no ε covers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from dp_core.evaluation.segments import SegmentMetrics, largest, segment_metrics
from dp_core.models.plain import NETWORKS, predict_logits
from tasks.config.dataset import TaskName
from tasks.data.prepared import Prepared
from tasks.training.finished import FinishedTrial, SegmentFacts
from tasks.training.trial import Trial

# Segments with the most rows that are shown each; the others are one.
LARGEST_SEGMENTS = 8
# Ranges of about equal numbers of rows that an integer column is cut into.
RANGES = 4
OTHERS = "others"


class Segmentation(NamedTuple):
    """The segment of each row of the test split: an index into ``names``, which has the largest first.

    The last name is ``OTHERS`` if there are more segments than are shown.
    """

    column: str
    codes: np.ndarray
    names: tuple[str, ...]


def segment_rows(prepared: Prepared, task: str, column: str) -> Segmentation:
    """Returns the segments of the test split by a feature column.

    Tokens are segments by themselves; those outside of the vocabulary are one. An integer column is cut at its
    quantiles on the test split, and rows without a value are a segment.
    """
    split = prepared.split("test", task)
    if column in prepared.integer_columns:
        known: Sequence[str] | _Tokens
        codes, known = _ranges(split.integers[:, prepared.integer_columns.index(column)])
    else:
        position = [one.name for one in prepared.categorical_columns].index(column)
        codes = np.asarray(split.categoricals[:, position])
        known = _Tokens(prepared, column)
    shown = largest(codes, LARGEST_SEGMENTS)
    places = {code: place for place, code in enumerate(shown)}
    found = np.full(len(codes), len(shown), np.int32)
    for code, place in places.items():
        found[codes == code] = place
    names = [known[code] for code in shown]
    return Segmentation(column, found, (*names, OTHERS) if np.any(found == len(shown)) else tuple(names))


def segments_of(finished: FinishedTrial, prepared: Prepared, rows: Segmentation) -> list[SegmentFacts] | None:
    """Returns the metrics of a trial's model in each segment, from its folder if they were computed before.

    None if the model diverged, or if only JAX can predict with it, as with models of plug-ins.
    """
    kept = finished.read_segments(rows.column)
    if kept is not None and [one["name"] for one in kept] == list(rows.names):
        return kept
    trial = finished.trial
    if finished.diverged or trial.model.name not in NETWORKS:
        return None
    split = prepared.split("test", trial.task)
    logits = predict_logits(
        trial.model.model_dump(mode="json"), finished.read_parameters(), split.integers, split.categoricals
    )
    labels = np.asarray(split.labels)
    facts = [
        _facts(name, segment_metrics(trial.task, logits[rows.codes == place], labels[rows.codes == place]))
        for place, name in enumerate(rows.names)
    ]
    finished.write_segments(rows.column, facts)
    return facts


class SegmentReader:
    """Reads the segments of trials of several datasets, each cut once.

    Args:
        prepared: The datasets of the trials, by name.
        columns: The segment column of each task that has one.
    """

    def __init__(self, prepared: Mapping[str, Prepared], columns: Mapping[TaskName, str]) -> None:
        self._prepared, self._columns = prepared, columns
        self._cut: dict[tuple[str, TaskName], Segmentation] = {}
        self._without: set[str] = set()

    def read(self, trial: Trial) -> list[SegmentFacts] | None:
        """Returns the metrics of a trial's model by segment; None if it has none."""
        if trial.task not in self._columns:
            return None
        prepared, key = self._prepared[trial.dataset], (trial.dataset, trial.task)
        if key not in self._cut:
            self._cut[key] = segment_rows(prepared, trial.task, self._columns[trial.task])
        if trial.model.name not in NETWORKS:
            self._without.add(trial.model.name)
        return segments_of(FinishedTrial.open(trial), prepared, self._cut[key])

    def notes(self) -> list[str]:
        """Returns for which models there are no segments, after all trials were read."""
        return [
            f"There are no metrics by segment for the model {name}, which comes from a plug-in: segments are predicted "
            f"without JAX, by {', '.join(NETWORKS)} only."
            for name in sorted(self._without)
        ]


def _facts(name: str, found: SegmentMetrics) -> SegmentFacts:
    return cast(SegmentFacts, {"name": name, **found._asdict()})


class _Tokens:
    """The names of a categorical column's ids."""

    def __init__(self, prepared: Prepared, column: str) -> None:
        self._tokens: Sequence[str] | None = None
        if prepared.vocabulary["kind"] != "hash":
            import pyarrow.compute as pc
            import pyarrow.parquet

            known = pyarrow.parquet.read_table(prepared.path / "vocabulary.parquet", columns=["column", "id", "token"])
            known = known.filter(pc.equal(known["column"], column)).sort_by("id")
            self._tokens = known["token"].to_pylist()

    def __getitem__(self, code: int) -> str:
        if self._tokens is None:
            return f"bucket {code}"
        return "outside the vocabulary" if code == 0 else self._tokens[code - 1] or "missing"


def _ranges(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Cuts log-transformed values at quantiles; returns the range of each row and the names of the ranges."""
    present = ~np.isnan(values)
    shares = np.arange(1, RANGES) / RANGES
    edges = np.unique(np.quantile(values[present], shares, method="lower")) if present.any() else np.empty(0)
    codes = np.where(present, np.searchsorted(edges, values, side="left"), len(edges) + 1)
    ends = [f"{_plain(edge):.6g}" for edge in edges]
    if not ends:
        return codes, ["any", "missing"]
    between = [f"above {low}, up to {high}" for low, high in itertools.pairwise(ends)]
    return codes, [f"up to {ends[0]}", *between, f"above {ends[-1]}", "missing"]


def _plain(value: float) -> float:
    """Returns the number whose log transform is ``value``; whole, as integer columns are, up to float32."""
    return float(np.copysign(np.round(np.expm1(abs(float(value))), 3), value))
