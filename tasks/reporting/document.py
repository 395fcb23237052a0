"""The contents of a report, independent of how they are written: figures, tables, findings and provenance.

The reporting step makes a document; other modules write it as a page, as Markdown and as CSV.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        sort: The number to sort a column by, instead of the text.
        note: The tooltip.
        link: The target: an address on the web, a file beside the page, or a place in MLflow (see ``targets``).
        strong: Whether the text is bold.
    """

    text: str
    sort: float | None = None
    note: str = ""
    link: str = ""
    strong: bool = False


class Table(NamedTuple):
    """A table.

    Attributes:
        name: The name of its CSV file.
        records: The numbers behind the cells, which the CSV file holds; all have the same keys. A table without records
            is written to CSV as it is shown.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    records: Sequence[Mapping[str, Any]] = ()


class Figure(NamedTuple):
    """A figure; ``svg`` is a complete ``<svg>`` element, as ``plots`` draws it."""

    name: str
    title: str
    svg: str
    caption: str = ""


Verdict = Literal["shown", "within noise", "not shown"]

# Verdicts differ by their signs, not only by their colours.
SIGNS: Mapping[Verdict, str] = {"shown": "✓", "within noise": "≈", "not shown": "✗"}

_NUMBER = re.compile(r"[-+−<>≤≥≈±]?\s?(?:[\d,]*\.?\d+(?:e[-+]?\d+)?|∞)\s?%?(?=$|[\s(±×/])", re.IGNORECASE)


class Finding(NamedTuple):
    """A claim and whether the run's numbers show it, with the evidence."""

    claim: str
    verdict: Verdict
    evidence: str


class Caveat(NamedTuple):
    """Something that may explain a number other than what it is claimed to show, and what follows from it.

    ``serious`` is whether the claim does not hold while this does.
    """

    claim: str
    consequence: str
    serious: bool


class Document(NamedTuple):
    """The report of one pipeline run.

    Attributes:
        only_for_tests: Whether the numbers mean nothing, by the profile.
        shows: The part of the paper that it reproduces, such as “the paper's Table 2”; may be empty.
        headline: One sentence, also for the index.
        finished: When the report was made, as text.
        command: The command that repeats the run.
        figures: The figures, which come first on the page, with ``tables``.
        notes: What a reader must know, one paragraph each: what ε covers, whether seeds were fixed.
        details: Tables for readers who want to check the numbers.
        cards: The data cards as HTML pages, by dataset.
        statements: The privacy statements of the trials as Markdown, by their anchors in the page of statements.
        provenance: Versions, fingerprints and the machine, by name.
        mlflow_link: The target of the run in MLflow.
        compare_link: The target of the comparison of all trials in MLflow; may be empty.
        verdict: Whether the numbers are the price of privacy, in a sentence; empty if they are not claimed to be.
        caveats: What else could explain the numbers. The verdict holds if none is serious.
        more_figures: Figures that come after the findings.
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
    statements: Mapping[str, str]
    provenance: Mapping[str, str]
    mlflow_link: str
    compare_link: str = ""
    only_for_tests: bool = False
    verdict: str = ""
    caveats: Sequence[Caveat] = ()
    more_figures: Sequence[Figure] = ()

    @property
    def holds(self) -> bool:
        return not any(caveat.serious for caveat in self.caveats)

    @property
    def warning(self) -> str:
        """What a reader must know before anything else; empty if there is nothing."""
        if not self.only_for_tests:
            return ""
        return (
            f"The profile {self.profile} is only for tests. Its trainings are too short to learn, so the numbers on "
            "this page mean nothing."
        )


def numeric_columns(table: Table) -> list[bool]:
    """Returns which columns hold mostly numbers, with or without a spread, sign or unit. A dash counts as empty."""
    texts = [[row[at].text.strip().strip("–") for row in table.rows] for at in range(len(table.columns))]
    return [2 * sum(bool(_NUMBER.match(text)) for text in column) > sum(map(bool, column)) for column in texts]


def flat(text: str) -> str:
    """Returns text on one line, with control characters replaced: a terminal would act on them."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
