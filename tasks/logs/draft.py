"""Drafts the description of a log for ``pipelines.yaml`` from a sample of its first rows.

A draft says what the sample shows: the format, which column is the time, which are labels, which are features, and
which had better be left out. It is for a person to correct. Of a text at most 32 MB are read, of a Parquet file the
first rows, however large the file is.
"""

from __future__ import annotations

import io
import math
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.descriptions import TASKS, Dataset, TaskName
from tasks.errors import UserError
from tasks.log_columns import ABSENT_NUMBERS, ENOUGH_ROWS, WORDS, Column, columns_of
from tasks.log_samples import ABSENT_WORDS, Sample, count_rows, differences, percent, read_sample, shown
from tasks.raw_files import find_files

_ROWS_OF_LAST_FILE = 1000
_WIDTH = 120
_PLAIN = re.compile(r"[A-Za-z_/.][\w./*=-]*", re.ASCII)
_USES = ("time", "label", "integer", "categorical")
_FACTS = ("name", "type", "stored", "distinct", "missing_share", "stand_ins")


class Candidate(NamedTuple):
    """A column that can be a task's label; the best name has the lowest rank."""

    column: Column
    task: TaskName
    kind: str
    rank: int


@dataclass(frozen=True)
class Findings:
    """What was made of a sample. ``in_order`` is None where nothing tells; ``candidates`` have the best first."""

    sample: Sample
    columns: tuple[Column, ...]
    time: Column | None
    in_order: bool | None
    candidates: tuple[Candidate, ...]
    is_guess: bool

    @cached_property
    def labels(self) -> dict[TaskName, Candidate]:
        """The best candidate of each task."""
        of_task = {task: [c for c in self.candidates if c.task == task] for task in TASKS}
        return {task: found[0] for task, found in of_task.items() if found}

    @cached_property
    def roles(self) -> dict[Column, str]:
        """What each column is: one of ``_USES``, or why it is left out."""
        return {column: self._role(column) for column in self.columns}

    def _role(self, column: Column) -> str:
        labels = [label.column for label in self.labels.values()]
        is_row_number = column.type == "integer" and column.non_decreasing_share == 1
        roles = {
            "name stands twice": self.sample.names.count(column.name) > 1,
            "time": column is self.time,
            "label": column in labels,
            "no name": not column.name,
            "type cannot be used": column.type == "other",
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
        """What stands for a missing value in several columns, or as a word among numbers."""
        columns = Counter(value for column in self.columns for value in column.stand_ins)
        numbers = [column for column in self.columns if column.is_number]
        words = {v for column in numbers for v in column.stand_ins if v.lower() in ABSENT_WORDS}
        # Beside other negative numbers, -1 is one of them.
        negative = [set(column.known[column.known < 0]) for column in numbers]
        meant = {str(n) for n in ABSENT_NUMBERS if any(n in values and len(values) > 1 for values in negative)}
        return [value for value, count in columns.items() if value in words or (count > 1 and value not in meant)]


def describe(raw: Sequence[str], *, name: str | None = None, sample_rows: int = 100_000) -> dict[str, Any]:
    """What the first rows of a log show, with a draft of its description as ``yaml``, and all of it as ``text``.

    ``problems`` says what a person has to look at; an empty one means that the draft is a valid description. A file
    that cannot be described at all is a ``UserError``.
    """
    files = find_files(raw)
    sample = read_sample(files[0], sample_rows)
    columns = columns_of(sample)
    usable = [column for column in columns if column.name and sample.names.count(column.name) == 1]
    times = sorted((c for c in usable if c.time_score is not None), key=lambda c: -(c.time_score or 0))
    time = times[0] if times else None
    in_order = None
    if time is not None and time.distinct > 1:
        in_order = time.non_decreasing_share == 1 and bool(time.present.all())
    problems = [*sample.problems]
    if len(files) > 1:
        try:
            last = read_sample(files[-1], _ROWS_OF_LAST_FILE)
            problems += differences(files[-1].path, sample, last)
            later = [c.known.min() for c in columns_of(last) if time and c.name == time.name and len(c.known)]
            if time is not None and in_order and later:
                in_order = bool(later[0] >= time.known.max())
        except UserError as error:
            problems.append(str(error))
    named = tuple(sorted(_candidates(usable), key=lambda c: c.rank))
    guess = [Candidate(c, "pctr", "binary", 0) for c in usable if c.is_binary and c.distinct == 2]
    found = Findings(sample, columns, time, in_order, named or tuple(guess[:1]), not named)
    key = name or _name(str(raw[0]))
    draft = "\n".join(_draft(found, key, list(dict.fromkeys(map(str, raw))), list(files[0].from_path))) + "\n"
    problems += _problems(found)
    try:
        Dataset.model_validate(yaml.safe_load(draft)[key])
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, e['loc']))} {e['msg']}".strip() for e in error.errors())
        problems.append(f"the draft is not a whole description yet: {told}")
    is_all = sample.is_whole and len(files) == 1
    result: dict[str, Any] = {
        "name": key,
        "files": [str(file.path) for file in files],
        "format": sample.format,
        "delimiter": sample.delimiter,
        "header": sample.header,
        "compression": files[0].compression,
        "rows_sampled": sample.rows,
        "rows": count_rows(files) if sample.format == "parquet" else sample.rows if is_all else None,
        "columns": [
            {fact: getattr(column, fact) for fact in _FACTS}
            | {"distinct_is_at_least": not is_all, "examples": list(column.examples), "role": role}
            for column, role in found.roles.items()
        ],
        "from_path": list(files[0].from_path),
        "time_candidates": [
            {fact: getattr(column, fact) for fact in ("name", "time_format", "non_decreasing_share")}
            for column in times
        ],
        "label_candidates": [
            {"name": c.column.name, "task": c.task, "kind": c.kind, "is_guess": found.is_guess}
            for c in found.candidates
        ],
        "in_time_order": in_order,
        "yaml": draft,
        "problems": problems,
    }
    return {**result, "text": _text(result, found)}


