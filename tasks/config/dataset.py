"""The description of a log: where its files are, how to read them, and what their columns mean.

A new kind of log is a section of ``pipelines.yaml`` and no code. What a description leaves out has the meaning
that most logs have.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, Strict, ValidationInfo, field_validator, model_validator

from tasks.sections import Distinct, Finite, Items, OneOrMore, Section, did_you_mean

TaskName = Literal["pctr", "pcvr", "pconvs"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
TimeFormat = Literal["seconds", "milliseconds", "microseconds", "iso8601"]
# The unit of times that are read in a format.
TIME_UNITS: dict[TimeFormat, str] = {"seconds": "s", "milliseconds": "ms", "microseconds": "us", "iso8601": "us"}

# The chronological partition of the paper's appendix.
SPLIT_FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}

_DELIMITERS = {"tsv": "\t", "csv": ","}
_Columns = Annotated[tuple[str, ...], Strict(False)]


def _as_text(value: Any) -> Any:
    """YAML reads -1 as a number, where a description means what stands in the file."""
    values = value if isinstance(value, list | tuple) else (value,)
    return tuple(str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for v in values)


_Texts = Annotated[tuple[str, ...], BeforeValidator(_as_text)]


class FollowingEvents(Section):
    """Distinct events of the same user, say, that came no earlier than the row and no later than a window allows.

    Any row of the log may carry an event, also one that ``keep_rows`` leaves out: its id is in column ``event`` and
    its time, in the unit of the row's own, in ``event_time``. An id that comes with several times counts by the first.
    """

    event: str
    event_time: str
    same: Distinct[str]
    within_days: Finite


class Label(Section):
    """How a task's label is made: from a column, or by counting events that followed.

    ``binary`` is a column of 0 and 1, ``count`` a whole number from 0 up, and ``any`` is 1 where a count is above 0.
    """

    column: str | None = None
    following: FollowingEvents | None = None
    kind: Literal["binary", "any", "count"]

    @model_validator(mode="after")
    def _has_one_origin(self) -> Label:
        if (self.column is None) == (self.following is None):
            raise ValueError("give either the `column` of the label, or which `following` events are counted")
        if self.following is not None and self.kind == "binary":
            raise ValueError("`following` events are counted: `kind` must be count, or any for whether there were some")
        return self


class Synthetic(Section):
    """Logs made by ``tasks.synthetic`` instead of read from somewhere."""

    kind: Literal["display", "clicks"]
    seed: int = 0


class Dataset(Section):
    """Where logs come from and what their columns mean.

    ``raw`` is a file, a folder, a pattern such as ``logs/day=*/*.parquet``, or a list of these. Rows are in the order
    of time, or have a ``time_column``, by which they are sorted; with ``in_time_order`` they claim both, and are
    refused if that is not so. Times that are plain numbers are seconds, unless ``time_format`` says otherwise.
    """

    description: str = ""
    synthetic: Synthetic | None = None
    raw: OneOrMore[str] | None = None
    format: Literal["tsv", "csv", "parquet"]
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    header: bool = False
    columns: Items[str] | None = None
    # Columns with one value for a whole file, which its path has: `day` of logs/day=2023-10-01/part-0.csv.
    path_columns: _Columns = ()
    # What stands for a missing value, beside nothing at all.
    missing: _Texts = ()
    keep_rows: dict[str, _Texts] = Field(default={})
    time_column: str | None = None
    time_format: TimeFormat | None = None
    in_time_order: bool | None = None
    integer_columns: _Columns = ()
    categorical_columns: _Columns = ()
    labels: dict[TaskName, Label]
    # The share of rows that may be unreadable, and are put aside.
    tolerated_bad_rows: Annotated[float, Field(ge=0, lt=1)] = 0.001
    # Which tokens get an id; ``tasks.vocabulary`` has the kinds, and the defaults of their numbers.
    vocabulary: Literal["threshold", "hash", "private"] = "threshold"
    vocabulary_buckets: Annotated[int, Field(ge=2, le=10**9)] | None = None
    vocabulary_epsilon: Annotated[Finite, Field(le=1000)] | None = None
    # Whether tokens keep the ids of an earlier preparation when rows are added.
    keep_vocabulary: bool = False

    @property
    def separator(self) -> str:
        """What separates the fields of a text."""
        return self.delimiter or _DELIMITERS[self.format]

    @property
    def time_unit(self) -> str:
        """The unit of times that are plain numbers, and of those that are read from text."""
        return TIME_UNITS[self.time_format or "seconds"]

    @property
    def label_columns(self) -> list[str]:
        return list(dict.fromkeys(label.column for label in self.labels.values() if label.column is not None))

    @property
    def following(self) -> list[FollowingEvents]:
        """The kinds of events that labels count."""
        return list(dict.fromkeys(label.following for label in self.labels.values() if label.following is not None))

    @property
    def number_columns(self) -> list[str]:
        """Columns that are read as numbers, without the time."""
        return list(dict.fromkeys([*self.integer_columns, *self.label_columns]))

    @property
    def time_columns(self) -> list[str]:
        """The time of a row, if it has one, and those of the events that it carries."""
        times = [self.time_column] if self.time_column else []
        return list(dict.fromkeys([*times, *(events.event_time for events in self.following)]))

    @property
    def token_columns(self) -> list[str]:
        """Columns that are read as tokens: the categorical ones, and what else is only compared."""
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
            raise ValueError(f"goes with `vocabulary: {kind}`, but `vocabulary` is {given}: leave out one of the two")
        return value

    @model_validator(mode="after")
    def _agrees(self) -> Dataset:
        for check in (self._check_format, self._check_time, self._check_features, self._check_columns):
            check()
        return self

    def _check_format(self) -> None:
        if self.synthetic is not None and self.raw is not None:
            raise ValueError("`synthetic` makes the logs and `raw` names a file of them: give one of the two")
        if self.format == "parquet":
            for name in ("delimiter", "columns"):
                if getattr(self, name) is not None:
                    raise ValueError(f"`{name}` is for text; a Parquet file has its own columns and types")
            if self.header:
                raise ValueError("`header` is for text; a Parquet file has its own columns")
            if self.time_format == "iso8601":
                raise ValueError("`time_format: iso8601` is for text; a Parquet file has times of their own type")
        elif self.header and self.columns is not None:
            raise ValueError("with `header: true` the first line names the columns: leave out `columns`")
        elif not self.header and self.columns is None:
            raise ValueError(
                f"a {self.format} without header needs `columns`, its columns in order; with one, `header: true`"
            )
        if self.delimiter is not None and self.delimiter in '"\r\n':
            raise ValueError(f"the delimiter cannot be {self.delimiter!r}")

    def _check_time(self) -> None:
        if self.time_column is None:
            if self.in_time_order is False:
                raise ValueError("without `time_column` nothing but the order of the rows tells their time")
            if self.time_format is not None:
                raise ValueError("`time_format` is for a `time_column`, and there is none")
            if self.following:
                raise ValueError("labels of `following` events need a `time_column`")

    def _check_features(self) -> None:
        if not self.integer_columns and not self.categorical_columns:
            raise ValueError("no features: give `integer_columns` or `categorical_columns`")
        if self.vocabulary != "threshold" and not self.categorical_columns:
            raise ValueError(f"`vocabulary: {self.vocabulary}` is for `categorical_columns`, and there are none")
        if self.keep_vocabulary and (self.vocabulary == "hash" or not self.categorical_columns):
            raise ValueError("`keep_vocabulary` is for a vocabulary made from the data; a hash never changes")
        if not self.labels:
            raise ValueError(f"`labels` is empty: give a label for at least one of {', '.join(TASKS)}")
        features = [*self.integer_columns, *self.categorical_columns]
        for name in features:
            if features.count(name) > 1:
                raise ValueError(f"column {name!r} is used more than once as a feature")
        for name in [*self.label_columns, *self.time_columns, *(events.event for events in self.following)]:
            if name in features:
                raise ValueError(f"column {name!r} is a label or the time, so it cannot be a feature")

    def _check_columns(self) -> None:
        for name in self.path_columns:
            if name in (self.columns or ()):
                raise ValueError(f"column {name!r} is both in `columns` and in `path_columns`")
        for name in self.used_columns:
            if self.used_columns.count(name) > 1:
                raise ValueError(f"column {name!r} is used both as a number and as a token or time")
        if self.columns is not None:
            for name in self.columns:
                if self.columns.count(name) > 1:
                    raise ValueError(f"column {name!r} is in `columns` more than once")
            for name in self.used_columns:
                if name not in self.columns and name not in self.path_columns:
                    raise ValueError(f"column {name!r} is not in `columns`{did_you_mean(name, self.columns)}")
