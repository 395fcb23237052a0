"""The section of ``pipelines.yaml`` that describes a log: its files, how to read them, and what its columns mean.

A new log needs such a section and no code. The defaults fit most logs.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, Strict, ValidationInfo, field_validator, model_validator

from tasks.config.sections import Distinct, Finite, Items, OneOrMore, Section, did_you_mean, registered
from tasks.logs.files import DAY
from tasks.logs.formats import LOG_FORMATS

TaskName = Literal["pctr", "pcvr", "pconvs"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
# The tasks in text for people.
TASK_TITLES: dict[TaskName, str] = {"pctr": "pCTR", "pcvr": "pCVR", "pconvs": "pConvs"}
TimeFormat = Literal["seconds", "milliseconds", "microseconds", "iso8601"]
# The unit that times of a format are read in.
TIME_UNITS: dict[TimeFormat, str] = {"seconds": "s", "milliseconds": "ms", "microseconds": "us", "iso8601": "us"}

# The chronological split of the paper's appendix.
SPLIT_FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}

_Columns = Annotated[tuple[str, ...], Strict(False)]
_Days = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Strict(False)]


def _as_text(value: Any) -> Any:
    """Turns numbers into text: YAML reads -1 as a number, but the file has the text -1."""
    values = value if isinstance(value, list | tuple) else (value,)
    return tuple(str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for v in values)


_Texts = Annotated[tuple[str, ...], BeforeValidator(_as_text)]


class FollowingEvents(Section):
    """Distinct events with the same key, for example the same user, from the time of the row to ``within_days`` later.

    Any row of the log may carry an event, also one that ``keep_rows`` drops: its id is in column ``event`` and its
    time, in the unit of ``time_column``, in ``event_time``. An id with several times counts by the earliest.
    """

    event: str
    event_time: str
    same: Distinct[str]
    within_days: Finite


class Label(Section):
    """The label of a task: a column, or a count of events that followed the row.

    Its kind is ``binary`` for a column of 0 and 1, ``count`` for whole numbers of 0 or more, and ``any`` for 1 if a
    count is above 0, else 0.
    """

    column: str | None = None
    following: FollowingEvents | None = None
    kind: Literal["binary", "any", "count"]

    @model_validator(mode="after")
    def _has_one_origin(self) -> Label:
        if (self.column is None) == (self.following is None):
            raise ValueError("a label needs either a `column` or `following` events to count")
        if self.following is not None and self.kind == "binary":
            raise ValueError("with `following` events, `kind` must be count, or any for 1 if there was at least one")
        return self


class SyntheticDays(Section):
    """A synthetic log that comes in one file a day, as logs do, with the accidents that happen to them.

    Days are counted from 0, the day of ``start``. Every day after it exists.

    Attributes:
        start: The first day, such as 2026-01-01.
        rows: The number of rows of a day.
        bad: Days whose data is broken: another mix of traffic and a label rate that is far off.
        late: Days that are delivered a day late.
        changed: Days that are delivered again the day after, with other rows.
        empty: Days that are delivered without a row.
    """

    start: datetime.date
    rows: Annotated[int, Field(ge=1000, le=10**9)]
    bad: _Days = ()
    late: _Days = ()
    changed: _Days = ()
    empty: _Days = ()


class Synthetic(Section):
    """A log that ``tasks.logs.synthetic`` generates; with ``days``, also day by day for nightly retrains.

    ``tails: heavy`` has more rare tokens and large integers, and half of its columns have no effect on the label.
    """

    kind: Literal["display", "clicks"]
    seed: int = 0
    tails: Literal["usual", "heavy"] = "usual"
    days: SyntheticDays | None = None

    @model_validator(mode="after")
    def _has_times(self) -> Synthetic:
        if self.days is not None and self.kind != "clicks":
            raise ValueError("`days` needs `kind: clicks`, whose rows have times")
        if self.days is not None and self.tails != "usual":
            raise ValueError("`days` have usual tails; leave `tails` out")
        return self


class Dataset(Section):
    """The description of a log.

    ``raw`` is a file, a folder, a pattern such as ``logs/day=*/*.parquet``, or a list of these. Where ``raw`` has
    ``{day}``, the log comes by days, each of them complete when its ``day_marker`` is there. Rows are sorted by
    ``time_column``; without one, they must be in the order of time. With ``in_time_order`` rows must be sorted by
    ``time_column`` already, and a log that is not is refused. Times that are numbers are in seconds unless
    ``time_format`` says otherwise.
    """

    description: str = ""
    synthetic: Synthetic | None = None
    raw: OneOrMore[str] | None = None
    # The name of a file beside those of a day that says that all of them are there.
    day_marker: Annotated[str, Field(min_length=1, pattern=r"^[^/]+$")] | None = None
    # The dataset whose budget in the ledger this one spends, because it reads the same files.
    shares_budget_with: Annotated[str, Field(min_length=1)] | None = None
    format: Annotated[str, registered(lambda: LOG_FORMATS)]
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    header: bool = False
    columns: Items[str] | None = None
    # Columns with one value per file, taken from its path: `day` in logs/day=2023-10-01/part-0.csv.
    path_columns: _Columns = ()
    # Placeholders for a missing value, besides an empty field.
    missing: _Texts = ()
    keep_rows: dict[str, _Texts] = Field(default={})
    time_column: str | None = None
    time_format: TimeFormat | None = None
    in_time_order: bool | None = None
    integer_columns: _Columns = ()
    categorical_columns: _Columns = ()
    labels: dict[TaskName, Label]
    # The largest share of bad rows; they go to the quarantine.
    tolerated_bad_rows: Annotated[float, Field(ge=0, lt=1)] = 0.001
    # Which tokens get an id; ``tasks.data.vocabulary`` has the kinds and the defaults of their parameters.
    vocabulary: Literal["threshold", "hash", "private"] = "threshold"
    vocabulary_buckets: Annotated[int, Field(ge=2, le=10**9)] | None = None
    vocabulary_epsilon: Annotated[Finite, Field(le=1000)] | None = None
    # Whether tokens keep their ids when rows are added.
    keep_vocabulary: bool = False
    # The feature by whose values reports show metrics of parts of the test split.
    segment_column: str | None = None

    @property
    def comes_by_days(self) -> bool:
        """Whether the log's files are of single days, as a nightly retrain needs."""
        if self.synthetic is not None:
            return self.synthetic.days is not None
        return self.raw is not None and any(DAY in pattern for pattern in self.raw)

    @property
    def time_unit(self) -> str:
        """The unit of times that are numbers, and of times parsed from text."""
        return TIME_UNITS[self.time_format or "seconds"]

    @property
    def label_columns(self) -> list[str]:
        return list(dict.fromkeys(label.column for label in self.labels.values() if label.column is not None))

    @property
    def following(self) -> list[FollowingEvents]:
        """The distinct kinds of events that labels count."""
        return list(dict.fromkeys(label.following for label in self.labels.values() if label.following is not None))

    @property
    def number_columns(self) -> list[str]:
        """The columns that are read as numbers, without times."""
        return list(dict.fromkeys([*self.integer_columns, *self.label_columns]))

    @property
    def time_columns(self) -> list[str]:
        """The columns of the row's time and of event times."""
        times = [self.time_column] if self.time_column else []
        return list(dict.fromkeys([*times, *(events.event_time for events in self.following)]))

    @property
    def token_columns(self) -> list[str]:
        """The columns that are read as tokens: categorical ones, and those that are only compared."""
        keys = [name for events in self.following for name in (*events.same, events.event)]
        compared = [name for name in self.keep_rows if name not in self.number_columns]
        return list(dict.fromkeys([*self.categorical_columns, *keys, *compared]))

    @property
    def used_columns(self) -> list[str]:
        return [*self.number_columns, *self.time_columns, *self.token_columns]

    @field_validator("vocabulary_buckets", "vocabulary_epsilon")
    @classmethod
    def _goes_with_the_vocabulary(cls, value: float | None, info: ValidationInfo) -> float | None:
        kind = "hash" if info.field_name == "vocabulary_buckets" else "private"
        given = info.data.get("vocabulary", kind)
        if value is not None and given != kind:
            raise ValueError(f"only for `vocabulary: {kind}`, but `vocabulary` is {given}: leave out one of the two")
        return value

    @model_validator(mode="after")
    def _agrees(self) -> Dataset:
        for check in (self._check_format, self._check_time, self._check_features, self._check_columns):
            check()
        return self

    def _check_format(self) -> None:
        if self.synthetic is not None and self.raw is not None:
            raise ValueError("`synthetic` generates the log and `raw` names its files: give one of the two")
        if self.day_marker is not None and (self.raw is None or not self.comes_by_days):
            raise ValueError(f"`day_marker` is for logs that come by days: write {DAY} in `raw`")
        for pattern in self.raw or ():
            if self.comes_by_days and DAY not in pattern:
                raise ValueError(
                    f"`raw` has {pattern!r}, which would be in every day: write {DAY} in it, or leave it out"
                )
        LOG_FORMATS[self.format].check(self)

    def _check_time(self) -> None:
        if self.time_column is None:
            if self.in_time_order is False:
                raise ValueError(
                    "without a `time_column`, rows must be in the order of time: leave out `in_time_order: false`"
                )
            if self.time_format is not None:
                raise ValueError("`time_format` needs a `time_column`")
            if self.following:
                raise ValueError("labels of `following` events need a `time_column`")

    def _check_features(self) -> None:
        if not self.integer_columns and not self.categorical_columns:
            raise ValueError("no features: give `integer_columns`, `categorical_columns` or both")
        if self.vocabulary != "threshold" and not self.categorical_columns:
            raise ValueError(f"`vocabulary: {self.vocabulary}` needs `categorical_columns`")
        if self.keep_vocabulary and (self.vocabulary == "hash" or not self.categorical_columns):
            raise ValueError(
                "`keep_vocabulary` needs a vocabulary made from the data (threshold or private); a hash never changes"
            )
        if not self.labels:
            raise ValueError(f"`labels` is empty: give a label for at least one of {', '.join(TASKS)}")
        features = [*self.integer_columns, *self.categorical_columns]
        for name in features:
            if features.count(name) > 1:
                raise ValueError(f"column {name!r} is a feature more than once")
        if self.segment_column is not None and self.segment_column not in features:
            raise ValueError(
                f"`segment_column` is {self.segment_column!r}, which is none of `categorical_columns` and "
                f"`integer_columns`{did_you_mean(self.segment_column, features)}"
            )
        for name in [*self.label_columns, *self.time_columns, *(events.event for events in self.following)]:
            if name in features:
                raise ValueError(f"column {name!r} is a label, a time or an event id, so it cannot be a feature")

    def _check_columns(self) -> None:
        for name in self.path_columns:
            if name in (self.columns or ()):
                raise ValueError(f"column {name!r} is in both `columns` and `path_columns`")
        for name in self.used_columns:
            if self.used_columns.count(name) > 1:
                raise ValueError(f"column {name!r} cannot be both a number and a token or time")
        if self.columns is not None:
            for name in self.columns:
                if self.columns.count(name) > 1:
                    raise ValueError(f"column {name!r} is in `columns` more than once")
            for name in self.used_columns:
                if name not in self.columns and name not in self.path_columns:
                    raise ValueError(f"column {name!r} is not in `columns`{did_you_mean(name, self.columns)}")
