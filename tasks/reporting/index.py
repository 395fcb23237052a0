"""The index of all reports, the front page: the newest results of each pipeline, the data cards, then every run.

The reports server makes the page anew for each request (``served``). The report step also writes it as a file, for
readers without a server.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tasks.reporting.document import SIGNS, Cell, Table, Verdict
from tasks.reporting.files import PAGE, SUMMARY
from tasks.reporting.page import render
from tasks.reporting.terms import terms_in
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json, write_text

_TEXTS = ("pipeline", "profile", "run", "title", "shows", "headline", "finished")


class Summary(NamedTuple):
    """A run's ``summary.json``.

    Attributes:
        link: Leads from the index to the run's page; empty if there is none.
        only_for_tests: Whether the numbers mean nothing, by the profile.
        verdict: Whether the numbers are the price of privacy, in a sentence; empty if they are not claimed to be.
        holds: Whether they are.
    """

    pipeline: str
    profile: str
    run: str
    title: str
    shows: str
    headline: str
    finished: str
    findings: Mapping[Verdict, int]
    link: str
    only_for_tests: bool = False
    verdict: str = ""
    holds: bool = False

    @property
    def moment(self) -> datetime.datetime:
        """The time at which the run finished: UTC unless it names a zone, and the year 1 if it cannot be parsed."""
        try:
            found = datetime.datetime.fromisoformat(self.finished.strip().removesuffix("UTC").strip())
        except ValueError:
            found = datetime.datetime.min
        return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


class DataCard(NamedTuple):
    """The data card of a prepared dataset.

    Attributes:
        file: The page.
        prepared: When it was written, as text.
        link: Leads from the index to the card.
    """

    dataset: str
    fingerprint: str
    file: Path
    prepared: str
    link: str


def write_index(reports: Path) -> Path:
    """Writes ``index.html`` for the reports in a folder of the home folder, and returns its path.

    A run is a folder ``<pipeline>/<run>`` with a ``summary.json``. Symbolic links such as ``latest``, hidden folders
    and everything else are skipped.
    """
    path = reports / "index.html"
    write_text(path, index_page(read_summaries(reports), data_cards=read_data_cards(reports.parent)))
    return path


def read_summaries(reports: Path) -> list[Summary]:
    """Returns all runs with a readable summary, newest first."""
    found = [_read(folder) for pipeline in _folders(reports) for folder in _folders(pipeline)]
    runs = [summary for summary in found if summary is not None]
    return sorted(runs, key=lambda run: (run.moment, run.finished, run.run), reverse=True)


def read_data_cards(home: Path, *, served: bool = False) -> list[DataCard]:
    """Returns the data cards in a home folder, newest first.

    Args:
        home: The home folder.
        served: Whether links are those of the reports server, ``/data/<dataset>/<folder>/data_card.html``, or paths
            of files relative to ``reports``.
    """
    found = []
    for dataset in _folders(home / "data"):
        for folder in _folders(dataset):
            file = folder / "data_card.html"
            try:
                written = datetime.datetime.fromtimestamp(file.stat().st_mtime, datetime.UTC)
            except OSError:
                continue
            link = f"{'/' if served else '../'}data/{quote(dataset.name)}/{quote(folder.name)}/{file.name}"
            found.append(DataCard(dataset.name, folder.name, file, f"{written:%Y-%m-%d %H:%M UTC}", link))
    return sorted(found, key=lambda card: (card.prepared, card.dataset, card.fingerprint), reverse=True)


def index_page(runs: Sequence[Summary], *, served: bool = False, data_cards: Sequence[DataCard] = ()) -> str:
    """Returns the index page.

    Args:
        runs: Sorted newest first, as `read_summaries` returns them.
        served: Whether the reports server serves the page, so that it can link Airflow and MLflow.
        data_cards: As `read_data_cards` returns them for the same ``served``.
    """
    # Later ones replace earlier ones: a run whose numbers mean something any that is only for tests, then a newer one.
    order = [*(run for run in runs if not run.only_for_tests), *(run for run in runs if run.only_for_tests)]
    newest = {run.pipeline: run for run in reversed(order)}
    shown = sorted(newest.values(), key=runs.index)
    return render(
        "index.html",
        newest=shown,
        all_runs=_table(runs),
        data_cards=data_cards,
        served=served,
        terms=terms_in(["ε", *(text for run in shown for text in (run.title, run.headline))]),
    )


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
    verdict = values.get("verdict")
    return Summary(
        **{name: values[name] for name in _TEXTS},
        findings=counts,
        link=link,
        only_for_tests=values.get("only_for_tests") is True,
        verdict=verdict if isinstance(verdict, str) else "",
        holds=not _doubted(values.get("caveats")),
    )


def _doubted(caveats: object) -> bool:
    """Returns whether one of a summary's caveats is serious."""
    listed = caveats if isinstance(caveats, list) else []
    return any(isinstance(caveat, dict) and caveat.get("serious") is True for caveat in listed)


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
            Cell(f"{run.profile}, only a test" if run.only_for_tests else run.profile),
            Cell(run.run, link=run.link),
            *(Cell(f"{count:,}", sort=count) for count in run.findings.values()),
            Cell(run.headline),
        ]
        for run in runs
    ]
    return Table("runs", "All runs", columns, rows)
