"""The contents of ``schema.json``, which describes a prepared folder."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, Required, TypedDict


class VocabularyFacts(TypedDict, total=False):
    """The kind of a vocabulary and its parameters: ``buckets`` of a hash, ``min_count`` of the others.

    A private one also has its ε, the parameters of ``PartitionSelection``, and ``draw``, which identifies the draw of
    its noise. ``noise`` is what was measured of that noise, ``VocabularyNoise.to_json()``. It is for the audit and is
    not private.
    """

    kind: Required[Literal["threshold", "hash", "private"]]
    buckets: int
    min_count: int
    epsilon: float
    noise_multiplier: float
    delta: float
    columns: int
    threshold: float
    draw: str
    noise: dict[str, Any]


class CategoricalFacts(TypedDict):
    name: str
    vocabulary_size: int
    embedding_dimension: int


class SplitFacts(TypedDict):
    """The rows of a split and its first and last time, None if rows have no time."""

    rows: int
    first_time: str | None
    last_time: str | None


class BoundaryTimes(TypedDict):
    """The last times of the training and of the validation split."""

    unit: str
    times: list[float]


class SourceFacts(TypedDict):
    """The raw log: the name of its first file, and the number and size of all files."""

    path: str
    files: int
    bytes: int


class VocabularyOrigin(TypedDict):
    """The data that a kept vocabulary was made from; ``days`` are those of a window."""

    fingerprint: str
    source: SourceFacts
    train: SplitFacts
    days: NotRequired[list[str]]


class DayFacts(TypedDict):
    """A day in the folder of a night: its number of rows, and the digest of its contents."""

    rows: int
    contents: str


class NightFacts(TypedDict):
    """The folder of a night.

    Attributes:
        day: The newest day, which the night judges on.
        days: The days of the window that are in it, and the newest one.
        left_out: The days of the window that are not, each with the reason.
    """

    day: str
    days: dict[str, DayFacts]
    left_out: dict[str, str]


class Statistics(TypedDict):
    """What the data card shows.

    Attributes:
        by_split: For each split and array its counts: NaN per integer column, id 0 per categorical column, and for
            labels their sum and the number of non-zero ones.
        tasks: The order of the label sums in ``by_day`` and ``by_position``.
        by_day: For each day its number of rows, then each task's sum of labels.
        by_position: The same for equal pieces of a log without times, from first to last.
        missing: For each feature column the rows without a value.
        bad_rows: For each reason the rows in quarantine.
        lines: Rows of the raw log, with the bad ones and those that ``keep_rows`` drops.
        window_days: The longest window of labels that count events, None if there is none.
    """

    by_split: dict[str, dict[str, list[float]]]
    tasks: list[str]
    by_day: dict[str, list[float]]
    by_position: list[list[float]]
    missing: dict[str, int]
    rows: int
    bad_rows: dict[str, int]
    lines: int
    window_days: float | None


class Schema(TypedDict):
    """A prepared folder.

    Attributes:
        tasks: For each task the kind of its label.
        vocabulary_kept_from: None unless the vocabulary was made from other data.
        encoding: The cache key of the id assignment, None if it depends on the rows of this folder.
        parts: The keys of the parsed files.
        ceiling: The losses of the planted model, None unless the log is synthetic.
        fingerprint: Equal for equal arrays with equal tokens and meaning.
        night: The days of a night's folder, None for other folders.
    """

    dataset: str
    tasks: dict[str, str]
    integer_columns: list[str]
    categorical_columns: list[CategoricalFacts]
    vocabulary: VocabularyFacts
    vocabulary_kept_from: VocabularyOrigin | None
    splits: dict[str, SplitFacts]
    boundaries: BoundaryTimes | None
    split_by: str
    statistics: Statistics
    source: SourceFacts
    encoding: str | None
    parts: list[str]
    ceiling: dict[str, Any] | None
    fingerprint: str
    night: NotRequired[NightFacts | None]
