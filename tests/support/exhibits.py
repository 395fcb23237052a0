"""What tests of exhibits have in common."""

from __future__ import annotations

import csv
import functools
import io
import xml.etree.ElementTree as ET
from typing import get_args

from tasks.config import load_config
from tasks.document import Table, Verdict
from tasks.exhibits.common import Exhibit
from tasks.grids import Pipeline
from tasks.home import CHECKOUT
from tasks.report_files import as_csv


@functools.cache
def pipeline_of(name: str) -> Pipeline:
    """As it is in the checkout, with its columns and the paper's numbers."""
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
    """The texts of a table by what is in the first column."""
    return {
        row[0].text: {name: cell.text for name, cell in zip(table.columns[1:], row[1:], strict=True)}
        for row in table.rows
    }


def verdicts(shown: Exhibit) -> list[str]:
    return [finding.verdict for finding in shown.findings]
