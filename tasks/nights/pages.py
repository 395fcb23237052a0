"""Writes the pages of an entry: the overview of its nights, the page of one night, and the ledger's page."""

from __future__ import annotations

import datetime
from pathlib import Path

from tasks.config.loading import Config, load_config
from tasks.ledger.book import Ledger
from tasks.ledger.page import forecast_of, write_page
from tasks.nights.champions import history
from tasks.nights.explanation import explanation
from tasks.nights.overview import OVERVIEW, Budget, overview
from tasks.nights.record import dag_id, read_night, read_nights
from tasks.reporting.document import Table
from tasks.reporting.files import PAGE, report_files, write_report
from tasks.reporting.index import write_index
from tasks.runtime.home import home

# The columns of the table of nights that fit into a terminal: night, ending, both models, calibration and ε.
_IN_TERMINALS = (0, 1, 2, 3, 5, 6)


def overview_page(name: str) -> Path:
    """Returns the page of all nights of an entry."""
    return home() / "reports" / dag_id(name) / OVERVIEW / PAGE


def write_night_pages(name: str, day: str) -> dict[str, str]:
    """Writes the pages after the night of a day. Returns the paths of the overview's files."""
    config, now = load_config(), datetime.datetime.now(datetime.UTC)
    nightly = config.night(name)
    reports = home() / "reports" / dag_id(name)
    night = read_night(name, day)
    if night is not None:
        folder = reports / day
        folder.mkdir(parents=True, exist_ok=True)
        write_report(folder, explanation(nightly, night))
    write_page(name, config)
    budget = _budget(name, config)
    folder = overview_page(name).parent
    folder.mkdir(parents=True, exist_ok=True)
    write_report(folder, overview(name, nightly, read_nights(name), history(name), budget, now))
    write_index(home() / "reports")
    return {**report_files(folder), "table": str(folder / "nights.csv")}


def terminal_tables(name: str) -> list[Table]:
    """Returns the tables of the overview for a terminal: the nights by few columns, then how things stand."""
    config = load_config()
    nights, budget = read_nights(name), _budget(name, config)
    document = overview(name, config.night(name), nights, history(name), budget, datetime.datetime.now(datetime.UTC))
    status, table = document.tables
    short = table._replace(
        columns=[table.columns[at] for at in _IN_TERMINALS],
        rows=[[row[at] for at in _IN_TERMINALS] for row in table.rows],
    )
    return [short, status._replace(rows=status.rows[:-1])]


def _budget(name: str, config: Config) -> Budget:
    """Returns what the ledger says of an entry's dataset."""
    nightly, ledger = config.night(name), Ledger.open()
    spent = ledger.spent(config.budget_name(nightly.dataset), nightly.total, users=False)
    most = max(spent.values(), key=lambda day: day.epsilon, default=None)
    return Budget(
        most_spent=0.0 if most is None else most.epsilon,
        on_day="" if most is None else most.day,
        forecast=forecast_of(name, config, ledger.entries()),
    )
