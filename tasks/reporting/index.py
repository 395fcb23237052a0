"""The first page of all reports: the newest run of every pipeline, and then every run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tasks.document import Cell, Table
from tasks.home import read_json, write_text
from tasks.html_page import SIGNS, badge, html_table, link_to, one_line, page
from tasks.report_files import PAGE, SUMMARY

_TEXTS = ("pipeline", "profile", "run", "title", "shows", "headline", "finished")


class Summary(NamedTuple):
    """What a run's ``summary.json`` says, and the page's address from the folder of all reports, if it has one."""

    pipeline: str
    profile: str
    run: str
    title: str
    shows: str
    headline: str
    finished: str
    findings: Mapping[str, int]
    link: str

    @property
    def moment(self) -> datetime.datetime:
        """When the run finished; a time without a zone is taken for UTC, and no time for the beginning of time."""
        try:
            found = datetime.datetime.fromisoformat(self.finished.strip().removesuffix("UTC").strip())
        except ValueError:
            found = datetime.datetime.min
        return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def write_index(reports: Path) -> Path:
    """Writes ``index.html`` of the reports that are in the folder now, whole, and returns its path.

    A run is a folder ``<pipeline>/<run>`` with a ``summary.json``. Links such as ``latest``, hidden folders and
    whatever else lies there are left out.
    """
    path = reports / "index.html"
    write_text(path, index_page(read_summaries(reports)))
    return path


def read_summaries(reports: Path) -> list[Summary]:
    """All runs that have a summary, the newest first."""
    found = [_read(folder) for pipeline in _folders(reports) for folder in _folders(pipeline)]
    runs = [summary for summary in found if summary is not None]
    return sorted(runs, key=lambda run: (run.moment, run.finished, run.run), reverse=True)


def index_page(runs: Sequence[Summary]) -> str:
    """The page for some runs, which are in the order of the list."""
    if not runs:
        return page("Reports", ["<h1>Reports</h1>", "<p>There are none yet. <code>make run</code> makes one.</p>"])
    newest = {run.pipeline: run for run in reversed(runs)}
    cards = [_card(run) for run in sorted(newest.values(), key=runs.index)]
    sections = [
        "<h1>Reports</h1>",
        "<h2>The newest of each pipeline</h2>",
        f'<div class="runs">\n{chr(10).join(cards)}\n</div>',
        "<h2>All runs</h2>",
        html_table(_table(runs), heading=False),
    ]
    return page("Reports", sections)


def _folders(parent: Path) -> list[Path]:
    """The folders in a folder; whatever cannot be read has none."""
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
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not all(isinstance(values.get(name), str) for name in _TEXTS):
        return None
    findings = values.get("findings")
    if not isinstance(findings, dict) or not all(isinstance(findings.get(verdict, 0), int) for verdict in SIGNS):
        return None
    link = f"{quote(folder.parent.name)}/{quote(folder.name)}/{PAGE}" if (folder / PAGE).is_file() else ""
    counts = {verdict: findings.get(verdict, 0) for verdict in SIGNS}
    return Summary(**{name: values[name] for name in _TEXTS}, findings=counts, link=link)


def _card(run: Summary) -> str:
    facts = [run.pipeline, run.shows, f"profile {run.profile}", f"finished {run.finished}"]
    verdicts = "".join(badge(verdict, f"{count} {verdict}") for verdict, count in run.findings.items() if count)
    return (
        f"<section><h3>{link_to(run.link, one_line(run.title))}</h3><p>{one_line(run.headline)}</p>"
        f'<p class="facts">{" · ".join(one_line(fact) for fact in facts if fact)}</p>'
        f"{f'<p>{verdicts}</p>' if verdicts else ''}</section>"
    )


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
