"""What a sample of a log shows: which column is the time, which are labels and features, and what looks wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tasks.config.dataset import TASKS, TaskName
from tasks.logs.draft_columns import ABSENT_NUMBERS, ENOUGH_ROWS, WORDS, Column, columns_of
from tasks.logs.draft_sample import ABSENT_WORDS, Sample, differences, percent, read_sample, shown
from tasks.logs.files import RawFile
from tasks.runtime.errors import UserError

_ROWS_OF_LAST_FILE = 1000
USES = ("time", "label", "integer", "categorical")


class Candidate(NamedTuple):
    """A column that can be the label of a task. The lowest rank has the best name."""

    column: Column
    task: TaskName
    kind: str
    rank: int


@dataclass(frozen=True)
class Findings:
    """The roles of a sample's columns.

    Attributes:
        times: Columns that can be the time of a row, the best first.
        in_order: Whether rows are in the order of time; None if the sample does not show it.
        candidates: Columns that can be labels, the best first.
        is_guess: Whether no column has the name of a label, so that the candidate is a guess by its values.
        file_problems: What is wrong with the files themselves.
    """

    sample: Sample
    columns: tuple[Column, ...]
    times: tuple[Column, ...]
    in_order: bool | None
    candidates: tuple[Candidate, ...]
    is_guess: bool
    file_problems: tuple[str, ...]

    @property
    def time(self) -> Column | None:
        return self.times[0] if self.times else None

    @cached_property
    def labels(self) -> dict[TaskName, Candidate]:
        """The best candidate of each task."""
        of_task = {task: [c for c in self.candidates if c.task == task] for task in TASKS}
        return {task: found[0] for task, found in of_task.items() if found}

    @cached_property
    def roles(self) -> dict[Column, str]:
        """The role of each column: one of ``USES``, or the reason to leave it out."""
        return {column: self._role(column) for column in self.columns}

    def _role(self, column: Column) -> str:
        labels = [label.column for label in self.labels.values()]
        is_row_number = column.type == "integer" and column.non_decreasing_share == 1
        roles = {
            "duplicate name": self.sample.names.count(column.name) > 1,
            "time": column is self.time,
            "label": column in labels,
            "no name": not column.name,
            "unsupported type": column.type == "other",
            "like a label": any(column is candidate.column for candidate in self.candidates),
            "no values": not column.present.any(),
            "constant": self.sample.rows >= ENOUGH_ROWS and column.distinct == 1 and bool(column.present.all()),
            "after the fact": column.is_after_the_fact,
            "only where a label is above 0": any(column.follows(label) for label in labels),
            "another time": column.type == "time" or (column.time_format is not None and column.time_score is not None),
            "nearly unique": column.is_unique and (column.type == "text" or column.is_category or is_row_number),
            "ids stored as fractions": column.is_category and column.type == "number" and column.stored != "text",
            "integer": column.is_number and not column.is_category,
        }
        return next((role for role, holds in roles.items() if holds), "categorical")

    def names(self, role: str) -> list[str]:
        return [column.name for column, its in self.roles.items() if its == role]

    @property
    def missing(self) -> list[str]:
        """Placeholders for missing values: those of several columns, and words among numbers."""
        columns = Counter(value for column in self.columns for value in column.stand_ins)
        numbers = [column for column in self.columns if column.is_number]
        words = {v for column in numbers for v in column.stand_ins if v.lower() in ABSENT_WORDS}
        # In a column with other negative numbers, -1 is a value and not a placeholder.
        negative = [set(column.known[column.known < 0]) for column in numbers]
        meant = {str(n) for n in ABSENT_NUMBERS if any(n in values and len(values) > 1 for values in negative)}
        return [value for value, count in columns.items() if value in words or (count > 1 and value not in meant)]

    @property
    def problems(self) -> list[str]:
        """What a person has to look at."""
        return [*self.file_problems, *_column_problems(self)]


def examine_log(files: Sequence[RawFile], sample_rows: int) -> Findings:
    """Reads the first rows of the first file, compares the last file with them, and gives every column a role."""
    sample = read_sample(files[0], sample_rows)
    columns = columns_of(sample)
    usable = [column for column in columns if column.name and sample.names.count(column.name) == 1]
    times = sorted((c for c in usable if c.time_score is not None), key=lambda c: -(c.time_score or 0))
    in_order, file_problems = _order(times[0] if times else None), list(sample.problems)
    if len(files) > 1:
        try:
            last = read_sample(files[-1], _ROWS_OF_LAST_FILE)
            file_problems += differences(files[-1].path, sample, last)
            in_order = in_order and _goes_on(times[0], columns_of(last))
        except UserError as error:
            file_problems.append(str(error))
    named = tuple(sorted(_candidates(usable), key=lambda c: c.rank))
    guess = [Candidate(c, "pctr", "binary", 0) for c in usable if c.is_binary and c.distinct == 2]
    candidates = named or tuple(guess[:1])
    return Findings(sample, columns, tuple(times), in_order, candidates, not named, tuple(file_problems))


def _order(time: Column | None) -> bool | None:
    """Whether the sample is in the order of time; None if it has no time or only one."""
    if time is None or time.distinct <= 1:
        return None
    return time.non_decreasing_share == 1 and bool(time.present.all())


def _goes_on(time: Column, later: Iterable[Column]) -> bool:
    """Whether the times of a later file, if it has any, come after those of the sample."""
    starts = [column.known.min() for column in later if column.name == time.name and len(column.known)]
    return not starts or bool(starts[0] >= time.known.max())


def _candidates(columns: Iterable[Column]) -> Iterator[Candidate]:
    """Yields the columns that have the name and the values of a label."""
    converted, conversions, clicked = WORDS["converted"], WORDS["conversions"], WORDS["clicked"]
    for column in columns:
        words = [word for word in column.words if word not in WORDS["nothing"]] or column.words[-1:]
        core, last = words[0] if len(words) == 1 else "", column.last_word
        if column.is_count and (core in conversions or (core in converted and not column.is_binary)):
            rank = [*conversions, *converted].index(core)
            yield Candidate(column, "pcvr", "any", 50 + rank)
            yield Candidate(column, "pconvs", "count", rank)
        elif column.is_binary and core in converted:
            yield Candidate(column, "pcvr", "binary", converted.index(core))
        elif column.is_binary and core in clicked:
            yield Candidate(column, "pctr", "binary", clicked.index(core))
        elif column.is_binary and last in ("clicked", "converted", "purchased") and not column.says("history"):
            yield Candidate(column, "pctr" if last == "clicked" else "pcvr", "binary", 100)


def _column_problems(found: Findings) -> Iterator[str]:
    for column, role in found.roles.items():
        name, is_named = shown(column.name), column.last_word in WORDS["clicked"] + WORDS["converted"]
        if column.odd_share:
            yield f"column {name} has values that are not numbers in {percent(column.odd_share)} of the rows"
        if column.distinct == 2 and not column.is_count and is_named:
            yield f"column {name} is named like a label but has {' and '.join(column.examples)}: a label is 0 or 1"
        if column.type == "time" and column.stored == "string" and found.time is None:
            yield f"column {name} has times as strings: in a Parquet file they must be timestamps, dates or numbers"
        if role in ("time", "label") and not column.present.all():
            yield f"column {name} is the {role} but is missing in {percent(1 - column.present.mean())} of the rows"
    if not found.labels:
        yield "no column can be a label: a label is 0 or 1, or a small whole number in a column named like conversions"
