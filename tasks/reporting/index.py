"""The index of all reports: the latest run of each pipeline, then every run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tasks.reporting.document import SIGNS, Cell, Table, Verdict
from tasks.reporting.files import PAGE, SUMMARY
from tasks.reporting.page import render
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json, write_text

_TEXTS = ("pipeline", "profile", "run", "title", "shows", "headline", "finished")


class Summary(NamedTuple):
    """A run's ``summary.json``; ``link`` leads from the index to the run's page, and is empty if there is none."""

    pipeline: str
    profile: str
    run: str
    title: str
    shows: str
    headline: str
    finished: str
    findings: Mapping[Verdict, int]
    link: str

    @property
    def moment(self) -> datetime.datetime:
        """The time at which the run finished: UTC unless it names a zone, and the year 1 if it cannot be parsed."""
        try:
            found = datetime.datetime.fromisoformat(self.finished.strip().removesuffix("UTC").strip())
        except ValueError:
            found = datetime.datetime.min
        return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def write_index(reports: Path) -> Path:
    """Writes ``index.html`` for the reports in a folder and returns its path.

    A run is a folder ``<pipeline>/<run>`` with a ``summary.json``. Symbolic links such as ``latest``, hidden folders
    and everything else are skipped.
    """
    path = reports / "index.html"
    write_text(path, index_page(read_summaries(reports)))
    return path


def read_summaries(reports: Path) -> list[Summary]:
    """Returns all runs with a readable summary, newest first."""
    found = [_read(folder) for pipeline in _folders(reports) for folder in _folders(pipeline)]
    runs = [summary for summary in found if summary is not None]
    return sorted(runs, key=lambda run: (run.moment, run.finished, run.run), reverse=True)


def index_page(runs: Sequence[Summary]) -> str:
    """Returns the index page of runs that are sorted newest first."""
    newest = {run.pipeline: run for run in reversed(runs)}
    return render("index.html", newest=sorted(newest.values(), key=runs.index), all_runs=_table(runs))


def _folders(parent: Path) -> list[Path]:
    """Returns the visible folders in a folder, none if it cannot be read."""
    try:
        children = sorted(parent.iterdir())
        return [child for child in children if not child.name.startswith(".") and _is_folder(child)]
    except OSError:
        return []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _read(folder: Path) -> Summary | None:
    try:
        values = read_json(folder / SUMMARY)
    except (OSError, UserError):
        return None
    if not isinstance(values, dict) or not all(isinstance(values.get(name), str) for name in _TEXTS):
        return None
    findings = values.get("findings")
    if not isinstance(findings, dict) or not all(isinstance(findings.get(verdict, 0), int) for verdict in SIGNS):
        return None
    link = f"{quote(folder.parent.name)}/{quote(folder.name)}/{PAGE}" if (folder / PAGE).is_file() else ""
    counts = {verdict: findings.get(verdict, 0) for verdict in SIGNS}
    return Summary(**{name: values[name] for name in _TEXTS}, findings=counts, link=link)


def _table(runs: Sequence[Summary]) -> Table:
    columns = [
        "finished",
        "pipeline",
        "profile",
        "run",
        *(f"{sign} {name}" for name, sign in SIGNS.items()),
        "headline",
    ]
    rows = [
        [
            Cell(run.finished, sort=run.moment.timestamp() if run.moment.year > 1 else None),
            Cell(run.pipeline, note=run.title),
            Cell(run.profile),
            Cell(run.run, link=run.link),
            *(Cell(f"{count:,}", sort=count) for count in run.findings.values()),
            Cell(run.headline),
        ]
        for run in runs
    ]
    return Table("runs", "All runs", columns, rows)
