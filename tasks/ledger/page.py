"""The page of a nightly entry's budget: spent by day and night, against the total, with a forecast."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tasks.config.loading import Config
from tasks.config.nightly import TotalBudget, parsed_day
from tasks.ledger.book import Ledger
from tasks.ledger.composition import epsilon
from tasks.ledger.entries import DataDay, Entry, standing_on
from tasks.ledger.forecast import forecast, next_newest, planned_night, releases_of, repeated, simulate
from tasks.ledger.heat_map import heat_map
from tasks.ledger.release import Release
from tasks.ledger.spent import DaySpent
from tasks.reporting.document import Cell, Figure, Table
from tasks.reporting.page import render
from tasks.reporting.plots import Level, line_chart
from tasks.reporting.series import Point, Series
from tasks.reporting.terms import terms_in
from tasks.runtime.home import home, write_text
from tasks.runtime.progress import counted

# As many columns fit on a narrow screen, and as many rows are read at a glance.
MOST_NIGHTS, MOST_DAYS = 10, 30


class Column(NamedTuple):
    """An entry of the ledger as a column of the heat map, under the day of its night."""

    label: str
    entry: Entry


def page_path(name: str) -> Path:
    """Returns where the page of an entry of ``nightly`` is."""
    return home() / "reports" / f"nightly_retrain_{name}" / "ledger" / "page.html"


def write_page(name: str, config: Config, ledger: Ledger | None = None) -> Path:
    """Writes the page of an entry of ``nightly`` and returns its path."""
    path = page_path(name)
    write_text(path, ledger_page(name, config, ledger or Ledger.open()))
    return path


def ledger_page(name: str, config: Config, ledger: Ledger) -> str:
    """Returns the page: the forecast, a heat map, the days against the total, and all entries of the dataset."""
    night = config.night(name)
    budget = config.budget_name(night.dataset)
    entries = [entry for entry in ledger.entries() if any(day.dataset == budget for day in entry.days)]
    counting = [entry for entry in entries if entry.charges]
    columns = _columns(counting)[-MOST_NIGHTS:]
    shown = sorted({day.day for column in columns for day in column.entry.charges if day.dataset == budget})
    days = shown[-MOST_DAYS:]
    spent = ledger.spent(budget, night.total, since=days[0]) if days else {}
    figures = [_heat_map(counting, columns, days, budget, night.total), _totals(spent, night.total)] if days else []
    standing = [entry for entry in entries if entry.state == "reserved"]
    tables = [_days_table(spent, night.total), _entries_table(entries, night.total)] if days else []
    sentence = forecast_of(name, config, entries)
    return render(
        "ledger.html",
        name=name,
        dataset=budget,
        sentence=sentence,
        total=night.total,
        user=_user_text(night.total),
        figures=figures,
        tables=tables,
        standing=[entry.key for entry in standing],
        left_out=len(counting) - len(columns),
        head=str(ledger.verify().head),
        place=ledger.name,
        terms=terms_in([sentence]),
    )


def forecast_of(name: str, config: Config, entries: Sequence[Entry]) -> str:
    """Returns the sentence on where the budget of an entry's days goes.

    The rate is that of the last night whose key begins with the entry's name, or else with any model; before the first
    night it is what the settings would release on a synthetic dataset.
    """
    night = config.night(name)
    dataset = config.dataset(night.dataset)
    budget = config.budget_name(night.dataset)
    first = next_newest(entries, dataset, night, budget)
    nights = 2 * night.window_days + 1
    trained = [one for one in entries if any(_is_model(release, budget) for release in one.releases)]
    own = [one for one in trained if one.key.startswith(f"{name}/")] or trained
    if own:
        last = [release for release in own[-1].releases if release.dataset == budget]
        model_days = [day for release in last if _is_model(release, budget) for day in release.days]
        newest = datetime.date.fromisoformat(max(model_days)) + datetime.timedelta(days=1)
        releases = repeated(last, newest)
    elif dataset.synthetic is not None and dataset.synthetic.days is not None:
        rows = dataset.synthetic.days.rows * night.window_days
        releases = releases_of(night, planned_night(night, dataset, rows), budget)
    else:
        return "No night has been reserved yet, so there is no rate."
    return forecast(simulate(entries, releases, budget, night.total, first, nights), night.total)


def _is_model(release: Release, budget: str) -> bool:
    return release.kind == "model" and release.dataset == budget


def _columns(entries: Sequence[Entry]) -> list[Column]:
    """Returns the entries as columns. A key that ends with a date is a night; another is named by its newest day."""
    found = []
    for entry in entries:
        date = parsed_day(entry.key[-10:])
        label = entry.key[-10:] if date is not None else max(day.day for day in entry.charges)
        found.append(Column(label, entry))
    return found


def _heat_map(
    entries: Sequence[Entry], columns: Sequence[Column], days: Sequence[str], budget: str, total: TotalBudget
) -> Figure:
    """Returns ε of each day after each entry that touched it, everything before included."""
    cells: dict[tuple[str, str], float] = {}
    for column in columns:
        before = entries[: entries.index(column.entry) + 1]
        touched = [DataDay(budget, day) for day in days if DataDay(budget, day) in column.entry.charges]
        for day, charges in standing_on(before, touched).items():
            cells[day.day, column.label] = epsilon(charges, total.delta)
    nights = list(dict.fromkeys(column.label for column in columns))
    title = "ε of each day's data, night by night"
    svg = heat_map(cells, days, nights, total=total.epsilon, title=title)
    caption = (
        f"A cell is the ε of the day's data after that night, with everything before it. The colour is full at the "
        f"total of {total.epsilon:g}. Empty: the night did not read the day. Nights are of {nights[-1][:4]}, "
        "by their newest day."
    )
    return Figure("heat_map", title, svg, caption)


def _totals(spent: dict[str, DaySpent], total: TotalBudget) -> Figure:
    """Returns the days' ε as a line under the total."""
    days = list(spent)
    points = [Point(float(number), spent[day].epsilon) for number, day in enumerate(days)]
    step = max(1, -(-len(days) // 5))
    svg = line_chart(
        [Series("spent", points)],
        title="ε of each day's data against the total",
        x_label="day of data",
        y_label="ε",
        x_ticks={float(number): days[number][5:] for number in range(0, len(days), step)},
        levels=[Level(total.epsilon, f"total {total.epsilon:g}")],
        from_zero=True,
    )
    caption = "Everything that is reserved or committed. The newest days are in few windows so far."
    return Figure("totals", "Spent so far, against the total", svg, caption)


def _days_table(spent: dict[str, DaySpent], total: TotalBudget) -> Table:
    rows = []
    for day, one in reversed(spent.items()):
        left = max(total.epsilon - one.epsilon, 0.0)
        user = Cell("–", note=one.user_note) if one.user_epsilon is None else _number(one.user_epsilon)
        rows.append([Cell(day), _number(one.epsilon), _number(left), Cell(f"{len(one.by)}", len(one.by)), user])
    columns = ["day", "ε spent", "left", "entries", "ε of a user"]
    return Table("days", "Days", columns, rows, _user_text(total))


def _user_text(total: TotalBudget) -> str:
    return (
        f"“ε of a user” holds for someone with up to {counted(total.user_examples, 'example')} on each of "
        f"{counted(total.user_days, 'day')} in a row, of which the line's day is the first, and for no one with more. "
        + (
            "The total is for single examples."
            if total.user_epsilon is None
            else f"The total is for single examples, and that of such a user is ε = {total.user_epsilon:g}."
        )
    )


def _entries_table(entries: Sequence[Entry], total: TotalBudget) -> Table:
    rows = []
    for entry in reversed(entries):
        days = [day.day for day in entry.days]
        kinds = ", ".join(dict.fromkeys(release.kind for release in entry.reserved))
        alone = max((entry.own_epsilon(day, total.delta) for day in entry.days), default=0.0)
        span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        state = entry.state + (", resolved" if entry.resolved else "")
        when = entry.changed_at[:16].replace("T", " ")
        rows.append(
            [Cell(entry.key), Cell(state, note=entry.reason), _number(alone), Cell(kinds), Cell(span), Cell(when)]
        )
    columns = ["key", "state", "ε alone", "releases", "days", "changed (UTC)"]
    return Table("entries", "Entries", columns, rows, "ε alone is that of the entry by itself, at the total's δ.")


def _number(value: float) -> Cell:
    return Cell("∞" if value == float("inf") else f"{value:.3f}", value)
