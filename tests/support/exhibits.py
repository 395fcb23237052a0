"""Helpers for tests of exhibits."""

from __future__ import annotations

import csv
import functools
import io
import xml.etree.ElementTree as ET
from typing import get_args

from tasks.config.loading import load_config
from tasks.config.pipeline import Pipeline
from tasks.reporting.document import Table, Verdict
from tasks.reporting.exhibits.common import Exhibit
from tasks.reporting.files import as_csv
from tasks.runtime.home import CHECKOUT


@functools.cache
def pipeline_of(name: str) -> Pipeline:
    """Returns a pipeline of the checkout's pipelines.yaml."""
    return load_config(CHECKOUT / "pipelines.yaml").pipeline(name)


def well_formed(shown: Exhibit) -> Exhibit:
    assert "\n" not in shown.headline
    assert shown.headline[-1] == "."
    assert shown.figures
    for figure in shown.figures:
        assert ET.fromstring(figure.svg).tag.endswith("svg")
    for table in shown.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert len({tuple(record) for record in table.records}) <= 1
        assert len(csv_of(table)) == len(table.records or table.rows)
    for named in (shown.figures, shown.tables):
        names = [item.name for item in named]
        assert len(set(names)) == len(names)
    assert shown.tables[0].name == "table"
    assert {finding.verdict for finding in shown.findings} <= set(get_args(Verdict))
    assert len({finding.claim for finding in shown.findings}) == len(shown.findings)
    return shown


def csv_of(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_csv(table))))


def rows_of(table: Table) -> dict[str, dict[str, str]]:
    """Returns the texts of a table, by the text in the first column and by the header."""
    return {
        row[0].text: {name: cell.text for name, cell in zip(table.columns[1:], row[1:], strict=True)}
        for row in table.rows
    }


def verdicts(shown: Exhibit) -> list[str]:
    return [finding.verdict for finding in shown.findings]
