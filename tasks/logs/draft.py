"""Drafts the description of a log for ``pipelines.yaml`` from a sample of its first rows.

The draft shows what is in the sample: the format, which column is the time, which are labels, which are features and
which to leave out. A person corrects it. However large the log is, only its start is read: at most 32 MB of text, or
the first rows of a Parquet file.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

import yaml
from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.config.dataset import Dataset
from tasks.logs.draft_findings import USES, Findings, examine_log
from tasks.logs.draft_sample import count_rows, percent, shown
from tasks.logs.draft_yaml import WIDTH, name_of, section
from tasks.logs.files import RawFile, find_files


class ColumnFacts(TypedDict):
    name: str
    type: str
    stored: str
    distinct: int
    missing_share: float
    stand_ins: dict[str, float]
    distinct_is_at_least: bool
    examples: list[str]
    role: str


class TimeCandidate(TypedDict):
    name: str
    time_format: str | None
    non_decreasing_share: float | None


class LabelCandidate(TypedDict):
    name: str
    task: str
    kind: str
    is_guess: bool


class Facts(TypedDict):
    """What the sample shows. ``rows`` is None unless the number of rows is known without reading the whole log."""

    name: str
    files: list[str]
    format: str
    delimiter: str | None
    header: bool
    compression: str | None
    rows_sampled: int
    rows: int | None
    columns: list[ColumnFacts]
    from_path: list[str]
    time_candidates: list[TimeCandidate]
    label_candidates: list[LabelCandidate]
    in_time_order: bool | None


class Draft(Facts):
    """The facts with the draft as ``yaml``, what a person has to look at, and all of it as ``text`` for a terminal.

    Without ``problems``, the draft is a valid description.
    """

    yaml: str
    problems: list[str]
    text: str


def draft_description(raw: Sequence[str], *, name: str | None = None, sample_rows: int = 100_000) -> Draft:
    """Drafts the section of ``pipelines.yaml`` for a log.

    Args:
        raw: Files, folders or patterns.
        name: The name of the dataset; by default after the first file.
        sample_rows: How many rows to look at.

    Raises:
        UserError: A file is missing or is neither text nor Parquet.
    """
    files = find_files(raw)
    found = examine_log(files, sample_rows)
    key = name or name_of(str(raw[0]))
    draft = section(found, key, list(dict.fromkeys(map(str, raw))), list(files[0].path_values))
    problems = [*found.problems, *_invalid(draft, key)]
    facts = _facts(found, key, files)
    return {**facts, "yaml": draft, "problems": problems, "text": _text(facts, found, draft, problems)}


def _invalid(draft: str, key: str) -> Iterator[str]:
    try:
        Dataset.model_validate(yaml.safe_load(draft)[key])
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, e['loc']))} {e['msg']}".strip() for e in error.errors())
        yield f"the draft is not a complete description yet: {details}"


def _facts(found: Findings, key: str, files: Sequence[RawFile]) -> Facts:
    sample = found.sample
    is_all = sample.is_whole and len(files) == 1
    return {
        "name": key,
        "files": [str(file.path) for file in files],
        "format": sample.format,
        "delimiter": sample.delimiter,
        "header": sample.header,
        "compression": files[0].compression,
        "rows_sampled": sample.rows,
        "rows": count_rows(files) if sample.format == "parquet" else sample.rows if is_all else None,
        "columns": [
            {
                "name": column.name,
                "type": column.type,
                "stored": column.stored,
                "distinct": column.distinct,
                "missing_share": column.missing_share,
                "stand_ins": column.stand_ins,
                "distinct_is_at_least": not is_all,
                "examples": list(column.examples),
                "role": role,
            }
            for column, role in found.roles.items()
        ],
        "from_path": list(files[0].path_values),
        "time_candidates": [
            {"name": c.name, "time_format": c.time_format, "non_decreasing_share": c.non_decreasing_share}
            for c in found.times
        ],
        "label_candidates": [
            {"name": c.column.name, "task": c.task, "kind": c.kind, "is_guess": found.is_guess}
            for c in found.candidates
        ],
        "in_time_order": found.in_order,
    }


def _text(facts: Facts, found: Findings, draft: str, problems: Sequence[str]) -> str:
    """Returns the columns as a table, the problems, the draft, and what to do with it."""
    of_all = "" if facts["rows"] is None else f" of {facts['rows']:,}"
    packed = f" compressed with {facts['compression']}" if facts["compression"] else ""
    several = f" and {len(facts['files']) - 1:,} more" if len(facts["files"]) > 1 else ""
    tasks = ",".join(found.labels) or "..."
    return "\n".join(
        [
            f"{shown(Path(facts['files'][0]).name)}{several}: {facts['format']}{packed}, "
            f"{facts['rows_sampled']:,}{of_all} rows sampled",
            _table(facts["columns"]),
            *(f"! {problem}" for problem in problems),
            "",
            draft,
            "Paste this under `datasets:` in pipelines.yaml, then run `python -m tasks validate` and",
            f"`make run DATASET={facts['name']} TASKS={tasks}`.",
        ]
    )


def _table(columns: Sequence[ColumnFacts]) -> str:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("column", "type", "distinct", "missing", "examples", "use"):
        table.add_column(title, justify="right" if title == "distinct" else "left", overflow="fold")
    for column in columns:
        missing = [percent(column["missing_share"])] if column["missing_share"] else []
        missing += [f"{shown(value)} {percent(share)}" for value, share in column["stand_ins"].items()]
        distinct = f"{'≥ ' if column['distinct_is_at_least'] else ''}{column['distinct']:,}"
        use = column["role"] if column["role"] in USES else f"left out: {column['role']}"
        examples = ", ".join(column["examples"])
        cells = (shown(column["name"]), column["type"], distinct, ", ".join(missing), examples, use)
        table.add_row(*map(Text, cells))
    page = io.StringIO()
    width = min(max(shutil.get_terminal_size((WIDTH, 24)).columns, 60), 160)
    Console(file=page, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())