def _candidates(columns: Iterable[Column]) -> Iterator[Candidate]:
    """The columns whose names and values are those of a label."""
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


def _problems(found: Findings) -> Iterator[str]:
    """What a person has to look at in single columns."""
    for column, role in found.roles.items():
        name, is_named = shown(column.name), column.last_word in WORDS["clicked"] + WORDS["converted"]
        if column.odd_share:
            yield f"column {name} has values that are not numbers in {percent(column.odd_share)} of the rows"
        if column.distinct == 2 and not column.is_count and is_named:
            yield f"column {name} is called like a label, but has {' and '.join(column.examples)}: a label is 0 or 1"
        if column.type == "time" and column.stored == "string" and found.time is None:
            yield f"column {name} has times as texts: in a Parquet file they must be timestamps, dates or numbers"
        if role in ("time", "label") and not column.present.all():
            yield f"column {name} is the {role}, but is missing in {percent(1 - column.present.mean())} of the rows"
    if not found.labels:
        yield "no column can be a label: it would be 0 or 1, or a small whole number called conversions or the like"


def _draft(found: Findings, name: str, raw: Sequence[str], from_path: Sequence[str]) -> Iterator[str]:
    """The lines of the section, to be pasted under ``datasets``."""
    sample, time = found.sample, found.time
    yield f"  {_scalar(name)}:"
    yield from _list("raw", raw) if len(raw) > 1 else [f"    raw: {_scalar(raw[0])}"]
    yield f"    format: {sample.format}"
    if sample.format == "csv" and sample.delimiter != ",":
        yield f"    delimiter: {_scalar(sample.delimiter or '')}"
    if sample.header:
        yield "    header: true"
    elif sample.format != "parquet":
        yield from _list("columns", sample.names)
    if found.missing:
        yield from _list("missing", found.missing)
    if time is None:
        yield from _comment("No time was found: the rows, and the files by their names, must be in the order of time.")
    else:
        yield f"    time_column: {_scalar(time.name)}"
        if time.time_format not in (None, "seconds"):
            yield f"    time_format: {time.time_format}"
        if found.in_order:
            yield "    in_time_order: true"
    for role in ("integer", "categorical"):
        if names := found.names(role):
            yield from _list(f"{role}_columns", names)
    if reasons := [role for role in dict.fromkeys(found.roles.values()) if role not in _USES]:
        told = (f"{', '.join(map(_scalar, found.names(reason)))} ({reason})" for reason in reasons)
        yield from _comment(f"Left out: {'; '.join(told)}.")
    if from_path:
        yield from _comment(f"Every file's path has a value of {', '.join(map(_scalar, from_path))}: a column, too.")
    if not found.labels:
        yield from _comment("labels: {pctr: {column: ?, kind: binary}}")
        yield from _comment(
            "is needed: a column of 0 and 1 for pctr or pcvr, or a count for pcvr (any), pconvs (count)."
        )
        return
    if found.is_guess:
        yield from _comment("The label is a guess: it is the first column of 0 and 1.")
    elif "pctr" in found.labels and "pcvr" in found.labels:
        clicked = _scalar(found.labels["pctr"].column.name)
        yield from _comment(f"For pcvr after a click alone, add: keep_rows: {{{clicked}: 1}}")
    yield "    labels:"
    for task, label in found.labels.items():
        yield f"      {task}: {{column: {_scalar(label.column.name)}, kind: {label.kind}}}"


