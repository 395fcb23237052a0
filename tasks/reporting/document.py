"""What a report says, before it has a form: figures, tables, findings, and where they come from.

Pipelines make documents of their results; other modules write them as a page, as Markdown and as CSV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple


class Cell(NamedTuple):
    """``sort`` is what a column is sorted by, if not the text. A reader who points at it sees the ``note``."""

    text: str
    sort: float | None = None
    note: str = ""
    link: str = ""
    strong: bool = False


class Table(NamedTuple):
    """``name`` is that of its file. ``records`` are the numbers behind the cells, for a program to read as CSV; all
    have the same keys. A table without them is written to CSV as it is shown."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    records: Sequence[Mapping[str, Any]] = ()


class Figure(NamedTuple):
    """``svg`` is a whole ``<svg>`` element, as svg_plots draws it."""

    name: str
    title: str
    svg: str
    caption: str = ""


Verdict = Literal["shown", "within noise", "not shown"]


class Finding(NamedTuple):
    """Something that the paper reports, and whether these numbers show it too."""

    claim: str
    verdict: Verdict
    evidence: str


class Document(NamedTuple):
    """One pipeline run's results.

    ``shows`` names what of the paper it is (“Table 2”). ``headline`` is one sentence for the index. ``figures`` and
    ``tables`` come first; then ``findings``; ``details`` are tables for whoever wants to check. ``notes`` are
    paragraphs that a reader must know (what ε covers, whether seeds were fixed). ``cards`` are the data cards, whole
    HTML pages by the dataset's name. ``provenance`` is shown as name and value.
    """

    pipeline: str
    profile: str
    run: str
    title: str
    shows: str
    headline: str
    finished: str
    command: str
    figures: Sequence[Figure]
    tables: Sequence[Table]
    findings: Sequence[Finding]
    notes: Sequence[str]
    details: Sequence[Table]
    cards: Mapping[str, str]
    provenance: Mapping[str, str]
    mlflow_link: str
