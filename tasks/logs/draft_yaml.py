"""The section of ``pipelines.yaml`` that describes a log, as lines of YAML with comments."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

from tasks.logs.draft_findings import USES, Findings

WIDTH = 120
_PLAIN = re.compile(r"[A-Za-z_/.][\w./*=-]*", re.ASCII)


def section(found: Findings, name: str, raw: Sequence[str], from_path: Sequence[str]) -> str:
    """Returns the section, to be pasted under ``datasets``."""
    blocks = (_files(found, name, raw), _time(found), _features(found, from_path), _labels(found))
    return "".join(f"{line}\n" for lines in blocks for line in lines)


def name_of(raw: str) -> str:
    """Returns a name for the log: that of its file or, for a pattern, of the folder that the pattern starts from.

    >>> name_of("logs/day=*/*.parquet"), name_of("/data/2023 clicks.csv.gz")
    ('logs', 'log_2023_clicks')
    """
    parts = [part for part in Path(raw).absolute().parts if not re.search(r"[*?\[=/]", part)]
    name = re.sub(r"\W+", "_", parts[-1].split(".")[0] if parts else "", flags=re.ASCII).strip("_").lower()
    return name if re.match(r"[a-z]", name) and yaml.safe_load(name) == name else f"log_{name}".rstrip("_")


def _files(found: Findings, name: str, raw: Sequence[str]) -> Iterator[str]:
    sample = found.sample
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


def _time(found: Findings) -> Iterator[str]:
    if found.time is None:
        yield from _comment("No time column found: rows, and files by name, must be in the order of time.")
        return
    yield f"    time_column: {_scalar(found.time.name)}"
    if found.time.time_format not in (None, "seconds"):
        yield f"    time_format: {found.time.time_format}"
    if found.in_order:
        yield "    in_time_order: true"


def _features(found: Findings, from_path: Sequence[str]) -> Iterator[str]:
    for role in ("integer", "categorical"):
        if names := found.names(role):
            yield from _list(f"{role}_columns", names)
    if reasons := [role for role in dict.fromkeys(found.roles.values()) if role not in USES]:
        left_out = (f"{', '.join(map(_scalar, found.names(reason)))} ({reason})" for reason in reasons)
        yield from _comment(f"Left out: {'; '.join(left_out)}.")
    if from_path:
        listed = ", ".join(map(_scalar, from_path))
        yield from _comment(f"Every path has a value of {listed}: to use it as a column, add it to path_columns.")


def _labels(found: Findings) -> Iterator[str]:
    if not found.labels:
        yield from _comment("labels: {pctr: {column: ?, kind: binary}}")
        yield from _comment(
            "needed: a column of 0 and 1 for pctr or pcvr, or a count for pcvr (any) or pconvs (count)."
        )
        return
    if found.is_guess:
        yield from _comment("The label is a guess: the first column of 0 and 1.")
    elif "pctr" in found.labels and "pcvr" in found.labels:
        clicked = _scalar(found.labels["pctr"].column.name)
        yield from _comment(f"To train pcvr on clicks only, add: keep_rows: {{{clicked}: 1}}")
    yield "    labels:"
    for task, label in found.labels.items():
        yield f"      {task}: {{column: {_scalar(label.column.name)}, kind: {label.kind}}}"


def _list(key: str, values: Iterable[str]) -> Iterator[str]:
    items = [_scalar(value) for value in values]
    line = f"    {key}: [{', '.join(items)}]"
    if len(line) > WIDTH:
        yield f"    {key}:"
        line = "      ["
        for item in items[:-1]:
            if len(line) + len(item) >= WIDTH and not line.endswith("["):
                yield line.rstrip()
                line = "       "
            line += f"{item}, "
        if len(line) + len(items[-1]) >= WIDTH and not line.endswith("["):
            yield line.rstrip()
            line = "       "
        line += f"{items[-1]}]"
    yield line


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="    # ", subsequent_indent="    # ", break_long_words=False)


def _scalar(text: str) -> str:
    """Returns the text as YAML on one line."""
    if _PLAIN.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    return yaml.safe_dump(text, default_style='"', width=math.inf).removesuffix("\n")