def _list(key: str, values: Iterable[str]) -> Iterator[str]:
    items = [_scalar(value) for value in values]
    line = f"    {key}: [{', '.join(items)}]"
    if len(line) > _WIDTH:
        yield f"    {key}:"
        line = "      ["
        for item in items[:-1]:
            if len(line) + len(item) >= _WIDTH and not line.endswith("["):
                yield line.rstrip()
                line = "       "
            line += f"{item}, "
        if len(line) + len(items[-1]) >= _WIDTH and not line.endswith("["):
            yield line.rstrip()
            line = "       "
        line += f"{items[-1]}]"
    yield line


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    # ", subsequent_indent="    # ", break_long_words=False)


def _scalar(text: str) -> str:
    """The text as YAML, on one line."""
    if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    return yaml.safe_dump(text, default_style='"', width=math.inf).removesuffix("\n")


def _name(raw: str) -> str:
    """A key for the log: the name of its file or, of a pattern, of the folder that it starts from.

    >>> _name("logs/day=*/*.parquet"), _name("/data/2023 clicks.csv.gz")
    ('logs', 'log_2023_clicks')
    """
    parts = [part for part in Path(raw).absolute().parts if not re.search(r"[*?\[=/]", part)]
    name = re.sub(r"\W+", "_", parts[-1].split(".")[0] if parts else "", flags=re.ASCII).strip("_").lower()
    return name if re.match(r"[a-z]", name) and yaml.safe_load(name) == name else f"log_{name}".rstrip("_")


def _text(result: dict[str, Any], found: Findings) -> str:
    """The columns as a table, what is wrong, the draft, and what to do with it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("column", "type", "distinct", "missing", "examples", "use"):
        table.add_column(title, justify="right" if title == "distinct" else "left", overflow="fold")
    for column in result["columns"]:
        missing = [percent(column["missing_share"])] if column["missing_share"] else []
        missing += [f"{shown(value)} {percent(share)}" for value, share in column["stand_ins"].items()]
        distinct = f"{'≥ ' if column['distinct_is_at_least'] else ''}{column['distinct']:,}"
        use = column["role"] if column["role"] in _USES else f"left out: {column['role']}"
        cells = (
            shown(column["name"]),
            column["type"],
            distinct,
            ", ".join(missing),
            ", ".join(column["examples"]),
            use,
        )
        table.add_row(*map(Text, cells))
    page = io.StringIO()
    width = min(max(shutil.get_terminal_size((_WIDTH, 24)).columns, 60), 160)
    Console(file=page, width=width, color_system=None).print(table)
    of_all = "" if result["rows"] is None else f" of {result['rows']:,}"
    packed = f" compressed with {result['compression']}" if result["compression"] else ""
    several = f" and {len(result['files']) - 1:,} more" if len(result["files"]) > 1 else ""
    tasks = ",".join(found.labels) or "..."
    return "\n".join(
        [
            f"{shown(Path(result['files'][0]).name)}{several}: {result['format']}{packed}, "
            f"{result['rows_sampled']:,}{of_all} rows looked at",
            "\n".join(line.rstrip() for line in page.getvalue().splitlines()),
            *(f"! {problem}" for problem in result["problems"]),
            "",
            result["yaml"],
            "Paste this under `datasets:` in pipelines.yaml, then `python -m tasks validate` and",
            f"`make run DATASET={result['name']} TASKS={tasks}`.",
        ]
    )
